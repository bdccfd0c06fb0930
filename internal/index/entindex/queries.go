package entindex

import (
	"context"
	"fmt"
	"slices"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// lockedColumns are the columns of a snapshot that lockSnapshot reads: all except its request and
// its outcome. They are read for each result of a snapshot.
var lockedColumns = slices.DeleteFunc(slices.Clone(snapshot.Columns), func(column string) bool {
	return slices.Contains([]string{
		snapshot.FieldSelection, snapshot.FieldTags, snapshot.FieldReason, snapshot.FieldBad, snapshot.FieldForgotten, snapshot.FieldRoot, snapshot.FieldNewRoot, snapshot.FieldAllowShrink,
		snapshot.FieldCompare, snapshot.FieldBase, snapshot.FieldBaseID, snapshot.FieldSortTime, snapshot.FieldCommitted, snapshot.FieldEnded,
		snapshot.FieldRecorded, snapshot.FieldSegment, snapshot.FieldSegmentParts, snapshot.FieldCheckpoint, snapshot.FieldPages, snapshot.FieldPagesSum,
	}, column)
})

// lockSnapshot returns the counters and the state of a snapshot, which do not change until the end
// of the transaction. Only the lockedColumns are set.
func (tx *Tx) lockSnapshot(ctx context.Context, id backup.SnapshotID, exclusive bool) (*ent.Snapshot, error) {
	row, err := locked(tx, tx.Snapshot.Query().Where(snapshot.ID(uuid.UUID(id))), exclusive).Select(lockedColumns...).Only(ctx)
	return row, orNotFound(err, "snapshot %s", id)
}

// locked makes a query lock its rows, against all other locks or only against exclusive ones. A
// database that has only one writing transaction at a time needs no locks.
func locked[Q interface {
	ForUpdate(...entsql.LockOption) Q
	ForShare(...entsql.LockOption) Q
}](tx *Tx, query Q, exclusive bool) Q {
	switch {
	case tx.ForUpdate == "":
		return query
	case exclusive:
		return query.ForUpdate()
	}
	return query.ForShare()
}

// orNotFound returns err, but if ent found no row, backup.ErrNotFound with the name of the row.
func orNotFound(err error, format string, id any) error {
	if ent.IsNotFound(err) {
		return fmt.Errorf(format+": %w", id, backup.ErrNotFound)
	}
	return err
}

const insertPart = `
INSERT INTO slice_parts (snapshot_id, task_id, attempt, part, result) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (task_id, attempt, part) DO UPDATE SET result = excluded.result`

// stagePart stores a part of a result until its last part arrives. If one attempt was walked twice,
// the newer part replaces the older one.
func (tx *Tx) stagePart(ctx context.Context, r *backup.SliceWalked) error {
	return tx.exec(ctx, insertPart, uuid.UUID(r.Snapshot), int64(r.Task), r.Attempt, r.Part, encodeSlice(r))
}

const selectParts = `
SELECT result FROM slice_parts
WHERE task_id = $1 AND attempt = $2 AND part < $3
ORDER BY part`

// stagedParts returns the parts before the last one. It fails with ErrPartMissing if one has not
// arrived, or belongs to another walk of the attempt.
func (tx *Tx) stagedParts(ctx context.Context, last *backup.SliceWalked) ([]*backup.SliceWalked, error) {
	results, err := listOf(ctx, tx.Each, selectParts, []any{int64(last.Task), last.Attempt, last.Part}, oneColumn[[]byte])
	if err != nil {
		return nil, err
	}
	if len(results) != int(last.Part) {
		return nil, index.ErrPartMissing
	}
	parts := make([]*backup.SliceWalked, len(results))
	for i := range results {
		if parts[i], err = decodeSlice(results[i]); err != nil {
			return nil, err
		}
		if parts[i].Run != last.Run {
			return nil, index.ErrPartMissing
		}
	}
	return parts, nil
}
