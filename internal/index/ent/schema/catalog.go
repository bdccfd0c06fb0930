// Package schema has the entities of the index's small tables.
//
// What may hold any bytes (paths) is bytes here, because text in Postgres must
// be UTF-8 without NUL. Times are UTC, in microseconds.
package schema

import (
	"time"

	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/edge"
	"entgo.io/ent/schema/field"
	"entgo.io/ent/schema/index"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
)

// Repository has one row, of id 1.
type Repository struct{ ent.Schema }

// Fields of a Repository.
func (Repository) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.UUID("repository", uuid.UUID{}),
		field.Int("version"),
		field.Time("created"),
		field.String("chunker"),
		field.String("codec"),
		field.Strings("recipients"),
		field.Bytes("signer"),
	}
}

// Filer is a file server, or this machine.
type Filer struct{ ent.Schema }

// Fields of a Filer.
func (Filer) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.String("name").Unique(),
		field.String("site").Default(backup.DefaultSite),
		// Limits; 0 is the default, or, of bytes a second, none.
		field.Int("walk_tasks").Default(0),
		field.Int("read_batches").Default(0),
		field.Int64("read_bytes").Default(0),
		// Percent of the limits that the governor leaves in any case; 0: the policy's, or the default.
		field.Int("floor").Default(0),
		field.Uint8("compare").Default(0),
		field.JSON("selection", backup.Selection{}).Optional(),
		field.JSON("labels", map[string]string{}).Optional(),
		field.Bool("retired").Default(false),
		// What the governor found: slots, 0 where it has not governed yet, and latencies in microseconds.
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

// Shard is one tree on a filer.
type Shard struct{ ent.Schema }

// Fields of a Shard.
func (Shard) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.UUID("shard_key", uuid.UUID{}).Unique(),
		field.Int64("filer_id"),
		field.String("name"),
		field.String("source"),
		// The number of the newest snapshot that there ever was: numbers are not used again.
		field.Int64("last_number").Default(0),
		field.String("pattern").Default(""),
		field.JSON("selection", backup.Selection{}).Optional(),
		field.Bool("retired").Default(false),
		// The newest committed snapshot that is not bad, so that a list of shards does not look for it; Commit and SetBad keep it.
		field.UUID("last_good", uuid.UUID{}).Optional().Nillable(),
		field.Int64("last_good_number").Default(0),
		field.Time("last_good_started").Optional().Nillable(),
		field.Int64("last_good_files").Default(0),
		field.Int64("last_good_bytes").Default(0),
		// Whether a snapshot that was not committed has left pages, for the content that they name.
		field.Bool("interrupted").Default(false),
		// Stored bytes of the last checkpoint, and of the segments since.
		field.Int64("checkpoint_bytes").Default(0),
		field.Int64("segment_bytes").Default(0),
		// What the scheduler plans: microseconds since 1970. due is 0 where it has to be planned (again), and deadline where there is none.
		field.Int64("policy_id").Default(0),
		field.Int64("policy_revision").Default(0),
		field.Int64("due").Default(0),
		field.Int64("deadline").Default(0),
	}
}

// Edges of a Shard.
func (Shard) Edges() []ent.Edge {
	return []ent.Edge{
		edge.From("filer", Filer.Type).Ref("shards").Field("filer_id").Unique().Required(),
		edge.To("snapshots", Snapshot.Type),
	}
}

// Indexes of a Shard.
func (Shard) Indexes() []ent.Index {
	return []ent.Index{index.Fields("filer_id", "name").Unique(), index.Fields("due", "policy_id")}
}

// BackupPolicy says when the shards of some filers are backed up. (Policy is a name that ent has itself.)
type BackupPolicy struct{ ent.Schema }

// Annotations of a BackupPolicy.
func (BackupPolicy) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("policies")}
}

// Fields of a BackupPolicy.
func (BackupPolicy) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.String("name").Unique(),
		field.Int64("revision").Default(1),
		field.JSON("labels", map[string]string{}).Optional(),
		field.Bool("paused").Default(false),
		field.String("schedule"),
		field.String("time_zone").Default(""),
		// In microseconds, as recovery_point.
		field.Int64("jitter").Default(0),
		field.Strings("windows").Optional(),
		field.Int64("recovery_point").Default(0),
		// Of filers that have none of their own.
		field.Int("floor").Default(0),
		field.JSON("retention", backup.Retention{}),
		field.JSON("selection", backup.Selection{}),
	}
}

// Snapshot is one state of a shard, and the counters of its progress.
type Snapshot struct{ ent.Schema }

