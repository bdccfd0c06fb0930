package flow

import (
	"context"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

func TestReporterReportsWorkInProgress(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	heard := make(chan *backup.Progress, 1000)
	stop, err := c.SubscribeProgress(func(p *backup.Progress) { heard <- p })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := c.nc.Flush(); err != nil {
		t.Fatal(err)
	}

	r := NewReporter(c, "worker-1")
	snapshot := backup.SnapshotID{1}
	taskDone, batchDone := r.Task(&backup.Job{Snapshot: snapshot, Filer: 7}, 11), r.Batch(&backup.Job{Snapshot: snapshot, Filer: 7}, 22)
	r.Add(snapshot, backup.Progress{FilesFound: 3, BytesFound: 30, Path: "a"})
	r.Add(snapshot, backup.Progress{FilesDone: 2, BytesDone: 20, Errors: 1, Path: "b"})
	r.Add(snapshot, backup.Progress{FilesFound: 1})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx, time.Hour); close(ended) }() // the test reports itself

	for range 2 { // at once, before any number is known
		if p := receive(t, "report of work that was taken", heard); len(p.Tasks)+len(p.Batches) != 1 || p.FilesFound != 0 || p.Filer != 7 || p.Instance != c.instance {
			t.Errorf("taken: %+v", p)
		}
	}
	r.report()
	first := receive(t, "report", heard)
	if first.Worker != "worker-1" || first.Snapshot != snapshot || len(first.Tasks) != 1 || first.Tasks[0] != 11 || len(first.Batches) != 1 || first.Batches[0] != 22 {
		t.Errorf("in progress: %+v", first)
	}
	if first.FilesFound != 4 || first.BytesFound != 30 || first.FilesDone != 2 || first.BytesDone != 20 || first.Errors != 1 || first.Path != "b" {
		t.Errorf("numbers: %+v", first)
	}
	r.report()
	if p := receive(t, "second report", heard); p.FilesFound != 0 || p.Path != "" || len(p.Tasks) != 1 || len(p.Batches) != 1 {
		t.Errorf("numbers are reported once, work in progress each time: %+v", p)
	}
	taskDone()
	r.report()
	if p := receive(t, "report", heard); len(p.Tasks) != 0 || len(p.Batches) != 1 {
		t.Errorf("the task is done, the batch is not: %+v", p)
	}
	batchDone()
	cancel() // the last report says that no work is left
	if p := receive(t, "last report", heard); len(p.Tasks)+len(p.Batches) > 0 {
		t.Errorf("nothing is in progress: %+v", p)
	}
	receive(t, "end of the reporter", ended)
	if reports := r.take(); len(reports) > 0 || len(r.jobs) > 0 {
		t.Errorf("what is done with is remembered: %+v", reports)
	}
}

// Newly taken work is reported at once: until the interval has passed, its worker would not be
// known.
func TestReporterReportsAtOnce(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	heard := make(chan *backup.Progress, 1000)
	stop, err := c.SubscribeProgress(func(p *backup.Progress) { heard <- p })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	r := NewReporter(c, "worker-1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx, time.Hour); close(ended) }()
	job := &backup.Job{Snapshot: backup.SnapshotID{1}, Filer: 7}
	for id := range backup.TaskID(3) {
		done := r.Task(job, id)
		if p := receive(t, "report of a task", heard); len(p.Tasks) != 1 || p.Tasks[0] != id {
			t.Errorf("%+v, want task %d", p, id)
		}
		done()
	}
	// And at the end it reports that no work is in progress, so that none is looked for.
	cancel()
	receive(t, "end of the reporter", ended)
	if p := receive(t, "last report", heard); p.Snapshot != job.Snapshot || len(p.Tasks)+len(p.Batches) != 0 {
		t.Errorf("the last report: %+v", p)
	}
}

func TestReporterKeepsSnapshotsApart(t *testing.T) {
	r := NewReporter(nil, "worker-1")
	one, two := backup.SnapshotID{1}, backup.SnapshotID{2}
	r.Task(&backup.Job{Snapshot: one}, 1)
	r.Batch(&backup.Job{Snapshot: two}, 1)()
	r.Add(two, backup.Progress{FilesFound: 5})
	for range 2 {
		for _, p := range r.take() {
			if p.Snapshot == one && (len(p.Tasks) != 1 || p.FilesFound != 0) || p.Snapshot == two && (len(p.Batches) != 0 || p.FilesFound != 5) {
				t.Errorf("%+v", p)
			}
		}
	}
	if len(r.jobs) != 1 {
		t.Errorf("%d snapshots are remembered, one has work in hand", len(r.jobs))
	}
}
