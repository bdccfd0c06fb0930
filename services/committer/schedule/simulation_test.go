package schedule

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

// A world is a fleet on a simulated clock, and the index that the schedulers see of it. It checks
// each write against the true state at that moment, and fails the test when a rule is broken.
type world struct {
	*testing.T
	index.Index // nil: no policy has rules of retention, so what they need is not called
	random      *rand.Rand
	now         time.Time
	policies    []backup.Policy
	parsed      map[backup.PolicyID]*policy.Schedule
	limits      policy.Limits
	filers      map[backup.FilerID]map[string]string
	shards      []shardState // by id - 1
	onFiler     map[backup.FilerID][]backup.ShardID
	waiting     map[backup.ShardID]bool    // to be planned
	calendar    map[int64][]backup.ShardID // by minute of due
	ripe        map[backup.ShardID]bool    // whose minute has come
	ends        map[int64][]backup.ShardID // of running snapshots, by minute
	running     map[backup.FilerID]int
	runs        int
	minute      int64 // up to which due and ends are processed

	holder string
	term   index.Term
	until  time.Time

	// pause, if not nil, is called at random in the middle of a scheduler's work, and delays that
	// scheduler.
	pause func()

	begun, late, failed, refused int
	acted                        int64 // newest epoch that wrote
}

type shardState struct {
	index.Plan
	good    time.Time
	last    time.Time // when the newest snapshot was begun
	failed  time.Time // when the newest snapshot failed; zero: it has not
	running bool
}

const (
	simulatedTick = 20 * time.Minute
	simulatedTerm = time.Hour
)

func (w *world) shard(id backup.ShardID) *shardState { return &w.shards[id-1] }

// advance moves the clock, and ends snapshots that have run for long enough.
func (w *world) advance(d time.Duration) {
	w.now = w.now.Add(d)
	for ; w.minute <= w.now.Unix()/60; w.minute++ {
		for _, id := range w.ends[w.minute] {
			w.end(id)
		}
		delete(w.ends, w.minute)
		for _, id := range w.calendar[w.minute] {
			if !w.shard(id).Due.IsZero() {
				w.ripe[id] = true
			}
		}
		delete(w.calendar, w.minute)
	}
}

// end ends the running snapshot of a shard; one in fifty fails.
func (w *world) end(id backup.ShardID) {
	s := w.shard(id)
	s.running, s.Due = false, time.Time{}
	w.runs--
	w.running[s.Filer]--
	w.waiting[id] = true
	delete(w.ripe, id)
	s.failed = time.Time{}
	if w.random.IntN(50) == 0 {
		s.failed = w.now
		w.failed++
		return
	}
	if !s.Deadline.IsZero() && w.now.After(s.Deadline) {
		w.late++
	}
	s.good, s.Deadline = s.last, time.Time{}
	s.Good++
}

// fence refuses writes that are not of the current term, and pauses at random before it checks.
func (w *world) fence(t index.Term) error {
	if pause := w.pause; pause != nil && w.random.IntN(4000) == 0 {
		w.pause = nil // a scheduler that acts meanwhile is not paused
		pause()
		w.pause = pause
	}
	if t != w.term || !w.now.Before(w.until) {
		w.refused++
		return index.ErrNotLeading
	}
	if t.Epoch < w.acted {
		w.Fatalf("term %d writes after term %d", t.Epoch, w.acted)
	}
	w.acted = t.Epoch
	return nil
}

func (w *world) Lead(_ context.Context, role, holder string, ttl time.Duration) (index.Term, bool, error) {
	leads := w.now.Before(w.until)
	if leads && holder != w.holder {
		return index.Term{}, false, nil
	}
	if !leads {
		w.term = index.Term{Role: role, Epoch: w.term.Epoch + 1}
	}
	w.holder, w.until = holder, w.now.Add(ttl)
	return w.term, true, nil
}

