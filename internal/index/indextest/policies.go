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

func (f *fixture) setPolicy(p backup.Policy) backup.Policy {
	f.Helper()
	set, err := f.x.SetPolicy(f.ctx, p, "operator")
	f.must(err)
	return set
}

// bind binds the fixture's filer to a policy.
func (f *fixture) bind(t index.Term, p backup.Policy, want int) index.Binding {
	f.Helper()
	b := index.Binding{Policy: p.ID, Revision: p.Revision}
	changed, err := f.x.Bind(f.ctx, t, map[backup.FilerID]index.Binding{f.shard.Filer: b, 4711: b})
	f.must(err)
	if changed != want {
		f.Fatalf("%d shards have another policy, want %d", changed, want)
	}
	return b
}

func (f *fixture) unplanned(p backup.Policy, after backup.ShardID, limit int) []index.Unplanned {
	f.Helper()
	list, err := f.x.Unplanned(f.ctx, []backup.PolicyID{p.ID, 4711}, after, limit)
	f.must(err)
	return list
}

// due returns the plans of a policy that are due now, and how many snapshots of the fixture's filer
// run.
func (f *fixture) due(p backup.Policy) ([]index.Plan, int) {
	f.Helper()
	plans, running, err := f.x.DueShards(f.ctx, f.now, []backup.PolicyID{p.ID})
	f.must(err)
	return plans, running[f.shard.Filer]
}

func testPolicies(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	want := backup.Policy{
		Name: "nightly", Labels: map[string]string{"tier": "gold"}, Paused: true, Schedule: "30 2 * * *", TimeZone: "Europe/Berlin",
		Jitter: 90 * time.Minute, Windows: []string{"mon-fri 20:00-06:00", "sat,sun 00:00-24:00"}, RecoveryPoint: 26 * time.Hour, Floor: 50, Drill: 7 * 24 * time.Hour,
		Retention: backup.Retention{
			Style: backup.StyleRestic, Last: 1, Hourly: 2, Daily: 3, Weekly: 4, Monthly: 5, Yearly: backup.Unlimited, Within: backup.Period{Days: 1, Hours: 12},
			WithinHourly: backup.Period{Hours: 36}, WithinDaily: backup.Period{Days: 30}, WithinWeekly: backup.Period{Months: 6},
			WithinMonthly: backup.Period{Years: 1, Months: 2, Days: 3, Hours: 4}, WithinYearly: backup.Period{Years: 75}, Tags: [][]string{{"a", "b"}, {"c d"}},
		},
		Selection: backup.Selection{Exclude: []string{"*.tmp"}, OneFileSystem: true},
	}
	got := f.setPolicy(want)
	want.ID, want.Revision = got.ID, 1
	if got.ID == 0 || !reflect.DeepEqual(got, want) {
		t.Fatalf("set %+v, want %+v", got, want)
	}
	other := f.setPolicy(backup.Policy{Name: "all", Schedule: "@daily"})
	changed := backup.Policy{Name: "nightly", Labels: map[string]string{}, Schedule: "@weekly", Windows: []string{}, Selection: backup.Selection{}}
	got = f.setPolicy(changed)
	changed.ID, changed.Revision = want.ID, 2
	if !reflect.DeepEqual(got, changed) {
		t.Fatalf("changed to %+v, want %+v", got, changed)
	}
	list, err := f.x.ListPolicies(f.ctx)
	f.must(err)
	if !reflect.DeepEqual(list, []backup.Policy{other, changed}) {
		t.Fatalf("%+v, want two by name", list)
	}
	f.must(f.x.RemovePolicy(f.ctx, "nightly", "operator"))
	f.wants(f.x.RemovePolicy(f.ctx, "nightly", "operator"), backup.ErrNotFound)
	if again := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily"}); again.ID == want.ID {
		t.Fatal("an id is used again")
	}
	for _, break1 := range []func(*backup.Policy){
		func(x *backup.Policy) { x.Name = "" },
		func(x *backup.Policy) { x.Name = "\xff" },
		func(x *backup.Policy) { x.Schedule = "now and then" },
		func(x *backup.Policy) { x.TimeZone = "Mars/Olympus" },
		func(x *backup.Policy) { x.Windows = []string{"night"} },
		func(x *backup.Policy) { x.Windows = make([]string, 1000) },
		func(x *backup.Policy) { x.Jitter = -1 },
		func(x *backup.Policy) { x.Drill = time.Minute },
		func(x *backup.Policy) { x.Retention.Daily = -2 },
		func(x *backup.Policy) { x.Labels = map[string]string{"": "x"} },
		func(x *backup.Policy) { x.Selection.Exclude = []string{"\xff"} },
	} {
		bad := backup.Policy{Name: "bad", Schedule: "@daily"}
		break1(&bad)
		_, err := f.x.SetPolicy(f.ctx, bad, "operator")
		f.wants(err, backup.ErrInvalid)
	}
}

