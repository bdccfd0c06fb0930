package cli

import (
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
)

// How fast snapshots are now. In a fleet, the workers report what they have done within the last
// minute. On one machine, nobody reports: the index is compared with what it was.

const (
	// ratesOver is the period of rates on one machine; it is that of flow.Recent.
	ratesOver = time.Minute
	// leastAge is the age from which the remaining time of a snapshot is estimated.
	leastAge = 2 * time.Second
	// slowedShare is the share of their time above which the time that batches wait because of the
	// filer's read limit is reported.
	slowedShare = 0.1
)

// A recent is what was done for a snapshot of late, by all workers of one kind.
type recent struct {
	flow.Recent
	known bool
}

// take adds what one worker has done. All of them work at the same time.
func (r *recent) take(of *flow.Recent) {
	r.known, r.Seconds = true, max(r.Seconds, of.Seconds)
	r.Files, r.Bytes, r.Batches, r.HeldSeconds = r.Files+of.Files, r.Bytes+of.Bytes, r.Batches+of.Batches, r.HeldSeconds+of.HeldSeconds
}

// per returns an amount per second.
func (r *recent) per(amount float64) float64 {
	if r.Seconds <= 0 {
		return 0
	}
	return amount / r.Seconds
}

func (p *inProgress) filesPerSecond() float64   { return p.walk.per(float64(p.walk.Files)) }
func (p *inProgress) readPerSecond() float64    { return p.reads.per(float64(p.reads.Bytes)) }
func (p *inProgress) batchesPerSecond() float64 { return p.reads.per(p.reads.Batches) }

// rates determines the speeds of all snapshots. before is what was seen on one machine, the oldest
// first.
func (s *overview) rates(before []*overview) {
	for _, p := range s.running {
		switch {
		case p.State == interrupted:
			p.walk.known, p.reads.known = true, true // nothing is done
		case s.fleet:
			// If no worker has any of it, nothing is done.
			answered := s.crew.err == nil
			p.walk.known = answered && (p.walk.known || p.tasks.working == 0)
			p.reads.known = answered && (p.reads.known || p.read.working == 0)
		default:
			p.compare(before, s.at)
		}
	}
}

// compare determines the speeds from the oldest overview within ratesOver. The start of a young
// snapshot is as good.
func (p *inProgress) compare(before []*overview, now time.Time) {
	was := &inProgress{Snapshot: backup.Snapshot{Started: p.Started}, at: p.Started}
	for n := len(before) - 1; n >= 0 && now.Sub(before[n].at) <= ratesOver; n-- {
		for _, b := range before[n].running {
			if b.ID == p.ID {
				was = b
			}
		}
	}
	over := now.Sub(was.at)
	if over <= 0 || over > ratesOver {
		return
	}
	p.walk = recent{flow.Recent{Seconds: over.Seconds(), Files: max(p.Counts.Files-was.Counts.Files, 0)}, true}
	p.reads = recent{flow.Recent{
		Seconds: over.Seconds(), Bytes: max(p.readBytes()-was.readBytes(), 0), Batches: max(p.batchesDone()-was.batchesDone(), 0),
	}, true}
}

// left estimates the remaining time of a snapshot at the present speeds: the longer of that of the
// walk and that of reading. How many files there are is known from the previous snapshot until the
// walk is done; how many batches, from the share of the files that is walked.
func (p *inProgress) left() (time.Duration, bool) {
	if p.State == interrupted || p.isStalled() || p.still || p.full || p.at.Sub(p.Started) < leastAge {
		return 0, false
	}
	files, walked := 0.0, 1.0
	if p.TasksSettled < p.TasksAnnounced {
		if !p.known {
			return 0, false
		}
		files = float64(max(p.base.Files-p.Counts.Files, 0))
		walked = min(share(p.Counts.Files, p.base.Files), 1)
	}
	batches := 0.0
	if p.BatchesAnnounced > 0 {
		batches = float64(p.BatchesAnnounced)/walked - p.batchesDone()
	}
	walk, ok := secondsFor(files, p.filesPerSecond(), p.walk.known)
	read, ok2 := secondsFor(batches, p.batchesPerSecond(), p.reads.known)
	seconds := max(walk, read)
	if !ok || !ok2 || seconds <= 0 || seconds > maxLeft.Seconds() {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// maxLeft bounds an estimate: what takes longer is not known.
const maxLeft = 10_000 * time.Hour

// secondsFor returns the time that an amount takes at a speed.
func secondsFor(amount, perSecond float64, known bool) (seconds float64, ok bool) {
	switch {
	case amount <= 0:
		return 0, true
	case !known || perSecond <= 0:
		return 0, false
	}
	return amount / perSecond, true
}

// speeds returns the sums over the snapshots of which they are known; nil if there are none.
func (s *overview) speeds() (files, read *float64) {
	var filesPerSecond, readPerSecond float64
	walk, reads := len(s.running) == 0, len(s.running) == 0
	for _, p := range s.running {
		filesPerSecond, readPerSecond = filesPerSecond+p.filesPerSecond(), readPerSecond+p.readPerSecond()
		walk, reads = walk || p.walk.known, reads || p.reads.known
	}
	return ifKnown(filesPerSecond, walk), ifKnown(readPerSecond, reads)
}

// ifKnown returns x, or nil.
func ifKnown(x float64, known bool) *float64 {
	if !known {
		return nil
	}
	return &x
}

func (p *inProgress) filesPerSecondText() string {
	if !p.walk.known {
		return "-"
	}
	return humanize.Comma(int64(p.filesPerSecond()))
}

func (p *inProgress) readPerSecondText() string {
	if !p.reads.known {
		return "-"
	}
	return size(int64(p.readPerSecond()))
}

// isHeld reports whether a read limit slows the batches of a snapshot.
func (p *inProgress) isHeld() bool {
	return p.reads.known && p.read.working > 0 && p.reads.HeldSeconds > slowedShare*p.reads.Seconds*float64(p.read.working)
}
