package prune

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// RemoveForgotten removes the forgotten snapshots through which no chain of segments of a needed
// one goes, with their journals, and returns their number. It fails with ErrBusy while another
// process prunes.
func RemoveForgotten(ctx context.Context, o Options) (int, error) {
	p := &pass{Options: o}
	err := p.lead(ctx, p.removeForgotten)
	return p.result.Snapshots, err
}

// versions deletes the versions of pages that nothing needs.
func (p *pass) versions(ctx context.Context) error {
	shards, err := p.Index.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	for i := range shards {
		if err := p.dropVersions(ctx, shards[i].ID); err != nil {
			return err
		}
		if err := p.collectNames(ctx, shards[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// collectNames makes the names of a shard those that its versions have, if need be. Another process
// may be about to do that, too.
func (p *pass) collectNames(ctx context.Context, shard backup.ShardID) error {
	p.step("collecting the names of files")
	_, err := p.Index.CollectNames(ctx, shard)
	if errors.Is(err, backup.ErrRunning) {
		return nil
	}
	return err
}

// journals deletes the forgotten snapshots through which no chain of segments of a needed one goes,
// with their journals, and catalogs that newer ones have replaced.
func (p *pass) journals(ctx context.Context) error {
	if err := p.removeForgotten(ctx); err != nil {
		return err
	}
	return p.catalogs(ctx)
}

// historyOf is history for one shard. Forgotten snapshots of other shards stay: the brake may have
// stopped the pass that would remove them.
func (p *pass) historyOf(ctx context.Context, shard backup.ShardID) error {
	if err := p.dropVersions(ctx, shard); err != nil {
		return err
	}
	return p.removeForgottenOf(ctx, func(f index.Forgotten) bool { return f.Shard == shard })
}

func (p *pass) dropVersions(ctx context.Context, shard backup.ShardID) error {
	p.step("deleting old versions of directories")
	n, err := p.Index.DropVersions(ctx, shard)
	p.result.Versions += n
	return err
}

// removeForgotten removes the forgotten snapshots whose journals are not needed.
func (p *pass) removeForgotten(ctx context.Context) error {
	return p.removeForgottenOf(ctx, func(index.Forgotten) bool { return true })
}

// removeForgottenOf is removeForgotten for those that selected selects.
func (p *pass) removeForgottenOf(ctx context.Context, selected func(index.Forgotten) bool) error {
	forgotten, err := p.Index.Forgotten(ctx)
	if err != nil {
		return err
	}
	forgotten = slices.DeleteFunc(forgotten, func(f index.Forgotten) bool { return f.Needed || !selected(f) })
	for group := range slices.Chunk(forgotten, objectsAtOnce) {
		if err := p.remove(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes forgotten snapshots: first the segments of all of them, then the valid records,
// then the rows. So a record never exists without the index knowing its snapshot, and while the
// record exists, the snapshot exists. A pass that ends in between leaves rows, with which the next
// one begins again. So do snapshots of which an object is locked.
func (p *pass) remove(ctx context.Context, group []index.Forgotten) error {
	p.step("deleting the journals of forgotten snapshots")
	group = slices.DeleteFunc(slices.Clone(group), func(f index.Forgotten) bool {
		noted := p.locks.Until[index.RecordLock(f.ID)]
		locked := noted.After(p.locks.Now) || p.ObjectLock && noted.IsZero() && p.isFresh(f.ID)
		if locked {
			p.result.Locked++
		}
		return locked
	})
	if p.BeforeRemove != nil && !p.announced && len(group) > 0 {
		if err := p.BeforeRemove(ctx); err != nil {
			return err
		}
		p.announced = true
	}
	group, err := p.deleteOf(ctx, group, journalOf)
	if err != nil {
		return err
	}
	group, err = p.deleteOf(ctx, group, func(f *index.Forgotten) iter.Seq[string] {
		return slices.Values([]string{store.AmendedName(f.ID, f.Amendment)})
	})
	if err != nil {
		return err
	}
	for _, f := range group {
		switch err := p.Index.Remove(ctx, f.ID); {
		case errors.Is(err, index.ErrKept): // somebody has begun to read it
		case errors.Is(err, backup.ErrNotFound): // a pass that had been paused has removed it
		case err != nil:
			return err
		default:
			p.result.Snapshots++
		}
	}
	return nil
}

// deleteOf deletes objects of snapshots. It returns the snapshots without those of which an object
// is locked.
func (p *pass) deleteOf(ctx context.Context, group []index.Forgotten, names func(*index.Forgotten) iter.Seq[string]) ([]index.Forgotten, error) {
	kept := map[string]bool{}
	batch := make([]string, 0, objectsAtOnce)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := p.Store.Delete(ctx, batch...)
		batch = batch[:0]
		locked, ok := errors.AsType[*store.LockedError](err)
		if !ok {
			return err
		}
		for _, name := range locked.Names {
			kept[name] = true
		}
		return nil
	}
	for i := range group {
		for name := range names(&group[i]) {
			batch = append(batch, name)
			if len(batch) < objectsAtOnce {
				continue
			}
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(group, func(f index.Forgotten) bool {
		for name := range names(&f) {
			if kept[name] {
				p.result.Locked++
				return true
			}
		}
		return false
	}), nil
}

// journalOf yields the names of a snapshot's segment, and of the records that its valid record has
// replaced.
func journalOf(f *index.Forgotten) iter.Seq[string] {
	return func(yield func(string) bool) {
		for part := range f.Segment.Parts {
			if !yield(store.SegmentName(f.ID, f.Segment.Attempt, part)) {
				return
			}
		}
		for earlier := range f.Amendment {
			if !yield(store.AmendedName(f.ID, earlier)) {
				return
			}
		}
	}
}
