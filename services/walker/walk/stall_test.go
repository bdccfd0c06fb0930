package walk

import (
	"context"
	"path/filepath"
	"slices"
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
	results  chan flow.Result
	progress chan backup.Progress
	stop     func()        // stops it
	stopped  chan struct{} // closed when it has stopped
}

// start runs a walker over a source in which two filers have trees.
func start(t *testing.T, src *hookedSource, o Options) *running {
	t.Helper()
	f := newFixture(t, nil)
	src.Source = posix.New(posix.Options{})
	r := &running{
		TB: t, conn: inProcess(t), results: make(chan flow.Result, 100), progress: make(chan backup.Progress, 10_000), stopped: make(chan struct{}),
	}
	report := flow.NewReporter(r.conn, "walker")
	r.svc = New(r.conn, f.index, src, report, o)
	r.svc.budgets, r.svc.scarceTime = f.svc.budgets, f.svc.scarceTime
	unsubscribe, err := r.conn.SubscribeProgress(func(p *backup.Progress) { r.progress <- *p })
	must(t, err)
	walking, stop := context.WithCancel(context.Background())
	others, stopOthers := context.WithCancel(context.Background())
	r.stop = stop
	var owned sync.WaitGroup
	go func() { r.svc.Run(walking); close(r.stopped) }()
	owned.Go(func() { report.Run(others, 20*time.Millisecond) })
	owned.Go(func() {
		r.conn.ConsumeResults(others, 100, func(result flow.Result) { result.Delivery.Ack(); r.results <- result })
	})
	t.Cleanup(func() {
		stop()
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
		Job: backup.Job{Snapshot: backup.NewSnapshotID(), Filer: filer, Shard: 1, Number: 1, Source: url, Started: backup.TimeOf(time.Now().Add(time.Hour))},
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

// A task whose filer hangs gives its place to others, is reported as stalled, and continues when
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
			r.publish(2, 22) // there is only one place
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
	r := start(t, src, Options{StallAfter: 200 * time.Millisecond})
	r.publish(1, 11)
	for _, h := range []*hang{first, second} {
		receive(t, "hang", h.asked)
		r.wantProgress(t, "a stalled task", func(p backup.Progress) bool { return len(p.StalledTasks) == 1 })
		h.end()
		r.wantProgress(t, "a task that goes on", func(p backup.Progress) bool { return len(p.StalledTasks) == 0 })
	}
	r.wantResult(t, 11)
}

// A filer that hangs in all directories that it may have open takes none of another's.
func TestFilersHaveLanesOfTheirOwn(t *testing.T) {
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
	if len(r.svc.lanes)+len(r.svc.holds) > 0 {
		t.Errorf("%d lanes, %d tasks in hand of a walker that has nothing to do", len(r.svc.lanes), len(r.svc.holds))
	}
}

// Stalls by the clock. A task stalls if its filer has not answered a call, and not if it waits for
// something else.
func TestIsStalled(t *testing.T) {
	const after = 10 * time.Second
	f := newFixture(t, nil)
	pass := func(d time.Duration) { f.svc.epoch = f.svc.epoch.Add(-d) }
	task := &backup.WalkTask{Job: backup.Job{Filer: 1}, ID: 1}
	h, other := f.svc.hold(task, nil), f.svc.hold(task, nil)
	defer h.release()
	defer other.release()
	want := func(when string, want bool) {
		t.Helper()
		if got := h.isStalled(f.svc.clock(), after); got != want {
			t.Errorf("%s: stalled %v", when, got)
		}
	}
	pass(time.Hour)
	want("nothing asked for", false)
	first := h.ask()
	want("asked after an hour", false)
	pass(9 * time.Second)
	want("after 9 seconds", false)
	second := h.ask()
	pass(2 * time.Second)
	want("after 11 seconds, another asked for since", true)
	h.answer(second)
	want("one of two answered", false)
	pass(11 * time.Second)
	want("11 seconds later", true)
	if took := h.answer(first); took < 22*time.Second || took > time.Minute {
		t.Errorf("it took %v", took)
	}
	want("all answered", false)

	for range f.svc.opts.Directories {
		must(t, other.enter(t.Context()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() { gaveUp <- h.enter(ctx) }()
	eventually(t, "it queues", func() bool { return h.queued.Load() == 1 })
	want("just queued", false)
	pass(9 * time.Second)
	other.answer(other.ask())
	pass(2 * time.Second)
	want("queued, others get answers", false)
	pass(9 * time.Second)
	want("queued, nobody gets answers", true)
	cancel()
	<-gaveUp
	want("not queued any more", false)
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
