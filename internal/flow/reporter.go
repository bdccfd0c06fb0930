package flow

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Reporter reports, at an interval, the work that one worker process has in progress. The reports
// extend the leases of that work and feed the progress display. Its methods may be called
// concurrently.
type Reporter struct {
	// Moved, if not nil, is called with each report. It must be set before Run.
	Moved func()

	conn             *Conn
	worker, instance string

	mu   sync.Mutex
	jobs map[backup.SnapshotID]*inProgress
	all  seconds
	of   map[backup.SnapshotID]*seconds // those of the last minute
	back handBacks

	taken chan *backup.Progress // work that was just taken and not yet reported
}

// inProgress is the work in progress for one snapshot.
type inProgress struct {
	filer   backup.FilerID
	tasks   map[backup.TaskID]held
	batches map[backup.BatchID]held
	delta   backup.Progress
}

// held counts how often one piece of work is in progress: a message that was delivered again may
// reach the same worker while its first delivery waits for the filer.
type held struct {
	times   int
	stalled bool
	at      BatchState
}

// A BatchState is how far an attempt at a batch is.
type BatchState struct {
	ReadBytes   int64
	ShareDone   float64 // from 0 to 1
	HeldSeconds float64 // waited because of the filer's read limit
}

// NewReporter returns a Reporter for the worker of this name.
func NewReporter(c *Conn, worker string) *Reporter {
	r := &Reporter{conn: c, worker: worker, jobs: map[backup.SnapshotID]*inProgress{}, of: map[backup.SnapshotID]*seconds{}, taken: make(chan *backup.Progress, maxTaken)}
	if c != nil { // nil in tests
		r.instance = c.instance
	}
	return r
}

// Run reports until ctx is done: all work in progress at every interval, newly taken work at once,
// and at the end that no work is left. Work that was never reported has no known owner: if its
// worker dies, it waits much longer.
func (r *Reporter) Run(ctx context.Context, interval time.Duration) {
	defer r.conn.bePresent()()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			r.report()
			return
		case p := <-r.taken:
			_ = r.conn.PublishProgress(p) // it may be lost
		case <-tick.C:
			r.report()
		}
	}
}

// maxTaken bounds newly taken work that waits to be reported. The next full report includes any
// work beyond that.
const maxTaken = 1024

// Task records that a walk task is in progress until done is called.
func (r *Reporter) Task(job *backup.Job, id backup.TaskID) (done func()) {
	snapshot := job.Snapshot
	r.update(snapshot, func(p *inProgress) { p.filer = job.Filer; take(p.tasks, id) })
	r.tell(&backup.Progress{Snapshot: snapshot, Filer: job.Filer, Tasks: []backup.TaskID{id}})
	return func() { r.update(snapshot, func(p *inProgress) { drop(p.tasks, id) }) }
}

// Batch records that a read batch is in progress until done is called.
func (r *Reporter) Batch(job *backup.Job, id backup.BatchID) (done func()) {
	snapshot := job.Snapshot
	r.update(snapshot, func(p *inProgress) { p.filer = job.Filer; take(p.batches, id) })
	r.tell(&backup.Progress{Snapshot: snapshot, Filer: job.Filer, Batches: []backup.BatchID{id}})
	return func() { r.update(snapshot, func(p *inProgress) { drop(p.batches, id) }) }
}

func (r *Reporter) tell(p *backup.Progress) {
	p.Worker, p.Instance = r.worker, r.instance
	select {
	case r.taken <- p:
	default:
	}
}

// StalledTask records whether a task in progress waits for its filer. It ignores tasks that are not
// in progress.
func (r *Reporter) StalledTask(job backup.SnapshotID, id backup.TaskID, stalled bool) {
	r.update(job, func(p *inProgress) { stall(p.tasks, id, stalled) })
}

// StalledBatch is StalledTask for read batches.
func (r *Reporter) StalledBatch(job backup.SnapshotID, id backup.BatchID, stalled bool) {
	r.update(job, func(p *inProgress) { stall(p.batches, id, stalled) })
}

func take[ID comparable](work map[ID]held, id ID) {
	h := work[id]
	h.times++
	work[id] = h
}

func drop[ID comparable](work map[ID]held, id ID) {
	h := work[id]
	if h.times--; h.times <= 0 {
		delete(work, id)
		return
	}
	work[id] = h
}

func stall[ID comparable](work map[ID]held, id ID, stalled bool) {
	if h, ok := work[id]; ok {
		h.stalled = stalled
		work[id] = h
	}
}

// list returns the work in progress, and the part of it that is stalled.
func list[ID comparable](work map[ID]held) (all, stalled []ID) {
	for id, h := range work {
		all = append(all, id)
		if h.stalled {
			stalled = append(stalled, id)
		}
	}
	return all, stalled
}

// Add adds to the next report: only the numbers and Path of d count.
func (r *Reporter) Add(job backup.SnapshotID, d backup.Progress) {
	r.update(job, func(p *inProgress) {
		r.add(p, &d)
		if d.FilesFound > 0 {
			r.did(job, &Recent{Files: d.FilesFound})
		}
	})
}

