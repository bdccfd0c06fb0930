// Package schema has the entities of the index's small tables.
//
// What may hold any bytes (paths) is bytes here, because text in Postgres must
// be UTF-8 without NUL. Times are UTC, in microseconds.
package schema

import (
	"time"

	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
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
	}
}

// Filer is a file server, or this machine.
type Filer struct{ ent.Schema }

// Fields of a Filer.
func (Filer) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.String("name").Unique(),
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
		field.Int64("filer_id"),
		field.String("name"),
		field.String("source"),
		// The number of the newest snapshot that there ever was: numbers are not used again.
		field.Int64("last_number").Default(0),
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
	return []ent.Index{index.Fields("filer_id", "name").Unique()}
}

// Snapshot is one state of a shard, and the counters of its progress.
type Snapshot struct{ ent.Schema }

// Fields of a Snapshot.
func (Snapshot) Fields() []ent.Field {
	fields := []ent.Field{
		field.UUID("id", uuid.UUID{}),
		field.Int64("shard_id"),
		field.Int64("number"),
		field.Int64("base").Default(0),
		field.String("state"),
		field.String("reason").Default(""),
		field.Time("started"),
		field.Time("committed").Optional().Nillable(),
		field.JSON("selection", backup.Selection{}),
		field.Bool("allow_shrink").Default(false),
		field.Strings("tags").Optional(),
		field.Strings("segments").Optional(),
	}
	for _, name := range []string{
		"files", "directories", "bytes", "files_new", "files_changed", "files_unchanged",
		"stat_calls", "new_bytes", "stored_bytes", "read_bytes", "errors",
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

// NoLease is the lease of work that nobody has claimed yet, or that may be
// claimed again at once.
var NoLease = time.Unix(0, 0).UTC()
