package walk

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A running walker, with its results.
type running struct {
	testing.TB
	svc      *Service
	conn     *flow.Conn
	results  chan flow.Received
	progress chan backup.Progress
	stop     func()        // stops it
	drain    func()        // the same, and the process goes on
	stopped  chan struct{} // closed when it has stopped
}

// start runs a walker over a source in which two filers have trees.
func start(t *testing.T, src *hookedSource, o Options) *running {
	t.Helper()
	f := newFixture(t, nil)
	src.Source = posix.New(posix.Options{})
	r := &running{
		TB: t, conn: inProcess(t), results: make(chan flow.Received, 100), progress: make(chan backup.Progress, 10_000), stopped: make(chan struct{}),
	}
	report := flow.NewReporter(r.conn, "walker")
	r.svc = New(r.conn, f.index, src, report, o)
	r.svc.budgets, r.svc.scarceTime = f.svc.budgets, f.svc.scarceTime
	unsubscribe, err := r.conn.SubscribeProgress(func(p *backup.Progress) { r.progress <- *p })
	must(t, err)
	walking, stop := context.WithCancelCause(context.Background())
	others, stopOthers := context.WithCancel(context.Background())
	r.stop = func() { stop(nil) }
	r.drain = func() { stop(flow.ErrDrained) }
	var owned sync.WaitGroup
	go func() { r.svc.Run(walking); close(r.stopped) }()
	owned.Go(func() { report.Run(others, 20*time.Millisecond) })
	owned.Go(func() {
		r.conn.ConsumeResults(others, others, 100, func(result flow.Received) { result.Delivery.Ack(); r.results <- result })
	})
	t.Cleanup(func() {
		stop(nil)
		receive(t, "end of the walker", r.stopped)
		stopOthers()
		owned.Wait()
		unsubscribe()
	})
	return r
}

// publish sends a root task of a filer, whose tree has a few directories.
func (r *running) publish(filer backup.FilerID, task backup.TaskID) *backup.WalkTask {
	r.Helper()
	return r.publishTree(filer, task, r.tree())
}

func (r *running) tree() (url string) {
	r.Helper()
	dir := filepath.Join(r.TempDir(), "shard")
	treetest.Make(r, dir, home)
	return posix.URL(dir)
}

func (r *running) publishTree(filer backup.FilerID, task backup.TaskID, url string) *backup.WalkTask {
	r.Helper()
	message := &backup.WalkTask{
		Job: backup.Job{Snapshot: backup.NewSnapshotID(), Filer: filer, Shard: 1, FilerName: "nas1", ShardName: "home", Number: 1, Source: url, Started: backup.TimeOf(time.Now().Add(time.Hour))},
		ID:  task, Attempt: 1, Directories: []string{""},
	}
	must(r, flow.Publish(r.Context(), r.conn, flow.Walk, message))
	return message
}

func (r *running) wantResult(t *testing.T, task backup.TaskID) *backup.SliceWalked {
	t.Helper()
	result := receive(t, "result", r.results)
	if result.Slice == nil || result.Slice.Task != task || result.Slice.Failed != "" {
		t.Fatalf("result %+v, want that of task %d", result.Slice, task)
	}
	return result.Slice
}

// wantProgress waits for a report that satisfies is.
func (r *running) wantProgress(t *testing.T, what string, is func(backup.Progress) bool) {
	t.Helper()
	deadline := time.After(within)
	for {
		select {
		case p := <-r.progress:
			if is(p) {
				return
			}
		case <-deadline:
			t.Fatalf("no report of %s within %v", what, within)
		}
	}
}

