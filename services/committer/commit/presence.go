package commit

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A worker whose process dies reports nothing more, and its connection to NATS ends. Where both is so for a while the keeper
// ends the leases of what it had in hand. Either alone means nothing: a report may be lost, a
// process that is paused reports nothing and goes on later, and one whose connection was cut is back in a moment. If the
// keeper is wrong all the same the work is done twice, and its first result counts (I3). See docs/decisions/0023-dead-workers.md.

const (
	// silentFor is how long nothing is heard of a worker, which reports every second, before it is looked for.
	silentFor = 1200 * time.Millisecond
	// absentFor is how long it is looked for in vain before it counts as gone: who lost a connection has another by then.
	absentFor = 2 * time.Second
	lookEvery = 250 * time.Millisecond
	lookWait  = time.Second // for an answer of NATS
	// maxLooks are made for an instance that was never seen to be present though it reports. It may not be allowed to be: then
	// its absence says nothing, and its leases run out.
	maxLooks = 3
	// maxInstances bounds what is kept of those that report.
	maxInstances = 1 << 14
)

// An instance is the process of a worker.
type instance struct {
	worker  string
	heard   time.Time
	work    map[workID]struct{} // that it was the last to report
	present bool                // it was seen to be
	looks   int                 // in vain, before that
	absent  time.Time           // since when; zero: it is not
}

// hearFrom notes that an instance has reported, and returns it; nil where there is none to note.
func (r *reported) hearFrom(p *backup.Progress, now time.Time) *instance {
	if p.Instance == "" {
		return nil
	}
	i := r.instances[p.Instance]
	if i == nil {
		if len(r.instances) >= maxInstances {
			return nil
		}
		i = &instance{work: map[workID]struct{}{}}
		r.instances[p.Instance] = i
	}
	i.worker, i.heard, i.absent = p.Worker, now, time.Time{}
	if len(p.Tasks)+len(p.Batches) == 0 { // of this snapshot it has nothing in hand
		for id := range i.work {
			if id.snapshot == p.Snapshot {
				r.drop(id)
			}
		}
	}
	return i
}

// drop forgets work.
func (r *reported) drop(id workID) {
	if w := r.work[id]; w != nil {
		if w.of != nil {
			delete(w.of.work, id)
		}
		delete(r.work, id)
	}
}

// toLook returns the instances to look for: those that are not known to be ever present, and, for the keeper, those
// of which nothing is heard any more. What has nothing in hand need not be looked for.
func (r *reported) toLook(now time.Time, keeper bool) (names []string) {
	for name, i := range r.instances {
		silent := now.Sub(i.heard) >= silentFor
		switch {
		case len(i.work) == 0:
		case !i.present && !silent && i.looks < maxLooks, i.present && silent && keeper:
			names = append(names, name)
		}
	}
	return names
}

// looked takes in which of the instances are absent, and returns those that are gone.
func (r *reported) looked(names []string, absent map[string]bool, now time.Time) (gone []string) {
	for _, name := range names {
		i := r.instances[name]
		switch {
		case !absent[name]:
			i.present, i.absent = true, time.Time{}
		case !i.present:
			i.looks++
		case i.absent.IsZero():
			i.absent = now
		case now.Sub(i.absent) >= absentFor:
			gone = append(gone, name)
		}
	}
	return gone
}

// unseen begins all searches anew.
func (r *reported) unseen() {
	for _, i := range r.instances {
		i.absent = time.Time{}
	}
}

// heldBy returns what an instance had in hand.
func (r *reported) heldBy(name string) (held []index.Held) {
	for id := range r.instances[name].work {
		held = append(held, r.work[id].Held)
	}
	return held
}

// bury forgets an instance with all that it had in hand.
func (r *reported) bury(name string) {
	for id := range r.instances[name].work {
		r.drop(id)
	}
	delete(r.instances, name)
}

// look looks for workers, and hands out again what those have that are gone.
func (s *Service) look(ctx context.Context, work *reported) {
	keeper := s.leading()
	asking, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	names := work.toLook(time.Now(), keeper)
	absent, err := s.Conn.Absent(asking, names)
	if err != nil {
		work.unseen()
		return
	}
	for _, name := range work.looked(names, absent, time.Now()) {
		s.handOutAgain(ctx, work, name)
	}
}

// handOutAgain ends the leases of what an instance has that is gone. If that fails it is done at the next look.
func (s *Service) handOutAgain(ctx context.Context, work *reported, name string) {
	held, gone := work.heldBy(name), work.instances[name]
	if err := s.Index.GiveBack(ctx, held); err != nil {
		if ctx.Err() == nil {
			s.log.Warn("the work of a worker that is gone cannot be handed out yet", "worker", gone.worker, "error", err)
		}
		return
	}
	tasks := 0
	for _, h := range held {
		if h.Task != 0 {
			tasks++
		}
	}
	s.log.Warn("a worker is gone: what it had in hand is handed out again", "worker", gone.worker, "tasks", tasks, "batches", len(held)-tasks,
		"seconds", time.Since(gone.heard).Seconds())
	kind := "batch"
	if tasks > 0 {
		kind = "task"
	}
	s.opts.Metrics.Died(kind)
	work.bury(name)
	signal(s.freed)
}
