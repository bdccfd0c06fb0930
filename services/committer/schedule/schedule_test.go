package schedule

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/telemetry"
)

// A fixture is a real index, a clock that the test moves, and schedulers.
type fixture struct {
	*testing.T
	ctx context.Context
	idx index.Index
	now time.Time
	gap time.Duration // by which the clock advances at each reading

	metrics *telemetry.Metrics // of the schedulers that are made; nil: they have none
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	// A Monday.
	f := &fixture{T: t, ctx: t.Context(), now: time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)}
	var err error
	f.idx, err = sqliteindex.Open(f.ctx, filepath.Join(t.TempDir(), "index.db"))
	f.must(err)
	t.Cleanup(func() { _ = f.idx.Close() })
	_, _, err = f.idx.Migrate(f.ctx)
	f.must(err)
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) filer(name string, labels map[string]string, shards ...string) {
	f.Helper()
	filer, err := f.idx.AddFiler(f.ctx, backup.Filer{Name: name, Labels: labels})
	f.must(err)
	for _, shard := range shards {
		_, err := f.idx.AddShard(f.ctx, backup.Shard{Filer: filer.ID, Name: shard, Source: "posix:///" + shard})
		f.must(err)
	}
}

func (f *fixture) policy(p backup.Policy) {
	f.Helper()
	_, err := f.idx.SetPolicy(f.ctx, p, "tester")
	f.must(err)
}

func (f *fixture) scheduler(idx Index, limits policy.Limits) *Scheduler {
	return New(&clockIndex{idx, f}, Options{Worker: "test", Term: time.Hour, Limits: limits, Metrics: f.metrics.Scheduler()})
}

// A clockIndex uses the test's clock.
type clockIndex struct {
	Index
	f *fixture
}

func (x *clockIndex) Clock(context.Context) (time.Time, error) {
	if x.f.gap > 0 { // otherwise the test may read it while a scheduler runs
		x.f.now = x.f.now.Add(x.f.gap)
	}
	return x.f.now, nil
}

// tick ticks and checks that exactly these shards run afterwards.
func (f *fixture) tick(s *Scheduler, want ...string) {
	f.Helper()
	f.must(s.Tick(f.ctx))
	var names []string
	for _, shard := range f.shards() {
		if shard.Running != (backup.SnapshotID{}) {
			names = append(names, shard.Name)
		}
	}
	if !slices.Equal(names, want) {
		f.Fatalf("at %v %q run, want %q", f.now, names, want)
	}
}

func (f *fixture) shards() []index.ShardStatus {
	f.Helper()
	list, err := f.idx.ListShards(f.ctx, index.ShardFilter{})
	f.must(err)
	return list
}

func (f *fixture) shard(name string) index.ShardStatus {
	f.Helper()
	list, err := f.idx.ListShards(f.ctx, index.ShardFilter{Name: name})
	f.must(err)
	return list[0]
}

// finish commits the running snapshots of shards.
func (f *fixture) finish(names ...string) {
	f.Helper()
	for _, name := range names {
		id := f.shard(name).Running
		tasks, err := f.idx.ClaimTasks(f.ctx, index.Claim{Snapshots: []backup.SnapshotID{id}, Lease: time.Hour, Limit: 10, Now: time.Now()})
		f.must(err)
		if len(tasks) != 1 {
			f.Fatalf("%d tasks of %s, want 1", len(tasks), name)
		}
		_, err = f.idx.Apply(f.ctx, []index.Result{{Slice: &backup.SliceWalked{Snapshot: id, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true}}})
		f.must(err)
		f.must(f.idx.Commit(f.ctx, id, backup.Segment{}, backup.PageSet{}, f.now))
	}
}

func (f *fixture) fail(name string) {
	f.Helper()
	f.must(f.idx.Fail(f.ctx, f.shard(name).Running, "the test says so", f.now))
}