func (w *world) Clock(context.Context) (time.Time, error) { return w.now, nil }

func (w *world) Resign(context.Context, index.Term) error { return nil }
func (w *world) SetLoads(context.Context, index.Term, map[backup.FilerID]backup.Load) error {
	return nil
}
func (w *world) Sites(context.Context) ([]string, error) { return nil, nil }

func (w *world) ListPolicies(context.Context) ([]backup.Policy, error) { return w.policies, nil }

func (w *world) FilersToSchedule(context.Context) (filers []backup.Filer, err error) {
	for id, labels := range w.filers {
		filers = append(filers, backup.Filer{ID: id, Labels: labels})
	}
	return filers, nil
}

func (w *world) Bind(_ context.Context, t index.Term, bound map[backup.FilerID]index.Binding) (changed int, err error) {
	if err := w.fence(t); err != nil {
		return 0, err
	}
	for filer, b := range bound {
		for _, id := range w.onFiler[filer] {
			s := w.shard(id)
			if s.Binding == b {
				break // all shards of a filer have one policy
			}
			s.Binding, s.Due, s.Deadline = b, time.Time{}, time.Time{}
			w.waiting[id] = true
			delete(w.ripe, id)
			changed++
		}
	}
	return changed, nil
}

func (w *world) Unplanned(_ context.Context, _ []backup.PolicyID, after backup.ShardID, limit int) (list []index.Unplanned, err error) {
	for _, id := range slices.Sorted(maps.Keys(w.waiting)) {
		if s := w.shard(id); id > after && len(list) < limit {
			u := index.Unplanned{Plan: s.Plan, LastGood: s.good}
			if !s.running {
				u.Failed = s.failed
			}
			list = append(list, u)
		}
	}
	return list, nil
}

// Unplan finds nothing to drop: no clock has been ahead.
func (w *world) Unplan(_ context.Context, t index.Term, after map[backup.PolicyID]time.Time) (int, error) {
	if err := w.fence(t); err != nil {
		return 0, err
	}
	for i := range w.shards {
		if s := &w.shards[i]; s.Due.After(after[s.Policy]) && s.Policy != 0 {
			w.Fatalf("at %v shard %d is due at %v, after %v", w.now, s.Shard, s.Due, after[s.Policy])
		}
	}
	return 0, nil
}

func (w *world) PlanShards(_ context.Context, t index.Term, plans []index.Plan) error {
	if err := w.fence(t); err != nil {
		return err
	}
	for _, p := range plans {
		s := w.shard(p.Shard)
		if !s.Due.IsZero() || s.Binding != p.Binding || s.Good != p.Good {
			continue
		}
		s.Due, s.Deadline = p.Due, p.Deadline
		delete(w.waiting, p.Shard)
		if minute := p.Due.Unix()/60 + 1; minute < w.minute {
			w.ripe[p.Shard] = true
		} else {
			w.calendar[minute] = append(w.calendar[minute], p.Shard)
		}
	}
	return nil
}

func (w *world) DueShards(_ context.Context, now time.Time, policies []backup.PolicyID) (due []index.Plan, running map[backup.FilerID]int, err error) {
	for id := range w.ripe {
		if s := w.shard(id); !s.running && slices.Contains(policies, s.Policy) && !s.Due.After(now) {
			due = append(due, s.Plan)
		}
	}
	return due, maps.Clone(w.running), nil
}

