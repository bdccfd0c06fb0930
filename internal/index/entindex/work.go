package entindex

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/readbatch"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/index/ent/walktask"
)

// ClaimTasks implements index.Committing.
func (x *Index) ClaimTasks(ctx context.Context, c index.Claim) ([]backup.WalkTask, error) {
	var tasks []backup.WalkTask
	err := x.claim(ctx, c, walktask.Table, "generation, directories", func(rows *sql.Rows) (uuid.UUID, error) {
		var t backup.WalkTask
		var of uuid.UUID
		var directories []byte
		err := rows.Scan(&t.ID, &of, &t.Attempt, &t.Generation, &directories)
		if err == nil {
			t.Directories, err = decodeDirectories(directories)
		}
		tasks = append(tasks, t)
		return of, err
	}, func() { tasks = nil }, func(i int, job backup.Job) { tasks[i].Job = job })
	if err != nil {
		return nil, err
	}
	slices.SortFunc(tasks, func(a, b backup.WalkTask) int { return int(a.ID - b.ID) })
	return tasks, nil
}

// ClaimBatches implements index.Committing.
func (x *Index) ClaimBatches(ctx context.Context, c index.Claim) ([]backup.ReadBatch, error) {
	var batches []backup.ReadBatch
	err := x.claim(ctx, c, readbatch.Table, "pages", func(rows *sql.Rows) (uuid.UUID, error) {
		var b backup.ReadBatch
		var of uuid.UUID
		var pages []byte
		err := rows.Scan(&b.ID, &of, &b.Attempt, &pages)
		if err == nil {
			b.Pages, err = decodePages(pages)
		}
		batches = append(batches, b)
		return of, err
	}, func() { batches = nil }, func(i int, job backup.Job) { batches[i].Job = job })
	if err != nil {
		return nil, err
	}
	slices.SortFunc(batches, func(a, b backup.ReadBatch) int { return int(a.ID - b.ID) })
	return batches, nil
}

// claim gives new attempts at open work in one statement. Rows that another
// claim, or a result, has locked are skipped, so that nobody waits.
func (x *Index) claim(ctx context.Context, c index.Claim, table, columns string,
	scan func(*sql.Rows) (uuid.UUID, error), reset func(), set func(int, backup.Job)) error {
	if c.Limit < 1 || c.Snapshots != nil && len(c.Snapshots) == 0 {
		return nil
	}
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		reset()
		args := []any{stamp(c.Now), stamp(c.Now.Add(c.Lease)), c.Limit}
		where := ""
		if c.Snapshots != nil {
			args = append(args, tx.List(uuids(c.Snapshots)))
			where = " AND " + tx.In("snapshot_id", len(args))
		}
		// Materialized, or a plan may run the SELECT more than once, and lock more than the limit.
		rows, err := tx.QueryContext(ctx, "WITH claimed AS MATERIALIZED (SELECT id FROM "+table+
			" WHERE lease_until <= $1"+where+" ORDER BY id LIMIT $3"+tx.SkipLocked+") UPDATE "+table+
			" SET attempt = attempt + 1, lease_until = $2 WHERE id IN (SELECT id FROM claimed) RETURNING id, snapshot_id, attempt, "+columns, args...)
		if err != nil {
			return err
		}
		var of []uuid.UUID
		for rows.Next() {
			id, err := scan(rows)
			if err != nil {
				rows.Close()
				return err
			}
			of = append(of, id)
		}
		if err := closeRows(rows); err != nil {
			return err
		}
		jobs, err := tx.jobs(ctx, of)
		if err != nil {
			return err
		}
		for i, id := range of {
			job, ok := jobs[id]
			if !ok {
				return fmt.Errorf("work of snapshot %s, which is gone: %w", backup.SnapshotID(id), backup.ErrCorrupt)
			}
			set(i, job)
		}
		return nil
	})
}

// jobs returns what workers must know of snapshots.
func (tx *Tx) jobs(ctx context.Context, of []uuid.UUID) (map[uuid.UUID]backup.Job, error) {
	ids := slices.Clone(of)
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	ids = slices.Compact(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := tx.Snapshot.Query().Where(snapshot.IDIn(ids...)).WithShard(func(q *ent.ShardQuery) { q.WithFiler() }).All(ctx)
	if err != nil {
		return nil, err
	}
	jobs := make(map[uuid.UUID]backup.Job, len(rows))
	for _, row := range rows {
		s := toSnapshot(row)
		jobs[row.ID] = backup.Job{
			Snapshot: s.ID, Filer: s.Filer.ID, Shard: s.Shard.ID, Number: s.Number, Base: s.Base,
			Started: backup.TimeOf(s.Started), Source: s.Shard.Source, Selection: s.Selection,
		}
	}
	return jobs, nil
}

// Extend implements index.Committing. Work that is being settled or claimed at
// this moment is passed over.
func (x *Index) Extend(ctx context.Context, held []index.Held, until time.Time) error {
	var tasks []backup.TaskID
	var batches []backup.BatchID
	for _, h := range held {
		if h.Task != 0 {
			tasks = append(tasks, h.Task)
		} else {
			batches = append(batches, h.Batch)
		}
	}
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := extend(ctx, tx, walktask.Table, tasks, until); err != nil {
			return err
		}
		return extend(ctx, tx, readbatch.Table, batches, until)
	})
}

func extend[ID ~int64](ctx context.Context, tx *Tx, table string, ids []ID, until time.Time) error {
	for group := range slices.Chunk(ids, listLength) {
		raw := make([]int64, len(group))
		for i, id := range group {
			raw[i] = int64(id)
		}
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET lease_until = $1 WHERE id IN ("+
			"SELECT id FROM "+table+" WHERE "+tx.In("id", 2)+" ORDER BY id"+tx.SkipLocked+")", stamp(until), tx.List(raw))
		if err != nil {
			return err
		}
	}
	return nil
}