func TestScheduler(t *testing.T) {
	f := newFixture(t)
	f.filer("gold", map[string]string{"tier": "gold"}, "a", "b")
	f.filer("plain", nil, "c", "d")
	f.policy(backup.Policy{Name: "nightly", Labels: map[string]string{"tier": "gold"}, Schedule: "0 2 * * *", RecoveryPoint: 26 * time.Hour})
	f.policy(backup.Policy{Name: "weekly", Schedule: "0 3 * * 0"})
	s := f.scheduler(f.idx, policy.Limits{Running: 3, RunningPerFiler: 1})

	// A shard that was never backed up is due at once, within the limits.
	f.tick(s, "a", "c")
	f.tick(s, "a", "c")
	f.finish("a", "c")
	f.tick(s, "b", "d")
	f.finish("b", "d")
	f.tick(s)
	if a := f.shard("a"); a.Policy != "nightly" || !a.Plan.Due.Equal(time.Date(2026, 3, 3, 2, 0, 0, 0, time.UTC)) || !a.Plan.Deadline.Equal(f.now.Add(26*time.Hour)) {
		t.Fatalf("planned %+v", a.Plan)
	}

	// Missed for three days, run once.
	f.now = f.now.Add(72*time.Hour - time.Minute)
	f.tick(s, "a")
	f.finish("a")
	f.tick(s, "b")
	f.finish("b")
	f.tick(s)

	// A failed backup is retried after a pause; its deadline stays.
	f.now = time.Date(2026, 3, 6, 2, 0, 0, 0, time.UTC)
	f.tick(s, "a")
	deadline := f.shard("a").Plan.Deadline
	f.fail("a")
	f.tick(s, "b")
	f.now = f.now.Add(policy.RetryAfter - time.Second)
	f.finish("b")
	f.tick(s)
	if got := f.shard("a"); got.Failed.IsZero() || !got.Plan.Deadline.Equal(deadline) {
		t.Fatalf("%+v, want it failed and its deadline %v", got, deadline)
	}
	f.now = f.now.Add(time.Second)
	f.tick(s, "a")

	// An operator's backup counts, too, and a running one is not begun again.
	f.finish("a")
	f.now = time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	_, err := f.idx.BeginSnapshot(f.ctx, f.shard("a").ID, backup.Snapshot{}, f.now)
	f.must(err)
	f.tick(s, "a")
	f.finish("a")
	f.tick(s, "b")
	f.finish("b")
	f.tick(s)
}

// A snapshot that has failed because the index was put back while it ran is made up for at once,
// and not after the pause after a failure.
func TestPutBack(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a")
	f.policy(backup.Policy{Name: "nightly", Schedule: "0 2 * * *", RecoveryPoint: 26 * time.Hour})
	s := f.scheduler(f.idx, policy.Limits{})
	f.tick(s, "a")
	f.finish("a")
	f.now = time.Date(2026, 3, f.now.Day()+1, 2, 0, 0, 0, time.UTC)
	f.tick(s, "a")
	f.must(f.idx.Fail(f.ctx, f.shard("a").Running, index.PutBack, f.now))
	if got := f.shard("a"); got.Failed.IsZero() {
		t.Errorf("%+v, want it shown as failed", got)
	}
	f.tick(s, "a")
	f.finish("a")
	f.tick(s)
}

// A shard is due at once when its last good snapshot is marked as bad, although nothing of it has
// failed and its policy would begin the next one later. If the next one fails, it is tried again
// after a pause like any other.
func TestMarkedBad(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a")
	f.policy(backup.Policy{Name: "nightly", Schedule: "0 2 * * *", RecoveryPoint: 26 * time.Hour})
	s := f.scheduler(f.idx, policy.Limits{})
	for range 2 {
		f.tick(s, "a")
		f.finish("a")
		f.tick(s)
		f.now = time.Date(2026, 3, f.now.Day()+1, 2, 0, 0, 0, time.UTC)
	}
	f.now = f.now.Add(-time.Hour)
	f.must(f.idx.SetBad(f.ctx, f.shard("a").LastGood, "tester", "half of it was gone"))
	if got := f.shard("a"); !got.Bad || !got.Failed.IsZero() {
		t.Fatalf("%+v, want it bad and not failed", got)
	}
	f.tick(s, "a")
	f.fail("a")
	f.now = f.now.Add(policy.RetryAfter - time.Second)
	f.tick(s)
	f.now = f.now.Add(time.Second)
	f.tick(s, "a")
	f.finish("a")
	f.tick(s)
	if got := f.shard("a"); got.Bad {
		t.Fatalf("%+v, want it good: a newer snapshot is", got)
	}
}

