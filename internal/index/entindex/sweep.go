package entindex

import (
	"context"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const (
	selectOwners  = `SELECT id, state, segment, segment_parts, coalesce((SELECT sequence FROM amendments a WHERE a.snapshot = snapshots.id), 0) FROM snapshots WHERE {id in $1}`
	selectRemoved = `SELECT id FROM removed_snapshots WHERE {id in $1}`
	// The object of a pack that was not moved, or of a plan, has the id of the row.
	selectInPlace = `SELECT object, snapshot FROM packs WHERE {pack in $1}`
	selectMoved   = `SELECT object, snapshot FROM packs WHERE sealed IS NOT NULL AND {object in $1}`
)

// Recognize implements index.Sweeping. The order of its queries matters. Packs are registered while
// their snapshot is running, so the snapshots come first. Snapshots are removed after they were
// forgotten, and plans become moved packs, so what a row becomes is queried after the row.
func (x *Index) Recognize(ctx context.Context, t index.Term, objects []index.StoredObject) ([]index.Recognized, error) {
	if t != (index.Term{}) {
		err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error { return tx.checkTerm(ctx, t) })
		if err != nil {
			return nil, err
		}
	}
	owners, err := x.owners(ctx, objects)
	if err != nil {
		return nil, err
	}
	ids := make([]uuid.UUID, len(objects))
	for i := range objects {
		ids[i] = uuid.UUID(objects[i].ID)
	}
	named := make(map[index.StoredObject]bool, len(objects))
	for _, query := range []string{selectInPlace, selectMoved, selectLostHere} {
		err := x.queryOf(ctx, query, ids, func(scan func(...any) error) error {
			var object, snapshot uuid.UUID
			err := scan(&object, &snapshot)
			named[index.StoredObject{Snapshot: backup.SnapshotID(snapshot), ID: backup.PackID(object)}] = true
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	recognized := make([]index.Recognized, len(objects))
	for i, o := range objects {
		recognized[i] = owners[o.Snapshot]
		recognized[i].Named = named[o]
	}
	return recognized, nil
}

// owners returns what the index knows of the snapshots for which objects were written.
func (x *Index) owners(ctx context.Context, objects []index.StoredObject) (map[backup.SnapshotID]index.Recognized, error) {
	owners := map[backup.SnapshotID]index.Recognized{}
	var ids []uuid.UUID
	for i := range objects {
		if _, ok := owners[objects[i].Snapshot]; !ok {
			owners[objects[i].Snapshot] = index.Recognized{}
			ids = append(ids, uuid.UUID(objects[i].Snapshot))
		}
	}
	err := x.queryOf(ctx, selectOwners, ids, func(scan func(...any) error) error {
		var id uuid.UUID
		var segment uuid.NullUUID
		var state string
		r := index.Recognized{Known: true}
		err := scan(&id, &state, &segment, &r.Segment.Parts, &r.Amendment)
		r.Ended, r.Segment.Attempt = state != string(backup.Running), backup.PackID(segment.UUID)
		owners[backup.SnapshotID(id)] = r
		return err
	})
	if err != nil {
		return nil, err
	}
	err = x.queryOf(ctx, selectRemoved, ids, func(scan func(...any) error) error {
		var id uuid.UUID
		err := scan(&id)
		if r := owners[backup.SnapshotID(id)]; !r.Known {
			owners[backup.SnapshotID(id)] = index.Recognized{Known: true, Ended: true, Removed: true}
		}
		return err
	})
	return owners, err
}

// queryOf is query for a statement (see Dialect.sql) whose parameter 1 is a list.
func (x *Index) queryOf(ctx context.Context, query string, list any, each func(scan func(...any) error) error) error {
	d := x.Backend.Dialect()
	args := []any{d.List(list)}
	if d.PlanAnew != nil {
		args = []any{d.PlanAnew, args[0]}
	}
	return x.query(ctx, d.sql(query), args, each)
}

const setNextSection = `INSERT INTO sweep (id, section) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET section = excluded.section`

// NextSection implements index.Sweeping.
func (x *Index) NextSection(ctx context.Context) (section int, err error) {
	err = x.query(ctx, `SELECT section FROM sweep`, nil, func(scan func(...any) error) error { return scan(&section) })
	return section, err
}

// SetNextSection implements index.Sweeping.
func (x *Index) SetNextSection(ctx context.Context, t index.Term, section int) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		return tx.exec(ctx, setNextSection, section)
	})
}