func (w *world) BeginDue(_ context.Context, t index.Term, p index.Plan, now time.Time) (backup.Snapshot, error) {
	if err := w.fence(t); err != nil {
		return backup.Snapshot{}, err
	}
	s := w.shard(p.Shard)
	if s.running {
		return backup.Snapshot{}, backup.ErrRunning
	}
	if s.Binding != p.Binding || s.Due.IsZero() || !s.Due.Equal(p.Due) {
		return backup.Snapshot{}, index.ErrNotDue
	}
	// The scheduler may have been paused since it read the clock, but not for longer than its term.
	if w.now.Sub(now) > simulatedTerm || s.Due.After(now) || !w.parsed[s.Policy].Allowed(now) {
		w.Fatalf("shard %d begun at %v, due at %v, allowed %t", p.Shard, now, s.Due, w.parsed[s.Policy].Allowed(now))
	}
	if s.running = true; w.runs >= w.limits.Running || w.running[s.Filer] >= w.limits.RunningPerFiler {
		w.Fatalf("%d run, %d of filer %d", w.runs, w.running[s.Filer], s.Filer)
	}
	// A good snapshot was made since the shard was due: a missed run is made up for once.
	if !s.good.IsZero() && w.parsed[s.Policy].Next(p.Shard, s.good).After(now) {
		w.Fatalf("shard %d begun at %v, after a good one at %v", p.Shard, now, s.good)
	}
	s.last = now
	w.runs++
	w.running[s.Filer]++
	w.begun++
	delete(w.ripe, p.Shard)
	end := w.now.Unix()/60 + int64(5+w.random.IntN(50))
	w.ends[end] = append(w.ends[end], p.Shard)
	return backup.Snapshot{}, nil
}

// idle fails the test if a shard could be begun that was not: then a deadline may be missed for
// which there was capacity. It must be called right after a successful tick.
func (w *world) idle() {
	w.Helper()
	if w.runs >= w.limits.Running {
		return
	}
	for id := range w.ripe {
		s := w.shard(id)
		if !s.running && !s.Due.After(w.now) && w.parsed[s.Policy].Allowed(w.now) && w.running[s.Filer] < w.limits.RunningPerFiler {
			w.Fatalf("at %v shard %d, due at %v, is not begun, and %d run, %d of its filer", w.now, id, s.Due, w.runs, w.running[s.Filer])
		}
	}
}

func newWorld(t *testing.T, filers, shardsPerFiler int, limits policy.Limits) *world {
	w := &world{
		T: t, random: rand.New(rand.NewPCG(4, 2026)), now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), limits: limits,
		parsed: map[backup.PolicyID]*policy.Schedule{}, filers: map[backup.FilerID]map[string]string{},
		onFiler: map[backup.FilerID][]backup.ShardID{}, waiting: map[backup.ShardID]bool{}, calendar: map[int64][]backup.ShardID{},
		ripe: map[backup.ShardID]bool{}, ends: map[int64][]backup.ShardID{}, running: map[backup.FilerID]int{},
	}
	w.minute = w.now.Unix() / 60
	w.policies = []backup.Policy{
		{ID: 1, Revision: 1, Name: "daily", Labels: map[string]string{"tier": "gold"}, Schedule: "0 2 * * *", TimeZone: "Europe/Berlin", Jitter: 6 * time.Hour, RecoveryPoint: 40 * time.Hour},
		{ID: 2, Revision: 1, Name: "nights", Labels: map[string]string{"tier": "silver"}, Schedule: "0 20 * * mon,thu", TimeZone: "America/New_York", Windows: []string{"19:00-07:00"}, RecoveryPoint: 7 * 24 * time.Hour},
		{ID: 3, Revision: 1, Name: "weekly", Schedule: "@weekly", Jitter: 3 * 24 * time.Hour, Windows: []string{"mon-fri 18:00-08:00", "sat,sun 00:00-24:00"}, RecoveryPoint: 10 * 24 * time.Hour},
	}
	for _, p := range w.policies {
		s, err := policy.Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		w.parsed[p.ID] = s
	}
	for filer := range filers {
		id := backup.FilerID(filer + 1)
		w.filers[id] = map[string]string{"tier": []string{"gold", "silver", "silver", "bronze", "bronze"}[filer%5]}
		for range shardsPerFiler {
			shard := backup.ShardID(len(w.shards) + 1)
			w.shards = append(w.shards, shardState{Plan: index.Plan{Shard: shard, Filer: id}})
			w.onFiler[id] = append(w.onFiler[id], shard)
		}
	}
	return w
}

