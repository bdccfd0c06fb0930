package rebuild

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A shard is one whose snapshots are recovered.
type shard struct {
	*rebuilding
	backup.Shard
	records []*record // by number
	chain   chain
	at      state
	ahead   map[backup.SnapshotID]bool // the index has them as a purge has left them, and their records are to be amended
	failed  []backup.SnapshotNumber    // of snapshots that cannot be recovered, also those that were named before
	anew    bool                       // the pages are replayed, whatever the index has
	// The lengths of the last checkpoint and of the segments since.
	checkpointBytes, segmentBytes int64
}

// A state is the snapshot that the open versions of a shard's pages belong to.
type state struct {
	number backup.SnapshotNumber // 0: there are no pages
	id     backup.SnapshotID
	pages  backup.PageSet
}

// recoverShards recovers the snapshots of all shards.
func (r *rebuilding) recoverShards(ctx context.Context) error {
	err := r.failRunning(ctx)
	if err != nil {
		return err
	}
	if r.amendments, err = r.Index.Amendments(ctx); err != nil {
		return err
	}
	for _, key := range r.keys() {
		if err := r.recoverShard(ctx, key); err != nil {
			return fmt.Errorf("shard %q: %w", r.shards[key].Name, err)
		}
	}
	r.result.Refused = len(r.result.Lost) > r.AcceptLoss
	return r.noteRecords(ctx)
}

// collectNames collects the names of the pages that were recovered, for bctl find.
func (r *rebuilding) collectNames(ctx context.Context) error {
	for _, key := range r.keys() {
		if _, err := r.Index.CollectNames(ctx, r.shards[key].ID); err != nil {
			return fmt.Errorf("shard %q: %w", r.shards[key].Name, err)
		}
	}
	return nil
}

// olderTries bounds how often other records of a shard are tried.
const olderTries = 64

// recoverShard recovers the snapshots of a shard. If some cannot be recovered from the newest
// records, older ones are tried, and those are used with which the fewest are lost.
func (r *rebuilding) recoverShard(ctx context.Context, key backup.ShardKey) error {
	newest := r.byShard[key]
	t := &trial{rebuilding: r, key: key, before: r.result, best: newest, last: newest}
	s := &shard{rebuilding: r, Shard: r.shards[key], records: newest}
	if err := s.recover(ctx); err != nil || len(s.failed) == 0 {
		return err
	}
	t.failed, t.lost = s.failed, s.failed
	if err := t.olderBefore(ctx); err != nil {
		return err
	}
	if err := t.olderOfAll(ctx, newest); err != nil {
		return err
	}
	if !slices.Equal(t.last, t.best) {
		if _, err := t.try(ctx, t.best); err != nil {
			return err
		}
	}
	if slices.Equal(t.best, newest) {
		return nil
	}
	r.result.Unpurged = append(r.result.Unpurged, r.shards[key])
	return r.Index.MarkStale(ctx, r.shards[key].ID) // the store may have newer records
}

// A trial finds the records of a shard that fit together.
type trial struct {
	*rebuilding
	key    backup.ShardKey
	before Result // before the shard was recovered

	best   []*record
	lost   []backup.SnapshotNumber // with best
	last   []*record               // that were tried
	failed []backup.SnapshotNumber // with last
	tries  int
}

// try recovers the shard again, from other records, and reports whether fewer snapshots are lost
// than before.
func (t *trial) try(ctx context.Context, records []*record) (better bool, err error) {
	t.result.Snapshots, t.result.Lost = t.before.Snapshots, t.before.Lost
	t.progress.Snapshots -= len(records)
	for _, one := range records {
		t.records[one.ID] = one
	}
	s := &shard{rebuilding: t.rebuilding, Shard: t.shards[t.key], records: records, anew: true}
	if err := s.recover(ctx); err != nil {
		return false, err
	}
	t.tries++
	t.last, t.failed = records, s.failed
	if better = len(s.failed) < len(t.lost); better {
		t.best, t.lost = records, s.failed
	}
	return better, nil
}

// olderBefore tries older records of the snapshots before one that cannot be recovered. Purges
// amend the records of a shard from the first snapshot on. If one was interrupted, the records that
// it had amended do not fit the next one. The records before these do: none is deleted before all
// are amended. Several purges may have been interrupted.
func (t *trial) olderBefore(ctx context.Context) error {
	vain := map[backup.SnapshotNumber]bool{} // of snapshots that are lost in any case
	fails := func(of []backup.SnapshotNumber) backup.SnapshotNumber {
		for _, number := range of {
			if !vain[number] {
				return number
			}
		}
		return 0
	}
	for len(t.lost) > 0 && t.tries < olderTries {
		at, records, better := fails(t.lost), t.best, false
		if at == 0 {
			return nil
		}
		for next := at; next > 0 && !better && t.tries < olderTries; next = fails(t.failed) {
			older, err := t.olderRecords(ctx, records, next)
			if err != nil {
				return err
			}
			if older == nil {
				break
			}
			if better, err = t.try(ctx, older); err != nil {
				return err
			}
			records = older
		}
		vain[at] = !better
	}
	return nil
}

