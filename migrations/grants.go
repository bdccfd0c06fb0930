package migrations

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// A Privilege is a permission of a role on tables of the index: SELECT, INSERT, UPDATE or DELETE,
// with all columns or some.
type Privilege struct {
	Role    string // committer, walker, reader, operator, pruner, scrubber, restorer or monitor; admin owns the tables
	Actions []string
	Tables  []string
	Columns []string // nil: all
}

// Privileges are all privileges of the roles. They follow from the queries of
// internal/index/entindex and pgindex: the tables and columns that the statements name, and a
// column for locking rows (SELECT … FOR SHARE requires UPDATE of one).
//
// Only the pruner may delete a snapshot, a pack, a chunk or a chunk list. No role may change a
// repository, a shard's key or an entry of the log.
var Privileges = []Privilege{
	// Walkers compare with the pages of the last snapshot.
	{"walker", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "pages", "interrupted_pages", "reread_pages"), nil},

	// Readers look up the places of chunks, and old listings. The place of a pack is its object,
	// offset and length.
	{"reader", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "pages", "reread_pages", "chunks", "chunk_copies"), nil},
	// Limits of filers change while batches are read (ReadShares).
	{"reader", may("SELECT"), in("filers"), of("id", "read_bytes", "read_batches", "read_slots")},
	{"reader", may("SELECT"), in("read_batches"), of("filer_id", "lease_until")},
	{"reader", may("SELECT"), in("packs"), of("id", "pack", "sealed", "snapshot", "object", "object_offset", "stored_bytes", "condemned")},

	// Committers are the only writers of results. They also lead and schedule.
	{"committer", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "filers", "shards", "policies"), nil},
	{"committer", may("SELECT", "INSERT"), in("packs", "chunk_copies", "chunk_lists", "catalogs", "problems"), nil},
	{"committer", may("SELECT", "INSERT", "UPDATE"), in("snapshots", "chunks", "leaders"), nil},
	{"committer", may("SELECT", "INSERT", "UPDATE", "DELETE"), in("pages", "walk_tasks", "read_batches", "slice_parts"), nil},
	{"committer", may("SELECT", "INSERT", "DELETE"), in("interrupted_pages", "name_blocks"), nil},
	{"committer", may("SELECT", "INSERT", "UPDATE", "DELETE"), in("name_groups"), nil},
	{"committer", may("SELECT"), in("names_incomplete"), nil},
	{"committer", may("SELECT", "DELETE"), in("reread_pages"), nil},
	{"committer", may("UPDATE"), in("interrupted_pages"), of("listing", "base")},
	// The lock of a row needs one of these privileges.
	{"committer", may("UPDATE"), in("packs"), of("condemned")},
	// Numbers of catalogs are used once.
	{"committer", may("SELECT"), in("catalog_numbers"), nil},
	{"committer", may("UPDATE"), in("catalog_numbers"), of("last")},
	// Each role that writes compares the index with the store. A pruner announces deletions.
	{"committer", may("SELECT"), in("lost_snapshots", "removed_snapshots"), nil},
	{"operator", may("SELECT"), in("catalog_numbers", "catalogs", "lost_snapshots"), nil},
	{"pruner", may("SELECT"), in("catalog_numbers", "lost_snapshots"), nil},
	{"pruner", may("UPDATE"), in("catalog_numbers"), of("deletions")},
	// A lock of a row needs this privilege.
	{"committer", may("UPDATE"), in("chunk_lists"), of("nested")},
	{"committer", may("UPDATE"), in("filers"), of("walk_slots", "read_slots", "walk_latency", "walk_idle", "read_latency", "read_idle")},
	{"committer", may("UPDATE"), in("shards"), of("last_number", "last_good", "last_good_number", "last_good_started", "last_good_files",
		"last_good_bytes", "interrupted", "checkpoint_bytes", "segment_bytes", "policy_id", "policy_revision", "due", "deadline")},

	// Committers apply the rules of policies, and write to the log what these forget.
	{"committer", may("SELECT"), in("holds", "readings", "log"), nil},
	{"committer", may("INSERT"), in("log"), of("time", "by", "action", "subject", "reason")},
	// They put a shard on hold whose files look encrypted.
	{"committer", may("INSERT"), in("holds"), of("shard", "reason", "by", "since", "alarm")},

	// The brake stops what policies would forget.
	{"committer", may("SELECT"), in("brake", "confirmations", "scrub"), nil},
	{"committer", may("SELECT", "DELETE"), in("stops"), nil},
	{"committer", may("INSERT"), in("stops"), stopColumns},

	// The pruner finds and deletes what no snapshot needs. A trigger ensures that it leads as the
	// pruner only, and other triggers that it deletes only snapshots that are forgotten, and packs
	// that were condemned before.
	{"pruner", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "filers", "shards", "policies", "snapshots", "pages",
		"interrupted_pages", "packs", "chunks", "chunk_copies", "chunk_lists", "problems", "readings", "removed_snapshots", "holds", "catalogs"), nil},
	{"pruner", may("DELETE"), in("snapshots", "pages", "interrupted_pages", "packs", "chunks", "chunk_copies", "chunk_lists", "problems", "readings"), nil},
	{"pruner", may("INSERT"), in("removed_snapshots"), nil},
	// It collects names from the pages.
	{"pruner", may("SELECT", "INSERT", "UPDATE", "DELETE"), in("name_blocks", "name_groups", "names_incomplete"), nil},
	// Its sweeps leave packs alone that a repair may take back, and checks look for them.
	{"pruner", may("SELECT"), in("lost_packs"), nil},
	{"operator", may("SELECT"), in("lost_packs"), nil},
	// The records of snapshots may have been amended.
	{"pruner", may("SELECT", "DELETE"), in("amendments"), nil},
	{"committer", may("SELECT"), in("amendments"), nil},
	{"operator", may("SELECT"), in("amendments", "purges", "purge_chunks", "purge_objects"), nil},
	{"pruner", may("SELECT", "INSERT", "DELETE"), in("prunes"), nil}, // what it has freed
	// A pack that is moved has a new row, and its chunks get that place.
	{"pruner", may("INSERT"), in("packs"), nil},
	{"pruner", may("UPDATE"), in("chunk_copies"), of("pack")},
	{"pruner", may("SELECT", "INSERT"), in("leaders", "sweep"), nil},
	{"pruner", may("UPDATE"), in("sweep"), of("section")},
	{"pruner", may("UPDATE"), in("leaders"), of("holder", "epoch", "until")},
	{"pruner", may("UPDATE"), in("packs"), of("condemned", "condemned_at", "deleted", "gone", "locked_until")},
	// Catalogs that newer ones have replaced.
	{"pruner", may("SELECT", "DELETE"), in("catalogs"), nil},
	// It locks what snapshots need for longer, and notes that.
	{"pruner", may("SELECT", "INSERT", "UPDATE", "DELETE"), in("object_locks"), nil},
	// It makes parity.
	{"pruner", may("SELECT", "DELETE"), in("parity_groups"), nil},
	{"pruner", may("INSERT"), in("parity_groups"), of("id", "state", "description", "stored_bytes")},
	{"pruner", may("UPDATE"), in("parity_groups"), of("state", "description", "stored_bytes", "noted")},
	// It puts back what parity has.
	{"pruner", may("SELECT"), in("put_back"), nil},
	{"pruner", may("UPDATE"), in("put_back"), of("objects", "bytes", "last")},
	// A lock of a row needs this privilege.
	{"pruner", may("UPDATE"), in("chunk_lists"), of("nested", "lost")},
	// A chunk keeps the place of one of its copies.
	{"pruner", may("UPDATE"), in("chunks"), of("pack", "frame", "frame_offset", "length")},
	// A retired shard of which nothing is left is closed.
	{"pruner", may("UPDATE"), in("pages"), of("last_snapshot")},
	{"pruner", may("UPDATE"), in("snapshots"), of("state")},
	{"pruner", may("UPDATE"), in("shards"), of("interrupted", "checkpoint_bytes", "segment_bytes")},

	// The brake stops the pruner, which notes that in the log.
	{"pruner", may("SELECT"), in("brake", "confirmations"), nil},
	{"pruner", may("UPDATE"), in("brake"), of("window_began", "deleted_bytes")},
	{"pruner", may("SELECT", "DELETE"), in("stops"), nil},
	{"pruner", may("INSERT"), in("stops"), stopColumns},
	{"pruner", may("INSERT"), in("log"), of("time", "by", "action", "subject", "reason")},

	// The scrubber proves packs, and notes that. A trigger ensures that it leads as the scrubber
	// only.
	{"scrubber", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "packs", "chunks", "chunk_copies", "scrub", "journal_proofs", "parity_groups", "put_back"), nil},
	{"scrubber", may("UPDATE"), in("journal_proofs"), of("proven", "begun", "reached", "damaged", "damage")},
	{"scrubber", may("UPDATE"), in("parity_groups"), of("proven", "begun", "reached", "damaged", "damage")},
	{"scrubber", may("UPDATE"), in("packs"), of("sums", "adopted", "noted", "proven", "damaged", "damage")},
	{"scrubber", may("UPDATE"), in("scrub"), of("day_began", "day_bytes", "day_requests")},
	{"scrubber", may("SELECT", "INSERT"), in("leaders"), nil},
	{"scrubber", may("UPDATE"), in("leaders"), of("holder", "epoch", "until")},
	{"operator", may("SELECT"), in("scrub", "journal_proofs", "put_back"), nil},
	{"operator", may("UPDATE"), in("scrub"), of("within", "bytes", "requests", "price_requests", "price_bytes", "spend")},

	// Operators list everything, register filers, shards and policies, begin snapshots and request
	// their end.
	{"operator", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "filers", "shards", "policies", "snapshots",
		"problems", "pages", "interrupted_pages", "chunks", "chunk_copies", "chunk_lists", "packs", "walk_tasks", "read_batches", "prunes", "removed_snapshots", "catalogs", "object_locks", "reread_pages", "parity_groups",
		"name_blocks", "name_groups", "names_incomplete"), nil},
	{"operator", may("INSERT", "DELETE"), in("filers", "policies"), nil},
	{"operator", may("UPDATE"), in("filers"), of("site", "walk_tasks", "read_batches", "read_bytes", "floor", "compare", "selection", "labels",
		"retired", "walk_slots", "read_slots")},
	{"operator", may("UPDATE"), in("policies"), of("revision", "labels", "paused", "schedule", "time_zone", "jitter", "windows",
		"recovery_point", "floor", "drill", "retention", "selection")},
	{"operator", may("INSERT"), in("shards"), of("shard_key", "name", "source", "pattern", "selection", "retired", "filer_id", "last_number",
		"last_good_number", "last_good_files", "last_good_bytes", "interrupted", "checkpoint_bytes", "segment_bytes",
		"policy_id", "policy_revision", "due", "deadline")},
	{"operator", may("UPDATE"), in("shards"), of("source", "pattern", "selection", "retired", "last_number", "policy_id",
		"policy_revision", "due", "deadline")},
	{"operator", may("DELETE"), in("shards"), nil}, // those without a snapshot: others are referenced
	// A trigger ensures that these rows are those of the begin of a snapshot.
	{"operator", may("INSERT"), in("snapshots", "walk_tasks"), nil},
	{"operator", may("UPDATE"), in("snapshots"), of("cancel", "bad")},
	// They forget snapshots, hold them, and restore them. A trigger refuses to forget what must be
	// kept, and others ensure that the log has an entry for it.
	{"operator", may("UPDATE"), in("snapshots"), of("forgotten")},
	{"operator", may("SELECT", "DELETE"), in("holds", "readings"), nil},
	{"operator", may("INSERT"), in("holds"), of("snapshot", "shard", "path_key", "path_end", "parent_key", "reason", "by", "since", "alarm")},
	{"operator", may("INSERT"), in("readings"), nil},
	{"operator", may("UPDATE"), in("readings"), of("until")},
	{"operator", may("SELECT"), in("log"), nil},
	{"operator", may("INSERT"), in("log"), of("time", "by", "action", "subject", "reason")},
	// They confirm what the brake has stopped. A trigger writes the identity of a confirmation. How
	// many operators must confirm is for the admin to say and, if that is more than one, how much
	// the brake allows, too.
	{"operator", may("SELECT"), in("brake", "stops", "confirmations"), nil},
	{"operator", may("UPDATE"), in("brake"), of("snapshots", "min_snapshots", "bytes", "min_bytes")},
	{"operator", may("INSERT"), in("stops"), stopColumns},
	{"operator", may("UPDATE"), in("stops"), of("rejected")},
	{"operator", may("INSERT"), in("confirmations"), nil},
	{"operator", may("DELETE"), in("stops", "confirmations"), nil},
	// A trigger ensures that these values are those of the newest good snapshot.
	{"operator", may("UPDATE"), in("shards"), of("last_good", "last_good_number", "last_good_started", "last_good_files", "last_good_bytes")},

	// They store the reports of their drills, which the committers export as metrics. The reports
	// are signed: only who has an identity can make one.
	{"operator", may("SELECT", "INSERT", "DELETE"), in("drills"), nil},
	{"committer", may("SELECT"), in("drills"), nil},
	{"pruner", may("SELECT"), in("drills"), nil}, // it lists shards

	// Operators plan restores, and give keys to restorers. A restorer claims tasks and settles
	// them, but cannot change what they are. It reads pages and the places of chunks.
	{"operator", may("SELECT", "INSERT", "DELETE"), in("restores"), nil},
	{"operator", may("SELECT", "INSERT"), in("restore_tasks"), nil},
	{"operator", may("UPDATE"), in("restore_tasks"), of("keys")},
	{"operator", may("SELECT"), in("restore_refusals"), nil},
	{"restorer", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "snapshots", "pages", "reread_pages", "chunks", "chunk_copies", "readings",
		"restores", "restore_tasks", "restore_refusals"), nil},
	{"restorer", may("SELECT"), in("packs"), of("id", "pack", "sealed", "snapshot", "object", "object_offset", "stored_bytes", "condemned")},
	{"restorer", may("UPDATE"), in("restores"), of("open", "begun", "failed")},
	{"restorer", may("UPDATE"), in("restore_tasks"), of("attempt", "failures", "lease_until", "worker", "recipient", "keys", "files", "bytes", "settled", "result", "reason")},
	{"restorer", may("INSERT"), in("restore_refusals"), nil},
	{"restorer", may("UPDATE"), in("restore_refusals"), of("reason", "paused_until")},
	// It keeps the snapshot from being forgotten, as long as the operator has.
	{"restorer", may("UPDATE"), in("readings"), of("until")},

	// The scalers of the services count open work (deploy/kubernetes).
	{"monitor", may("SELECT"), in("filers"), of("id", "site", "walk_tasks", "walk_slots", "read_batches", "read_slots", "read_bytes")},
	{"monitor", may("SELECT"), in("walk_tasks", "read_batches"), of("id", "filer_id", "stalled")},
}