// A site whose workers have died keeps its slots, with snapshots that no worker has taken and with
// one that is half done. The shards of other sites are begun as if the site did not exist.
func TestDeadSite(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a", "b", "c"} {
		filer, err := f.idx.AddFiler(f.ctx, backup.Filer{Name: "oslo " + name, Site: "oslo"})
		f.must(err)
		_, err = f.idx.AddShard(f.ctx, backup.Shard{Filer: filer.ID, Name: name, Source: "posix:///" + name})
		f.must(err)
	}
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	s := f.scheduler(f.idx, policy.Limits{Running: 2, RunningPerFiler: 1})
	f.tick(s, "a", "b")
	half := f.shard("a").Running
	tasks, err := f.idx.ClaimTasks(f.ctx, index.Claim{Snapshots: []backup.SnapshotID{half}, Lease: time.Hour, Limit: 1, Now: f.now})
	f.must(err)
	_, err = f.idx.Apply(f.ctx, []index.Result{{Slice: &backup.SliceWalked{
		Snapshot: half, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true, Children: []backup.Child{{Directories: []string{"sub"}}},
	}}})
	f.must(err)
	if snap, err := f.idx.Snapshot(f.ctx, half); err != nil || snap.TasksSettled != 1 || snap.Complete() {
		t.Fatalf("%+v, %v: want it half done", snap, err)
	}

	f.filer("x1", nil, "d")
	f.filer("x2", nil, "e")
	f.filer("x3", nil, "f")
	f.tick(s, "a", "b", "d", "e")
	f.finish("d")
	f.tick(s, "a", "b", "e", "f")
	f.finish("e", "f")
	for range 10 {
		f.now = f.now.Add(24 * time.Hour)
		f.tick(s, "a", "b", "d", "e")
		f.finish("d")
		f.tick(s, "a", "b", "e", "f")
		f.finish("e", "f")
	}
}

// The clock is a year ahead for a while. When it is right again the shards are due at once, whether
// they were backed up, failed, were never backed up, or were running meanwhile; then everything
// continues as before.
func TestClockThatWasAhead(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "fails", "good", "runs", "waits")
	f.policy(backup.Policy{Name: "daily", Schedule: "0 2 * * *", RecoveryPoint: 26 * time.Hour})
	s := f.scheduler(f.idx, policy.Limits{})
	right := f.now
	f.now = right.AddDate(1, 0, 0)
	f.tick(s, "fails", "good", "runs", "waits")
	f.fail("fails")
	f.finish("good", "waits")
	f.tick(s, "runs")
	if good := f.shard("good"); good.Plan.Due.Before(right.AddDate(1, 0, 0)) {
		t.Fatalf("planned %+v, want it next year", good.Plan)
	}

	f.now = right.Add(time.Hour)
	f.tick(s, "good", "runs", "waits")
	for _, shard := range f.shards() {
		if in := shard.Plan.Deadline.Sub(f.now); shard.Name != "runs" && in > 27*time.Hour {
			t.Errorf("%s: the deadline is in %v", shard.Name, in)
		}
	}
	f.finish("good", "runs", "waits")
	f.tick(s, "runs") // according to the index, it began this one next year
	f.finish("runs")
	f.tick(s)
	f.now = f.now.Add(policy.RetryAfter)
	f.tick(s, "fails")
	f.finish("fails")
	f.tick(s)
	f.now = time.Date(2026, 3, 3, 2, 0, 0, 0, time.UTC)
	f.tick(s, "fails", "good", "runs", "waits")
}

func TestWindowsAndPauses(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a", "b")
	nights := backup.Policy{Name: "nights", Schedule: "@hourly", Windows: []string{"mon 20:00-22:00"}}
	f.policy(nights)
	s := f.scheduler(f.idx, policy.Limits{})
	f.tick(s)
	f.now = time.Date(2026, 3, 2, 20, 0, 0, 0, time.UTC)
	paused := nights
	paused.Paused = true
	f.policy(paused)
	f.tick(s)
	if a := f.shard("a"); a.Plan.Due.IsZero() || !a.Overdue(f.now.Add(2*time.Hour)) {
		t.Fatalf("planned %+v, want it to become overdue while it is paused", a.Plan)
	}
	f.policy(nights)
	f.tick(s, "a", "b")
	f.finish("a", "b")
	f.now = time.Date(2026, 3, 2, 22, 0, 0, 0, time.UTC)
	f.tick(s)
	// The window ends during a tick.
	f.now = time.Date(2026, 3, 9, 21, 59, 57, 500_000_000, time.UTC)
	f.gap = 500 * time.Millisecond
	f.tick(s, "a")
	f.gap = 0
	f.must(f.idx.RemovePolicy(f.ctx, "nights", "tester"))
	f.finish("a")
	f.now = time.Date(2026, 3, 16, 21, 0, 0, 0, time.UTC)
	f.tick(s)
	if a := f.shard("a"); a.Policy != "" || a.Plan.Binding != (index.Binding{}) || !a.Plan.Due.IsZero() {
		t.Fatalf("planned %+v, want no plan without a policy", a.Plan)
	}
}

// One leads; another does once the first has resigned, or its term has expired.
func TestOneLeads(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a")
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	first, second := f.scheduler(f.idx, policy.Limits{}), f.scheduler(f.idx, policy.Limits{})
	f.must(first.Tick(f.ctx))
	f.finish("a")
	f.now = f.now.Add(24 * time.Hour)
	f.tick(second)
	first.resign(f.ctx)
	f.tick(second, "a")
	f.must(first.Tick(f.ctx))
	if first.led.Load().Term != (index.Term{}) || second.led.Load().Epoch != 2 {
		t.Fatalf("terms %+v and %+v", first.led.Load(), second.led.Load())
	}
}

