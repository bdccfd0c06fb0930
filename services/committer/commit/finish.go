package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
)

// finishEvery is how often the committer looks for complete snapshots without a signal.
const finishEvery = 2 * time.Second

func (s *Service) finishLoop(ctx, work context.Context) {
	poll := time.NewTicker(finishEvery)
	defer poll.Stop()
	for { // at once, too: a process that died may have left one
		if err := s.finishAll(ctx, work); err != nil && ctx.Err() == nil {
			if !s.retry(err) {
				s.log.Warn("committing snapshots failed, will retry", "error", err)
			}
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
func (s *Service) finishAll(ctx, work context.Context) error {
	cancelled, err := s.Index.Cancelled(ctx, s.opts.Snapshots)
	for i := range cancelled {
		s.end(work, &cancelled[i], cancelled[i].Cancel, nil)
	}
	complete, completeErr := s.Index.CompleteSnapshots(ctx, s.opts.Snapshots)
	err = errors.Join(err, completeErr)
	if len(complete) > 0 {
		// Another committer may reach the store.
		if mayNot := s.opts.MayCommit(ctx); mayNot != nil {
			return errors.Join(err, mayNot)
		}
	}
	for _, id := range complete {
		if ctx.Err() != nil {
			break
		}
		err = errors.Join(err, s.finish(work, id))
	}
	return err
}

// finish commits a snapshot whose work is all settled, or fails it. finishLoop wakes up when the
// result that settles the last work has been applied (acknowledge).
func (s *Service) finish(ctx context.Context, id backup.SnapshotID) error {
	snap, err := s.Index.Snapshot(ctx, id)
	if err != nil || snap.State != backup.Running || !snap.Complete() {
		return err
	}
	last, err := s.Index.LastCommits(ctx, snap.Shard.ID)
	if err != nil {
		return err
	}
	why := Guard(&snap, &last)
	if why == "" && !s.opts.Alone {
		why = guardFirst(&snap, &last)
	}
	if why != "" {
		flags := "--allow-shrink"
		if snap.NewRoot {
			flags += " --new-root"
		}
		s.fail(ctx, id, why+"; if that is meant, back up again with "+flags, nil)
		return nil
	}
	return s.commit(ctx, &snap, &last)
}

// commit writes the segment of a snapshot and commits it, unless another committer does.
func (s *Service) commit(ctx context.Context, snap *backup.Snapshot, last *index.LastCommits) (err error) {
	id := snap.ID
	mine, err := s.Index.ClaimCommit(ctx, id, s.holder, s.times.lease)
	if err != nil || !mine {
		return err
	}
	ctx, span := s.opts.Trace.Start(ctx, "commit", id)
	leased, release := s.keepLease(ctx, id)
	defer func() {
		release(err != nil)
		span.End(err)
	}()
	segment, err := s.writeSegment(leased, snap, last)
	if err != nil {
		return s.notWritten(ctx, leased, id, err)
	}
	err = s.judge(leased, snap)
	if errors.Is(err, backup.ErrNotFound) {
		return nil // another committer was first
	}
	if err != nil {
		return s.notWritten(ctx, leased, id, err)
	}
	// The commit point. Everything that the snapshot names is already durable (I1). This
	// transaction makes the snapshot visible.
	err = s.Index.Commit(ctx, id, backup.Segment{
		Attempt: segment.Attempt, Parts: segment.Parts, Checkpoint: segment.Checkpoint, Bytes: segment.Bytes,
	}, segment.Content, time.Time{})
	if errors.Is(err, backup.ErrNotFound) {
		return nil // another committer was first; our segment is an orphan
	}
	if err == nil {
		s.ended(ctx, snap, "")
	}
	return err
}

// notWritten handles the failure to write the segment of a snapshot.
func (s *Service) notWritten(ctx, leased context.Context, id backup.SnapshotID, err error) error {
	switch {
	case errors.Is(err, backup.ErrCorrupt):
		s.fail(ctx, id, err.Error(), nil)
		return nil
	case errors.Is(context.Cause(leased), errLeaseLost):
		return nil // our segment is an orphan
	}
	return fmt.Errorf("index segment of snapshot %s: %w", id.Short(), err)
}

// ended handles the end of a snapshot; reason is why it failed. It needs the snapshot's id and
// whether it was cancelled; the other fields are used only if the index does not answer. A record
// that cannot be written now is written later.
func (s *Service) ended(ctx context.Context, snap *backup.Snapshot, reason string) {
	now, err := s.Index.Snapshot(ctx, snap.ID)
	if err == nil {
		snap = &now
	}
	s.logEnd(ctx, snap, reason)
	if err == nil {
		err = s.writeRecord(ctx, snap)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("writing a commit record failed, will retry", "snapshot", snap.ID.Short(), "error", err)
		s.retry(err)
	}
	s.observeEnd(ctx, snap, reason)
	s.opts.OnEnd(snap.ID)
}

// Snapshots of few files, or of few bytes, may lose most of them without confirmation.
const (
	fewFiles = 10
	fewBytes = 1 << 20
)

// Guard returns the reason why a snapshot looks as if an export was not mounted, or emptied by
// mistake (I11, I13); empty if it does not. It compares with the last good snapshot of the shard,
// no matter which snapshot this one is based on.
func Guard(snap *backup.Snapshot, last *index.LastCommits) string {
	now, first := &snap.Counts, last.Good == 0
	switch {
	case snap.AllowShrink:
		return ""
	case now.Vanished > now.Files && (now.Vanished >= fewFiles || first && now.Files == 0):
		return fmt.Sprintf("%d of %d files and directories were gone when they were to be read", now.Vanished, now.Files+now.Vanished)
	case first:
		return ""
	case now.Files == 0 && last.Files > 0, now.Files < last.Files/2 && last.Files-now.Files >= fewFiles:
		return fmt.Sprintf("the shard has far fewer files than its last good snapshot: %d, after %d in number %d", now.Files, last.Files, last.Good)
	case now.Bytes < last.Bytes/10 && last.Bytes-now.Bytes >= fewBytes:
		return fmt.Sprintf("the shard has far fewer bytes than its last good snapshot: %d, after %d in number %d", now.Bytes, last.Bytes, last.Good)
	}
	return ""
}

// guardFirst returns the reason why the first good snapshot of a shard looks as if its filer was
// not mounted; empty if it does not. On one machine the directory is the user's own, and bctl
// backup prints a note instead.
func guardFirst(snap *backup.Snapshot, last *index.LastCommits) string {
	now := &snap.Counts
	if last.Good > 0 || snap.AllowShrink || now.Files > 0 || now.Directories > 1 {
		return ""
	}
	return "the shard is empty, and it has no earlier good snapshot: is the filer mounted where the walkers run?"
}

const (
	// minCheckpointBytes is the minimum size of the segments that a checkpoint replaces.
	minCheckpointBytes = 1 << 20
	// checkpointEvery is how many snapshots a shard has per checkpoint, and per minCheckpointBytes
	// of the last one.
	checkpointEvery = 128
)

// needsCheckpoint reports whether the segment of a snapshot must have all pages of the shard: if
// records are to be amended, because a rebuild could not tell on which of them it is based; if
// the segments since the last checkpoint have become larger than it, or the chain of snapshots may
// have become long. Nothing of a chain can be deleted before a checkpoint has cut it, not even the
// records of snapshots that changed nothing. So checkpoints cost at most 8 KiB per snapshot.
func needsCheckpoint(snap *backup.Snapshot, last *index.LastCommits) bool {
	if snap.Base == 0 || last.Stale || last.SegmentBytes > max(last.CheckpointBytes, minCheckpointBytes) {
		return true
	}
	every := checkpointEvery * (1 + last.CheckpointBytes/minCheckpointBytes)
	return int64(snap.Number)%every == 0
}

// writeSegment writes the snapshot's changes of the index to the store, so that the store alone is
// sufficient (I7). The first segment of a shard is a checkpoint, which has all of its pages. So are
// some of the later ones (needsCheckpoint).
func (s *Service) writeSegment(ctx context.Context, snap *backup.Snapshot, last *index.LastCommits) (journal.Segment, error) {
	put := func(name string, data []byte) error { return s.Store.Put(ctx, name, data) }
	changes := s.Index.Changes(ctx, snap.ID)
	if snap.Base == 0 {
		return journal.WriteSegment(s.Keys, snap, true, backup.PageSet{}, changes, put)
	}
	base, err := s.Index.Snapshot(ctx, snap.BaseID)
	if err != nil {
		return journal.Segment{}, err
	}
	if !needsCheckpoint(snap, last) {
		return journal.WriteSegment(s.Keys, snap, false, base.Pages, changes, put)
	}
	want, err := journal.Content(base.Pages, changes)
	if err != nil {
		return journal.Segment{}, err
	}
	checkpoint, err := journal.WriteSegment(s.Keys, snap, true, backup.PageSet{}, s.Index.AllPages(ctx, snap.ID), put)
	if err == nil && checkpoint.Content != want && !snap.AllowShrink {
		return journal.Segment{}, fmt.Errorf("the index has %d pages of shard %q, and should have %d: pages are missing, and with them files of earlier snapshots: %w. "+
			"To take what this backup has found, back up again with --allow-shrink", checkpoint.Content.Pages, snap.Shard.Name, want.Pages, backup.ErrCorrupt)
	}
	return checkpoint, err
}
