package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// record opens the commit record of a snapshot.
func (f *fixture) record(id backup.SnapshotID) (journal.Commit, []backup.Problem) {
	f.Helper()
	data := value(f.store.Get(f.ctx, store.CommitName(id), pack.MaxBytes))(f)
	c, each, err := journal.OpenCommit(data, id, f.trust)
	f.must(err)
	var problems []backup.Problem
	for p, err := range each {
		f.must(err)
		problems = append(problems, p)
	}
	return c, problems
}

func (f *fixture) commitRecord(id backup.SnapshotID) journal.Commit {
	f.Helper()
	c, _ := f.record(id)
	return c
}

func (f *fixture) unrecorded() int {
	f.Helper()
	return len(value(f.idx.Unrecorded(f.ctx, nil, 100))(f))
}

var aProblem = backup.Problem{Path: "caf\xe9/locked", Op: "open", Err: "permission denied"}

// complete makes a snapshot that is complete, with a page and a problem.
func (f *fixture) complete() backup.Snapshot {
	f.Helper()
	return f.walked(func(s *backup.SliceWalked) {
		s.Pages, s.Problems, s.Counts.Errors = []backup.PageVersion{pageOf("", "root")}, []backup.Problem{aProblem}, 1
	})
}

// The store gets a record of how each snapshot ended, after the commit point: its content and the
// segment that counts, or why it failed.
func TestRecordOfEachEnd(t *testing.T) {
	f := newFixture(t)
	var atCommit int
	idx := &stepIndex{Index: f.idx, before: func(step string) error {
		if step == "commit" || step == "fail" {
			atCommit += len(f.objects(store.CommitsPrefix))
		}
		return nil
	}}
	s := f.service(idx, Options{})
	good := f.complete()
	f.must(s.finish(f.ctx, good.ID))
	snap := f.snapshot(good.ID)
	c, problems := f.record(good.ID)
	if c.State != backup.Committed || c.Reason != "" || !c.Ended.Equal(snap.Committed) || c.Snapshot.ID != good.ID.String() || c.Counts != snap.Counts {
		t.Errorf("record %+v of %+v", c, snap)
	}
	if c.Segment == nil || c.Segment.Attempt != snap.Segment.Attempt.String() || c.Segment.Parts != 1 || !c.Segment.Checkpoint {
		t.Errorf("segment %+v, want %+v", c.Segment, snap.Segment)
	}
	if content, err := c.Content.PageSet(); err != nil || content != snap.Pages || content.Pages != 1 {
		t.Errorf("content %+v, want %+v", content, snap.Pages)
	}
	if !slices.Equal(problems, []backup.Problem{aProblem}) {
		t.Errorf("problems %+v", problems)
	}
	if atCommit != 0 {
		t.Error("there is a record before the commit point")
	}

	bad := f.complete()
	s.fail(f.ctx, bad.ID, "no such directory", nil)
	if c, _ := f.record(bad.ID); c.State != backup.Failed || c.Reason != "no such directory" || c.Segment != nil || c.Content != nil || c.Snapshot.Base.ID != good.ID.String() {
		t.Errorf("record %+v", c)
	}
	if n := f.unrecorded(); n != 0 {
		t.Errorf("%d snapshots have no record", n)
	}
}

// However a record's Put fails, the snapshot has ended, and its record is written later; one that
// exists already is the same.
func TestRecordCannotBePut(t *testing.T) {
	for name, fault := range map[string]func(func() error) error{
		"lost":                   func(func() error) error { return errPower },
		"applied, then an error": func(put func() error) error { return errors.Join(put(), errPower) },
	} {
		for _, state := range []backup.State{backup.Committed, backup.Failed} {
			t.Run(name+"/"+string(state), func(t *testing.T) {
				f := newFixture(t)
				var retries []error
				s := f.service(f.idx, Options{OnRetry: func(err error) { retries = append(retries, err) }})
				snap := f.complete()
				f.store.badNew = []func(func() error) error{fault}
				if state == backup.Committed {
					f.must(s.finish(f.ctx, snap.ID))
				} else {
					s.fail(f.ctx, snap.ID, "why", nil)
				}
				if got := f.snapshot(snap.ID); got.State != state || len(retries) != 1 || f.unrecorded() != 1 {
					t.Fatalf("the snapshot is %s, retries %v, %d have no record", got.State, retries, f.unrecorded())
				}
				for range 2 {
					f.must(s.Record(f.ctx))
				}
				if c := f.commitRecord(snap.ID); c.State != state || f.unrecorded() != 0 {
					t.Errorf("record %+v, %d have none", c, f.unrecorded())
				}
			})
		}
	}
}