// olderOfAll tries older records of all snapshots: a segment may be damaged that they do not need.
func (t *trial) olderOfAll(ctx context.Context, newest []*record) error {
	for records := newest; len(t.lost) > 0 && t.tries < olderTries; {
		older, err := t.olderRecords(ctx, records, math.MaxInt64)
		if err != nil || older == nil {
			return err
		}
		if _, err := t.try(ctx, older); err != nil {
			return err
		}
		records = older
	}
	return nil
}

// noteRecords notes the records that the store has, and that were not written yet when the index
// was copied.
func (r *rebuilding) noteRecords(ctx context.Context) error {
	unwritten, err := r.Index.Unrecorded(ctx, nil, math.MaxInt32)
	if err != nil {
		return err
	}
	for i := range unwritten {
		if id := unwritten[i].ID; r.records[id] != nil {
			if err := r.Index.Recorded(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// failRunning fails the snapshots that were running when the index was copied: nobody works on
// them.
func (r *rebuilding) failRunning(ctx context.Context) error {
	running, err := r.Index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}})
	if err != nil {
		return err
	}
	for i := range running {
		err := r.Index.Fail(ctx, running[i].ID, index.PutBack, now)
		if err != nil && !errors.Is(err, backup.ErrNotFound) {
			return err
		}
	}
	return nil
}

// recover recovers the snapshots of a shard.
func (s *shard) recover(ctx context.Context) error {
	s.ahead = map[backup.SnapshotID]bool{}
	known, err := s.known(ctx)
	if err != nil {
		return err
	}
	for id := range known {
		if known[id].State == backup.Deleting { // its pages may have been dropped
			s.forgotten[id] = true
		}
	}
	s.chain = newChain(s.records, s.forgotten)
	if err := s.begin(ctx); err != nil {
		return err
	}
	if err := s.loseUnrecorded(ctx, known); err != nil {
		return err
	}
	for _, r := range s.records {
		if err := s.recoverOne(ctx, r, known[r.ID]); err != nil {
			return fmt.Errorf("snapshot %s: %w", r.ID.Short(), err)
		}
		s.progress.Snapshots++
		s.Progress(s.progress)
	}
	return s.Index.SetJournalBytes(ctx, s.ID, s.checkpointBytes, s.segmentBytes)
}

// known returns the snapshots of the shard that the index has.
func (s *shard) known(ctx context.Context) (map[backup.SnapshotID]*backup.Snapshot, error) {
	found, err := s.Index.Snapshots(ctx, index.SnapshotFilter{
		Filer: s.records[0].Filer.Name, Shard: s.Name, States: []backup.State{backup.Committed, backup.Failed, backup.Deleting},
	})
	known := make(map[backup.SnapshotID]*backup.Snapshot, len(found))
	for i := range found {
		known[found[i].ID] = &found[i]
	}
	return known, err
}

// begin decides from where the pages of the shard are replayed, and undoes what an interrupted
// rebuild has left after that. If the index has the right pages, it is continued after its newest
// committed snapshot.
func (s *shard) begin(ctx context.Context) error {
	journals, err := s.Index.Journals(ctx, s.ID)
	if err != nil {
		return err
	}
	if newest := s.isRight(journals); newest != nil && !s.Anew && !s.anew {
		s.at = state{newest.Number, newest.ID, newest.Pages}
		last, err := s.Index.LastCommits(ctx, s.ID)
		if err != nil {
			return err
		}
		s.checkpointBytes, s.segmentBytes = last.CheckpointBytes, last.SegmentBytes
	}
	return s.Index.RollBack(ctx, s.ID, s.at.number)
}

// isRight returns the newest committed snapshot that the index has, if the committed ones have the
// content that their records give, and the next one that is replayed is based on it. The index is
// ahead of a record that it knows to be stale: a purge has changed the pages, and has not amended
// the record yet.
func (s *shard) isRight(journals []index.SnapshotJournal) (newest *index.SnapshotJournal) {
	for i := range journals {
		j := &journals[i]
		if j.State != backup.Committed {
			continue
		}
		if r := s.rebuilding.records[j.ID]; r != nil && (r.State != backup.Committed || r.Pages != j.Pages) {
			if r.State != backup.Committed || !j.Stale || r.amendment > j.Sequence {
				return nil
			}
			s.ahead[j.ID] = true
		}
		newest = j
	}
	if newest == nil {
		return nil
	}
	next := slices.IndexFunc(s.records, func(r *record) bool { return r.Number > newest.Number && s.chain.replayed[r] })
	if next >= 0 {
		if r := s.records[next]; r.base != newest.ID && r.base != (backup.SnapshotID{}) {
			return nil
		}
	}
	return newest
}

// recoverOne recovers a snapshot: its pages, if they are needed, and then its row.
func (s *shard) recoverOne(ctx context.Context, r *record, known *backup.Snapshot) error {
	if s.ahead[r.ID] && r.Number <= s.at.number {
		return nil
	}
	replayed := r.Number > s.at.number && s.chain.replayed[r]
	if replayed && r.base != (backup.SnapshotID{}) && r.base != s.at.id {
		s.chain.lost[r] = basedOnLost(s.rebuilding.records[r.base])
	}
	if replayed && s.chain.lost[r] == nil {
		err := s.replay(ctx, r)
		if usable(err) {
			s.chain.lost[r] = err
			err = s.Index.RollBack(ctx, s.ID, s.at.number)
		}
		if err != nil {
			return err
		}
	}
	if !replayed && s.chain.lost[r] == nil && s.isMissing(r, known) {
		s.chain.lost[r] = fmt.Errorf("the index has later snapshots, and not this one; an empty index may have it: %w", backup.ErrNotFound)
	}
	if err := s.chain.lost[r]; err != nil && (r.Number > s.at.number || known == nil) {
		s.failed = append(s.failed, r.Number)
		switch has := known != nil && known.State != backup.Deleting && r.State == backup.Committed && !s.forgotten[r.ID]; {
		case has: // its pages are gone now
			return s.lose(ctx, &r.Snapshot, err)
		case s.unended[r.ID]: // otherwise its loss was accepted before
			s.result.Lost = append(s.result.Lost, lostOf(&r.Snapshot, err))
		}
		return nil
	}
	if replayed {
		s.at = state{r.Number, r.ID, r.Pages}
	} else if known != nil && s.isSame(r, known) {
		return nil
	}
	if r.State == backup.Committed && !s.forgotten[r.ID] {
		s.result.Snapshots++
	}
	return s.store(ctx, r)
}

// loseUnrecorded loses the snapshots that the index had and the store has no record of, if their
// pages were undone because the shard is replayed from before them.
func (s *shard) loseUnrecorded(ctx context.Context, known map[backup.SnapshotID]*backup.Snapshot) error {
	for id, k := range known {
		had := k.State == backup.Committed || k.State == backup.Failed && k.Reason == notRecovered // by an earlier try
		if !had || k.Number <= s.at.number || s.rebuilding.records[id] != nil || s.forgotten[id] {
			continue
		}
		if err := s.lose(ctx, k, fmt.Errorf("the store has no record of it that can be used, and the index was not as the records of other snapshots are: %w", backup.ErrNotFound)); err != nil {
			return err
		}
	}
	return nil
}

// notRecovered is the reason of a snapshot that the index had, and that is lost.
const notRecovered = "it could not be recovered when the index was rebuilt"

// lose makes a snapshot of the index, whose pages are gone, one that has failed.
func (s *shard) lose(ctx context.Context, of *backup.Snapshot, why error) error {
	s.result.Lost = append(s.result.Lost, lostOf(of, why))
	lost := *of
	lost.Shard.ID, lost.State, lost.Reason, lost.Pages = s.ID, backup.Failed, notRecovered, backup.PageSet{}
	return s.Index.RecoverSnapshot(ctx, index.RecoveredSnapshot{Snapshot: lost, By: s.By, Problems: noProblems})
}

func lostOf(s *backup.Snapshot, why error) Lost {
	return Lost{s.ID, s.Filer.Name, s.Shard.Name, s.Shard.Key, s.Number, s.Started, why}
}

// isMissing reports whether the index does not have the pages of a snapshot that is needed.
func (s *shard) isMissing(r *record, known *backup.Snapshot) bool {
	return r.State == backup.Committed && !s.forgotten[r.ID] && (known == nil || known.State != backup.Committed)
}

// isSame reports whether the index has a snapshot as its record and the catalog describe it.
func (s *shard) isSame(r *record, known *backup.Snapshot) bool {
	state := r.State
	if s.forgotten[r.ID] {
		state = backup.Deleting
	}
	return known.State == state && known.Bad == s.bad[r.ID] && known.Pages == r.Pages && known.Segment.Attempt == r.Segment.Attempt &&
		s.amendments[r.ID] == r.amendment
}

func (s *shard) store(ctx context.Context, r *record) error {
	found := index.RecoveredSnapshot{
		Snapshot: r.Snapshot, Forgotten: s.forgotten[r.ID], By: s.By, Amendment: r.amendment, AmendedBase: r.amendedBase, Problems: noProblems,
	}
	found.Shard.ID, found.Bad = s.ID, s.bad[r.ID]
	if r.problems {
		_, problems, err := s.getRecord(ctx, r.ID, r.amendment)
		if err != nil {
			return err
		}
		found.Problems = problems
	}
	return s.Index.RecoverSnapshot(ctx, found)
}