// A task whose filer hangs gives its slot to others, is reported as stalled, and continues when
// the filer answers, wherever it hung.
func TestStalledTask(t *testing.T) {
	for name, hook := range map[string]func(s *hookedSource, wait func()){
		"open":      func(s *hookedSource, wait func()) { s.onOpen = func(string) error { wait(); return nil } },
		"directory": func(s *hookedSource, wait func()) { s.onDirectory = func(string, string) { wait() } },
		"read":      func(s *hookedSource, wait func()) { s.onRead = func(string) { wait() } },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHang()
			defer h.end()
			src := &hookedSource{}
			hook(src, func() {
				if h.calls.Load() == 0 {
					h.wait()
				}
			})
			r := start(t, src, Options{Tasks: 1, StallAfter: 50 * time.Millisecond})
			hung := r.publish(1, 11)
			receive(t, "hang", h.asked)
			r.wantProgress(t, "a stalled task", func(p backup.Progress) bool {
				return p.Filer == 1 && slices.Equal(p.Tasks, []backup.TaskID{11}) && slices.Equal(p.StalledTasks, p.Tasks)
			})
			r.publish(2, 22) // there is only one slot
			r.wantResult(t, 22)
			h.end()
			if s := r.wantResult(t, 11); s.Snapshot != hung.Job.Snapshot || s.Counts.Files != int64(len(home)-1) {
				t.Errorf("snapshot %v, counts %+v", s.Snapshot, s.Counts)
			}
		})
	}
}

// A stalled task stops being stalled when the filer has answered.
func TestStallIsOver(t *testing.T) {
	first, second := newHang(), newHang()
	defer second.end()
	defer first.end()
	src := &hookedSource{onDirectory: func(_, path string) {
		switch path {
		case "":
			first.wait()
		case "empty":
			second.wait()
		}
	}}
	var log bytes.Buffer
	r := start(t, src, Options{StallAfter: 200 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	r.publish(1, 11)
	for _, h := range []*hang{first, second} {
		receive(t, "hang", h.asked)
		r.wantProgress(t, "a stalled task", func(p backup.Progress) bool { return len(p.StalledTasks) == 1 })
		h.end()
		r.wantProgress(t, "a task that goes on", func(p backup.Progress) bool { return len(p.StalledTasks) == 0 })
	}
	r.wantResult(t, 11)
	r.stop()
	receive(t, "end", r.stopped)
	for event, want := range map[string]int{
		`the filer does not answer: its walk tasks are stalled" filer=nas1 shard=home snapshot=`: 2,
		`the filer answers again" filer=nas1 shard=home snapshot=`:                               2,
		`task=11 seconds=0.`: 4,
	} {
		if got := strings.Count(log.String(), event); got != want {
			t.Errorf("%d lines with %s, want %d, one per stall:\n%s", got, event, want, &log)
		}
	}
}

// A filer that hangs in all directories that it may have open takes none of another's.
func TestFilersHaveSlotsOfTheirOwn(t *testing.T) {
	h := newHang()
	defer h.end()
	var hanging atomic.Pointer[string]
	src := &hookedSource{onDirectory: func(url, _ string) {
		if of := hanging.Load(); of != nil && *of == url {
			h.wait()
		}
	}}
	r := start(t, src, Options{Directories: 1, StallAfter: time.Hour})
	first := r.tree()
	hanging.Store(&first)
	r.publishTree(1, 11, first)
	receive(t, "hang", h.asked)
	r.publish(2, 22)
	r.wantResult(t, 22)
	h.end()
	r.wantResult(t, 11)
	r.stop()
	receive(t, "end", r.stopped)
	if slots, tasks := r.svc.directories.Taken(), r.svc.watch.InProgress(); slots+tasks > 0 {
		t.Errorf("%d slots taken, %d tasks in progress of a walker that has nothing to do", slots, tasks)
	}
}

// The time of the filer's stats is reported, and nothing else is included.
func TestLatencyIsReported(t *testing.T) {
	slow := make(chan struct{})
	src := &hookedSource{onRead: func(string) { <-slow }}
	r := start(t, src, Options{})
	go func() {
		for {
			select {
			case slow <- struct{}{}:
			case <-r.stopped:
				return
			}
		}
	}()
	r.publish(7, 11)
	s := r.wantResult(t, 11)
	var stats int64
	var seconds float64
	r.wantProgress(t, "all stats", func(p backup.Progress) bool {
		if p.Stats > 0 && p.Filer != 7 {
			t.Errorf("the report is of filer %d", p.Filer)
		}
		stats += p.Stats
		seconds += p.StatSeconds
		return stats == s.Counts.StatCalls
	})
	if seconds <= 0 || seconds > s.Counts.WalkSeconds {
		t.Errorf("%d stats took %v s; the walk %v s", stats, seconds, s.Counts.WalkSeconds)
	}
}
