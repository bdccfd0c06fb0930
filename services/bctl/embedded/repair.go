package embedded

import (
	"context"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/committer/commit"
)

// Repair is repair.Run for a repository on one machine, where this process also does the work of
// committers. An index that is rebuilt from a copy must not rely on packs that are dropped: so, as
// Prune, it puts a copy of the index into the store before it deletes anything, and at the end.
func Repair(ctx context.Context, idx *sqliteindex.Index, keys journal.Keys, lockDir string, o repair.Options, report *check.Report) (s repair.Summary, err error) {
	unlock, err := lockPrune(ctx, idx, lockDir)
	if err != nil {
		return s, err
	}
	defer unlock()
	o.Index = idx
	copied := func(ctx context.Context) error { return copyNow(ctx, idx, o.Store, keys) }
	o.Prune.BeforeDelete = copied
	j := journalRepair{idx, keys, &o, copied}
	o.Journal = j.run
	if s, err = repair.Run(ctx, o, report); err != nil {
		return s, err
	}
	return s, copied(ctx)
}

// WithPruneLock calls do while no other process prunes the repository on this machine. It fails
// with prune.ErrBusy while one does.
func WithPruneLock(ctx context.Context, idx *sqliteindex.Index, lockDir string, do func() error) error {
	unlock, err := lockPrune(ctx, idx, lockDir)
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// A journalRepair writes damaged objects of the journal again.
type journalRepair struct {
	index  *sqliteindex.Index
	keys   journal.Keys
	o      *repair.Options
	copied func(context.Context) error
}

// run writes the journal of each damaged shard again: each record of a committed snapshot is
// amended, with a new segment. The other objects are deleted and written again. Those that are
// locked stay, and nothing needs them any more: all that is written has a new name.
func (j *journalRepair) run(ctx context.Context, findings []*check.Finding) error {
	shards := map[backup.ShardID]bool{}
	for _, f := range findings {
		var err error
		switch f.Kind {
		case check.Segment:
			shards[f.ShardID] = true
		case check.Record:
			err = j.record(ctx, f, shards)
		case check.Catalog:
			if _, err = j.delete(ctx, f.Object); err == nil {
				err = j.index.LoseCatalog(ctx)
			}
		case check.Copy:
			err = j.copy(ctx, f)
		}
		if err != nil {
			return err
		}
	}
	if err := commit.New(commit.Parts{Index: j.index, Store: j.o.Store, Keys: j.keys}, commit.Options{}).Record(ctx); err != nil {
		return err
	}
	for shard := range shards {
		if err := j.index.MarkStale(ctx, shard); err != nil {
			return err
		}
		// A rebuilt index knows that the store may have newer records.
		if err := j.copied(ctx); err != nil {
			return err
		}
		a := j.amending(shard)
		if err := a.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (j *journalRepair) amending(shard backup.ShardID) amending {
	return amending{index: j.index, store: j.o.Store, keys: j.keys, shard: shard}
}

// delete deletes an object, unless it is locked.
func (j *journalRepair) delete(ctx context.Context, name string) (locked bool, err error) {
	err = j.o.Store.Delete(ctx, name)
	if store.IsLocked(err) {
		return true, nil
	}
	return false, err
}

// record has the record of a failed snapshot written again, or the journal of the shard of a
// committed one.
func (j *journalRepair) record(ctx context.Context, f *check.Finding, shards map[backup.ShardID]bool) error {
	id, amendment, ok := store.ParseCommitName(f.Object)
	if !ok {
		return fmt.Errorf("%s: it is no record: %w", f.Object, backup.ErrInvalid)
	}
	s, err := j.index.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	if s.State != backup.Failed {
		shards[f.ShardID] = true
		return nil
	}
	locked, err := j.delete(ctx, f.Object)
	if err != nil {
		return err
	}
	if locked || amendment > 0 {
		a := j.amending(f.ShardID)
		return a.amend(ctx, &s, nil, &index.SnapshotJournal{ID: id, Sequence: amendment})
	}
	return j.index.Unrecord(ctx, id)
}

// copy forgets a damaged copy of the index. The next one replaces it. A rebuild passes over the
// parts that are locked.
func (j *journalRepair) copy(ctx context.Context, f *check.Finding) error {
	sequence, _, ok := store.ParseIndexName(f.Object)
	if !ok {
		return fmt.Errorf("%s: it is no copy of the index: %w", f.Object, backup.ErrInvalid)
	}
	for o, err := range j.o.Store.List(ctx, store.IndexPrefix) {
		if err != nil {
			return err
		}
		if n, _, ok := store.ParseIndexName(o.Name); ok && n == sequence {
			if _, err := j.delete(ctx, o.Name); err != nil {
				return err
			}
		}
	}
	return j.index.ForgetCopy(ctx, sequence)
}
