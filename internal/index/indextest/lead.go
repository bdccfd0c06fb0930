package indextest

import (
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// lead requests a term, and checks whether it is granted.
func (f *fixture) lead(role, holder string, ttl time.Duration, want bool) index.Term {
	f.Helper()
	term, ok, err := f.x.Lead(f.ctx, role, holder, ttl)
	f.must(err)
	if ok != want || ok && term.Role != role || !ok && term != (index.Term{}) {
		f.Fatalf("%s leads: %v (%+v), want %v", holder, ok, term, want)
	}
	return term
}

// wantLeaders checks that the index knows exactly these leaders, each as "role holder".
func (f *fixture) wantLeaders(want ...string) {
	f.Helper()
	leaders, err := f.x.Leaders(f.ctx)
	f.must(err)
	var got []string
	for _, l := range leaders {
		got = append(got, l.Role+" "+l.Holder)
		if l.Epoch == 0 || l.Until.IsZero() {
			f.Errorf("%+v", l)
		}
	}
	if !slices.Equal(got, want) {
		f.Errorf("leaders %q, want %q", got, want)
	}
}

// If a term or lease ends later than any that can be granted now, its end comes from a clock that
// was ahead. It counts as over.
func testClockWasAhead(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.lead("keeper", "a", time.Hour, true)
	f.exec("UPDATE leaders SET until = until + 31536000000000")
	second := f.lead("keeper", "b", time.Hour, true)
	if second.Epoch <= first.Epoch {
		t.Fatalf("epoch %d after %d", second.Epoch, first.Epoch)
	}
	f.wants(f.x.SetLoads(f.ctx, first, nil), index.ErrNotLeading)
	f.lead("keeper", "a", time.Hour, false)

	s := f.open(2, 1)
	c := f.claim(s)
	claim := func(now time.Time) (n int) {
		c.Now, c.Limit = now, 10
		tasks, err := f.x.ClaimTasks(f.ctx, c)
		f.must(err)
		batches, err := f.x.ClaimBatches(f.ctx, c)
		f.must(err)
		return len(tasks) + len(batches)
	}
	work := claim(f.now.AddDate(1, 0, 0))
	if work == 0 || claim(f.now) != 0 {
		t.Fatalf("%d claimed next year, want all of the work", work)
	}
	if n, err := f.x.ExpireFuture(f.ctx, 400*24*time.Hour, f.now); err != nil || n != 0 || claim(f.now) != 0 {
		t.Errorf("%d leases ended, %v; want none: no lease ends so late", n, err)
	}
	if n, err := f.x.ExpireFuture(f.ctx, 24*time.Hour, f.now); err != nil || n != work {
		t.Errorf("%d leases ended, %v; want all %d", n, err, work)
	}
	if n := claim(f.now); n != work {
		t.Errorf("%d claimed, want all %d", n, work)
	}
}

func testLeading(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.lead("keeper", "a", time.Hour, true)
	f.lead("keeper", "b", time.Hour, false)
	f.lead("other", "b", time.Hour, true)
	if again := f.lead("keeper", "a", time.Hour, true); again != first {
		t.Fatalf("renewed as %+v, want %+v", again, first)
	}
	f.wantLeaders("keeper a", "other b")
	load := backup.Load{
		WalkSlots: 3, ReadSlots: 4, WalkLatency: 5 * time.Microsecond, WalkIdle: 6 * time.Millisecond, ReadLatency: 7 * time.Second, ReadIdle: 8 * time.Minute,
	}
	loads := map[backup.FilerID]backup.Load{f.shard.Filer: load, 4711: load}
	f.must(f.x.SetLoads(f.ctx, first, loads))
	if got := f.listFilers(index.FilerFilter{})[0].Load; got != load {
		t.Fatalf("load %+v, want %+v", got, load)
	}

	// A leader that was paused for longer than its term is refused when it resumes: another one
	// leads.
	f.must(f.x.Resign(f.ctx, first))
	f.wantLeaders("other b")
	f.wants(f.x.SetLoads(f.ctx, first, nil), index.ErrNotLeading)
	second := f.lead("keeper", "b", time.Hour, true)
	if second.Epoch <= first.Epoch {
		t.Fatalf("epoch %d after %d", second.Epoch, first.Epoch)
	}
	loads[f.shard.Filer] = backup.Load{WalkSlots: 1}
	f.wants(f.x.SetLoads(f.ctx, first, loads), index.ErrNotLeading)
	if got := f.listFilers(index.FilerFilter{})[0].Load; got != load {
		t.Fatalf("load %+v, want that of the term's leader", got)
	}
	f.must(f.x.Resign(f.ctx, first)) // the term has ended already
	f.lead("keeper", "a", time.Hour, false)
	f.must(f.x.SetLoads(f.ctx, second, loads))
	f.wants(f.x.SetLoads(f.ctx, index.Term{Role: "nobody's"}, loads), index.ErrNotLeading)
	f.wants(f.x.SetLoads(f.ctx, second, map[backup.FilerID]backup.Load{1: {WalkSlots: -1}}), backup.ErrInvalid)

	// A term that has run out is over, also for its holder. (The databases' clocks tick at least
	// every millisecond.)
	short := f.lead("short", "a", time.Microsecond, true)
	for f.lead("short", "a", time.Microsecond, true).Epoch == short.Epoch {
	}
	for ok := false; !ok; {
		var err error
		_, ok, err = f.x.Lead(f.ctx, "short", "b", time.Hour)
		f.must(err)
	}
	for _, bad := range []func() error{
		func() error { _, _, err := f.x.Lead(f.ctx, "", "a", time.Hour); return err },
		func() error { _, _, err := f.x.Lead(f.ctx, "keeper", "\xff", time.Hour); return err },
		func() error { _, _, err := f.x.Lead(f.ctx, "keeper", "a", 0); return err },
	} {
		f.wants(bad(), backup.ErrInvalid)
	}
}

// Of many that want to lead at the same time, one does.
func testOneLeader(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	var lock sync.Mutex
	var terms []index.Term
	var group errgroup.Group
	for i := range 8 {
		x := f.x
		if i%2 == 0 {
			x = f.db.Open()
		}
		group.Go(func() error {
			term, ok, err := x.Lead(f.ctx, "keeper", string(rune('a'+i)), time.Hour)
			lock.Lock()
			defer lock.Unlock()
			if ok {
				terms = append(terms, term)
			}
			return err
		})
	}
	f.must(group.Wait())
	if !reflect.DeepEqual(terms, []index.Term{{Role: "keeper", Epoch: 1}}) {
		t.Fatalf("terms %+v, want one", terms)
	}
}

func testCancel(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.addFiler(backup.Filer{Name: "nas"})
	cancelled := f.open(3, 1)
	shard, err := f.x.AddShard(f.ctx, backup.Shard{Filer: f.shard.Filer, Name: "other", Source: "posix:///other"})
	f.must(err)
	f.shard = shard
	running := f.begin()
	f.must(f.x.RequestCancel(f.ctx, cancelled.ID, "too\xff slow"))
	f.must(f.x.RequestCancel(f.ctx, cancelled.ID, "impatient"))
	f.wants(f.x.RequestCancel(f.ctx, backup.NewSnapshotID(), ""), backup.ErrNotFound)
	if got := f.snapshot(cancelled.ID); got.Cancel != "too\uFFFD slow" || got.State != backup.Running {
		t.Fatalf("%+v, want it running, with the first reason", got)
	}
	if tasks := f.claimAny(index.Claim{}); len(tasks) != 1 || tasks[0].Job.Snapshot != running.ID {
		t.Fatalf("claimed %+v, want the other snapshot's", tasks)
	}
	if len(f.claimTasks(cancelled)) != 0 || len(f.claimBatches(cancelled)) != 0 {
		t.Fatal("claimed work of a snapshot that shall end")
	}
	for _, test := range []struct {
		only []backup.SnapshotID
		want int
	}{{nil, 1}, {[]backup.SnapshotID{cancelled.ID, running.ID}, 1}, {[]backup.SnapshotID{running.ID}, 0}, {[]backup.SnapshotID{}, 0}} {
		list, err := f.x.Cancelled(f.ctx, test.only)
		f.must(err)
		if len(list) != test.want || test.want == 1 && !reflect.DeepEqual(list[0], f.snapshot(cancelled.ID)) {
			t.Fatalf("of %v: %+v, want %d", test.only, list, test.want)
		}
	}
	f.fail(cancelled.ID, "cancelled")
	f.wants(f.x.RequestCancel(f.ctx, cancelled.ID, ""), backup.ErrNotFound)
	if list, err := f.x.Cancelled(f.ctx, nil); err != nil || len(list) != 0 {
		t.Fatalf("%+v, %v; want none", list, err)
	}
	f.must(f.x.RequestCancel(f.ctx, running.ID, ""))
	if f.snapshot(running.ID).Cancel == "" {
		t.Fatal("no reason is stored as none")
	}
}

func testBaseCounts(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.walk(func(r *backup.SliceWalked) { r.Counts = backup.Counts{Files: 12, StatCalls: 13, WalkSeconds: 1.5} })
	f.commit(first)
	based := f.begin()
	f.shard = f.newShard("filer", "other")
	without := f.begin()
	got, err := f.x.BaseCounts(f.ctx, []backup.SnapshotID{based.ID, without.ID, backup.NewSnapshotID()})
	f.must(err)
	if want := map[backup.SnapshotID]backup.Counts{based.ID: f.snapshot(first.ID).Counts}; !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
	if none, err := f.x.BaseCounts(f.ctx, nil); err != nil || len(none) != 0 {
		t.Fatalf("%+v, %v", none, err)
	}
}

// The exclusions of filer, shard and request all apply, and the source snapshot that the root's
// walker chose is read by all other work.
func testSource(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	filer := f.addFiler(backup.Filer{Name: "nas", Selection: backup.Selection{Exclude: []string{"a"}, ExcludeLargerBytes: 10}})
	shard, err := f.x.AddShard(f.ctx, backup.Shard{
		Filer: filer.ID, Name: "var", Source: "posix:///var", Snapshots: ".snapshot/hourly.*", Selection: backup.Selection{Exclude: []string{"b"}, OneFileSystem: true},
	})
	f.must(err)
	s, err := f.x.BeginSnapshot(f.ctx, shard.ID, backup.Snapshot{Selection: backup.Selection{Exclude: []string{"c"}, ExcludeLargerBytes: 20}}, f.now)
	f.must(err)
	want := backup.Selection{Exclude: []string{"a", "b", "c"}, OneFileSystem: true, ExcludeLargerBytes: 10}
	if !reflect.DeepEqual(s.Selection, want) || s.Source != shard.Source || !reflect.DeepEqual(s.Shard, shard) || !reflect.DeepEqual(s.Filer, filer) {
		t.Fatalf("%+v, want selection %+v", s, want)
	}
	root := f.claimTask(s)
	if root.Job.Snapshots != shard.Snapshots || root.Job.Source != shard.Source || !reflect.DeepEqual(root.Job.Selection, want) {
		t.Fatalf("root task %+v", root)
	}
	for _, forged := range []string{"posix:///etc", "posix:///variable?snapshot=x", "posix:///var/../etc", "\xff", "posix:///var?" + string(make([]byte, 9000))} {
		r := SliceOf(root)
		r.Source = forged
		f.wants(f.apply(index.Result{Slice: r})[0].Err, backup.ErrInvalid)
	}
	// It is in the first of two parts.
	const taken = "posix:///var?snapshot=.snapshot%2Fhourly.0&inode=1"
	parts := []*backup.SliceWalked{SliceOf(root), SliceOf(root)}
	parts[0].Last, parts[0].Source = false, taken
	parts[1].Part, parts[1].Children, parts[1].Batches = 1, children([][]string{{"x"}}), reads([][]backup.PageVersion{{pageOf("y", "")}})
	f.accept(index.Result{Slice: parts[0]})
	if got := f.snapshot(s.ID).Source; got != shard.Source {
		t.Fatalf("source %q before the result is accepted", got)
	}
	f.accept(index.Result{Slice: parts[1]})
	child, batch := f.claimTask(s), f.claimBatch(s)
	for _, job := range []backup.Job{child.Job, batch.Job} {
		if job.Source != taken || job.Snapshots != "" {
			t.Fatalf("job %+v, want source %q", job, taken)
		}
	}
	r := SliceOf(child)
	r.Source = taken
	f.wants(f.apply(index.Result{Slice: r})[0].Err, backup.ErrInvalid) // only the root's walker chooses one
	if got := f.snapshot(s.ID); got.Source != taken || got.Shard.Source != shard.Source {
		t.Fatalf("%+v, want source %q", got, taken)
	}
}
