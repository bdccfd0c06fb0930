package commit

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A worker whose process dies sends no more reports, and its connection to NATS ends. If both
// persist for a while, the keeper ends the leases of its work in progress. Either alone is not
// conclusive: a report may be lost, a paused process sends no reports and continues later, and a
// process whose connection was interrupted soon reconnects. If the keeper is wrong nevertheless,
// the work is done twice, and its first result counts (I3). See
// docs/decisions/0023-dead-workers.md.

const (
	// silentFor is how long a worker, which reports every second, may be silent before the keeper
	// checks its presence.
	silentFor = 1200 * time.Millisecond
	// absentFor is how long it must be absent before it counts as gone: a process that lost its
	// connection has another by then.
	absentFor = 2 * time.Second
	lookEvery = 250 * time.Millisecond
	lookWait  = time.Second // for an answer of NATS
	// maxLooks is the number of checks of an instance that was never seen to be present although it
	// reports. It may lack the permission to be present: then its absence is not conclusive, and
	// its leases expire.
	maxLooks = 3
	// maxInstances bounds the number of reporting instances that are remembered.
	maxInstances = 1 << 14
)

// An instance is the process of a worker.
type instance struct {
	worker  string
	heard   time.Time
	work    map[workID]struct{} // that it was the last to report
	present bool                // it was seen to be present
	looks   int                 // unsuccessful checks before that
	absent  time.Time           // since when; zero: it is not absent
}

// hearFrom records that an instance has reported, and returns it; nil if the report names no
// instance or there are too many.
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
	if len(p.Tasks)+len(p.Batches) == 0 { // it has no work of this snapshot in progress
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

// wasPresent records which instances others have seen to be present.
func (r *reported) wasPresent(seen func(name string) bool) {
	for name, i := range r.instances {
		if !i.present && seen(name) {
			i.present = true
		}
	}
}

// toLook returns the instances to check: those not yet known to be ever present and, for the
// keeper, those that are silent. Instances without work need no check.
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

// looked records which of the instances are absent, and returns those that are gone.
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

// unseen restarts all periods of absence.
func (r *reported) unseen() {
	for _, i := range r.instances {
		i.absent = time.Time{}
	}
}

// heldBy returns the work in progress of an instance.
func (r *reported) heldBy(name string) (held []index.Held) {
	for id := range r.instances[name].work {
		held = append(held, r.work[id].Held)
	}
	return held
}

// bury forgets an instance with all its work.
func (r *reported) bury(name string) {
	for id := range r.instances[name].work {
		r.drop(id)
	}
	delete(r.instances, name)
}

// look checks the presence of workers, and reassigns the work of those that are gone.
func (s *Service) look(ctx context.Context, work *reported) {
	keeper := s.leading()
	asking, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	work.wasPresent(s.workers.wasPresent)
	names := work.toLook(time.Now(), keeper)
	absent, err := s.Conn.Absent(asking, names)
	if err != nil {
		work.unseen()
		return
	}
	for _, name := range work.looked(names, absent, time.Now()) {
		of := work.instances[name]
		if tasks, batches, ok := s.handOutAgain(ctx, work, name); ok {
			s.log.Warn("worker lost: it sends no reports and is not connected to NATS; its work is reassigned", "lost_worker", of.worker, "tasks", tasks, "batches", batches,
				"seconds", time.Since(of.heard).Seconds())
		}
	}
	if keeper {
		s.lookForCutOff(ctx, work)
	}
}

// handOutAgain ends the leases of an instance that is gone or cut off, and returns how many it has
// ended. If that fails, it is repeated at the next check.
func (s *Service) handOutAgain(ctx context.Context, work *reported, name string) (tasks, batches int, ok bool) {
	held := work.heldBy(name)
	if err := s.Index.GiveBack(ctx, held); err != nil {
		if ctx.Err() == nil {
			s.log.Warn("reassigning the work of a lost worker failed, will retry", "lost_worker", work.instances[name].worker, "error", err)
		}
		return 0, 0, false
	}
	tasks = countTasks(held)
	kind := "batch"
	if tasks > 0 {
		kind = "task"
	}
	s.opts.Metrics.Died(kind)
	work.bury(name)
	loop.Wake(s.freed)
	return tasks, len(held) - tasks, true
}
