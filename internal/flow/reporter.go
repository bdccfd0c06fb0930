package flow

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Reporter tells, at an interval, what one worker process has in hand. That
// extends the leases of its work, and is what progress lines are made of.
// Its methods may be called concurrently.
type Reporter struct {
	conn   *Conn
	worker string

	mu   sync.Mutex
	jobs map[backup.SnapshotID]*inProgress
}

type inProgress struct {
	tasks   map[backup.TaskID]struct{}
	batches map[backup.BatchID]struct{}
	delta   backup.Progress
}

// NewReporter returns a Reporter for the worker of this name.
func NewReporter(c *Conn, worker string) *Reporter {
	return &Reporter{conn: c, worker: worker, jobs: map[backup.SnapshotID]*inProgress{}}
}

// Run reports until ctx is done.
func (r *Reporter) Run(ctx context.Context, interval time.Duration) {
	every(ctx, interval, r.report)
}

// Task notes that a walk task is in hand until done is called.
func (r *Reporter) Task(job backup.SnapshotID, id backup.TaskID) (done func()) {
	r.update(job, func(p *inProgress) { p.tasks[id] = struct{}{} })
	return func() { r.update(job, func(p *inProgress) { delete(p.tasks, id) }) }
}

// Batch notes that a read batch is in hand until done is called.
func (r *Reporter) Batch(job backup.SnapshotID, id backup.BatchID) (done func()) {
	r.update(job, func(p *inProgress) { p.batches[id] = struct{}{} })
	return func() { r.update(job, func(p *inProgress) { delete(p.batches, id) }) }
}

// Add adds to what the next report says: only its numbers and Path count.
func (r *Reporter) Add(job backup.SnapshotID, d backup.Progress) {
	r.update(job, func(p *inProgress) {
		p.delta.FilesFound += d.FilesFound
		p.delta.BytesFound += d.BytesFound
		p.delta.FilesDone += d.FilesDone
		p.delta.BytesDone += d.BytesDone
		p.delta.Errors += d.Errors
		if d.Path != "" {
			p.delta.Path = d.Path
		}
	})
}

func (r *Reporter) update(job backup.SnapshotID, change func(*inProgress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.jobs[job]
	if p == nil {
		p = &inProgress{tasks: map[backup.TaskID]struct{}{}, batches: map[backup.BatchID]struct{}{}}
		r.jobs[job] = p
	}
	change(p)
}

func (r *Reporter) report() {
	for _, p := range r.take() {
		_ = r.conn.PublishProgress(p) // it may be lost
	}
}

// take returns what there is to say, and forgets jobs that are done with.
func (r *Reporter) take() (reports []*backup.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.jobs {
		report := p.delta
		p.delta = backup.Progress{}
		report.Worker, report.Snapshot = r.worker, id
		for t := range p.tasks {
			report.Tasks = append(report.Tasks, t)
		}
		for b := range p.batches {
			report.Batches = append(report.Batches, b)
		}
		if len(report.Tasks)+len(report.Batches) == 0 {
			delete(r.jobs, id)
		}
		reports = append(reports, &report)
	}
	return reports
}
