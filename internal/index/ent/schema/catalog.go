// Package schema defines the entities of the index. The other tables are described by their
// migrations only.
//
// Columns that may contain any bytes (paths) have the type bytes, because text in Postgres must be
// UTF-8 without NUL. Times are UTC, in microseconds.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema/edge"
	"entgo.io/ent/schema/field"
	"entgo.io/ent/schema/index"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
)

// Filer is a file server, or this machine.
type Filer struct{ ent.Schema }

// Fields of a Filer.
func (Filer) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.String("name").Unique().Immutable(),
		field.String("site").Default(backup.DefaultSite),
		// Limits. 0 is the default; for bytes per second, it is no limit.
		field.Int("walk_tasks").Default(0),
		field.Int("read_batches").Default(0),
		field.Int64("read_bytes").Default(0),
		// Percent of the limits that the governor always leaves to the filer. 0 is the policy's, or
		// the default.
		field.Int("floor").Default(0),
		field.Uint8("compare").Default(0),
		field.JSON("selection", backup.Selection{}).Optional(),
		field.JSON("labels", map[string]string{}).Optional(),
		field.Bool("retired").Default(false),
		// The governor's load: slots, 0 if it has not set them yet, and latencies in microseconds.
		field.Int("walk_slots").Default(0),
		field.Int("read_slots").Default(0),
		field.Int64("walk_latency").Default(0),
		field.Int64("walk_idle").Default(0),
		field.Int64("read_latency").Default(0),
		field.Int64("read_idle").Default(0),
	}
}

// Edges of a Filer.
func (Filer) Edges() []ent.Edge {
	return []ent.Edge{edge.To("shards", Shard.Type)}
}

// Shard is one directory tree on a filer, which is backed up as a unit.
type Shard struct{ ent.Schema }

// Fields of a Shard.
func (Shard) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.UUID("shard_key", uuid.UUID{}).Unique().Immutable(),
		field.Int64("filer_id").Immutable(),
		field.String("name").Immutable(),
		field.String("source"),
		// The number of the newest snapshot ever begun: numbers are not reused.
		field.Int64("last_number").Default(0),
		field.String("pattern").Default(""),
		field.JSON("selection", backup.Selection{}).Optional(),
		field.Bool("retired").Default(false),
		// The newest committed snapshot that is not bad. It is stored here so that a list of shards
		// need not look for it. Commit and SetBad update it.
		field.UUID("last_good", uuid.UUID{}).Optional().Nillable(),
		field.Int64("last_good_number").Default(0),
		field.Time("last_good_started").Optional().Nillable(),
		field.Int64("last_good_files").Default(0),
		field.Int64("last_good_bytes").Default(0),
		// Whether a snapshot that was not committed has left pages, which are kept for their
		// content.
		field.Bool("interrupted").Default(false),
		// Stored bytes of the last checkpoint, and of the segments since.
		field.Int64("checkpoint_bytes").Default(0),
		field.Int64("segment_bytes").Default(0),
		// The scheduler's plan, in microseconds since 1970. due is 0 if the shard has to be
		// planned, and deadline is 0 if there is none.
		field.Int64("policy_id").Default(0),
		field.Int64("policy_revision").Default(0),
		field.Int64("due").Default(0),
		field.Int64("deadline").Default(0),
	}
}

// Edges of a Shard.
func (Shard) Edges() []ent.Edge {
	return []ent.Edge{
		edge.From("filer", Filer.Type).Ref("shards").Field("filer_id").Unique().Required().Immutable(),
		edge.To("snapshots", Snapshot.Type),
	}
}

// Indexes of a Shard.
func (Shard) Indexes() []ent.Index {
	return []ent.Index{index.Fields("filer_id", "name").Unique(), index.Fields("due", "policy_id")}
}

// Snapshot is one state of a shard, and the counters of its progress.
type Snapshot struct{ ent.Schema }

