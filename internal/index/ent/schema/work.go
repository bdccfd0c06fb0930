package schema

import (
	"time"

	"entgo.io/ent"
	"entgo.io/ent/schema/edge"
	"entgo.io/ent/schema/field"
	"entgo.io/ent/schema/index"
	"github.com/google/uuid"
)

func noLease() time.Time { return NoLease }

// heldFields are the columns that claims use, and the holder of a task or batch.
func heldFields() []ent.Field {
	return []ent.Field{
		// The snapshot's filer_id, so that a filer's oldest work is one range of an index.
		field.Int64("filer_id").Default(0),
		field.String("worker").Default(""),
		field.Bytes("path").Optional(),
		field.Time("stalled").Optional().Nillable(),
	}
}

// Indexes for claims: the oldest work of a snapshot, the oldest of a filer, and all assigned work.
func heldIndexes() []ent.Index {
	return []ent.Index{index.Fields("snapshot_id", "id"), index.Fields("filer_id", "id"), index.Fields("lease_until")}
}

// WalkTask is an open task. Settling it deletes the row.
type WalkTask struct{ ent.Schema }

// Fields of a WalkTask.
func (WalkTask) Fields() []ent.Field {
	return append([]ent.Field{
		field.Int64("id"),
		field.UUID("snapshot_id", uuid.UUID{}),
		field.Int32("attempt").Default(0),
		field.Int32("generation"),
		field.Time("lease_until").Default(noLease),
		field.Bytes("directories"),
	}, heldFields()...)
}

// Edges of a WalkTask.
func (WalkTask) Edges() []ent.Edge {
	return []ent.Edge{edge.From("snapshot", Snapshot.Type).Ref("tasks").Field("snapshot_id").Unique().Required()}
}

// Indexes of a WalkTask.
func (WalkTask) Indexes() []ent.Index { return heldIndexes() }

// ReadBatch is an open batch. Settling it deletes the row.
type ReadBatch struct{ ent.Schema }

// Fields of a ReadBatch.
func (ReadBatch) Fields() []ent.Field {
	return append([]ent.Field{
		field.Int64("id"),
		field.UUID("snapshot_id", uuid.UUID{}),
		field.Int32("attempt").Default(0),
		field.Time("lease_until").Default(noLease),
		// A digest of the paths and keys of the pages, to check that a result has the same pages.
		field.Bytes("names"),
		field.Bytes("pages"),
	}, heldFields()...)
}

// Edges of a ReadBatch.
func (ReadBatch) Edges() []ent.Edge {
	return []ent.Edge{edge.From("snapshot", Snapshot.Type).Ref("batches").Field("snapshot_id").Unique().Required()}
}

// Indexes of a ReadBatch.
func (ReadBatch) Indexes() []ent.Index { return heldIndexes() }

// SlicePart is a part of a result that is kept until the last part arrives. It is deleted when its
// task is settled.
type SlicePart struct{ ent.Schema }

// Fields of a SlicePart.
func (SlicePart) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.UUID("snapshot_id", uuid.UUID{}),
		field.Int64("task_id"),
		field.Int32("attempt"),
		field.Int32("part"),
		field.Bytes("result"),
	}
}

// Indexes of a SlicePart.
func (SlicePart) Indexes() []ent.Index {
	return []ent.Index{
		index.Fields("task_id", "attempt", "part").Unique(),
		index.Fields("snapshot_id"),
	}
}

// Pack is a registered pack. Chunks refer to its id. It outlives its snapshot.
type Pack struct{ ent.Schema }

// Fields of a Pack.
func (Pack) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.UUID("pack", uuid.UUID{}).Unique(),
		// The place: the two parts of the object's name, and the offset in the object.
		field.UUID("snapshot", uuid.UUID{}),
		field.UUID("object", uuid.UUID{}),
		field.Int64("object_offset").Default(0),
		field.Int64("stored_bytes"),
		// Stored lengths, as varints, of all frames that the pack ever had.
		field.Bytes("frame_bytes"),
		field.Int("chunks"),
		field.Bool("condemned").Default(false),
	}
}