// A shard is planned when its policy is new or changed, and when a snapshot of it has ended. It is
// due once per plan.
func testPlans(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.addFiler(backup.Filer{Name: "nas", Labels: map[string]string{"tier": "gold"}})
	second, err := f.x.AddShard(f.ctx, backup.Shard{Filer: f.shard.Filer, Name: "second", Source: "posix:///second"})
	f.must(err)
	filers, err := f.x.FilersToSchedule(f.ctx)
	f.must(err)
	of := slices.IndexFunc(filers, func(filer backup.Filer) bool { return filer.ID == f.shard.Filer })
	if len(filers) != 2 || filers[of].Labels["tier"] != "gold" || filers[of].Site != backup.DefaultSite {
		t.Fatalf("filers %+v, want two with their labels and sites", filers)
	}
	term := f.lead("scheduler", "a", time.Hour, true)
	p := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily", Selection: backup.Selection{Exclude: []string{"*.bak"}}})
	if len(f.unplanned(p, 0, 10)) != 0 {
		t.Fatal("a shard without a policy is to be planned")
	}
	b := f.bind(term, p, 2)
	f.bind(term, p, 0)

	// In pages. There are no snapshots yet.
	first := f.unplanned(p, 0, 1)
	if want := (index.Unplanned{Plan: index.Plan{Shard: f.shard.ID, Filer: f.shard.Filer, Binding: b}}); len(first) != 1 || first[0] != want {
		t.Fatalf("%+v, want %+v", first, want)
	}
	if next := f.unplanned(p, f.shard.ID, 10); len(next) != 1 || next[0].Shard != second.ID {
		t.Fatalf("%+v, want the second", next)
	}
	plan := first[0].Plan
	plan.Due, plan.Deadline = f.now.Add(-time.Minute), f.now.Add(time.Hour)
	later := plan
	later.Shard, later.Due = second.ID, f.now.Add(time.Second)
	old := plan
	old.Revision++
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{old}))
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{plan, later}))
	f.must(f.x.PlanShards(f.ctx, term, nil))
	moved := plan
	moved.Due = f.now.Add(-time.Hour)
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{moved})) // it is planned already
	if due, running := f.due(p); len(due) != 1 || due[0] != plan || running != 0 {
		t.Fatalf("due %+v, %d run, want %+v", due, running, plan)
	}
	if due, _, err := f.x.DueShards(f.ctx, f.now.Add(time.Hour), []backup.PolicyID{4711}); err != nil || len(due) != 0 {
		t.Fatalf("due %+v, %v; want none of another policy", due, err)
	}
	_, err = f.x.BeginDue(f.ctx, term, moved, f.now)
	f.wants(err, index.ErrNotDue)
	_, err = f.x.BeginDue(f.ctx, term, old, f.now)
	f.wants(err, index.ErrNotDue)
	s, err := f.x.BeginDue(f.ctx, term, plan, f.now)
	f.must(err)
	if s.State != backup.Running || !s.Started.Equal(f.now) || !reflect.DeepEqual(s.Selection.Exclude, []string{"*.bak"}) {
		t.Fatalf("began %+v, want it running, without what the policy leaves out", s)
	}
	again, err := f.x.BeginDue(f.ctx, term, plan, f.now)
	f.wants(err, backup.ErrRunning)
	if again.ID != s.ID {
		t.Fatalf("%s runs, want %s", again.ID, s.ID)
	}
	if due, running := f.due(p); len(due) != 0 || running != 1 {
		t.Fatalf("due %+v while it runs, %d run", due, running)
	}

	// A failure keeps the deadline, a good snapshot does not. Both lead to a new plan.
	f.fail(s.ID, "the filer is gone")
	failed := f.unplanned(p, 0, 10)
	if len(failed) != 1 || failed[0].Failed.IsZero() || !failed[0].Deadline.Equal(plan.Deadline) || !failed[0].LastGood.IsZero() {
		t.Fatalf("after a failure %+v", failed)
	}
	_, err = f.x.BeginDue(f.ctx, term, plan, f.now)
	f.wants(err, index.ErrNotDue)
	// Neither does another revision of the policy, before the first good snapshot.
	p = f.setPolicy(p)
	b = f.bind(term, p, 2)
	if failed = f.unplanned(p, 0, 10); len(failed) != 2 || !failed[0].Deadline.Equal(plan.Deadline) || !failed[1].Deadline.Equal(later.Deadline) {
		t.Fatalf("after another revision %+v", failed)
	}
	later.Binding = b
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{later}))
	good := f.commitPages(pageOf("a", "b"))
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{plan})) // the plan was made before that
	planned := f.unplanned(p, 0, 10)
	want := index.Unplanned{Plan: index.Plan{Shard: f.shard.ID, Filer: f.shard.Filer, Binding: b, Good: good.Number}, LastGood: good.Started}
	if len(planned) != 1 || planned[0] != want {
		t.Fatalf("after a good one %+v, want %+v", planned, want)
	}
	running := f.begin()
	if planned = f.unplanned(p, 0, 10); len(planned) != 1 || !planned[0].Failed.IsZero() {
		t.Fatalf("while one runs %+v", planned)
	}
	f.fail(running.ID, "")

	// Another revision, and then no policy.
	p = f.setPolicy(p)
	f.bind(term, p, 2)
	if len(f.unplanned(p, 0, 10)) != 2 {
		t.Fatal("a policy has changed, and its shards are not planned again")
	}
	f.must(f.x.RetireShard(f.ctx, second.ID, "tester"))
	f.must(f.x.RemovePolicy(f.ctx, p.Name, "operator"))
	if len(f.unplanned(p, 0, 10)) != 0 {
		t.Fatal("the shards of a policy that is removed are to be planned")
	}
	f.bind(term, backup.Policy{}, 0)
	if s := f.begin(); len(s.Selection.Exclude) != 0 {
		t.Fatalf("%+v is left out, of a policy that is removed", s.Selection)
	}
}

