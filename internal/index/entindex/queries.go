package entindex

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/readbatch"
	"github.com/bctl/bctl/internal/index/ent/slicepart"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/index/ent/walktask"
)

// SQLite allows 32,766 parameters per statement.
const (
	listLength = 10_000 // of an IN (…) list
	insertRows = 500    // of a VALUES (…), (…) list
)

// insert runs an INSERT of many rows, and returns the rows of its RETURNING clause.
func (tx *Tx) insert(ctx context.Context, head string, values [][]any, tail string) (*sql.Rows, error) {
	query, args := tx.insertStatement(head, values, tail)
	return tx.QueryContext(ctx, query, args...)
}

func (tx *Tx) insertAll(ctx context.Context, head string, values [][]any) error {
	query, args := tx.insertStatement(head, values, "")
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}

func (d *Dialect) insertStatement(head string, values [][]any, tail string) (string, []any) {
	var query strings.Builder
	query.WriteString(head)
	args := make([]any, 0, len(values)*len(values[0]))
	for _, row := range values {
		for i, value := range row {
			switch {
			case i > 0:
				query.WriteString(",")
			case len(args) > 0:
				query.WriteString("),(")
			default:
				query.WriteString("(")
			}
			args = append(args, value)
			if d.Numbered {
				query.WriteString("$" + strconv.Itoa(len(args)))
			} else {
				query.WriteString("?")
			}
		}
	}
	query.WriteString(")" + tail)
	return query.String(), args
}

// closeRows ends a query whose rows have been read or are not needed.
func closeRows(rows *sql.Rows) error {
	for rows.Next() { // a statement that writes is complete only when its rows have been read
	}
	if err := rows.Err(); err != nil {
		rows.Close()
		return err
	}
	return rows.Close()
}

// lockedColumns are the columns of a snapshot that lockSnapshot reads: all except its request and
// its outcome. They are read for each result of a snapshot.
var lockedColumns = slices.DeleteFunc(slices.Clone(snapshot.Columns), func(column string) bool {
	return slices.Contains([]string{
		snapshot.FieldSelection, snapshot.FieldTags, snapshot.FieldReason, snapshot.FieldBad, snapshot.FieldRoot, snapshot.FieldNewRoot, snapshot.FieldAllowShrink,
		snapshot.FieldCompare, snapshot.FieldBase, snapshot.FieldBaseID, snapshot.FieldSortTime, snapshot.FieldCommitted, snapshot.FieldEnded,
		snapshot.FieldRecorded, snapshot.FieldSegment, snapshot.FieldSegmentParts, snapshot.FieldCheckpoint, snapshot.FieldPages, snapshot.FieldPagesSum,
	}, column)
})

// lockSnapshot returns the counters and the state of a snapshot, which do not change until the end
// of the transaction. Only the lockedColumns are set.
func (tx *Tx) lockSnapshot(ctx context.Context, id backup.SnapshotID, exclusive bool) (*ent.Snapshot, error) {
	query := tx.Snapshot.Query().Where(snapshot.ID(uuid.UUID(id)))
	switch {
	case tx.ForUpdate == "":
	case exclusive:
		query.ForUpdate()
	default:
		query.ForShare()
	}
	row, err := query.Select(lockedColumns...).Only(ctx)
	if ent.IsNotFound(err) {
		return nil, fmt.Errorf("snapshot %s: %w", id, backup.ErrNotFound)
	}
	return row, err
}

func (tx *Tx) openTasks(ctx context.Context, ids []int64) ([]*ent.WalkTask, error) {
	var tasks []*ent.WalkTask
	for group := range slices.Chunk(ids, listLength) {
		rows, err := tx.WalkTask.Query().Where(walktask.IDIn(group...)).
			Select(walktask.FieldID, walktask.FieldSnapshotID, walktask.FieldAttempt, walktask.FieldGeneration).All(ctx)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, rows...)
	}
	return tasks, nil
}

func (tx *Tx) openBatches(ctx context.Context, ids []int64) ([]*ent.ReadBatch, error) {
	var batches []*ent.ReadBatch
	for group := range slices.Chunk(ids, listLength) {
		rows, err := tx.ReadBatch.Query().Where(readbatch.IDIn(group...)).
			Select(readbatch.FieldID, readbatch.FieldSnapshotID, readbatch.FieldAttempt, readbatch.FieldNames).All(ctx)
		if err != nil {
			return nil, err
		}
		batches = append(batches, rows...)
	}
	return batches, nil
}

// stagePart stores a part of a result until its last part arrives. If one attempt was walked twice,
// the newer part replaces the older one.
func (tx *Tx) stagePart(ctx context.Context, r *backup.SliceWalked) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO slice_parts (snapshot_id, task_id, attempt, part, result) VALUES ($1,$2,$3,$4,$5)"+
		" ON CONFLICT (task_id, attempt, part) DO UPDATE SET result = excluded.result",
		uuid.UUID(r.Snapshot), int64(r.Task), r.Attempt, r.Part, encodeSlice(r))
	return err
}

// stagedParts returns the parts before the last one. It fails with ErrPartMissing if one has not
// arrived, or belongs to another walk of the attempt.
func (tx *Tx) stagedParts(ctx context.Context, last *backup.SliceWalked) ([]*backup.SliceWalked, error) {
	rows, err := tx.SlicePart.Query().
		Where(slicepart.TaskID(int64(last.Task)), slicepart.Attempt(last.Attempt), slicepart.PartLT(last.Part)).
		Order(slicepart.ByPart()).All(ctx)
	if err != nil {
		return nil, err
	}
	if len(rows) != int(last.Part) {
		return nil, index.ErrPartMissing
	}
	parts := make([]*backup.SliceWalked, len(rows))
	for i, row := range rows {
		if parts[i], err = decodeSlice(row.Result); err != nil {
			return nil, err
		}
		if parts[i].Run != last.Run {
			return nil, index.ErrPartMissing
		}
	}
	return parts, nil
}