// Fields of a Snapshot.
func (Snapshot) Fields() []ent.Field {
	fields := []ent.Field{
		field.UUID("id", uuid.UUID{}),
		field.Int64("shard_id").Immutable(),
		// The shard's filer_id, for lists of one filer's snapshots.
		field.Int64("filer_id").Default(0).Immutable(),
		field.Int64("number").Immutable(),
		field.Int64("base").Default(0).Immutable(),
		field.UUID("base_id", uuid.UUID{}).Optional().Nillable().Immutable(),
		field.String("state"),
		field.String("reason").Default(""),
		// Why an operator has marked the snapshot as bad. Empty: it is not.
		field.String("bad").Default(""),
		// How much of the shard's files became opaque, in thousandths of what is an alarm; and what
		// the alarm says. Empty: there is none.
		field.Int64("churn_score").Default(0),
		field.String("alarm").Default(""),
		// When the snapshot was forgotten: nobody can read it any more. The newest committed snapshot
		// of a shard remains the base of the next one, whether it is forgotten or not.
		field.Time("forgotten").Optional().Nillable(),
		field.Time("started").Immutable(),
		// The sort key of lists: the start or, if the clock went back, the sort_time of the shard's
		// previous snapshot. So a snapshot with a larger number never sorts as older.
		field.Time("sort_time").Immutable(),
		field.Time("committed").Optional().Nillable(),
		field.String("source").Default(""),
		// The expected root of the tree, formatted by backup.Root. Empty: not known yet.
		field.String("root").Default(""),
		field.Uint8("compare").Default(0).Immutable(),
		field.String("cancel").Default(""),
		field.JSON("selection", backup.Selection{}).Immutable(),
		field.Bool("allow_shrink").Default(false).Immutable(),
		field.Bool("new_root").Default(false).Immutable(),
		field.Strings("tags").Optional().Immutable(),
		// The segment that counts: its attempt, its number of parts (0: nothing changed), and
		// whether it contains all pages.
		field.UUID("segment", uuid.UUID{}).Optional().Nillable(),
		field.Int("segment_parts").Default(0),
		field.Bool("checkpoint").Default(false),
		// The set of the pages of a committed snapshot: a backup.PageSet.
		field.Int64("pages").Default(0),
		field.Bytes("pages_sum").Optional(),
		// When it ended, and whether the store has the record of that.
		field.Time("ended").Optional().Nillable(),
		field.Bool("recorded").Default(false),
		// The commit lease: its holder, and its end in microseconds since 1970, by the database's
		// clock.
		field.String("committer").Default(""),
		field.Int64("commit_until").Default(0),
		// How many of the errors have a row in problems.
		field.Int64("problems_stored").Default(0),
		// Work that was announced, and work that was settled (I4).
		field.Int64("tasks_announced").Default(0),
		field.Int64("tasks_settled").Default(0),
		field.Int64("batches_announced").Default(0),
		field.Int64("batches_settled").Default(0),
	}
	for _, name := range []string{
		"files", "directories", "bytes", "files_new", "files_changed", "files_unchanged",
		"stat_calls", "new_bytes", "stored_bytes", "read_bytes", "errors", "vanished", "carried", "torn",
		"files_judged", "files_renamed", "types_lost", "files_opaque",
	} {
		fields = append(fields, field.Int64(name).Default(0))
	}
	for _, stage := range []string{"walk", "read", "hash", "compress", "seal", "upload", "commit"} {
		fields = append(fields, field.Float(stage+"_seconds").Default(0))
	}
	return fields
}

// Edges of a Snapshot.
func (Snapshot) Edges() []ent.Edge {
	return []ent.Edge{
		edge.From("shard", Shard.Type).Ref("snapshots").Field("shard_id").Unique().Required().Immutable(),
	}
}

// Indexes of a Snapshot.
func (Snapshot) Indexes() []ent.Index {
	return []ent.Index{
		index.Fields("shard_id", "number").Unique(),
		// One running snapshot per shard (I5).
		index.Fields("shard_id").Unique().StorageKey("snapshot_running").Annotations(entsql.IndexWhere("state = 'running'")),
		// Running snapshots whose end was requested, which claims skip.
		index.Fields("filer_id").StorageKey("snapshot_cancelled").Annotations(entsql.IndexWhere("state = 'running' AND cancel <> ''")),
		// Snapshots whose record is not in the store yet, oldest first.
		index.Fields("sort_time", "shard_id", "number").StorageKey("snapshot_unrecorded").Annotations(entsql.IndexWhere("ended IS NOT NULL AND NOT recorded")),
		// Forgotten snapshots that are not removed yet.
		index.Fields("shard_id").StorageKey("snapshot_forgotten").Annotations(entsql.IndexWhere("forgotten IS NOT NULL")),
		// Snapshots that are marked as bad.
		index.Fields("shard_id").StorageKey("snapshot_bad").Annotations(entsql.IndexWhere("bad <> ''")),
		// Lists, newest first: of all snapshots, of a filer, of a state. Those of a shard use
		// number. The first index contains filer_id in case the planner chooses it for the
		// snapshots of one filer: those of other filers are then skipped without reading the table.
		index.Fields("sort_time", "shard_id", "number", "filer_id"),
		index.Fields("filer_id", "sort_time", "shard_id", "number"),
		index.Fields("state", "sort_time", "shard_id", "number"),
	}
}