// If a committer dies between the commit point and the record, the leader writes the record.
func TestLeaderWritesMissingRecords(t *testing.T) {
	f := newFixture(t)
	f.queue()
	snap := f.complete()
	ctx, crash := context.WithCancel(f.ctx)
	idx := &stepIndex{Index: f.idx, after: func(step string) error {
		if step == "commit" {
			crash()
		}
		return ctx.Err()
	}}
	if err := f.service(idx, Options{}).finish(ctx, snap.ID); err == nil {
		t.Fatal("it did not die")
	}
	if got := f.snapshot(snap.ID); got.State != backup.Committed || len(f.objects(store.CommitsPrefix)) != 0 {
		t.Fatalf("%s, records %q", got.State, f.objects(store.CommitsPrefix))
	}
	running, stop := context.WithCancel(f.ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	s := f.service(f.idx, Options{})
	s.times = quick
	all.Go(func() { s.Run(running) })
	f.until(func() bool { return f.unrecorded() == 0 && len(f.objects(store.CatalogPrefix)) == 1 })
	if c := f.commitRecord(snap.ID); c.State != backup.Committed || c.Segment == nil {
		t.Errorf("record %+v", c)
	}
}

// catalog opens the newest catalog in the store.
func (f *fixture) catalog() (journal.CatalogHeader, *journal.Catalog) {
	f.Helper()
	names := f.objects(store.CatalogPrefix)
	if len(names) == 0 {
		f.Fatal("there is no catalog")
	}
	data := value(f.store.Get(f.ctx, names[len(names)-1], pack.MaxBytes))(f)
	for sequence := int64(1); ; sequence++ {
		if store.CatalogName(sequence) == names[len(names)-1] {
			h, c, err := journal.OpenCatalog(data, sequence, f.trust)
			f.must(err)
			return h, c
		}
	}
}

// The catalog is written when something in it has changed, and not otherwise.
func TestCatalogIsWrittenWhenItChanges(t *testing.T) {
	f := newFixture(t)
	s := f.service(f.idx, Options{})
	filer := value(f.idx.ListFilers(f.ctx, index.FilerFilter{}))(f)[0].Filer
	snapshot := func() {
		snap := f.complete()
		f.must(s.finish(f.ctx, snap.ID))
	}
	for n, change := range []func(){
		func() {},
		func() { filer.Limits.WalkTasks = 7; f.must(f.idx.SetFiler(f.ctx, filer)) },
		func() {
			filer.Labels = map[string]string{"env": "prod", "a": "b"}
			f.must(f.idx.SetFiler(f.ctx, filer))
		},
		func() { value(f.idx.EnsureShard(f.ctx, filer.ID, "/other", "posix:///other"))(f) },
		func() {
			value(f.idx.SetPolicy(f.ctx, backup.Policy{Name: "nightly", Schedule: "0 3 * * *"}, "tester"))(f)
		},
		func() {
			f.must(f.idx.RetireShard(f.ctx, value(f.idx.EnsureShard(f.ctx, filer.ID, "/third", "posix:///third"))(f).ID, "tester"))
		}, // never backed up, and so not in the catalog now
		func() {
			value(f.idx.AddHold(f.ctx, index.Hold{Shard: f.shard.ID, By: "tester", Reason: "audit"}))(f)
			value(f.idx.AddHold(f.ctx, index.Hold{Snapshot: value(f.idx.Snapshots(f.ctx, index.SnapshotFilter{States: []backup.State{backup.Committed}}))(f)[0].ID, By: "tester"}))(f)
		},
	} {
		change()
		before := len(f.objects(store.CatalogPrefix))
		for range 3 {
			f.must(s.Record(f.ctx))
			snapshot() // does not change operators' settings
		}
		want := before + 1
		if n == 5 {
			want = before
		}
		if got := len(f.objects(store.CatalogPrefix)); got != want {
			t.Errorf("after change %d there are %d catalogs, and were %d", n, got, before)
		}
	}
	h, c := f.catalog()
	if len(c.Holds) != 2 || c.Holds[0].Shard != f.shard.Key.String() || c.Holds[0].Reason != "audit" || c.Holds[1].Snapshot == "" {
		t.Errorf("holds %+v", c.Holds)
	}
	if h.Sequence != 6 || len(c.Filers) != 1 || c.Filers[0].WalkTasks != 7 || c.Filers[0].Labels["env"] != "prod" || len(c.Shards) != 2 ||
		c.Shards[1].Key != f.shard.Key.String() || c.Shards[1].Filer != "filer" || len(c.Policies) != 1 {
		t.Errorf("catalog %+v: %+v", h, c)
	}
}

// If the Put of a catalog fails, or another committer has written one meanwhile, the newest catalog
// in the store finally agrees with the index.
func TestCatalogCannotBePut(t *testing.T) {
	for name, fault := range map[string]func(func() error) error{
		"lost":                   func(func() error) error { return errPower },
		"applied, then an error": func(put func() error) error { return errors.Join(put(), errPower) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.service(f.idx, Options{})
			f.must(s.Record(f.ctx))
			value(f.idx.EnsureShard(f.ctx, f.shard.Filer, "/second", "posix:///second"))(f)
			f.store.badNew = []func(func() error) error{fault}
			if err := s.Record(f.ctx); !errors.Is(err, errPower) {
				t.Fatalf("error %v", err)
			}
			value(f.idx.EnsureShard(f.ctx, f.shard.Filer, "/third", "posix:///third"))(f)
			f.must(s.Record(f.ctx))
			if h, c := f.catalog(); len(c.Shards) != 3 {
				t.Errorf("catalog %+v: %+v", h, c)
			}
		})
	}
}

