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
	Role    string // committer, walker, reader, operator or monitor; admin owns the tables
	Actions []string
	Tables  []string
	Columns []string // nil: all
}

// Privileges are all privileges of the roles. They follow from the queries of
// internal/index/entindex and pgindex: the tables and columns that the statements name, and a
// column for locking rows (SELECT … FOR SHARE requires UPDATE of one).
//
// No role may delete a snapshot, a pack, a chunk or a chunk list, or change a repository or a
// shard's key.
var Privileges = []Privilege{
	// Walkers compare with the pages of the last snapshot.
	{"walker", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "pages", "interrupted_pages"), nil},

	// Readers look up the places of chunks, and old listings. The place of a pack is its object,
	// offset and length.
	{"reader", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "pages", "chunks", "chunk_copies"), nil},
	// Limits of filers change while batches are read (ReadShares).
	{"reader", may("SELECT"), in("filers"), of("id", "read_bytes", "read_batches", "read_slots")},
	{"reader", may("SELECT"), in("read_batches"), of("filer_id", "lease_until")},
	{"reader", may("SELECT"), in("packs"), of("id", "pack", "snapshot", "object", "object_offset", "stored_bytes", "condemned")},

	// Committers are the only writers of results. They also lead and schedule.
	{"committer", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "filers", "shards", "policies"), nil},
	{"committer", may("SELECT", "INSERT"), in("packs", "chunk_copies", "chunk_lists", "catalogs", "problems"), nil},
	{"committer", may("SELECT", "INSERT", "UPDATE"), in("snapshots", "chunks", "leaders"), nil},
	{"committer", may("SELECT", "INSERT", "UPDATE", "DELETE"), in("pages", "walk_tasks", "read_batches", "slice_parts"), nil},
	{"committer", may("SELECT", "INSERT", "DELETE"), in("interrupted_pages"), nil},
	{"committer", may("UPDATE"), in("interrupted_pages"), of("listing")},
	{"committer", may("UPDATE"), in("packs"), of("condemned")},
	{"committer", may("UPDATE"), in("filers"), of("walk_slots", "read_slots", "walk_latency", "walk_idle", "read_latency", "read_idle")},
	{"committer", may("UPDATE"), in("shards"), of("last_number", "last_good", "last_good_number", "last_good_started", "last_good_files",
		"last_good_bytes", "interrupted", "checkpoint_bytes", "segment_bytes", "policy_id", "policy_revision", "due", "deadline")},

	// Operators list everything, register filers, shards and policies, begin snapshots and request
	// their end.
	{"operator", may("SELECT"), in("goose_db_version", "schema_versions", "repositories", "filers", "shards", "policies", "snapshots",
		"problems", "pages", "chunks", "chunk_copies", "packs", "walk_tasks", "read_batches"), nil},
	{"operator", may("INSERT", "DELETE"), in("filers", "policies"), nil},
	{"operator", may("UPDATE"), in("filers"), of("site", "walk_tasks", "read_batches", "read_bytes", "floor", "compare", "selection", "labels",
		"retired", "walk_slots", "read_slots")},
	{"operator", may("UPDATE"), in("policies"), of("revision", "labels", "paused", "schedule", "time_zone", "jitter", "windows",
		"recovery_point", "floor", "retention", "selection")},
	{"operator", may("INSERT"), in("shards"), of("shard_key", "name", "source", "pattern", "selection", "retired", "filer_id", "last_number",
		"last_good_number", "last_good_files", "last_good_bytes", "interrupted", "checkpoint_bytes", "segment_bytes",
		"policy_id", "policy_revision", "due", "deadline")},
	{"operator", may("UPDATE"), in("shards"), of("source", "pattern", "selection", "retired", "last_number", "policy_id",
		"policy_revision", "due", "deadline")},
	{"operator", may("DELETE"), in("shards"), nil}, // those without a snapshot: others are referenced
	// A trigger ensures that these rows are those of the begin of a snapshot.
	{"operator", may("INSERT"), in("snapshots", "walk_tasks"), nil},
	{"operator", may("UPDATE"), in("snapshots"), of("cancel", "bad")},
	// A trigger ensures that these values are those of the newest good snapshot.
	{"operator", may("UPDATE"), in("shards"), of("last_good", "last_good_number", "last_good_started", "last_good_files", "last_good_bytes")},

	// The scalers of the services count open work (deploy/kubernetes).
	{"monitor", may("SELECT"), in("filers"), of("id", "site", "walk_tasks", "walk_slots", "read_batches", "read_slots", "read_bytes")},
	{"monitor", may("SELECT"), in("walk_tasks", "read_batches"), of("id", "filer_id", "stalled")},
}

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
// name_walker, name_reader, name_operator and name_monitor exactly their Privileges in a Postgres
// database of the newest version.
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
