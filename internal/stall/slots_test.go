package stall

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// takeAll takes all slots that a filer can get.
func (p *Slots) takeAll(filer backup.FilerID) (n int) {
	for p.TryTake(filer) {
		n++
	}
	return n
}

func (p *Slots) waiters() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

func TestSlotsLeaveSomeForTheNextFiler(t *testing.T) {
	for _, c := range []struct {
		total, limit int
		want         []int // by filer, each taking as many as it can
	}{
		{32, 8, []int{8, 8, 8, 4, 2, 1, 1, 0}},
		{12, 6, []int{6, 3, 2, 1, 0}},
		{4, 1, []int{1, 1, 1, 1, 0}},
		{2, 1, []int{1, 1, 0}},
	} {
		p := NewSlots(c.total, c.limit)
		for filer, want := range c.want {
			if got := p.takeAll(backup.FilerID(filer)); got != want {
				t.Errorf("of %d, at most %d: filer %d gets %d, want %d", c.total, c.limit, filer, got, want)
			}
		}
	}
}

func TestSlotsGoToTheFilerThatHasFewest(t *testing.T) {
	for range 20 { // by chance, the wrong one could be right
		testOrderOfFilers(t)
	}
}

func testOrderOfFilers(t *testing.T) {
	t.Helper()
	p := NewSlots(4, 2)
	for i, want := range []int{2, 1, 1} {
		if got := p.takeAll(backup.FilerID(i + 1)); got != want {
			t.Fatalf("filer %d gets %d", i+1, got)
		}
	}
	got := make(chan backup.FilerID)
	for i, filer := range []backup.FilerID{1, 2, 4} {
		go func() {
			if p.Take(t.Context(), filer) == nil {
				got <- filer
			}
		}()
		for p.waiters() != i+1 { // each waits behind the one before
			runtime.Gosched()
		}
	}
	for _, step := range []struct{ given, granted backup.FilerID }{
		{1, 4}, // it has none
		{3, 0}, // filers 1 and 2 have one, as many as are free
		{4, 1}, // came before 2, and has as many
		{1, 2},
	} {
		waiting := p.waiters()
		p.Give(step.given)
		if step.granted == 0 {
			if p.waiters() != waiting {
				t.Fatal("a slot was granted that is to be kept for others")
			}
			continue
		}
		if filer := <-got; filer != step.granted {
			t.Fatalf("what %d gave went to %d, want %d", step.given, filer, step.granted)
		}
	}
}

// Of one filer's waiters, the first comes first.
func TestSlotsOfOneFilerInOrder(t *testing.T) {
	const n = 8
	p := NewSlots(2, 1)
	p.Force(1)
	got := make(chan int)
	for i := range n {
		go func() {
			if p.Take(t.Context(), 1) == nil {
				got <- i
			}
		}()
		for p.waiters() != i+1 {
			runtime.Gosched()
		}
	}
	for want := range n {
		p.Give(1)
		if i := <-got; i != want {
			t.Fatalf("waiter %d gets the slot of waiter %d", i, want)
		}
	}
}

// A waiter that gives up takes no slot, even if it was granted one at the same time.
func TestSlotsOfWaitersThatGiveUp(t *testing.T) {
	for range 200 {
		p := NewSlots(2, 1)
		p.Force(1)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- p.Take(ctx, 1) }()
		for p.waiters() == 0 {
			runtime.Gosched()
		}
		go cancel()
		p.Give(1)
		err := <-result
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err == nil {
			p.Give(1)
		}
		if p.free != 2 || p.Taken() != 0 || p.waiters() != 0 || len(p.filers) != 0 {
			t.Fatalf("%d free, %d taken, %d waiting, %d filers, after %v", p.free, p.Taken(), p.waiters(), len(p.filers), err)
		}
	}
}

// The same, at the one moment that matters: the slot was granted, and the waiter has not seen it.
func TestPlaceThatIsGrantedToAWaiterThatGivesUp(t *testing.T) {
	p := NewSlots(2, 1)
	p.Force(1)
	p.giveUp(1, p.filers[1], &waiter{})
	if p.free != 2 || p.Taken() != 0 {
		t.Errorf("%d free, %d taken", p.free, p.Taken())
	}
}

// The error is why the wait ended.
func TestTakeReturnsTheCause(t *testing.T) {
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := NewSlots(2, 1).Take(ctx, 1); !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
}

func TestSlotsTakeNoMemory(t *testing.T) {
	p := NewSlots(2, 1)
	if n := testing.AllocsPerRun(100, func() { p.TryTake(1); p.Give(1) }); n > 0 {
		t.Errorf("%v allocations for each slot", n)
	}
}
