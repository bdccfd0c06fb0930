package commit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

// A simulated filer answers in base while no more than capacity requests run, and beyond that in
// proportion: further requests wait in its queue.
type simulated struct {
	base     time.Duration
	capacity int
	noise    float64    // each interval's latency is wrong by up to this fraction
	random   *rand.Rand // of the noise
}

func (s simulated) latency(inFlight int) time.Duration {
	return s.base * time.Duration(max(inFlight, s.capacity)) / time.Duration(s.capacity)
}

// run lets demand pieces of work run against the filer for some intervals, and returns the slots in
// use at each. settle is how many intervals a lease lasts.
func (s simulated) run(r *regulator, limit, demand, intervals, settle int) (used []int) {
	inFlight := 1 // a snapshot begins with its root task
	for range intervals {
		seconds := s.latency(inFlight).Seconds()
		if s.noise > 0 {
			seconds *= 1 + s.noise*(2*s.random.Float64()-1)
		}
		r.observe(100, 100*seconds)
		r.step(usual(limit), inFlight)
		want := min(demand, limit)
		if r.slots > 0 {
			want = min(want, r.slots)
		}
		if want < inFlight {
			inFlight -= max((inFlight-want)/settle, 1)
		} else {
			inFlight = want
		}
		used = append(used, inFlight)
	}
	return used
}

// usual returns the bounds of a filer without settings.
func usual(limit int) bounds {
	return bounds{policy.FloorOf(&backup.Filer{}, nil, time.Time{}, time.Time{}).Of(limit), limit}
}

func mean(list []int) float64 {
	sum := 0
	for _, n := range list {
		sum += n
	}
	return float64(sum) / float64(len(list))
}

func TestGovernorConvergesBelowTheTarget(t *testing.T) {
	for _, settle := range []int{1, 5} {
		filer := simulated{base: 2 * time.Millisecond, capacity: 4} // the target is reached at 12
		var r regulator
		used := filer.run(&r, 64, 1000, 300, settle)
		late := used[100:]
		above := 0
		for _, n := range late {
			if filer.latency(n) > targetFactor*filer.base {
				above++
			}
		}
		if m := mean(late); m < 8 || m > 12.5 {
			t.Errorf("settle %d: %v slots in use on average, want somewhat less than 12: %v", settle, m, late)
		}
		if above > len(late)/3 {
			t.Errorf("settle %d: above the target in %d of %d intervals: %v", settle, above, len(late), late)
		}
	}
}

func TestGovernorRecovers(t *testing.T) {
	var r regulator
	simulated{base: 2 * time.Millisecond, capacity: 1}.run(&r, 32, 1000, 60, 1)
	if r.slots == 0 || r.slots > 6 {
		t.Fatalf("%d slots on a filer that takes three", r.slots)
	}
	used := simulated{base: 2 * time.Millisecond, capacity: 100}.run(&r, 32, 1000, 40, 1)
	if used[len(used)-1] != 32 || r.slots != 0 {
		t.Errorf("%v in use, %d slots, of a filer that takes more than the limit", used, r.slots)
	}
}

// A filer that has become slower regardless of its load keeps its slots: with fewer the work would
// only take longer.
func TestGovernorFindsThatFewerDoNotHelp(t *testing.T) {
	for _, noise := range []float64{0, 0.1} {
		for _, settle := range []int{1, 5} {
			var r regulator
			random := rand.New(rand.NewPCG(1, 2))
			simulated{2 * time.Millisecond, 1000, noise, random}.run(&r, 64, 1000, 100, settle)
			if r.slots != 0 {
				t.Fatalf("noise %v: %d slots of a filer that is not slow", noise, r.slots)
			}
			used := simulated{100 * time.Millisecond, 1000, noise, random}.run(&r, 64, 1000, 1000, settle)
			if m := mean(used[30:]); m < 60 || slices.Min(used) < 40 {
				t.Errorf("noise %v, settle %d: %v in use on average, %d at least, where fewer do not help", noise, settle, m, slices.Min(used))
			}
			used = simulated{2 * time.Millisecond, 1000, noise, random}.run(&r, 64, 1000, 100, settle)
			if used[len(used)-1] != 64 || r.slots != 0 || r.idle > 3*time.Millisecond {
				t.Errorf("noise %v: fast again, and %d in use, %d slots, idle %v", noise, used[len(used)-1], r.slots, r.idle)
			}
		}
	}
}

// A filer whose latency is in proportion to its load gets less load, with or without noise, and
// also if it was slow for another reason first.
func TestGovernorFindsThatFewerHelp(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		var r regulator
		simulated{2 * time.Millisecond, 1000, 0.1, random}.run(&r, 64, 1000, 20, 1)
		simulated{20 * time.Millisecond, 1000, 0.1, random}.run(&r, 64, 1000, 100, 1)
		if r.slots != 0 {
			t.Errorf("seed %d: %d slots where fewer do not help", seed, r.slots)
		}
		used := simulated{2 * time.Millisecond, 4, 0.1, random}.run(&r, 64, 1000, 1000, 3)
		if m := mean(used[500:]); m > 20 {
			t.Errorf("seed %d: %v in use on average, of a filer that takes 12", seed, m)
		}
	}
}

