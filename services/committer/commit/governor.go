package commit

import (
	"math"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

// The governor holds each filer's work to what the filer can take without
// getting slow for its users. Workers report how long its stats and opens took; from that, once an interval of a second,
// each of the two has its slots moved: the number of leases that may run at a time.
//
// The rule is AIMD, additive increase and multiplicative decrease: of the linear rules it is the one by
// which those who share a resource reach a fair and efficient share (Chiu and Jain, "Analysis of the increase and decrease
// algorithms for congestion avoidance in computer networks", 1989). The signal is latency
// against the least that was seen, as in TCP Vegas (Brakmo and Peterson, 1995): a queue at the filer shows in it
// before anything fails.
//
// Fewer slots are a trial: the latency with them is compared with that before. Where it is not lower by at least half of
// what it would be if it were in proportion to the slots, the filer is slow for another reason. It gets its slots
// back, and what it takes now counts as idle, until the question is asked again. Below a floor, which filer, policy and
// deadline say (policy.FloorOf), slots never fall; there the trial is the other way round, with more of them.

const (
	// targetFactor times the idle latency is the target, but not less than leastTarget.
	targetFactor = 3
	leastTarget  = backup.FastLatency
	// decrease is what is left of the slots where the target is missed.
	decrease = 0.7
	// trialIntervals are compared with what was before a trial.
	trialIntervals = 3
	// askAgain is after how many intervals a filer that was found to be slow for another reason is tried again.
	askAgain = 300
	// restIntervals is for how long a filer stays at the floor before more slots are tried.
	restIntervals = 30
	// settleIntervals is how long, at most, a decrease is given to show: until more leases than slots have run out,
	// latency is still that of before.
	settleIntervals = 10
	// leastSamples are enough to go by. Fewer are kept for the next interval, but
	// no longer than staleIntervals.
	leastSamples   = 20
	staleIntervals = 10
	// driftUp is by how much, each interval, the idle latency is taken to have risen, so that one
	// measured in a lucky moment is forgotten: it doubles in an hour.
	driftUp = 1.0002
	// grownUp: slots grow only while half of them are used, for latency says nothing about
	// slots that nobody uses (the congestion window validation of RFC 7661).
	grownUp = 2
)

// A governor regulates the filers that reports come of. It is not safe for concurrent use.
type governor struct {
	filers map[backup.FilerID]*governed
}

type governed struct {
	stats, opens regulator
	told         backup.Load // what the index has
	quiet        int         // intervals without a report
}

func newGovernor() *governor { return &governor{filers: map[backup.FilerID]*governed{}} }

// observe takes in what a worker reports.
func (g *governor) observe(p *backup.Progress) {
	if p.Filer == 0 || p.Stats+p.Opens == 0 {
		return
	}
	f := g.filers[p.Filer]
	if f == nil {
		f = &governed{}
		g.filers[p.Filer] = f
	}
	f.quiet = 0
	f.stats.observe(p.Stats, p.StatSeconds)
	f.opens.observe(p.Opens, p.OpenSeconds)
}

// idle reports whether there is nothing to govern.
func (g *governor) idle() bool { return len(g.filers) == 0 }

// step ends an interval. It returns the loads that are worth storing, and
// forgets filers that nothing comes of any more: what is known of them is in the index.
func (g *governor) step(filers []index.FilerStatus, policies []backup.Policy, now time.Time) map[backup.FilerID]backup.Load {
	loads := map[backup.FilerID]backup.Load{}
	known := map[backup.FilerID]bool{}
	for i := range filers {
		s := &filers[i]
		f := g.filers[s.ID]
		if f == nil {
			continue
		}
		known[s.ID] = true
		limits := s.Limits.WithDefaults()
		f.told = s.Load
		f.stats.resume(s.Load.WalkSlots, s.Load.WalkIdle)
		f.opens.resume(s.Load.ReadSlots, s.Load.ReadIdle)
		floor := policy.FloorOf(&s.Filer, policies, s.Deadline, now)
		f.stats.step(bounds{floor.Of(limits.WalkTasks), limits.WalkTasks}, s.Tasks)
		f.opens.step(bounds{floor.Of(limits.ReadBatches), limits.ReadBatches}, s.Batches)
		if load := f.load(); worthStoring(f.told, load) {
			loads[s.ID] = load
		}
	}
	for id, f := range g.filers {
		if f.quiet++; f.quiet > staleIntervals || !known[id] {
			delete(g.filers, id)
		}
	}
	return loads
}

func (f *governed) load() backup.Load {
	return backup.Load{
		WalkSlots: f.stats.slots, WalkLatency: f.stats.latency, WalkIdle: f.stats.idle,
		ReadSlots: f.opens.slots, ReadLatency: f.opens.latency, ReadIdle: f.opens.idle,
	}
}

// worthStoring spares the index what nobody would see.
func worthStoring(have, now backup.Load) bool {
	return have.WalkSlots != now.WalkSlots || have.ReadSlots != now.ReadSlots ||
		differs(have.WalkLatency, now.WalkLatency) || differs(have.WalkIdle, now.WalkIdle) ||
		differs(have.ReadLatency, now.ReadLatency) || differs(have.ReadIdle, now.ReadIdle)
}

// differs reports a difference of more than a tenth.
func differs(a, b time.Duration) bool { return max(a, b)-min(a, b) > max(a, b)/10 }

// A regulator moves the slots of one filer and kind of work.
type regulator struct {
	slots         int           // 0: not governed yet
	idle, latency time.Duration // 0: not known yet
	resumed       bool

	samples  int64 // since the last step that had enough
	seconds  float64
	least    time.Duration // of the reports among them that had enough; 0: none had
	waiting  int           // steps without enough
	settling int           // steps that a trial is still given to show

	trial  trial
	rest   int           // steps until more slots are tried at the floor
	was    time.Duration // idle latency before the filer was found to be slow for another reason
	asking int           // steps until that is asked again; 0: it was not found
}

// A trial is a change of slots that is still to prove itself. The zero trial: there is none.
type trial struct {
	slots   int           // before
	latency time.Duration // with these
	sum     time.Duration // of the latencies since
	n       int
}

// bounds are between what slots are moved.
type bounds struct{ floor, limit int }

// resume takes over what the index knows, once: from then on the regulator
// knows better.
func (r *regulator) resume(slots int, idle time.Duration) {
	if !r.resumed {
		r.resumed, r.slots, r.idle = true, max(slots, 0), max(idle, 0)
	}
}

func (r *regulator) observe(n int64, seconds float64) {
	if n <= 0 || !(seconds >= 0) || math.IsInf(seconds, 0) {
		return
	}
	r.samples += n
	r.seconds += seconds
	if mean := meanOf(n, seconds); n >= leastSamples && (r.least == 0 || mean < r.least) {
		r.least = mean
	}
}

// meanOf returns the mean of n latencies, which is not 0.
func meanOf(n int64, seconds float64) time.Duration {
	const longest = time.Hour
	return max(time.Duration(min(seconds/float64(n), longest.Seconds())*float64(time.Second)), 1)
}

// step moves the slots, of which used are in use now, between the floor and the limit. At
// the limit they are 0, which stands for it: a limit that is raised holds at once. So does a floor.
func (r *regulator) step(within bounds, used int) {
	limit := within.limit
	if r.slots > 0 && r.slots < within.floor {
		r.slots, r.trial = within.floor, trial{}
	}
	if r.slots >= limit {
		r.slots = 0
	}
	if r.samples < leastSamples {
		if r.waiting++; r.waiting > staleIntervals {
			r.samples, r.seconds, r.least, r.waiting = 0, 0, 0, 0
		}
		return
	}
	r.latency = meanOf(r.samples, r.seconds)
	least := r.latency
	if r.least > 0 {
		least = min(least, r.least)
	}
	r.samples, r.seconds, r.least, r.waiting = 0, 0, 0, 0
	r.drift(least)

	slots := r.slots
	if slots == 0 {
		slots = max(limit, 1)
	}
	switch {
	case r.latency <= max(targetFactor*r.idle, leastTarget):
		r.trial = trial{}
		slots = r.grown(slots, used)
	case r.trial.n > 0 || r.trial.slots > 0:
		slots = r.judge(slots, used, within)
	default:
		slots = r.try(slots, used, within, r.latency)
	}
	if r.slots = slots; slots >= limit {
		r.slots = 0
	}
}

// grown returns the slots of a filer that is not slow: one more, where they are used; and several where it is as fast as a cache.
func (r *regulator) grown(slots, used int) int {
	switch {
	case r.latency <= leastTarget:
		return slots + max(slots/4, 1)
	case used*grownUp >= slots:
		return slots + 1
	}
	return slots
}

// try begins a trial at a filer that is slow: with fewer slots than are in use, or, at the floor, with more.
func (r *regulator) try(slots, used int, within bounds, latency time.Duration) int {
	floor := within.floor
	var next int
	switch from := min(slots, used); {
	case from > floor:
		slots, next = from, max(int(float64(from)*decrease), floor)
		r.rest = restIntervals
	case slots > floor || used < slots || r.rest > 0:
		r.rest = max(r.rest-1, 0)
		return slots
	default:
		next = max(int(float64(slots)/decrease), slots+1)
	}
	r.trial, r.settling = trial{slots: slots, latency: latency}, settleIntervals
	return min(next, within.limit)
}

// judge looks what a trial has changed, once it has had the time to, and returns the slots to go on with.
func (r *regulator) judge(slots, used int, within bounds) int {
	fewer := slots < r.trial.slots
	if unsettled := fewer && used > slots || !fewer && used < slots; unsettled && r.settling > 0 {
		r.settling--
		return slots
	}
	r.trial.sum += r.latency
	if r.trial.n++; r.trial.n < trialIntervals {
		return slots
	}
	before := r.trial
	r.trial = trial{}
	after := before.sum / trialIntervals
	switch {
	case fewer && !depends(slots, before.slots, after, before.latency), !fewer && !depends(before.slots, slots, before.latency, after):
		r.otherReason(after)
		return max(slots, before.slots)
	case fewer:
		return r.try(slots, used, within, after)
	}
	r.rest = restIntervals
	return before.slots
}

// depends reports whether latency grows with the slots, from few to many: by half of what it would in proportion.
func depends(few, many int, withFew, withMany time.Duration) bool {
	return float64(withMany)/float64(withFew)-1 >= (float64(many)/float64(few)-1)/2
}

// otherReason notes that the filer is slow whatever is asked of it.
func (r *regulator) otherReason(latency time.Duration) {
	if r.asking == 0 {
		r.was = r.idle
	}
	r.idle, r.asking = max(latency, r.idle), askAgain
}

// drift moves the idle latency: down at once, up slowly; and back to what it was when it is time to ask again why the filer is slow.
func (r *regulator) drift(least time.Duration) {
	if r.idle == 0 {
		r.idle = least
		return
	}
	if r.asking > 0 {
		if r.asking--; r.asking == 0 {
			r.idle = min(r.was, r.idle)
		}
	}
	r.idle = min(time.Duration(float64(r.idle)*driftUp)+1, least)
}