// A committer that dies before it has recorded the catalog that it wrote leaves a sequence number
// that is taken; so does an index that is older than its store.
func TestCatalogOfAnotherIsNotOverwritten(t *testing.T) {
	f := newFixture(t)
	idx := &stepIndex{Index: f.idx, before: func(step string) error {
		if step == "catalog written" {
			return errPower
		}
		return nil
	}}
	for range 3 {
		if err := f.service(idx, Options{}).Record(f.ctx); !errors.Is(err, errPower) {
			t.Fatalf("error %v", err)
		}
	}
	f.must(f.service(f.idx, Options{}).Record(f.ctx))
	if names := f.objects(store.CatalogPrefix); len(names) != 4 || !strings.HasSuffix(names[3], "4") {
		t.Errorf("catalogs %q", names)
	}
	if w := value(f.idx.WrittenCatalog(f.ctx))(f); w.Sequence != 4 {
		t.Errorf("the index knows of %+v", w)
	}
	puts := f.store.putsSoFar()
	f.must(f.service(f.idx, Options{}).Record(f.ctx))
	if n := f.store.putsSoFar() - puts; n != 0 {
		t.Errorf("%d objects were put although nothing has changed", n)
	}
}

// A number of a catalog is not used again, although old catalogs are deleted: not by an index that
// was restored from a backup, and not by a committer that was paused before its put.
func TestNumbersOfCatalogsAreUsedOnce(t *testing.T) {
	f := newFixture(t)
	n := 0
	change := func() {
		n++
		value(f.idx.EnsureShard(f.ctx, f.shard.Filer, fmt.Sprint("/shard ", n), "posix:///srv"))(f)
	}
	record := func(want int64) {
		t.Helper()
		change()
		f.must(f.service(f.idx, Options{}).Record(f.ctx))
		if w := value(f.idx.WrittenCatalog(f.ctx))(f); w.Sequence != want {
			t.Fatalf("catalog %d was written, want %d", w.Sequence, want)
		}
	}
	record(1)
	// It has reserved a number. Others write catalogs, and a pruner deletes the old ones.
	paused := &stepIndex{Index: f.idx, after: func(step string) error {
		if step != "next catalog" {
			return nil
		}
		for want := range int64(4) {
			record(3 + want)
		}
		f.must(f.store.Delete(f.ctx, store.CatalogName(1), store.CatalogName(3), store.CatalogName(4)))
		f.must(f.idx.DropCatalogs(f.ctx, 5))
		return nil
	}}
	change()
	f.must(f.service(paused, Options{}).Record(f.ctx))
	if w := value(f.idx.WrittenCatalog(f.ctx))(f); w.Sequence != 6 {
		t.Fatalf("the newest catalog is %d, want 6: what was paused is older", w.Sequence)
	}
	// The store of this index has newer catalogs, and the numbers before them are free.
	for _, name := range []string{
		store.CatalogName(900),
		store.CatalogName(1<<62 + 1), // nobody comes so far
		store.CatalogPrefix + "ffffffffffffffff",
	} {
		f.must(f.store.Put(f.ctx, name, nil))
	}
	record(901)
	record(902)
}
