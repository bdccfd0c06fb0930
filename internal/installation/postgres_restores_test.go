package installation

import (
	"context"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
)

// restoring is the index of a restorer, and of the operator who gives it keys.
type restoring struct{ restorer, planner *pgindex.Index }

func (r restoring) PagesIn(ctx context.Context, id backup.SnapshotID, from, to []byte) iter.Seq2[backup.PageVersion, error] {
	return sequenceByEach(func(x *pgindex.Index) iter.Seq2[backup.PageVersion, error] { return x.PagesIn(ctx, id, from, to) }, r.planner, r.restorer)
}

func (r restoring) BeginRestore(ctx context.Context, of index.Restore, tasks []index.RestoreTask) error {
	return r.planner.BeginRestore(ctx, of, tasks)
}

func (r restoring) Restores(ctx context.Context) ([]index.Restore, error) {
	return r.planner.Restores(ctx)
}

func (r restoring) RestoreTasks(ctx context.Context, id index.RestoreID, after int64, limit int) ([]index.RestoreTask, error) {
	return byEach(func(x *pgindex.Index) ([]index.RestoreTask, error) { return x.RestoreTasks(ctx, id, after, limit) }, r.restorer, r.planner)
}

func (r restoring) TasksWithoutKeys(ctx context.Context, id index.RestoreID, limit int) ([]index.RestoreTask, error) {
	return r.planner.TasksWithoutKeys(ctx, id, limit)
}

func (r restoring) GiveKeys(ctx context.Context, row int64, attempt int, keys []byte) error {
	return r.planner.GiveKeys(ctx, row, attempt, keys)
}

func (r restoring) Refusals(ctx context.Context, id index.RestoreID) ([]index.Refusal, error) {
	return r.planner.Refusals(ctx, id)
}

func (r restoring) EndRestore(ctx context.Context, id index.RestoreID) error {
	return r.planner.EndRestore(ctx, id)
}

func (r restoring) ClaimRestoreTask(ctx context.Context, site, worker, recipient string, lease time.Duration) (index.Restore, index.RestoreTask, bool, error) {
	return r.restorer.ClaimRestoreTask(ctx, site, worker, recipient, lease)
}

func (r restoring) RenewRestoreTask(ctx context.Context, t *index.RestoreTask, lease time.Duration, files, bytes int64) ([]byte, error) {
	return r.restorer.RenewRestoreTask(ctx, t, lease, files, bytes)
}

func (r restoring) SettleRestoreTask(ctx context.Context, t *index.RestoreTask, result []byte) error {
	return r.restorer.SettleRestoreTask(ctx, t, result)
}

func (r restoring) FailRestoreTask(ctx context.Context, t *index.RestoreTask, pause time.Duration, counts bool, reason string) error {
	return r.restorer.FailRestoreTask(ctx, t, pause, counts, reason)
}

func (r restoring) RefuseRestore(ctx context.Context, t *index.RestoreTask, pause time.Duration, reason string) error {
	return r.restorer.RefuseRestore(ctx, t, pause, reason)
}
