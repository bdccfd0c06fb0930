package commit

import (
	"math"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
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

const (
	// targetFactor times the idle latency is the target, but not less than leastTarget:
	// below it, what is measured is caches and schedulers.
	targetFactor = 3
	leastTarget  = time.Millisecond
	// decrease is what is left of the slots where the target is missed.
	decrease = 0.7
	// settleIntervals is how long, at most, a decrease is given to show: until more leases than slots have run out,
	// latency is still that of before.
	settleIntervals = 10
	// leastSamples are enough to go by. Fewer are kept for the next interval, but
	// no longer than staleIntervals.
	leastSamples   = 20
	staleIntervals = 10
	// driftUp is by how much, each interval, the idle latency is taken to have risen, so that one
	// measured in a lucky moment is forgotten: it doubles in an hour. With one slot left it is
	// lastDrift: what is seen then is the filer without us, or as near as one comes.
	driftUp   = 1.0002
	lastDrift = 1.05
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
func (g *governor) step(filers []index.FilerStatus) map[backup.FilerID]backup.Load {
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
		f.stats.step(limits.WalkTasks, s.Tasks)
		f.opens.step(limits.ReadBatches, s.Batches)
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
	settling int           // steps that a decrease is still given to show
}

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

// step moves the slots, of which used are in use now, between 1 and limit. At
// the limit they are 0, which stands for it: a limit that is raised holds at once.
func (r *regulator) step(limit, used int) {
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
		r.settling = 0
		if used*grownUp >= slots {
			slots++
		}
	case r.settling > 0 && used > slots:
		r.settling--
	default:
		r.settling = settleIntervals
		slots = max(int(float64(slots)*decrease), 1)
	}
	if r.slots = slots; slots >= limit {
		r.slots = 0
	}
}

// drift moves the idle latency: down at once, up slowly.
func (r *regulator) drift(least time.Duration) {
	if r.idle == 0 {
		r.idle = least
		return
	}
	up := driftUp
	if r.slots == 1 {
		up = lastDrift
	}
	r.idle = min(time.Duration(float64(r.idle)*up)+1, least)
}
