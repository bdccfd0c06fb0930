package commit

import (
	"context"
	"time"
)

// A worker that is cut off from the store, or from the index, keeps its work: if the outage ends,
// it goes on, and nothing is read twice. If another worker of its site is ready, it is not an
// outage that all wait for, and the keeper gives the work to that one. If the first worker goes on
// nevertheless, the work is done twice, and its first result counts (I3).

// cutOffAfter is for how long a worker must not be ready, and another must have been. After an
// outage, workers become ready again within this time of each other: a request to a store is
// repeated every 15 s at least.
const cutOffAfter = 20 * time.Second

// cutOff returns the workers that have not been ready for a while, of which the work is not yet
// reassigned, while another worker of the same queue has been ready for a while.
func (l *workers) cutOff(now time.Time) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ready := map[siteQueue]bool{}
	for _, w := range l.of {
		if w.takes && now.Sub(w.since) >= cutOffAfter && now.Sub(w.heard) <= workerFor {
			ready[w.queue] = true
		}
	}
	for name, w := range l.of {
		if !w.ready && !w.relieved && now.Sub(w.since) >= cutOffAfter && ready[w.queue] {
			names = append(names, name)
		}
	}
	return names
}

// relieve records that the work of a worker was reassigned.
func (l *workers) relieve(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.of[name]; w != nil {
		w.relieved = true
	}
}

// isRelieved reports whether the work of a worker was reassigned since it was ready: what it
// reports to have is what others do.
func (l *workers) isRelieved(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[name] != nil && l.of[name].relieved
}

// lookForCutOff reassigns the work of workers that are cut off.
func (s *Service) lookForCutOff(ctx context.Context, work *reported) {
	for _, name := range s.workers.cutOff(time.Now()) {
		of := work.instances[name]
		if of == nil || len(of.work) == 0 {
			continue
		}
		if tasks, batches, ok := s.handOutAgain(ctx, work, name); ok {
			s.workers.relieve(name)
			s.log.Warn("worker not ready, and another one is: its work is reassigned", "lost_worker", of.worker, "tasks", tasks, "batches", batches)
		}
	}
}
