package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/segment"
	"github.com/bctl/bctl/internal/store"
)

// finishEvery is how often snapshots to commit are looked for without being
// told of one.
const finishEvery = 2 * time.Second

func (s *Service) finishLoop(ctx, hand context.Context) {
	poll := time.NewTicker(finishEvery)
	defer poll.Stop()
	for { // at once, too: a process that died may have left one
		if err := s.finishAll(ctx, hand); err != nil && ctx.Err() == nil {
			s.log.Warn("snapshots will be committed later", "error", err)
			s.retry(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.settled:
		case <-poll.C:
		}
	}
}

// finishAll ends the snapshots whose end was requested, and commits those that are complete.
func (s *Service) finishAll(ctx, hand context.Context) error {
	cancelled, err := s.Index.Cancelled(ctx, s.opts.Snapshots)
	for i := range cancelled {
		s.fail(hand, cancelled[i].ID, cancelled[i].Cancel, nil)
	}
	complete, completeErr := s.Index.CompleteSnapshots(ctx, s.opts.Snapshots)
	err = errors.Join(err, completeErr)
	for _, id := range complete {
		if ctx.Err() != nil {
			break
		}
		err = errors.Join(err, s.finish(hand, id))
	}
	return err
}

// finish commits a snapshot all of whose work is settled.
func (s *Service) finish(ctx context.Context, id backup.SnapshotID) (err error) {
	snap, err := s.Index.Snapshot(ctx, id)
	if err != nil || snap.State != backup.Running || !snap.Complete() {
		return err
	}
	if err := s.guard(ctx, &snap); err != nil {
		if errors.Is(err, backup.ErrShrunk) {
			s.fail(ctx, id, err.Error(), nil)
			return nil
		}
		return err
	}
	ctx, span := s.opts.Trace.Start(ctx, "commit", id)
	defer func() { span.End(err) }()
	now := time.Now()
	segments, err := s.writeSegment(ctx, &snap, now)
	if err != nil {
		return err
	}
	// The commit point: before this transaction nobody sees the snapshot,
	// after it everything that it names is durable (I1).
	err = s.Index.Commit(ctx, id, segments, now)
	if errors.Is(err, backup.ErrNotFound) {
		return nil // another committer was first; our segment is an orphan
	}
	if err == nil {
		s.log.Debug("snapshot committed", "snapshot", id.Short())
		s.tellEnd(ctx, id, "")
		s.opts.OnEnd(id)
	}
	return err
}

// guard fails a snapshot that looks as if an export was not mounted (I11): it
// has less than half the files of the one before.
func (s *Service) guard(ctx context.Context, snap *backup.Snapshot) error {
	if snap.Base == 0 || snap.AllowShrink {
		return nil
	}
	last, err := s.Index.Snapshots(ctx, index.SnapshotFilter{
		Filer: snap.Filer.Name, Shard: snap.Shard.Name, States: []backup.State{backup.Committed}, Limit: 1,
	})
	if err != nil || len(last) == 0 {
		return err
	}
	before, now := last[0].Counts.Files, snap.Counts.Files
	const few = 10 // files that may go without a question, if any stay
	if now >= before/2 && (now > 0 || before == 0) || now > 0 && before-now < few {
		return nil
	}
	return fmt.Errorf("%w: %d, after %d in snapshot %s; if that is meant, back up again with --allow-shrink",
		backup.ErrShrunk, now, before, last[0].ID.Short())
}

// writeSegment writes what the snapshot changed in the index to the store, so
// that the store alone is enough (I7).
func (s *Service) writeSegment(ctx context.Context, snap *backup.Snapshot, now time.Time) (names []string, err error) {
	attempt := backup.NewPackID()
	header := segment.Header{
		Snapshot: snap.ID.String(), Filer: snap.Filer.Name, Shard: snap.Shard.Name, Source: snap.Shard.Source,
		Number: snap.Number, Base: snap.Base, Started: snap.Started, Committed: now,
		Selection: snap.Selection, Tags: snap.Tags, Counts: snap.Counts,
	}
	err = segment.Write(s.Sealer, attempt, header, s.Index.Changes(ctx, snap.ID), func(part int, data []byte) error {
		name := store.SegmentName(snap.ID, attempt, part)
		names = append(names, name)
		return s.Store.Put(ctx, name, data)
	})
	if err != nil {
		return nil, fmt.Errorf("index segment of snapshot %s: %w", snap.ID.Short(), err)
	}
	return names, nil
}