// The writes of a scheduler whose term has ended are refused, however it ended.
func testSchedulerFenced(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.lead("scheduler", "a", time.Hour, true)
	p := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily"})
	f.bind(first, p, 1)
	plan := f.unplanned(p, 0, 1)[0].Plan
	plan.Due, plan.Deadline = f.now, f.now.Add(time.Hour)
	f.must(f.x.PlanShards(f.ctx, first, []index.Plan{plan}))

	refused := func(term index.Term) {
		t.Helper()
		_, err := f.x.Bind(f.ctx, term, map[backup.FilerID]index.Binding{f.shard.Filer: {}})
		f.wants(err, index.ErrNotLeading)
		f.wants(f.x.PlanShards(f.ctx, term, []index.Plan{plan}), index.ErrNotLeading)
		_, err = f.x.Unplan(f.ctx, term, map[backup.PolicyID]time.Time{p.ID: f.now.Add(-time.Hour)})
		f.wants(err, index.ErrNotLeading)
		_, err = f.x.BeginDue(f.ctx, term, plan, f.now)
		f.wants(err, index.ErrNotLeading)
		f.wantRows("snapshots", 0)
		if due, _ := f.due(p); len(due) != 1 || due[0] != plan {
			t.Fatalf("due %+v, want what it was", due)
		}
	}
	f.must(f.x.Resign(f.ctx, first))
	refused(first)
	second := f.lead("scheduler", "b", time.Hour, true)
	refused(first)
	refused(index.Term{Role: "scheduler", Epoch: second.Epoch + 1})
	refused(index.Term{Role: "another", Epoch: second.Epoch})
	_, err := f.x.BeginDue(f.ctx, second, plan, f.now)
	f.must(err)
}

// Plans that are later than any correct clock can have made them are dropped, and those of other
// policies are not.
func testUnplan(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	term := f.lead("scheduler", "a", time.Hour, true)
	p := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily"})
	f.bind(term, p, 1)
	plan := f.unplanned(p, 0, 1)[0].Plan
	plan.Due, plan.Deadline = f.now.AddDate(1, 0, 0), f.now.AddDate(1, 0, 1)
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{plan}))
	for _, after := range []map[backup.PolicyID]time.Time{nil, {p.ID + 1: f.now}, {p.ID: plan.Due}} {
		if n, err := f.x.Unplan(f.ctx, term, after); err != nil || n != 0 || len(f.unplanned(p, 0, 10)) != 0 {
			t.Fatalf("dropped %d plans, %v: none is later than %v", n, err, after)
		}
	}
	if n, err := f.x.Unplan(f.ctx, term, map[backup.PolicyID]time.Time{p.ID: plan.Due.Add(-time.Second), p.ID + 1: f.now}); err != nil || n != 1 {
		t.Fatalf("dropped %d plans, %v; want one", n, err)
	}
	if again := f.unplanned(p, 0, 10); len(again) != 1 || !again[0].Due.IsZero() || !again[0].Deadline.IsZero() {
		t.Fatalf("%+v, want the shard without plan and deadline", again)
	}
}