// stopColumns are the columns that a new stop sets. The database chooses its id, so that nobody can
// replace the stop that an operator has seen before the operator confirms it.
var stopColumns = of("shard", "by", "snapshots", "of_snapshots", "bytes", "of_bytes", "earlier_bytes", "since")

func may(actions ...string) []string { return actions }
func in(tables ...string) []string   { return tables }
func of(columns ...string) []string  { return columns }

//go:embed grants.sql
var grants string

// RolesSetting is a setting of a Postgres database: the prefix of the names of its roles. If it is
// not set, all users connect as the owner of the tables.
const RolesSetting = "bctl.roles"

// SelectRoles reads RolesSetting. An empty result means that there are no roles.
const SelectRoles = "SELECT coalesce(current_setting('" + RolesSetting + "', true), '')"

var roleName = regexp.MustCompile(`^[a-z0-9_-]{1,50}$`)

// Grants returns the statements, of one transaction, that give the roles name_committer,
// name_walker, name_reader, name_operator, name_pruner, name_scrubber, name_restorer and
// name_monitor exactly their Privileges in a Postgres database of the newest version.
func Grants(name string) (string, error) {
	if !roleName.MatchString(name) {
		return "", fmt.Errorf("names of database roles cannot begin with %q: want lower-case letters, digits, - and _", name)
	}
	var list strings.Builder
	for _, p := range Privileges {
		columns := ""
		if p.Columns != nil {
			columns = " (" + strings.Join(p.Columns, ", ") + ")"
		}
		fmt.Fprintf(&list, "GRANT %s%s ON %s TO \"{name}_%s\";\n", strings.Join(p.Actions, ", "), columns, strings.Join(p.Tables, ", "), p.Role)
	}
	text := strings.Replace(grants, "{grants}", strings.TrimSuffix(list.String(), "\n"), 1)
	return strings.ReplaceAll(text, "{name}", name), nil
}