func (w *world) scheduler(name string) *Scheduler {
	return New(w, Options{Worker: name, Tick: simulatedTick, Term: simulatedTerm, Limits: w.limits})
}

// A fleet for a month: two schedulers, each of which is paused at random in the middle of its work,
// for longer than a term, and a night in which both are down. Nothing is begun outside of a window
// or beyond a limit, by a scheduler that does not lead, or twice for one missed run, and there is
// capacity for all deadlines.
func TestMonth(t *testing.T) {
	filers, days := 1000, 30
	if testing.Short() || raceDetector {
		filers, days = 60, 20
	}
	const shardsPerFiler = 50
	w := newWorld(t, filers, shardsPerFiler, policy.Limits{Running: filers * 3 / 2, RunningPerFiler: 6})
	schedulers := []*Scheduler{w.scheduler("one"), w.scheduler("two")}
	var paused int
	acting := 0
	w.pause = func() {
		paused++
		w.advance(time.Duration(20+w.random.IntN(90)) * time.Minute)
		if err := schedulers[1-acting].Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	begin := w.now
	outage := begin.Add(9*24*time.Hour + 20*time.Hour)
	for w.now.Before(begin.AddDate(0, 0, days)) {
		if w.now.After(outage) && w.now.Before(outage.Add(10*time.Hour)) {
			w.advance(time.Hour)
			continue
		}
		led, at := false, w.now
		before := w.refused
		for acting = range schedulers {
			if err := schedulers[acting].Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
			led = led || schedulers[acting].led.Load().Term == w.term
		}
		if led && w.now.Equal(at) && w.refused == before {
			w.idle()
		}
		w.advance(simulatedTick)
	}
	missed := w.late
	for i := range w.shards {
		if s := &w.shards[i]; !s.Deadline.IsZero() && s.Deadline.Before(w.now) {
			missed++
		}
	}
	t.Logf("%d snapshots, %d failed; %d pauses, %d writes refused, %d terms", w.begun, w.failed, paused, w.refused, w.term.Epoch)
	if missed > 0 {
		t.Errorf("%d deadlines missed", missed)
	}
	// At once, and then gold every day, silver twice and bronze once a week, plus the failed ones.
	want := filers / 5 * shardsPerFiler * (days + 1 + 2*(days*2/7+1) + 2*(days/7+1))
	if w.begun < want*9/10 || w.begun > want*12/10 {
		t.Errorf("%d snapshots, want about %d", w.begun, want)
	}
	if paused == 0 || w.refused == 0 || w.term.Epoch < 2 || w.failed == 0 {
		t.Error("nothing has gone wrong that was to be tested")
	}
}

// If more is due than can run, the nearest deadlines come first, and no slot is idle.
func TestOverload(t *testing.T) {
	w := newWorld(t, 30, 50, policy.Limits{Running: 10, RunningPerFiler: 4})
	s := w.scheduler("one")
	ordered := &orderIndex{world: w}
	s.index = ordered
	for range 3 * 24 * int(time.Hour/simulatedTick) {
		ordered.last = time.Time{}
		if err := s.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.idle()
		w.advance(simulatedTick)
	}
	if w.begun < 1000 {
		t.Errorf("%d snapshots begun: not much", w.begun)
	}
}

// An orderIndex fails the test if a tick begins shards with later deadlines first.
type orderIndex struct {
	*world
	last time.Time
}

func (x *orderIndex) BeginDue(ctx context.Context, t index.Term, p index.Plan, now time.Time) (backup.Snapshot, error) {
	if p.Deadline.Before(x.last) {
		x.Fatalf("shard %d, whose deadline is %v, is begun after one with %v", p.Shard, p.Deadline, x.last)
	}
	x.last = p.Deadline
	return x.world.BeginDue(ctx, t, p, now)
}
