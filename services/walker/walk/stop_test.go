package walk

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source/posix"
)

// A slice that is stopped ends at the next directory: its results are sent, and the rest is left to
// others.
func TestSliceEndsEarlyAtStop(t *testing.T) {
	f := newFixture(t, home)
	var opened atomic.Int32
	f.svc.source = &hookedSource{Source: posix.New(posix.Options{}), onDirectory: func(string, string) {
		if opened.Add(1) == 3 {
			f.svc.stopping.Store(true)
		}
	}}
	f.svc.opts.Directories = 1
	task := f.rootTask()
	must(t, f.walk(t.Context(), task))
	var w walked
	w.add(f.apply(f.take()...))
	if w.counts.Directories != 3 || w.children == 0 || !w.parts[0].Last {
		t.Errorf("%d directories walked, %d left; sent %+v", w.counts.Directories, w.children, w.parts)
	}
	if err := f.walk(t.Context(), task); !errors.Is(err, errStopped) {
		t.Errorf("a task of a walker that stops: error %v", err)
	}
	if sent := f.take(); len(sent) > 0 {
		t.Errorf("it sent %+v", sent)
	}
	f.svc.stopping.Store(false)
	s, err := f.index.Snapshot(t.Context(), task.Job.Snapshot)
	must(t, err)
	for {
		tasks, err := f.index.ClaimTasks(t.Context(), f.claim(s))
		must(t, err)
		if len(tasks) == 0 {
			break
		}
		for i := range tasks {
			must(t, f.walk(t.Context(), &tasks[i]))
			w.add(f.apply(f.take()...))
		}
	}
	f.wantEachOnce(w)
}

// A walker that is stopped sends its results even if the filer is slow.
func TestStopSendsWhatItHas(t *testing.T) {
	h := newHang()
	defer h.end()
	r := start(t, &hookedSource{onDirectory: func(_, path string) {
		if path == "" {
			h.wait()
		}
	}}, Options{StopTimeout: within})
	r.publish(1, 11)
	receive(t, "hang", h.asked)
	r.stop()
	eventually(t, "it stops", r.svc.stopping.Load)
	h.end()
	if s := r.wantResult(t, 11); s.Counts.Directories != 1 || len(s.Children) == 0 {
		t.Errorf("result %+v, want that of the root, and children", s)
	}
	receive(t, "end", r.stopped)
}

// If the filer hangs the task is handed back, and Run does not wait for the goroutine, which may be
// in the kernel for ever.
func TestStopWithHungFiler(t *testing.T) {
	h := newHang()
	t.Cleanup(h.end)
	r := start(t, &hookedSource{onDirectory: func(string, string) {
		if h.calls.Load() == 0 {
			h.wait()
		}
	}}, Options{StopTimeout: 100 * time.Millisecond})
	task := r.publish(1, 11)
	receive(t, "hang", h.asked)
	r.stop()
	receive(t, "end", r.stopped)
	var i flow.Instance
	if r.svc.report.InHand(&i); i.Tasks > 0 {
		t.Errorf("%d tasks are reported, which others may have", i.Tasks)
	}
	again := New(r.conn, r.svc.index, r.svc.source, r.svc.report, Options{})
	done := make(chan struct{})
	go func() { again.Run(t.Context()); close(done) }()
	if s := r.wantResult(t, 11); s.Snapshot != task.Job.Snapshot || s.Counts.Files != int64(len(home)-1) {
		t.Errorf("snapshot %v, counts %+v", s.Snapshot, s.Counts)
	}
	t.Cleanup(func() { receive(t, "end of the second", done) })
}

// A stalled task is in no queue: it stays reported, so that the keeper assigns it again when the
// process has ended. The process of a drained walker does not end.
func TestStopWithStalledTask(t *testing.T) {
	t.Run("stopped", func(t *testing.T) { stopWithStalledTask(t, false) })
	t.Run("drained", func(t *testing.T) { stopWithStalledTask(t, true) })
}

func stopWithStalledTask(t *testing.T, drains bool) {
	h := newHang()
	t.Cleanup(h.end)
	r := start(t, &hookedSource{onDirectory: func(string, string) { h.wait() }}, Options{StallAfter: 10 * time.Millisecond, StopTimeout: 100 * time.Millisecond})
	r.publish(1, 11)
	receive(t, "hang", h.asked)
	reported := func() (i flow.Instance) {
		r.svc.report.InHand(&i)
		return i
	}
	eventually(t, "the task is stalled", func() bool { return reported().Stalled == 1 })
	if drains {
		r.drain()
	}
	r.stop()
	receive(t, "end", r.stopped)
	if i := reported(); (i.Tasks == 0) != drains || i.Stalled != i.Tasks {
		t.Errorf("drained: %t, %d tasks, %d stalled are reported", drains, i.Tasks, i.Stalled)
	}
}

// eventually waits for a condition that no channel signals.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(within); !is(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
