package stall

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
)

const (
	// stallTicks is how many ticks a Work may wait for its filer before it is stalled.
	stallTicks = 8
	// lateTick is how late a tick may be before the process counts as hung: the Watch depends on
	// nothing outside of it.
	lateTick = time.Minute
)

// An Owner is what a Work belongs to. The Watch calls its methods one at a time, with a lock held:
// they must not call the Watch.
type Owner interface {
	// Stalled gives back what others need. Each goroutine of the Work is in a call, or waits for a
	// slot; it continues after Stalled has returned. first means that no other Work of the filer is
	// stalled.
	Stalled(first bool)
	// Resumed takes again what Stalled gave back, even if others have it by now. hung is how long
	// Works of the filer were stalled; 0: another one still is.
	Resumed(hung time.Duration)
}

// A Watch knows the Works in progress, and finds those that are stalled.
type Watch struct {
	interval time.Duration
	most     int          // Works that may be stalled
	ticks    atomic.Int64 // so far

	mu      sync.Mutex
	works   map[*Work]struct{}
	filers  map[backup.FilerID]*filer
	stalled int
	changed chan struct{} // signaled when a Work ends or stalls
}

// A filer is what the Works of one filer share.
type filer struct {
	id       backup.FilerID
	answered atomic.Int64 // tick of the last answer to any of its Works

	// Guarded by the Watch's mu:
	works   int       // the last one removes the filer
	stalled int       // of its Works
	since   time.Time // when the first of those stalled
}

// NewWatch returns a Watch that lets a Work wait for the duration after, and at most this many
// Works be stalled at a time.
func NewWatch(after time.Duration, most int) *Watch {
	return &Watch{
		interval: max(after/stallTicks, time.Millisecond), most: most,
		works: map[*Work]struct{}{}, filers: map[backup.FilerID]*filer{}, changed: make(chan struct{}, 1),
	}
}

// MaxInterval is the longest time between two reports of Run, unless the process hangs.
func (w *Watch) MaxInterval() time.Duration { return w.interval + lateTick }

// Run looks for stalled Works until ctx is done. After each look it reports how many Works are in
// progress, and how many of those are stalled.
func (w *Watch) Run(ctx context.Context, report func(inProgress, stalled int)) {
	loop.Every(ctx, w.interval, func() { report(w.tick()) })
}

func (w *Watch) tick() (inProgress, stalled int) {
	now := w.ticks.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.works {
		switch waits := k.waits(now); {
		case waits && !k.stalled.Load():
			w.stall(k, now)
		case !waits && k.stalled.Load():
			w.resume(k)
		}
	}
	return len(w.works), w.stalled
}

// stall makes a Work stalled, unless its call returns at this moment. A goroutine whose call
// returns later sees k.stalled, and waits for mu.
func (w *Watch) stall(k *Work, now int64) {
	if w.stalled >= w.most {
		return
	}
	k.stalled.Store(true)
	if !k.waits(now) {
		k.stalled.Store(false)
		return
	}
	w.stalled++
	if k.filer.stalled++; k.filer.stalled == 1 {
		k.filer.since = time.Now()
	}
	k.owner.Stalled(k.filer.stalled == 1)
	loop.Wake(w.changed)
}

func (w *Watch) resume(k *Work) {
	w.stalled--
	var hung time.Duration
	if k.filer.stalled--; k.filer.stalled == 0 {
		hung = max(time.Since(k.filer.since), 1)
	}
	k.owner.Resumed(hung)
	k.stalled.Store(false) // from now on its goroutines do not wait for mu
}

// answered resumes a stalled Work, unless it still waits.
func (w *Watch) answered(k *Work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k.stalled.Load() && !k.waits(w.ticks.Load()) {
		w.resume(k)
	}
}

// InProgress returns the number of Works that have begun and not ended.
func (w *Watch) InProgress() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.works)
}

// Busy returns the number of Works in progress that are not stalled.
func (w *Watch) Busy() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.works) - w.stalled
}

// AwaitIdle returns when all Works in progress are stalled, or after timeout.
func (w *Watch) AwaitIdle(timeout time.Duration) {
	enough := time.NewTimer(timeout)
	defer enough.Stop()
	for w.Busy() > 0 {
		select {
		case <-w.changed:
		case <-enough.C:
			return
		}
	}
}

// Each calls do for the owners of all Works in progress. None of them ends, stalls or resumes
// meanwhile.
func (w *Watch) Each(do func(Owner)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.works {
		do(k.owner)
	}
}

// A Work is one piece of work of one filer.
type Work struct {
	watch *Watch
	owner Owner
	filer *filer

	calls  atomic.Int32 // of the source that have not returned
	queued atomic.Int32 // goroutines that wait for a slot
	// Tick of the last answer or, if the Work waited for nothing at that time, of the beginning of
	// the next call.
	since   atomic.Int64
	stalled atomic.Bool // set with the Watch's mu held

	opens opens
	file  file // the one that is open
}

// Begin adds a Work, until its End.
func (w *Watch) Begin(id backup.FilerID, owner Owner) *Work {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.filers[id]
	if f == nil {
		f = &filer{id: id}
		w.filers[id] = f
	}
	f.works++
	k := &Work{watch: w, owner: owner, filer: f}
	w.works[k] = struct{}{}
	return k
}

// End removes the Work. None of its goroutines may be in a call.
func (k *Work) End() {
	w := k.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.works, k)
	if k.filer.works--; k.filer.works == 0 {
		delete(w.filers, k.filer.id)
	}
	loop.Wake(w.changed)
}

// ask notes that a call begins, and answer that it has returned.
func (k *Work) ask() {
	k.wait()
	k.calls.Add(1)
}

func (k *Work) answer() {
	now := k.watch.ticks.Load()
	k.since.Store(now)
	if k.filer.answered.Load() < now {
		k.filer.answered.Store(now)
	}
	k.calls.Add(-1)
	k.goOn()
}

// Enter waits for one of the filer's slots, until Leave. Unlike with Slots.Take, a Work that waits
// may be stalled.
func (k *Work) Enter(ctx context.Context, p *Slots) error {
	if k.TryEnter(p) {
		return nil
	}
	k.wait()
	k.queued.Add(1)
	err := p.Take(ctx, k.filer.id)
	k.queued.Add(-1)
	k.goOn()
	return err
}

// TryEnter takes a slot if there is one now.
func (k *Work) TryEnter(p *Slots) bool { return p.TryTake(k.filer.id) }

// Leave gives a slot back.
func (k *Work) Leave(p *Slots) { p.Give(k.filer.id) }

// wait begins the time of waiting, unless the Work waits already.
func (k *Work) wait() {
	if k.calls.Load() == 0 && k.queued.Load() == 0 {
		k.since.Store(k.watch.ticks.Load())
	}
}

// goOn resumes the Work if it was stalled.
func (k *Work) goOn() {
	if k.stalled.Load() {
		k.watch.answered(k)
	}
}

// waits reports whether the Work has waited for its filer for too long.
func (k *Work) waits(now int64) bool {
	since := k.since.Load()
	switch {
	case k.calls.Load() > 0:
	case k.queued.Load() > 0:
		since = max(since, k.filer.answered.Load())
	default: // it waits for something else, such as the index, or works
		return false
	}
	return now-since > stallTicks
}