// Of many that begin the same plan at the same time, one succeeds.
func testBeginDueOnce(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	term := f.lead("scheduler", "a", time.Hour, true)
	p := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily"})
	f.bind(term, p, 1)
	plan := f.unplanned(p, 0, 1)[0].Plan
	plan.Due = f.now
	f.must(f.x.PlanShards(f.ctx, term, []index.Plan{plan}))
	var lock sync.Mutex
	began := map[error]int{}
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			_, err := f.x.BeginDue(f.ctx, term, plan, f.now)
			lock.Lock()
			defer lock.Unlock()
			began[err]++
			return nil
		})
	}
	f.must(group.Wait())
	if began[nil] != 1 || began[backup.ErrRunning] != 7 {
		t.Fatalf("%v, want one", began)
	}
}

// Lists report overdue shards.
func testDeadlines(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	for _, name := range []string{"b", "c"} {
		_, err := f.x.AddShard(f.ctx, backup.Shard{Filer: f.shard.Filer, Name: name, Source: "posix:///" + name})
		f.must(err)
	}
	term := f.lead("scheduler", "a", time.Hour, true)
	p := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily"})
	f.bind(term, p, 3)
	// By the clock of this process.
	now := time.Now().UTC().Truncate(time.Microsecond)
	var plans []index.Plan
	for i, u := range f.unplanned(p, 0, 2) {
		u.Due, u.Deadline = now.Add(-time.Hour), now.Add(time.Duration(i)*2*time.Hour-time.Hour)
		plans = append(plans, u.Plan)
	}
	f.must(f.x.PlanShards(f.ctx, term, plans))
	filers := f.listFilers(index.FilerFilter{})
	if len(filers) != 1 || !filers[0].Deadline.Equal(plans[0].Deadline) || filers[0].Overdue != 1 {
		t.Fatalf("%+v, want one overdue", filers)
	}
	shards := f.listShards(index.ShardFilter{})
	if len(shards) != 3 || shards[0].Policy != "nightly" || !shards[2].Overdue(now) || shards[2].Plan != plans[0] ||
		shards[0].Overdue(now) || shards[0].Plan != plans[1] || shards[1].Overdue(now) || !shards[1].Plan.Due.IsZero() {
		t.Fatalf("%+v, want the first made overdue", shards)
	}
}

// A policy forgets only while its scheduler leads, and only what its current revision does not
// keep.
func testForgetDue(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	term := f.lead("scheduler", "a", time.Hour, true)
	p := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@daily"})
	b := f.bind(term, p, 1)
	old := f.commitPages(pageOf("a", "1"))
	last := f.commitPages(pageOf("a", "2"))
	for _, s := range []backup.Snapshot{old, last} {
		f.must(f.x.Recorded(f.ctx, s.ID))
	}
	forget := func(term index.Term, b index.Binding, s backup.Snapshot) error {
		return f.x.ForgetDue(f.ctx, term, b, s.ID, "policy nightly", "no rule keeps it")
	}
	f.wants(forget(index.Term{Role: "scheduler", Epoch: term.Epoch + 1}, b, old), index.ErrNotLeading)
	f.wants(forget(term, index.Binding{}, old), index.ErrNotDue)
	f.wants(forget(term, index.Binding{Policy: b.Policy, Revision: b.Revision + 1}, old), index.ErrNotDue)
	f.wants(forget(term, b, last), index.ErrKept)
	changed := f.setPolicy(backup.Policy{Name: "nightly", Schedule: "@hourly"})
	f.wants(forget(term, b, old), index.ErrNotDue) // the shard is not bound to the change yet
	b = f.bind(term, changed, 1)
	f.must(forget(term, b, old))
	f.wants(forget(term, b, old), backup.ErrNotFound)
	if s, err := f.x.Snapshot(f.ctx, old.ID); err != nil || s.State != backup.Deleting {
		t.Fatalf("%+v, %v", s, err)
	}
	for e, err := range f.x.Log(f.ctx, time.UnixMicro(0)) {
		if err == nil && e.Action == "policy" {
			continue
		}
		if err != nil || e.By != "policy nightly" || e.Action != "forget" || e.Subject != old.ID.String() {
			t.Fatalf("%+v, %v", e, err)
		}
	}
}