// Fields of a Snapshot.
func (Snapshot) Fields() []ent.Field {
	fields := []ent.Field{
		field.UUID("id", uuid.UUID{}),
		field.Int64("shard_id"),
		// The shard's, for lists of one filer's snapshots.
		field.Int64("filer_id").Default(0),
		field.Int64("number"),
		field.Int64("base").Default(0),
		field.UUID("base_id", uuid.UUID{}).Optional().Nillable(),
		field.String("state"),
		field.String("reason").Default(""),
		// Why an operator does not want it to count as good; empty: it does.
		field.String("bad").Default(""),
		field.Time("started"),
		// What lists go by: when it was started, or, where the clock went back, the sort_time of the shard's snapshot
		// before it. So whatever has the larger number is never the older one.
		field.Time("sort_time"),
		field.Time("committed").Optional().Nillable(),
		field.String("source").Default(""),
		// What the root of the tree has to be, as backup.Root has it; empty: not known yet.
		field.String("root").Default(""),
		field.Uint8("compare").Default(0),
		field.String("cancel").Default(""),
		field.JSON("selection", backup.Selection{}),
		field.Bool("allow_shrink").Default(false),
		field.Bool("new_root").Default(false),
		field.Strings("tags").Optional(),
		// The segment that holds: who wrote it, in how many parts (0: nothing had changed), and whether it has all pages.
		field.UUID("segment", uuid.UUID{}).Optional().Nillable(),
		field.Int("segment_parts").Default(0),
		field.Bool("checkpoint").Default(false),
		// What a committed snapshot consists of: a backup.PageSet.
		field.Int64("pages").Default(0),
		field.Bytes("pages_sum").Optional(),
		// When it ended, and whether the store has the record of that.
		field.Time("ended").Optional().Nillable(),
		field.Bool("recorded").Default(false),
		// The lease of its commit: which committer has it, and until when: microseconds since 1970, by the database's clock.
		field.String("committer").Default(""),
		field.Int64("commit_until").Default(0),
	}
	for _, name := range []string{
		"files", "directories", "bytes", "files_new", "files_changed", "files_unchanged",
		"stat_calls", "new_bytes", "stored_bytes", "read_bytes", "errors", "vanished", "carried", "torn",
		// How many of the errors have a row in problems.
		"problems_stored",
		"tasks_announced", "tasks_settled", "batches_announced", "batches_settled",
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
		edge.From("shard", Shard.Type).Ref("snapshots").Field("shard_id").Unique().Required(),
		edge.To("tasks", WalkTask.Type),
		edge.To("batches", ReadBatch.Type),
		edge.To("problems", Problem.Type),
	}
}

// Indexes of a Snapshot.
func (Snapshot) Indexes() []ent.Index {
	return []ent.Index{
		index.Fields("shard_id", "number").Unique(),
		// One running snapshot a shard (I5).
		index.Fields("shard_id").Unique().StorageKey("snapshot_running").Annotations(entsql.IndexWhere("state = 'running'")),
		// What claims pass over.
		index.Fields("filer_id").StorageKey("snapshot_cancelled").Annotations(entsql.IndexWhere("state = 'running' AND cancel <> ''")),
		// Those whose record is not in the store yet, the oldest first.
		index.Fields("sort_time", "shard_id", "number").StorageKey("snapshot_unrecorded").Annotations(entsql.IndexWhere("ended IS NOT NULL AND NOT recorded")),
		// Lists, newest first: of all, of a filer, of a state; those of a shard go by number. The first has filer_id for a
		// planner that takes it for a filer's: what is not the filer's then costs no look at the table.
		index.Fields("sort_time", "shard_id", "number", "filer_id"),
		index.Fields("filer_id", "sort_time", "shard_id", "number"),
		index.Fields("state", "sort_time", "shard_id", "number"),
	}
}

// Problem is something that one snapshot could not back up.
type Problem struct{ ent.Schema }

// Fields of a Problem.
func (Problem) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.UUID("snapshot_id", uuid.UUID{}),
		field.Bytes("path"),
		field.String("op"),
		field.String("error"),
	}
}

// Edges of a Problem.
func (Problem) Edges() []ent.Edge {
	return []ent.Edge{edge.From("snapshot", Snapshot.Type).Ref("problems").Field("snapshot_id").Unique().Required()}
}

// Indexes of a Problem.
func (Problem) Indexes() []ent.Index {
	return []ent.Index{index.Fields("snapshot_id")}
}

// Leader is who leads a role, or led it last.
type Leader struct{ ent.Schema }

// Fields of a Leader.
func (Leader) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.String("role").Unique(),
		field.String("holder"),
		field.Int64("epoch"),
		// The end of the term: microseconds since 1970, by the database's clock.
		field.Int64("until"),
	}
}

// NoLease is the lease of work that nobody has claimed yet, or that may be
// claimed again at once.
var NoLease = time.Unix(0, 0).UTC()
