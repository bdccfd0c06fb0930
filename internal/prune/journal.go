package prune

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// history deletes the versions of pages that nothing needs, and the forgotten snapshots through
// which no chain of segments of a needed one goes, with their journals.
func (p *pass) history(ctx context.Context) error {
	p.step("deleting old versions of directories")
	shards, err := p.Index.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	for i := range shards {
		n, err := p.Index.DropVersions(ctx, shards[i].ID)
		if err != nil {
			return err
		}
		p.result.Versions += n
	}
	forgotten, err := p.Index.Forgotten(ctx)
	if err != nil {
		return err
	}
	for _, f := range forgotten {
		if f.Needed {
			continue
		}
		if noted := p.locks.Until[index.RecordLock(f.ID)]; noted.After(p.locks.Now) || p.ObjectLock && noted.IsZero() && p.isFresh(f.ID) {
			p.result.Locked++
			continue
		}
		// The record goes last: while it exists, the snapshot exists.
		var names []string
		for part := range f.Segment.Parts {
			names = append(names, store.SegmentName(f.ID, f.Segment.Attempt, part))
		}
		err := p.Store.Delete(ctx, names...)
		if err == nil {
			err = p.Store.Delete(ctx, store.CommitName(f.ID))
		}
		if _, locked := errors.AsType[*store.LockedError](err); locked {
			p.result.Locked++
			continue
		}
		if err != nil {
			return err
		}
		switch err := p.Index.Remove(ctx, f.ID); {
		case errors.Is(err, index.ErrKept): // somebody has begun to read it
		case errors.Is(err, backup.ErrNotFound): // another pass, which was paused for long, has removed it
		case err != nil:
			return err
		default:
			p.result.Snapshots++
		}
	}
	return nil
}
