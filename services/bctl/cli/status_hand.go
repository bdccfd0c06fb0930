package cli

import (
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// The reports of workers on their work in progress. The index knows only which worker has it, and
// gets the results when it ends.

// takeReadings adds the progress of workers, and their recent rates.
func takeReadings(services []flow.Instance, running map[backup.SnapshotID]*inProgress) {
	for n := range services {
		for _, r := range services[n].Reading {
			p := running[r.Snapshot]
			switch {
			case p == nil || services[n].Silent:
			case services[n].Role == flow.RoleWalker:
				p.walk.take(&r.Recent)
			default:
				p.handRead += r.ReadBytes
				p.handDone += r.BatchesDone
				p.reads.take(&r.Recent)
			}
		}
	}
}

// readBytes returns what was read for a snapshot, including batches in progress.
func (p *inProgress) readBytes() int64 { return p.Counts.ReadBytes + p.handRead }

// batchesDone returns the number of batches that are done, including shares of those in progress. A
// batch may be settled already while its reader still has it.
func (p *inProgress) batchesDone() float64 {
	return min(float64(p.BatchesSettled)+p.handDone, float64(p.BatchesAnnounced))
}

// A workerName is a worker as the index knows it.
type workerName struct {
	role flow.Role
	name string
}

// silentWorkers returns the workers that did not answer, unless another one with their name did.
func silentWorkers(services []flow.Instance) map[workerName]*flow.Instance {
	silent := map[workerName]*flow.Instance{}
	answered := map[workerName]bool{}
	for n := range services {
		s := &services[n]
		name := workerName{s.Role, s.Name}
		switch last := silent[name]; {
		case !s.Silent:
			answered[name] = true
		case last == nil || s.Heard.After(last.Heard):
			silent[name] = s
		}
	}
	for name := range answered {
		delete(silent, name)
	}
	return silent
}

// isSilent returns the worker that has the work, if it does not answer.
func (s *overview) isSilent(w *index.Work) *flow.Instance {
	if w.Worker == "" || !w.Stalled.IsZero() {
		return nil
	}
	return s.silent[workerName{roleOf(w), w.Worker}]
}

// silentReason returns the reason why work of a worker that does not answer waits.
func (s *overview) silentReason(worker *flow.Instance) reason {
	text := fmt.Sprintf("%s, which has not answered for %s", display(worker.Name), clock(max(s.heardAt.Sub(worker.Heard), 0)))
	if worker.Lost {
		text = fmt.Sprintf("%s, which is lost (last heard %s ago)", display(worker.Name), clock(max(s.heardAt.Sub(worker.Heard), 0)))
	}
	return reason{causeSilent, text, worker.Name}
}

// silentLine formats a wait for a worker that does not answer:
//
//	nas1: 1 batch is with reader-2, which is lost (last heard 0:36 ago): assigned again within 0:24
func (w *wait) silentLine(of string, now time.Time) string {
	verb := "are"
	if w.pieces() == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%s: %s %s with %s: assigned again within %s, unless it answers", of, w.what(), verb, w.text, clock(max(w.until.Sub(now), 0)))
}
