package commit

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/telemetry"
)

// A committer that dies between a claim and its messages leaves strays: work with a lease that is
// in no queue. No worker has it, so no worker reports it, and it would wait for QueueLease. The
// keeper gives back work that remains unassigned to a worker while everything passes that was
// queued when the keeper first saw it: first the queue of its site, then the results that came from
// there. If the keeper is wrong nevertheless, because a committer was paused before it sent the
// message, the work is done twice, and its first result counts (I3).
//
// Work that was delivered to a worker and that no worker reports is not a stray, because its
// message is not acknowledged: see unreported.go.

// maxStrays bounds the assigned work that is compared with the queues; the rest follows later.
const maxStrays = 1 << 14

// strays remembers the unassigned attempts of the last look.
type strays struct {
	seen map[stray]passing
}

// A stray is an attempt that no worker has reported.
type stray struct {
	workID
	attempt int32
}

// A passing says which messages have to pass before an attempt is lost.
type passing struct {
	queued  uint64 // the last one of its queue's stream at the first look
	left    bool   // those have passed: the attempt is not in its queue
	results uint64 // the last result when they had passed

	// delivered is at how many looks those were delivered already, and then is the last result at
	// the first of these looks.
	delivered int
	then      uint64
}

// look returns the work that is in no queue, and whose result is in none. It takes two looks at
// least. queues must have been read after work, and the results after the other queues: a message
// that is sent in between is then in one of them. It also returns the queues with work that was
// delivered and that no worker has reported yet, each with the part of it that no worker has
// reported for several looks.
func (l *strays) look(work []index.Work, queues []telemetry.Queue) (lost []index.Held, unreported map[siteQueue][]index.Held) {
	unreported = map[siteQueue][]index.Held{}
	known := map[siteQueue]telemetry.Queue{}
	for _, q := range queues {
		known[siteQueue{q.Name, q.Site}] = q
	}
	results, readable := known[siteQueue{name: "commit"}]
	seen := map[stray]passing{}
	for i := range work {
		w := &work[i]
		queue, exists := known[queueOf(w)]
		if w.Worker != "" || !exists || !readable {
			continue
		}
		at := stray{workID{w.Snapshot, w.Task, w.Batch}, w.Attempt}
		p, again := l.seen[at]
		switch {
		case !again:
			p.queued = queue.Last
		case !p.left && passed(queue, p.queued):
			p.left, p.results = true, results.Last
		}
		held := index.Held{Snapshot: w.Snapshot, Task: w.Task, Batch: w.Batch}
		if p.left && passed(results, p.results) {
			lost = append(lost, held)
			continue
		}
		if q := queueOf(w); p.delivered > 0 || queue.Delivered >= p.queued || queue.Waiting == 0 {
			if p.delivered++; p.delivered == 1 {
				p.then = results.Last
			}
			some := unreported[q]
			if p.delivered >= enoughLooks && passed(results, p.then) {
				some = append(some, held)
			}
			unreported[q] = some
		}
		seen[at] = p
	}
	l.seen = seen
	return lost, unreported
}

// passed reports whether a queue has none of the messages up to a sequence any more.
func passed(q telemetry.Queue, sequence uint64) bool {
	return q.Floor >= sequence || q.Waiting == 0 && q.Unacknowledged == 0
}

// A siteQueue identifies a queue of workers.
type siteQueue struct{ name, site string }

func queueOf(w *index.Work) siteQueue {
	q := siteQueue{name: "walk", site: backup.SiteName(w.Site)}
	if w.Task == 0 {
		q.name = "read"
	}
	return q
}

// strayLoop gives strays back until ctx is done.
func (s *Service) strayLoop(ctx context.Context) {
	var last strays
	stop := s.Conn.FollowWorkers(s.workers.hear)
	defer stop()
	// A message that is under way at one look has an interval to arrive before the next.
	loop.Apart(ctx, s.times.strays, func() {
		if err := s.giveBackStrays(ctx, &last); err != nil {
			last = strays{}
			if ctx.Err() == nil && !s.retry(err) {
				s.log.Warn("comparing assigned work with the queues failed, will retry", "error", err)
			}
		}
	})
}

func (s *Service) giveBackStrays(ctx context.Context, last *strays) error {
	s.handing.Lock() // what this process has claimed, it has sent
	work, err := s.Index.InHand(ctx, time.Time{}, maxStrays)
	s.handing.Unlock()
	if err != nil || len(work) == 0 {
		last.seen = nil
		s.lookForWorkers(ctx, nil)
		return err
	}
	sites, err := s.Index.Sites(ctx)
	if err != nil {
		return err
	}
	queues, err := s.Conn.Depths(ctx, sites)
	if err != nil {
		return err
	}
	lost, unreported := last.look(work, queues)
	if err := s.giveBack(ctx, lost); err != nil {
		return err
	}
	if tasks := countTasks(lost); len(lost) > 0 {
		s.log.Warn("assigned work was in no queue of its site and is reassigned: its committer died before it sent the messages, or the filer has moved to another site",
			"tasks", tasks, "batches", len(lost)-tasks)
	}
	for _, q := range s.lookForWorkers(ctx, unreported) {
		lost := unreported[q]
		if err := s.giveBack(ctx, lost); err != nil {
			return err
		}
		if tasks := countTasks(lost); len(lost) > 0 {
			s.log.Warn("a worker was lost before it reported the work that it took; the work is reassigned", "tasks", tasks, "batches", len(lost)-tasks, "site", q.site)
		}
	}
	return nil
}

// giveBack ends the leases of work.
func (s *Service) giveBack(ctx context.Context, lost []index.Held) error {
	if len(lost) == 0 {
		return nil
	}
	if err := s.Index.GiveBack(ctx, lost); err != nil {
		return err
	}
	loop.Wake(s.wake)
	return nil
}

func countTasks(held []index.Held) (tasks int) {
	for _, h := range held {
		if h.Task != 0 {
			tasks++
		}
	}
	return tasks
}
