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

// heldFields are what claims go by, and what is known of who has a task or batch in hand.
func heldFields() []ent.Field {
	return []ent.Field{
		// The snapshot's, so that a filer's oldest work is one range of an index.
		field.Int64("filer_id").Default(0),
		field.String("worker").Default(""),
		field.Bytes("path").Optional(),
		field.Time("stalled").Optional().Nillable(),
	}
}

// What claims look for: the oldest of a snapshot, the oldest of a filer, and all that is in hand.
func heldIndexes() []ent.Index {
	return []ent.Index{index.Fields("snapshot_id", "id"), index.Fields("filer_id", "id"), index.Fields("lease_until")}
}

// WalkTask is a task that is open: settling it deletes the row.
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

// ReadBatch is a batch that is open: settling it deletes the row.
type ReadBatch struct{ ent.Schema }

// Fields of a ReadBatch.
func (ReadBatch) Fields() []ent.Field {
	return append([]ent.Field{
		field.Int64("id"),
		field.UUID("snapshot_id", uuid.UUID{}),
		field.Int32("attempt").Default(0),
		field.Time("lease_until").Default(noLease),
		// Which pages these are: a digest of their paths and keys, for the check that a result has the same.
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

// SlicePart is a part of a result, kept until the last one comes. It is
// deleted when its task is settled.
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

// Pack is a registered pack. Its id is what chunks refer to. It outlives its snapshot.
type Pack struct{ ent.Schema }

// Fields of a Pack.
func (Pack) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.UUID("pack", uuid.UUID{}).Unique(),
		// Where it is: the two parts of its object's name, and the place in the object.
		field.UUID("snapshot", uuid.UUID{}),
		field.UUID("object", uuid.UUID{}),
		field.Int64("object_offset").Default(0),
		field.Int64("stored_bytes"),
		// Lengths of its frames as they are stored, as varints, of all that it ever had.
		field.Bytes("frame_bytes"),
		field.Int("chunks"),
		field.Bool("condemned").Default(false),
	}
}
