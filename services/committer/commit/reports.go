package commit

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// reportLoop receives the reports of workers: it renews the leases of their work in progress, and
// passes their measurements to the governor. All committers receive all reports, so that another
// can take over at once, but only the leader acts on them.
func (s *Service) reportLoop(ctx context.Context) {
	reports := make(chan *backup.Progress, 256)
	stop, err := s.Conn.SubscribeProgress(func(p *backup.Progress) {
		select {
		case reports <- p:
		default: // the next report repeats it
		}
	})
	if err != nil {
		s.log.Error("leases of work in progress are not renewed: progress reports cannot be received", "error", err)
		return
	}
	defer stop()
	tick := time.NewTicker(min(s.times.note, s.opts.Lease/3))
	defer tick.Stop()
	beat := s.opts.Health.Loop("reports", loopWithin)
	defer beat.Done()
	work := newReported(s.opts.Lease)
	var look <-chan time.Time // within one process there is no worker to check
	if !s.opts.Alone {
		looks := time.NewTicker(lookEvery)
		defer looks.Stop()
		look = looks.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-reports:
			if !s.workers.isRelieved(p.Instance) {
				work.hear(p, time.Now())
			}
			s.measured(p)
		case <-look:
			s.look(ctx, work)
		case now := <-tick.C:
			beat.Moved()
			work.forget(now)
			s.noteHeld(work)
			if s.leading() {
				s.renew(ctx, work, now)
			} else {
				// The other leader's writes are unknown: all leases are due once this committer
				// leads.
				work.unwritten()
			}
		}
	}
}

// noteHeld stores the numbers of work in progress for metrics.
func (s *Service) noteHeld(work *reported) {
	if s.opts.Metrics == nil {
		return
	}
	by := work.heldByFiler()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = by
}

// renew writes the leases that are due.
func (s *Service) renew(ctx context.Context, work *reported, now time.Time) {
	// Within one process no other committer looks, and leases outlast most backups.
	held := work.due(now, !s.opts.Alone)
	if len(held) == 0 {
		return
	}
	err := s.Index.Extend(ctx, held, s.opts.Lease, time.Time{})
	if err == nil {
		work.written(held, now)
	} else if ctx.Err() == nil {
		s.log.Warn("renewing leases failed, will retry", "error", err)
	}
}

// maxReported bounds the reported work that is remembered: far more than workers have in progress.
// Work beyond it is not renewed, and is assigned again.
const maxReported = 1 << 18

// reported is the work that workers have in progress according to their last reports. It covers all
// workers together. So it has at most the work that they may have in progress, and at most
// maxReported if one of them reports falsely.
type reported struct {
	lease     time.Duration
	work      map[workID]*report
	instances map[string]*instance
}

// workID names work as a worker does. It includes the snapshot, so that guessing the number of
// another snapshot's work is not enough.
type workID struct {
	snapshot backup.SnapshotID
	task     backup.TaskID
	batch    backup.BatchID
}

type report struct {
	index.Held
	filer backup.FilerID
	of    *instance // the last to report it; nil: not known
	heard time.Time
	at    time.Time  // when it was written; zero: never
	wrote index.Held // at that time
}

func newReported(lease time.Duration) *reported {
	return &reported{lease: lease, work: map[workID]*report{}, instances: map[string]*instance{}}
}

func (r *reported) hear(p *backup.Progress, now time.Time) {
	from := r.hearFrom(p, now)
	for _, id := range p.Tasks {
		r.note(index.Held{Snapshot: p.Snapshot, Task: id, Worker: p.Worker, Path: p.Path}, p.Filer, from, now)
	}
	for _, id := range p.Batches {
		r.note(index.Held{Snapshot: p.Snapshot, Batch: id, Worker: p.Worker, Path: p.Path}, p.Filer, from, now)
	}
	for _, id := range p.StalledTasks {
		if w := r.work[workID{snapshot: p.Snapshot, task: id}]; w != nil {
			w.Stalled = true
		}
	}
	for _, id := range p.StalledBatches {
		if w := r.work[workID{snapshot: p.Snapshot, batch: id}]; w != nil {
			w.Stalled = true
		}
	}
}

func (r *reported) note(h index.Held, filer backup.FilerID, from *instance, now time.Time) {
	id := workID{h.Snapshot, h.Task, h.Batch}
	w := r.work[id]
	if w == nil {
		if len(r.work) >= maxReported {
			return
		}
		w = &report{}
		r.work[id] = w
	}
	if h.Path == "" && h.Worker == w.Worker {
		h.Path = w.Path // it is where it was
	}
	if w.of != nil {
		delete(w.of.work, id)
	}
	if from != nil {
		from.work[id] = struct{}{}
	}
	w.Held, w.filer, w.of, w.heard = h, filer, from, now
}

// quietFor is how long work counts as in progress after its last report. It is a time and not a
// number of reports, because a process that was paused has missed some.
func (r *reported) quietFor() time.Duration { return min(r.lease/3, 5*time.Second) }

// forget drops work that is not reported any more: work that its instance leaves out of its
// reports, and work of unknown instances. The work of a silent instance is kept for the duration of
// its lease, because the instance may turn out to be gone.
func (r *reported) forget(now time.Time) {
	for id, w := range r.work {
		last := now
		if w.of != nil && now.Sub(w.heard) <= r.lease {
			last = w.of.heard
		}
		if last.Sub(w.heard) > r.quietFor() {
			r.drop(id)
		}
	}
	for name, i := range r.instances {
		if len(i.work) == 0 && now.Sub(i.heard) > r.lease {
			delete(r.instances, name)
		}
	}
}

// due returns the leases to renew: each after a third of its duration and, if fresh is set, also
// work that is new, has moved to another worker, has stalled or continues after a stall.
func (r *reported) due(now time.Time, fresh bool) (held []index.Held) {
	for _, w := range r.work {
		if now.Sub(w.heard) > r.quietFor() {
			continue
		}
		if w.at.IsZero() && !fresh {
			w.at = now // its first lease has this duration
		}
		moved := w.Worker != w.wrote.Worker || w.Stalled != w.wrote.Stalled
		if now.Sub(w.at) >= r.lease/3 || fresh && moved {
			held = append(held, w.Held)
		}
	}
	return held
}

func (r *reported) written(held []index.Held, now time.Time) {
	for _, h := range held {
		if w := r.work[workID{h.Snapshot, h.Task, h.Batch}]; w != nil {
			w.at, w.wrote = now, h
		}
	}
}

func (r *reported) unwritten() {
	for _, w := range r.work {
		w.at, w.wrote = time.Time{}, index.Held{}
	}
}