// However slow a filer is, it gets its floor, and never more than its limit.
func TestGovernorKeepsBetweenTheFloorAndTheLimit(t *testing.T) {
	for limit, floor := range map[int]int{1: 1, 2: 1, 8: 1, 9: 2, 32: 4, 64: 8} {
		var r regulator
		idle := simulated{base: 2 * time.Millisecond, capacity: 1}
		r.observe(100, 100*idle.base.Seconds())
		r.step(usual(limit), 1)
		used := simulated{base: 500 * time.Millisecond, capacity: 1}.run(&r, limit, 1000, 300, 1)
		if low := slices.Min(used[1:]); low < floor || low > floor {
			t.Errorf("limit %d: %d slots, want no fewer than %d, and so many", limit, low, floor)
		}
		if m := mean(used[50:]); m > 1.5*float64(floor)+0.5 {
			t.Errorf("limit %d: %v in use on average, of a filer that each more makes slower", limit, m)
		}
	}
	r := regulator{resumed: true}
	r.slots = 9
	r.step(usual(4), 9) // the limit was lowered
	if r.slots != 0 {
		t.Errorf("%d slots, where the limit is 4", r.slots)
	}
	for range 20 {
		r.observe(100, 0.1)
		r.step(usual(1), 1)
		if r.slots != 0 {
			t.Fatalf("%d slots, where the limit is 1", r.slots)
		}
	}
}

// A filer at its floor that is slow for another reason is detected: more slots do not make it
// slower.
func TestGovernorLeavesTheFloor(t *testing.T) {
	r := regulator{slots: 8, idle: 2 * time.Millisecond, resumed: true}
	used := simulated{base: 100 * time.Millisecond, capacity: 1000}.run(&r, 64, 1000, 200, 1)
	if m := mean(used[150:]); m < 60 {
		t.Errorf("%v in use on average, where more do no harm", m)
	}
}

// A filer that became slower by itself is not kept at few slots for ever.
func TestGovernorLearnsThatTheFilerIsSlowerNow(t *testing.T) {
	var r regulator
	simulated{base: time.Millisecond, capacity: 8}.run(&r, 8, 1000, 20, 1)
	used := simulated{base: 20 * time.Millisecond, capacity: 8}.run(&r, 8, 1000, 200, 1)
	if m := mean(used[150:]); m < 6 {
		t.Errorf("%v in use on average, of a filer that takes 8", m)
	}
}

func TestGovernorIgnoresTooFewSamples(t *testing.T) {
	var r regulator
	r.observe(100, 0.2)
	r.step(usual(16), 1)
	for range 4 * staleIntervals {
		r.observe(1, 5) // one directory that took seconds
		r.step(usual(16), 16)
		if r.slots != 0 || r.latency != 2*time.Millisecond {
			t.Fatalf("%d slots, latency %v", r.slots, r.latency)
		}
	}
	// Enough of them within the time do count.
	for range staleIntervals {
		r.observe(leastSamples/4, 5)
		r.step(usual(16), 16)
	}
	if r.slots == 0 {
		t.Error("what came in several intervals does not count")
	}
}

// Unused slots do not grow: latency reveals nothing about them.
func TestGovernorGrowsOnlyWhatIsUsed(t *testing.T) {
	r := regulator{slots: 6, idle: 2 * time.Millisecond, resumed: true}
	for range 10 {
		r.observe(100, 0.2)
		r.step(usual(32), 2)
	}
	if r.slots != 6 {
		t.Errorf("%d slots", r.slots)
	}
	r.observe(100, 0.2)
	r.step(usual(32), 3)
	if r.slots != 7 {
		t.Errorf("%d slots, half of which are used", r.slots)
	}
}

func TestIdleLatencyDrifts(t *testing.T) {
	r := regulator{slots: 6, idle: 2 * time.Millisecond, resumed: true}
	for range 3600 {
		r.observe(100, 0.5)
		r.step(usual(32), 0)
	}
	if r.idle < 3*time.Millisecond || r.idle > 5*time.Millisecond {
		t.Errorf("after an hour at 5 ms the idle latency is %v, was 2 ms", r.idle)
	}
	r.observe(100, 0.3)
	r.step(usual(32), 0)
	if r.idle != 3*time.Millisecond {
		t.Errorf("idle latency %v, seen were 3 ms", r.idle)
	}
}

