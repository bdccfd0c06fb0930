package stall

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An owner records what the Watch demands of it.
type owner struct {
	mu    sync.Mutex
	calls []string
}

func (o *owner) Stalled(bool)          { o.note("stalled") }
func (o *owner) Resumed(time.Duration) { o.note("resumed") }

func (o *owner) note(call string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, call)
}

func (o *owner) wants(t *testing.T, when string, calls ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.calls, calls) {
		t.Errorf("%s: %q, want %q", when, o.calls, calls)
	}
	o.calls = nil
}

func pass(w *Watch, ticks int) {
	for range ticks {
		w.tick()
	}
}

// A Work is stalled if its filer has not answered a call, and not if it waits for something else.
func TestStalls(t *testing.T) {
	w := NewWatch(time.Minute, 1)
	var o, others owner
	k, other := w.Begin(1, &o), w.Begin(1, &others)
	pass(w, 100)
	o.wants(t, "nothing asked for")
	k.ask()
	pass(w, stallTicks)
	o.wants(t, "asked after a long time")
	k.ask()
	pass(w, 1)
	o.wants(t, "another asked for since", "stalled")
	k.answer()
	o.wants(t, "one of two answered", "resumed")
	pass(w, stallTicks+1)
	o.wants(t, "the other is not answered", "stalled")
	pass(w, 100)
	o.wants(t, "nor later")
	k.answer()
	o.wants(t, "all answered", "resumed")
	pass(w, 100)
	o.wants(t, "nothing asked for since")
	k.End()
	other.End()
	others.wants(t, "the other Work")
	if w.InProgress()+w.Busy()+len(w.filers) > 0 {
		t.Errorf("%d in progress, %d busy, %d filers", w.InProgress(), w.Busy(), len(w.filers))
	}
}

// A Work that waits for a slot is stalled if no other of its filer gets answers.
func TestStallsInTheQueue(t *testing.T) {
	w, p := NewWatch(time.Minute, 10), NewSlots(4, 2)
	var o, others, elsewhere owner
	k, other, of2 := w.Begin(1, &o), w.Begin(1, &others), w.Begin(2, &elsewhere)
	for range 2 {
		if err := other.Enter(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(k *Work) { k.ask(); k.answer() }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	entered := make(chan error)
	enter := func() {
		go func() { entered <- k.Enter(ctx, p) }()
		for p.waiters() == 0 {
			runtime.Gosched()
		}
	}
	pass(w, 100)
	enter()
	pass(w, stallTicks)
	o.wants(t, "queued after a long time")
	answer(other)
	pass(w, stallTicks)
	o.wants(t, "others get answers")
	answer(of2)
	pass(w, 1)
	o.wants(t, "only another filer answers", "stalled")
	answer(other)
	pass(w, 1)
	o.wants(t, "others get answers again", "resumed")
	pass(w, 100)
	o.wants(t, "and again none", "stalled")
	other.Leave(p)
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	o.wants(t, "it has a slot", "resumed")
	enter()
	pass(w, 100)
	o.wants(t, "queued once more", "stalled")
	cancel()
	if err := <-entered; err == nil {
		t.Fatal("there was no slot")
	}
	o.wants(t, "not queued any more", "resumed")
	pass(w, 100)
	o.wants(t, "later")
}

// A filerOwner records the events of its filer.
type filerOwner struct{ events *[]string }

func (o filerOwner) Stalled(first bool) {
	if first {
		*o.events = append(*o.events, "stalled")
	}
}

func (o filerOwner) Resumed(hung time.Duration) {
	if hung > 0 {
		*o.events = append(*o.events, "answers after "+hung.String())
	}
}

// However many Works of a filer stall, the filer stalls once, and answers once all of them resume.
func TestFilerStallsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatch(time.Minute, 10)
		var events, elsewhere []string
		works := []*Work{w.Begin(1, filerOwner{&events}), w.Begin(1, filerOwner{&events}), w.Begin(1, filerOwner{&events})}
		other := w.Begin(2, filerOwner{&elsewhere})
		for _, k := range works {
			k.ask()
			pass(w, stallTicks+1)
			<-time.After(time.Minute)
		}
		other.ask()
		for _, k := range works {
			k.answer()
			pass(w, 1)
		}
		if want := []string{"stalled", "answers after 3m0s"}; !slices.Equal(events, want) {
			t.Errorf("%q, want %q", events, want)
		}
		if len(elsewhere) != 0 {
			t.Errorf("another filer: %q", elsewhere)
		}
	})
}

