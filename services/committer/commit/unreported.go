package commit

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process/health"
)

// A worker reports the work that it takes within milliseconds. If its process dies in between,
// nobody knows that it had the work, and the queue waits for an acknowledgement. Therefore the
// keeper compares the work that was delivered and that no worker has reported (strays.look) with
// the workers of its site: if one of them is not connected to NATS any more, the work is
// reassigned. Without a lost worker it is not, because reports may be late. If the keeper is wrong
// nevertheless, the work is done twice, and its first result counts (I3). See
// docs/decisions/0048-work-that-was-not-reported.md.

const (
	// enoughLooks is at how many looks in a row work must be unreported, and a worker absent.
	enoughLooks = 3
	// lostLooks is at how many further looks a lost worker is a reason to reassign work.
	lostLooks = 5
	// workerFor is how long a worker is remembered that does not describe itself any more, which it
	// does every ten seconds.
	workerFor = time.Minute
)

// workers are the processes of walkers and readers that have described themselves.
type workers struct {
	mu sync.Mutex
	of map[string]*worker // by instance
}

type worker struct {
	queue   siteQueue
	heard   time.Time
	present bool // it was seen to be connected
	looks   int  // unsuccessful ones before that
	absent  int  // at how many looks in a row

	ready    bool
	takes    bool      // it is ready, and not draining
	since    time.Time // when ready or takes last changed
	relieved bool      // its work was reassigned since then (cutOff)
}

// hear records that a worker has described itself.
func (l *workers) hear(i flow.Instance, stops bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stops { // it has handed back what it had
		delete(l.of, i.ID)
		return
	}
	w := l.of[i.ID]
	if w == nil {
		if len(l.of) >= maxInstances {
			return
		}
		w = &worker{queue: siteQueue{name: "read", site: i.Site}, ready: true, since: i.Heard}
		if i.Role == flow.RoleWalker {
			w.queue.name = "walk"
		}
		if l.of == nil {
			l.of = map[string]*worker{}
		}
		l.of[i.ID] = w
	}
	ready := i.Ready || i.Reason == health.ErrStopping.Error() // then it finishes its work
	if takes := i.Ready && !i.Draining; ready != w.ready || takes != w.takes {
		w.ready, w.takes, w.since, w.relieved = ready, takes, i.Heard, false
	}
	w.heard = i.Heard
}

// wasPresent reports whether an instance was seen to be connected.
func (l *workers) wasPresent(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[name] != nil && l.of[name].present
}

// toLook returns the workers to check: those that are new, those of queues with unreported work,
// and those that were absent at the last look.
func (l *workers) toLook(unreported map[siteQueue][]index.Held, now time.Time) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, w := range l.of {
		_, suspect := unreported[w.queue]
		switch {
		case now.Sub(w.heard) > workerFor || w.absent > enoughLooks+lostLooks:
			delete(l.of, name)
		case !w.present && w.looks < maxLooks, w.present && suspect, w.absent > 0:
			names = append(names, name)
		}
	}
	return names
}

// looked records which workers are absent, and returns the queues of those that are lost. A worker
// that was never present may lack the permission to be: its absence is not conclusive.
func (l *workers) looked(names []string, absent map[string]bool) (lost []siteQueue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queues := map[siteQueue]bool{}
	for _, name := range names {
		w := l.of[name]
		switch {
		case w == nil: // it has stopped meanwhile
		case !absent[name]:
			w.present, w.absent = true, 0
		case !w.present:
			w.looks++
		default:
			if w.absent++; w.absent >= enoughLooks && !queues[w.queue] {
				queues[w.queue] = true
				lost = append(lost, w.queue)
			}
		}
	}
	return lost
}

// unseen restarts all counts of absence.
func (l *workers) unseen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.of {
		w.absent = 0
	}
}

// lookForWorkers checks the presence of workers, and returns the queues of those that are lost.
func (s *Service) lookForWorkers(ctx context.Context, unreported map[siteQueue][]index.Held) (lost []siteQueue) {
	names := s.workers.toLook(unreported, time.Now())
	asking, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	absent, err := s.Conn.Absent(asking, names)
	if err != nil { // other loops report that NATS does not answer
		s.workers.unseen()
		return nil
	}
	return s.workers.looked(names, absent)
}