// Run begins at once, and resigns when it is stopped.
func TestRun(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a")
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	ctx, stop := context.WithCancel(f.ctx)
	watched := &faultIndex{Index: f.idx, begun: make(chan error, 1)}
	ended := make(chan struct{})
	s := f.scheduler(watched, policy.Limits{})
	go func() { defer close(ended); s.Run(ctx) }()
	f.must(<-watched.begun)
	stop()
	<-ended
	if _, ok, err := f.idx.Lead(f.ctx, Role, "another", time.Hour); err != nil || !ok {
		t.Fatalf("another leads: %v, %v", ok, err)
	}
}

// A scheduler stands for election between its ticks, and keeps its term during a tick that takes
// longer than a term.
func TestTermsAndTicks(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a")
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	if _, ok, err := f.idx.Lead(f.ctx, Role, "dead", time.Second); err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	ctx, stop := context.WithCancel(f.ctx)
	slow := &faultIndex{Index: f.idx, begun: make(chan error, 1), pause: 2 * time.Second}
	s := f.scheduler(slow, policy.Limits{})
	s.opts.Tick, s.opts.Term, s.opts.Renew = time.Hour, time.Second, 50*time.Millisecond
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	select {
	case err := <-slow.begun:
		f.must(err)
		if !s.Leads() {
			t.Error("it does not lead")
		}
	case <-time.After(30 * time.Second):
		t.Error("the term of the dead leader has ended, and nobody else schedules")
	}
	stop()
	<-ended
}

// One that cannot renew its term does not report that it leads when the term has ended.
func TestLeadsUntilItsTermEnds(t *testing.T) {
	f := newFixture(t)
	s := f.scheduler(f.idx, policy.Limits{})
	s.opts.Term = 100 * time.Millisecond
	f.must(s.Tick(f.ctx))
	ended, cancel := context.WithCancel(f.ctx)
	cancel()
	for began := time.Now(); s.Leads(); {
		s.renew(ended)
		if time.Since(began) > 30*time.Second {
			t.Fatal("it leads without a term")
		}
	}
}

// A scheduler that leads looks when it is asked to: the next shard gets a slot that has become free
// before the interval is over. One that does not lead waits for its interval.
func TestLook(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a", "b")
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	ctx, stop := context.WithCancel(f.ctx)
	watched := &faultIndex{Index: f.idx, begun: make(chan error, 2)}
	ended := make(chan struct{})
	s := f.scheduler(watched, policy.Limits{Running: 1})
	s.opts.Tick = time.Hour
	go func() { defer close(ended); s.Run(ctx) }()
	f.must(<-watched.begun)
	f.finish("a")
	s.Look()
	select {
	case err := <-watched.begun:
		f.must(err)
	case <-time.After(time.Minute):
		t.Error("the second shard is not begun when the first has ended")
	}
	if !s.Leads() {
		t.Error("it does not lead")
	}
	stop()
	<-ended

	follower := f.scheduler(f.idx, policy.Limits{})
	tick := make(chan time.Time, 1)
	for range 50 { // of two channels that are ready, either may be chosen
		follower.Look()
		tick <- f.now
		follower.wait(f.ctx, tick, 0)
		if len(tick) > 0 {
			t.Fatal("one that does not lead looks before its interval is over")
		}
	}
}

// A faultIndex fails BeginDue of one shard.
type faultIndex struct {
	index.Index
	shard backup.ShardID
	err   error
	begun chan error
	pause time.Duration
}

func (x *faultIndex) BeginDue(ctx context.Context, t index.Term, p index.Plan, now time.Time) (backup.Snapshot, error) {
	if x.err != nil && p.Shard == x.shard {
		return backup.Snapshot{}, x.err
	}
	loop.Pause(ctx, x.pause)
	s, err := x.Index.BeginDue(ctx, t, p, now)
	if x.begun != nil {
		x.begun <- err
	}
	return s, err
}

// A problem of one shard does not keep others from being begun; an index that does not answer ends
// the tick.
func TestFaults(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a", "b")
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	x := &faultIndex{Index: f.idx, shard: f.shard("a").ID, err: backup.ErrUnavailable}
	s := f.scheduler(x, policy.Limits{})
	if err := s.Tick(f.ctx); !errors.Is(err, backup.ErrUnavailable) {
		t.Fatalf("%v, want what went wrong", err)
	}
	x.err = index.ErrNotLeading
	f.tick(s)
	x.err = backup.ErrInvalid
	f.tick(s, "b")
	x.err = nil
	f.tick(s, "a", "b")
}