// AddRead is Add for a batch in progress. It also records how far the batch is.
func (r *Reporter) AddRead(job backup.SnapshotID, id backup.BatchID, d backup.Progress, at BatchState) {
	r.update(job, func(p *inProgress) {
		r.add(p, &d)
		h, ok := p.batches[id]
		if !ok {
			return
		}
		r.did(job, &Recent{
			Bytes: max(at.ReadBytes-h.at.ReadBytes, 0), Batches: max(at.ShareDone-h.at.ShareDone, 0), HeldSeconds: max(at.HeldSeconds-h.at.HeldSeconds, 0),
		})
		h.at = at
		p.batches[id] = h
	})
}

// did counts what was done for a snapshot.
func (r *Reporter) did(job backup.SnapshotID, more *Recent) {
	if r.of[job] == nil {
		r.of[job] = &seconds{}
	}
	r.of[job].add(time.Now(), more)
}

func (r *Reporter) add(p *inProgress, d *backup.Progress) {
	p.delta.FilesFound += d.FilesFound
	p.delta.BytesFound += d.BytesFound
	p.delta.FilesDone += d.FilesDone
	p.delta.BytesDone += d.BytesDone
	p.delta.Errors += d.Errors
	p.delta.Stats += d.Stats
	p.delta.StatSeconds += d.StatSeconds
	p.delta.Opens += d.Opens
	p.delta.OpenSeconds += d.OpenSeconds
	if d.Path != "" {
		p.delta.Path = d.Path
	}
	if d.FilesFound > 0 { // a walker: unchanged files are done with that
		r.all.add(time.Now(), &Recent{Files: d.FilesFound})
	} else {
		r.all.add(time.Now(), &Recent{Files: d.FilesDone, Bytes: d.BytesDone})
	}
}

func (r *Reporter) update(job backup.SnapshotID, change func(*inProgress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.jobs[job]
	if p == nil {
		p = &inProgress{tasks: map[backup.TaskID]held{}, batches: map[backup.BatchID]held{}}
		r.jobs[job] = p
	}
	change(p)
}

func (r *Reporter) report() {
	if r.Moved != nil {
		r.Moved()
	}
	for _, p := range r.take() {
		_ = r.conn.PublishProgress(p) // it may be lost
	}
}

// take returns the reports to send, and forgets jobs without work.
func (r *Reporter) take() (reports []*backup.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.jobs {
		report := p.delta
		p.delta = backup.Progress{}
		report.Worker, report.Instance, report.Snapshot, report.Filer = r.worker, r.instance, id, p.filer
		report.Tasks, report.StalledTasks = list(p.tasks)
		report.Batches, report.StalledBatches = list(p.batches)
		if len(report.Tasks)+len(report.Batches) == 0 {
			delete(r.jobs, id)
		}
		reports = append(reports, &report)
	}
	maps.DeleteFunc(r.of, func(_ backup.SnapshotID, s *seconds) bool { return s.isOver(time.Now()) })
	return reports
}

// InHand adds the work in progress and its rates to the description of an instance.
func (r *Reporter) InHand(i *Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	readings := map[backup.SnapshotID]Reading{}
	for id, s := range r.of {
		if recent := s.last(now, recentSeconds); recent.Seconds > 0 {
			readings[id] = Reading{Snapshot: id, Recent: recent}
		}
	}
	i.Tasks, i.Batches, i.Stalled = 0, 0, 0
	for id, p := range r.jobs {
		tasks, stalledTasks := list(p.tasks)
		batches, stalledBatches := list(p.batches)
		i.Tasks, i.Batches, i.Stalled = i.Tasks+len(tasks), i.Batches+len(batches), i.Stalled+len(stalledTasks)+len(stalledBatches)
		if len(tasks)+len(batches) > 0 {
			readings[id] = p.reading(id, readings[id].Recent)
		}
	}
	// The first ones are sent if there are too many.
	i.Reading = slices.SortedFunc(maps.Values(readings), func(a, b Reading) int {
		return cmp.Or(cmp.Compare(b.ReadBytes, a.ReadBytes), cmp.Compare(b.Recent.Files, a.Recent.Files), bytes.Compare(a.Snapshot[:], b.Snapshot[:]))
	})
	last := r.all.last(now, rateSeconds)
	i.EntriesPerSecond, i.BytesPerSecond = float64(last.Files)/rateSeconds, float64(last.Bytes)/rateSeconds
	r.back.describe(now, i)
}

// reading sums up the batches in progress.
func (p *inProgress) reading(snapshot backup.SnapshotID, recent Recent) Reading {
	sum := Reading{Snapshot: snapshot, Recent: recent}
	for _, h := range p.batches {
		sum.ReadBytes = min(sum.ReadBytes+h.at.ReadBytes, backup.MaxCount)
		sum.BatchesDone += h.at.ShareDone
	}
	return sum
}