// Latencies below a millisecond come from caches: they do not mean that a filer is slow.
func TestGovernorLeavesFastFilersAlone(t *testing.T) {
	var r regulator
	for _, seconds := range []float64{5e-6, 200e-6, 900e-6} {
		r.observe(1000, 1000*seconds)
		r.step(usual(32), 32)
	}
	if r.slots != 0 {
		t.Errorf("%d slots", r.slots)
	}
	// One slow second, and then 6 µs against 1 µs: the filer soon has all its slots, although they
	// are not used.
	r.observe(1000, 1000*1e-6)
	r.step(usual(32), 32)
	r.observe(1000, 1000*5e-3)
	r.step(usual(32), 32)
	if r.slots == 0 {
		t.Error("a slow second is not seen")
	}
	for range 5 {
		r.observe(1000, 1000*6e-6)
		r.step(usual(32), 1)
	}
	if r.slots != 0 {
		t.Errorf("%d slots, of a filer that answers in 6 µs", r.slots)
	}
}

func TestGovernorOfFilers(t *testing.T) {
	g := newGovernor()
	status := func(load backup.Load) []index.FilerStatus {
		return []index.FilerStatus{
			{Filer: backup.Filer{ID: 1, Limits: backup.Limits{WalkTasks: 8}}, Load: load, Tasks: 8, Batches: 64},
			{Filer: backup.Filer{ID: 2}},
		}
	}
	// Of a worker that does not know its filer.
	g.observe(&backup.Progress{Filer: 0, Stats: 100, StatSeconds: 1})
	g.observe(&backup.Progress{Filer: 9, Stats: 100, StatSeconds: 1}) // of a filer that was deleted
	have := backup.Load{WalkSlots: 4, WalkIdle: time.Millisecond}
	g.observe(&backup.Progress{Filer: 1, Stats: 100, StatSeconds: 0.2, Opens: 100, OpenSeconds: 1})
	loads := g.step(status(have), nil, time.Time{})
	want := backup.Load{WalkSlots: 5, WalkIdle: r1(time.Millisecond), WalkLatency: 2 * time.Millisecond, ReadLatency: 10 * time.Millisecond, ReadIdle: 10 * time.Millisecond}
	if len(loads) != 1 || loads[1] != want {
		t.Fatalf("loads %+v, want of filer 1 %+v", loads, want)
	}
	g.observe(&backup.Progress{Filer: 1, Stats: 100, StatSeconds: 1, Opens: 100, OpenSeconds: 1})
	if loads = g.step(status(loads[1]), nil, time.Time{}); loads[1].WalkSlots != 3 || loads[1].ReadSlots != 0 {
		t.Errorf("loads %+v", loads)
	}
	told := loads[1]
	g.observe(&backup.Progress{Filer: 1, Stats: 10, StatSeconds: 0.02})
	if loads = g.step(status(told), nil, time.Time{}); len(loads) > 0 {
		t.Errorf("nothing has changed, and is stored: %+v", loads)
	}
	for range staleIntervals + 1 {
		g.step(status(told), nil, time.Time{})
	}
	if !g.idle() {
		t.Error("a filer of which nothing comes is remembered")
	}
}

// A filer whose backup is late gets more of its limits at once, however slow it is, and so does one
// whose floor is raised.
func TestGovernorHoldsFloors(t *testing.T) {
	g := newGovernor()
	now := time.Now()
	status := index.FilerStatus{
		Filer: backup.Filer{ID: 1, Limits: backup.Limits{WalkTasks: 32, ReadBatches: 64}, Labels: map[string]string{"tier": "gold"}},
		Load:  backup.Load{WalkSlots: 4, WalkIdle: 2 * time.Millisecond, ReadSlots: 8, ReadIdle: 2 * time.Millisecond},
	}
	policies := []backup.Policy{{Name: "nightly"}}
	wants := func(what string, walk, read int) {
		t.Helper()
		g.observe(&backup.Progress{Filer: 1, Stats: 1, StatSeconds: 1}) // slow, but too few samples
		if load, ok := g.step([]index.FilerStatus{status}, policies, now)[1]; ok {
			status.Load = load
		}
		if status.Load.WalkSlots != walk || status.Load.ReadSlots != read {
			t.Errorf("%s: slots for %d tasks and %d batches, want %d and %d", what, status.Load.WalkSlots, status.Load.ReadSlots, walk, read)
		}
	}
	wants("an eighth", 4, 8)
	status.Deadline = now.Add(2 * policy.NearDeadline)
	wants("a deadline that is far", 4, 8)
	status.Deadline = now.Add(policy.NearDeadline / 2)
	wants("a deadline that is near", 8, 16)
	status.Deadline = now.Add(-time.Second)
	wants("a deadline that has passed", 16, 32)
	status.Deadline = time.Time{}
	wants("what was given is kept", 16, 32)
	policies[0].Floor = 75
	wants("the floor of the policy", 24, 48)
	status.Limits.Floor = 100
	wants("no less than the limits", 0, 0)
}

// r1 returns an idle latency after one interval.
func r1(d time.Duration) time.Duration { return time.Duration(float64(d)*driftUp) + 1 }
