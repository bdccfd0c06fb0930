package entindex

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// writes is everything that an application has decided to write.
type writes struct {
	trees []Tree
	ended []PageID
	pages []PageRow

	settledTasks, settledBatches []int64
	expired                      []int64 // ids of batches
	newTasks                     []newTask
	newBatches                   []newBatch
	problems                     []newProblem
}

type newTask struct {
	snapshot   uuid.UUID
	filer      int64
	generation int32
	child      *backup.Child
}

type newBatch struct {
	snapshot uuid.UUID
	filer    int64
	toRead   *backup.PagesToRead
}

type newProblem struct {
	snapshot uuid.UUID
	backup.Problem
}

// write writes what the application has decided to write.
func (a *application) write(ctx context.Context) error {
	for _, step := range []func(context.Context) error{a.writePages, a.settle, a.announce, a.writeProblems, a.writeCounters} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// writePages ends versions before it puts new ones: a page that was removed and appeared again in
// the same snapshot is a new version, even if it looks like the old one.
func (a *application) writePages(ctx context.Context) error {
	w := &a.writes
	if len(w.trees) > 0 {
		if err := a.tx.Hot.EndTrees(ctx, w.trees); err != nil {
			return err
		}
	}
	if len(w.ended) > 0 {
		slices.SortFunc(w.ended, comparePageIDs)
		if err := a.tx.Hot.EndPages(ctx, slices.Compact(w.ended)); err != nil {
			return err
		}
	}
	if len(w.pages) == 0 {
		return nil
	}
	// If a page occurs twice, the later one counts.
	slices.Reverse(w.pages)
	slices.SortStableFunc(w.pages, func(a, b PageRow) int { return comparePageIDs(a.id(), b.id()) })
	w.pages = slices.CompactFunc(w.pages, func(a, b PageRow) bool { return a.id() == b.id() })
	namer, err := a.tx.newNamer(ctx)
	if err != nil {
		return err
	}
	pages, err := a.tx.preparePages(ctx, w.pages, namer)
	if err != nil || len(pages) == 0 {
		return err
	}
	if err := a.tx.Hot.PutPages(ctx, pages); err != nil {
		return err
	}
	return namer.put(ctx, a.tx)
}

func (p *PageRow) id() PageID { return PageID{p.Shard, p.Number, p.Directory, p.Key} }

func comparePageIDs(a, b PageID) int {
	return cmp.Or(cmp.Compare(a.Shard, b.Shard), bytes.Compare(a.Directory[:], b.Directory[:]), cmp.Compare(a.Key, b.Key))
}

const (
	settleTasks   = `DELETE FROM walk_tasks WHERE {id in $1}`
	dropParts     = `DELETE FROM slice_parts WHERE {task_id in $1}`
	settleBatches = `DELETE FROM read_batches WHERE {id in $1}`
	expireBatches = `UPDATE read_batches SET lease_until = $2 WHERE {id in $1}`
)

func (a *application) settle(ctx context.Context) error {
	for _, step := range []struct {
		statement string
		ids       []int64
		args      []any
	}{
		{settleTasks, a.writes.settledTasks, nil},
		{dropParts, a.writes.settledTasks, nil}, // of the attempt that won, and of those that lost
		{settleBatches, a.writes.settledBatches, nil},
		{expireBatches, a.writes.expired, []any{noLease}},
	} {
		if err := a.tx.execList(ctx, step.statement, step.ids, step.args...); err != nil {
			return err
		}
	}
	return nil
}

// announce inserts the new tasks and batches: open work, which a committer claims.
func (a *application) announce(ctx context.Context) error {
	const tasks = "INSERT INTO walk_tasks (snapshot_id, filer_id, generation, lease_until, directories) VALUES "
	err := insertAll(ctx, a.tx, tasks, a.writes.newTasks, func(t *newTask) []any {
		return []any{t.snapshot, t.filer, t.generation, noLease, encodeChild(t.child)}
	})
	if err != nil {
		return err
	}
	const batches = "INSERT INTO read_batches (snapshot_id, filer_id, lease_until, names, pages) VALUES "
	return insertAll(ctx, a.tx, batches, a.writes.newBatches, func(b *newBatch) []any {
		return []any{b.snapshot, b.filer, noLease, digestNames(b.toRead.Pages), encodeToRead(b.toRead)}
	})
}

// Upper limits for the texts of a problem. Longer texts are truncated.
const (
	maxOpBytes    = 64
	maxErrorBytes = 2 << 10
)

func (a *application) writeProblems(ctx context.Context) error {
	return a.tx.insertProblems(ctx, a.writes.problems)
}

func (tx *Tx) insertProblems(ctx context.Context, problems []newProblem) error {
	const head = "INSERT INTO problems (snapshot_id, path, op, error) VALUES "
	return insertAll(ctx, tx, head, problems, func(p *newProblem) []any {
		return []any{p.snapshot, []byte(p.Path), text(p.Op, maxOpBytes), text(p.Err, maxErrorBytes)}
	})
}

func (a *application) writeCounters(ctx context.Context) error {
	for _, s := range a.snapshots {
		if !s.changed {
			continue
		}
		update := a.tx.Snapshot.Update().Where(snapshot.ID(s.row.ID)).
			SetProblemsStored(s.problems).
			SetTasksAnnounced(s.tasks).SetTasksSettled(s.tasksSettled).
			SetBatchesAnnounced(s.batches).SetBatchesSettled(s.batchesSettled)
		if s.source != "" {
			update.SetSource(s.source)
		}
		if s.root != "" {
			update.SetRoot(s.root)
		}
		if err := setCounts(update, s.counts).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}
