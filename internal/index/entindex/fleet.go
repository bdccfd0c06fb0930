package entindex

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func (x *Index) AddFiler(ctx context.Context, f backup.Filer) (backup.Filer, error) {
	return f, errors.ErrUnsupported
}
func (x *Index) SetFiler(ctx context.Context, f backup.Filer) error { return errors.ErrUnsupported }
func (x *Index) RetireFiler(ctx context.Context, id backup.FilerID) error {
	return errors.ErrUnsupported
}
func (x *Index) ListFilers(ctx context.Context, f index.FilerFilter) ([]index.FilerStatus, error) {
	return nil, errors.ErrUnsupported
}
func (x *Index) AddShard(ctx context.Context, s backup.Shard) (backup.Shard, error) {
	return s, errors.ErrUnsupported
}
func (x *Index) SetShard(ctx context.Context, s backup.Shard) error { return errors.ErrUnsupported }
func (x *Index) RetireShard(ctx context.Context, id backup.ShardID) error {
	return errors.ErrUnsupported
}
func (x *Index) ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error) {
	return nil, errors.ErrUnsupported
}
func (x *Index) RequestCancel(ctx context.Context, id backup.SnapshotID, reason string) error {
	return errors.ErrUnsupported
}
func (x *Index) InHand(ctx context.Context, now time.Time, limit int) ([]index.Work, error) {
	return nil, errors.ErrUnsupported
}
func (x *Index) BaseCounts(ctx context.Context, ids []backup.SnapshotID) (map[backup.SnapshotID]backup.Counts, error) {
	return nil, errors.ErrUnsupported
}
func (x *Index) GiveBack(ctx context.Context, tasks []backup.TaskID, batches []backup.BatchID) error {
	return errors.ErrUnsupported
}
func (x *Index) Cancelled(ctx context.Context, only []backup.SnapshotID) ([]backup.Snapshot, error) {
	return nil, nil
}
func (x *Index) Lead(ctx context.Context, role, holder string, ttl time.Duration) (index.Term, bool, error) {
	return index.Term{}, true, nil
}
func (x *Index) Resign(ctx context.Context, t index.Term) error { return nil }
func (x *Index) SetLoads(ctx context.Context, t index.Term, loads map[backup.FilerID]backup.Load) error {
	return nil
}
func (x *Index) Sites(ctx context.Context) ([]string, error) {
	return []string{backup.DefaultSite}, nil
}
