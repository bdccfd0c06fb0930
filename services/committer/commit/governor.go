package commit

import (
	"math"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

// The governor limits each filer's work to the load that the filer can take without becoming slow
// for its users. Workers report how long its stats and opens took. From that, the slots of both
// kinds of work, the number of leases that may run at a time, are adjusted once per interval of a
// second.
//
// The rule is AIMD, additive increase and multiplicative decrease. It is the linear rule that gives
// all users of a resource a fair share and uses the resource efficiently (Chiu and Jain, "Analysis
// of the increase and decrease algorithms for congestion avoidance in computer networks", 1989).
// The signal is the latency relative to the lowest that was seen, as in TCP Vegas (Brakmo and
// Peterson, 1995): it shows a queue at the filer before anything fails.
//
// A reduction of slots is a trial: the latency with fewer slots is compared with that before. If it
// has not fallen by at least half as much as it would in proportion to the slots, the filer is slow
// for another reason. It gets its slots back, and its current latency counts as idle, until the
// next trial. Slots never fall below a floor that the filer, policy and deadline determine
// (policy.FloorOf); at the floor the trial is reversed, with more slots.

const (
	// targetFactor times the idle latency is the target, but not less than leastTarget.
	targetFactor = 3
	leastTarget  = backup.FastLatency
	// decrease is the factor applied to the slots when the target is missed.
	decrease = 0.7
	// trialIntervals are compared with the latency before a trial.
	trialIntervals = 3
	// askAgain is after how many intervals another trial is made at a filer that was found to be
	// slow for another reason.
	askAgain = 300
	// restIntervals is how long a filer stays at the floor before more slots are tried.
	restIntervals = 30
	// settleIntervals is the maximum time for a decrease to take effect: until the leases in excess
	// of the slots have ended, the latency is still the earlier one.
	settleIntervals = 10
	// leastSamples are sufficient for a decision. Fewer are kept for the next interval, but no
	// longer than staleIntervals.
	leastSamples   = 20
	staleIntervals = 10
	// driftUp is the factor by which the idle latency is assumed to rise per interval, so that an
	// exceptionally low measurement is forgotten: it doubles in an hour.
	driftUp = 1.0002
	// grownUp: slots grow only while at least half of them are used, because latency reveals
	// nothing about unused slots (the congestion window validation of RFC 7661).
	grownUp = 2
)

// A governor regulates the filers in reports. It is not safe for concurrent use.
type governor struct {
	filers map[backup.FilerID]*governed
}

type governed struct {
	stats, opens regulator
	stored       backup.Load // as stored in the index
	quiet        int         // intervals without a report
}

func newGovernor() *governor { return &governor{filers: map[backup.FilerID]*governed{}} }

// observe records the measurements of a worker's report.
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

// step ends an interval. It returns the loads that are worth storing, and forgets filers without
// reports: the index has their state.
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
		f.stored = s.Load
		f.stats.resume(s.Load.WalkSlots, s.Load.WalkIdle)
		f.opens.resume(s.Load.ReadSlots, s.Load.ReadIdle)
		floor := policy.FloorOf(&s.Filer, policies, s.Deadline, now)
		f.stats.step(bounds{floor.Of(limits.WalkTasks), limits.WalkTasks}, s.Tasks)
		f.opens.step(bounds{floor.Of(limits.ReadBatches), limits.ReadBatches}, s.Batches)
		if load := f.load(); worthStoring(f.stored, load) {
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

// worthStoring saves the index from changes that would not be noticed.
func worthStoring(have, now backup.Load) bool {
	return have.WalkSlots != now.WalkSlots || have.ReadSlots != now.ReadSlots ||
		differs(have.WalkLatency, now.WalkLatency) || differs(have.WalkIdle, now.WalkIdle) ||
		differs(have.ReadLatency, now.ReadLatency) || differs(have.ReadIdle, now.ReadIdle)
}

// differs reports a difference of more than a tenth.
func differs(a, b time.Duration) bool { return max(a, b)-min(a, b) > max(a, b)/10 }

// A regulator adjusts the slots of one filer and kind of work.
type regulator struct {
	slots         int           // 0: not governed yet
	idle, latency time.Duration // 0: not known yet
	resumed       bool

	samples  int64 // since the last step that had enough
	seconds  float64
	least    time.Duration // of the reports among them that had enough samples; 0: none had
	waiting  int           // steps without enough
	settling int           // steps left for a trial to take effect

	trial trial
	rest  int           // steps until more slots are tried at the floor
	was   time.Duration // idle latency before the filer was found to be slow for another reason
	// Steps until the next trial at a filer that was found to be slow for another reason; 0: it was
	// not.
	asking int
}

// A trial is a change of slots whose effect is not known yet. The zero trial: there is none.
type trial struct {
	slots   int           // before
	latency time.Duration // with these
	sum     time.Duration // of the latencies since
	n       int
}

// bounds limit the slots.
type bounds struct{ floor, limit int }

// resume takes over the state in the index, once: from then on the regulator's own is more recent.
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

// step adjusts the slots between the floor and the limit. used is how many are in use now. At the
// limit, the number of slots is 0, which stands for the limit: so a raised limit takes effect at
// once. A raised floor does so, too.
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

// grown returns the slots of a filer that is not slow: one more, if they are used, and several more
// if it is as fast as a cache.
func (r *regulator) grown(slots, used int) int {
	switch {
	case r.latency <= leastTarget:
		return slots + max(slots/4, 1)
	case used*grownUp >= slots:
		return slots + 1
	}
	return slots
}

// try begins a trial at a slow filer: with fewer slots than are in use or, at the floor, with more.
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

// judge evaluates a trial once it has had time to take effect, and returns the slots to continue
// with.
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

// depends reports whether latency grows with the slots, from few to many, by at least half of what
// it would in proportion.
func depends(few, many int, withFew, withMany time.Duration) bool {
	return float64(withMany)/float64(withFew)-1 >= (float64(many)/float64(few)-1)/2
}

// otherReason records that the filer is slow regardless of its load.
func (r *regulator) otherReason(latency time.Duration) {
	if r.asking == 0 {
		r.was = r.idle
	}
	r.idle, r.asking = max(latency, r.idle), askAgain
}

// drift adjusts the idle latency: down at once, up slowly, and back to the former value when it is
// time to check again why the filer is slow.
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