// Beyond the bound, a Work that hangs is not stalled, until there is room.
func TestStalledWorksAreBounded(t *testing.T) {
	w := NewWatch(time.Minute, 1)
	var first, second owner
	a, b := w.Begin(1, &first), w.Begin(2, &second)
	a.ask()
	pass(w, 1)
	b.ask()
	pass(w, 100)
	first.wants(t, "the first", "stalled")
	second.wants(t, "the second")
	if n := w.Busy(); n != 1 {
		t.Errorf("%d Works are busy", n)
	}
	a.answer()
	pass(w, 1)
	first.wants(t, "answered", "resumed")
	second.wants(t, "with room", "stalled")
	w.Each(func(o Owner) { o.(*owner).note("seen") })
	first.wants(t, "in progress", "seen")
	second.wants(t, "in progress, and stalled", "seen")
}

// A call may return between a look of the Watch and what follows from it.
func TestCallReturnsWhenItWouldStall(t *testing.T) {
	w := NewWatch(time.Minute, 1)
	var o owner
	k := w.Begin(1, &o)
	k.ask()
	now := w.ticks.Add(stallTicks + 1)
	if !k.waits(now) {
		t.Fatal("it does not wait")
	}
	k.answer()
	w.mu.Lock()
	w.stall(k, now)
	w.mu.Unlock()
	o.wants(t, "returned")
	if w.Busy() != 1 || k.stalled.Load() {
		t.Error("it is stalled")
	}
}

// An exactOwner checks that its Work does not continue while it stalls or resumes.
type exactOwner struct {
	t       *testing.T
	work    *Work
	slots   int // not guarded: the race detector would find a goroutine that does not wait
	stalled bool
	stalls  atomic.Int64
}

func (o *exactOwner) Stalled(bool) {
	if o.stalled || o.slots != 1 {
		o.t.Error("stalled, but has no slot")
	}
	o.stalled = true
	o.slots--
	o.stalls.Add(1)
}

func (o *exactOwner) Resumed(time.Duration) {
	if !o.stalled || o.slots != 0 {
		o.t.Error("resumed, but was not stalled")
	}
	if !o.work.stalled.Load() {
		o.t.Error("resumed too late: its goroutines do not wait any more")
	}
	o.stalled = false
	o.slots++
}

// Between calls, a Work is never stalled, and has what it had, however answers and looks of the
// Watch fall together.
func TestStallsAreExact(t *testing.T) {
	w := NewWatch(time.Minute, 10)
	ended, stop := context.WithCancel(t.Context())
	var looks sync.WaitGroup
	looks.Go(func() {
		for ended.Err() == nil {
			w.tick()
		}
	})
	var works sync.WaitGroup
	owners := make([]*exactOwner, 4)
	for i := range owners {
		o := &exactOwner{t: t, slots: 1}
		owners[i] = o
		works.Go(func() {
			k := w.Begin(1, o)
			defer k.End()
			o.work = k
			for n := 0; o.stalls.Load() < 200; n++ {
				k.ask()
				for since := w.ticks.Load(); n%4 < 3 && w.ticks.Load()-since < int64(stallTicks+n%4); {
					runtime.Gosched()
				}
				k.answer()
				if o.stalled || o.slots != 1 {
					t.Error("it continues without its slot")
					return
				}
			}
		})
	}
	works.Wait()
	stop()
	looks.Wait()
	if _, stalled := w.tick(); stalled != 0 {
		t.Errorf("%d Works are stalled, and have ended", stalled)
	}
}

// Run reports at intervals, and finds a stalled Work after the configured time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 10 * time.Second
		w := NewWatch(after, 10)
		ctx, stop := context.WithCancel(t.Context())
		stalledAt := make(chan time.Time, 1)
		var last time.Time
		go w.Run(ctx, func(inProgress, stalled int) {
			if !last.IsZero() && time.Since(last) > w.MaxInterval() {
				t.Errorf("no report for %v", time.Since(last))
			}
			last = time.Now()
			if inProgress != 1 {
				t.Errorf("%d in progress", inProgress)
			}
			if stalled == 1 {
				select {
				case stalledAt <- time.Now():
				default:
				}
			}
		})
		var o owner
		k := w.Begin(1, &o)
		<-time.After(time.Hour)
		asked := time.Now()
		k.ask()
		if took := (<-stalledAt).Sub(asked); took < after || took > after+after/stallTicks {
			t.Errorf("stalled after %v", took)
		}
		k.answer()
		o.wants(t, "answered", "stalled", "resumed")
		stop()
		synctest.Wait()
	})
}

// AwaitIdle waits for work that is not stalled, and no longer than it may.
func TestAwaitIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatch(time.Minute, 10)
		var o owner
		ends, hangs := w.Begin(1, &o), w.Begin(2, &o)
		began := time.Now()
		w.AwaitIdle(time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("waited %v for work that goes on", took)
		}
		time.AfterFunc(time.Second, ends.End)
		time.AfterFunc(2*time.Second, func() { hangs.ask(); pass(w, 100) })
		w.AwaitIdle(time.Hour)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("waited %v until one has ended, and one is stalled", took)
		}
	})
}
