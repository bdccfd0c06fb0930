package read

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// takeAll takes all shares that a filer can get.
func (s *shares) takeAll(filer backup.FilerID) (n int) {
	for s.tryTake(filer) {
		n++
	}
	return n
}

func TestSharesLeaveSomethingForWhoComes(t *testing.T) {
	for _, c := range []struct {
		total, limit int
		want         []int // by filer, each taking as many as it can
	}{
		{32, 8, []int{8, 8, 8, 4, 2, 1, 1, 0}},
		{12, 6, []int{6, 3, 2, 1, 0}},
		{4, 1, []int{1, 1, 1, 1, 0}},
		{2, 1, []int{1, 1, 0}},
	} {
		s := newShares(c.total, c.limit)
		for filer, want := range c.want {
			if got := s.takeAll(backup.FilerID(filer)); got != want {
				t.Errorf("of %d, at most %d: filer %d gets %d, want %d", c.total, c.limit, filer, got, want)
			}
		}
	}
}

func TestSharesGoToTheFilerThatHasFewest(t *testing.T) {
	s := newShares(4, 2)
	for i, want := range []int{2, 1, 1} {
		if got := s.takeAll(backup.FilerID(i + 1)); got != want {
			t.Fatalf("filer %d gets %d", i+1, got)
		}
	}
	got := make(chan backup.FilerID)
	for i, filer := range []backup.FilerID{1, 2, 4} {
		go func() {
			if s.take(t.Context(), filer) == nil {
				got <- filer
			}
		}()
		for s.waiters() != i+1 { // each waits behind the one before
			runtime.Gosched()
		}
	}
	for _, step := range []struct{ given, granted backup.FilerID }{
		{1, 4}, // it has none
		{3, 0}, // filers 1 and 2 have one, as many as are free
		{4, 1}, // came before 2, and has as many
		{1, 2},
	} {
		waiting := s.waiters()
		s.give(step.given)
		if step.granted == 0 {
			if s.waiters() != waiting {
				t.Fatal("a share was granted that is to be kept for others")
			}
			continue
		}
		if filer := <-got; filer != step.granted {
			t.Fatalf("what %d gave went to %d, want %d", step.given, filer, step.granted)
		}
	}
}

func (s *shares) waiters() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// A waiter that gives up takes no share, even if it was granted one at the same time.
func TestSharesOfWhoGivesUp(t *testing.T) {
	for range 200 {
		s := newShares(2, 1)
		s.force(1)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- s.take(ctx, 1) }()
		for s.waiters() == 0 {
			runtime.Gosched()
		}
		go cancel()
		s.give(1)
		err := <-result
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err == nil {
			s.give(1)
		}
		if s.free != 2 || len(s.held) != 0 || len(s.waiting) != 0 {
			t.Fatalf("%d free, %d held, %d waiting, after %v", s.free, len(s.held), len(s.waiting), err)
		}
	}
}

// However many windows are stuck, there are never more than the shares and the spare ones together
// (I9); when they are returned, the initial state is restored.
func TestWindowsOfStuckReadsAreBounded(t *testing.T) {
	const limit, spare = 4, 3
	p := newWindows(limit, spare, 16)
	var taken []*window
	takeAll := func(filer backup.FilerID) {
		for p.shares.may(filer) {
			taken = append(taken, must(p.take(t.Context(), filer))(t))
		}
	}
	for range 10 { // the filer hangs with all its windows, and gets more, again and again
		takeAll(1)
		for _, w := range taken {
			p.replace(w)
		}
	}
	if want := limit + spare; len(taken) != want {
		t.Errorf("a filer that hangs has %d windows, want %d", len(taken), want)
	}
	takeAll(2)
	takeAll(3)
	takeAll(4)
	if most := 2*limit + spare; len(taken) != most {
		t.Errorf("there are %d windows, want %d", len(taken), most)
	}
	for _, w := range taken {
		w.recycle()
	}
	if len(p.free) != 2*limit || p.spare != spare || p.shares.free != 2*limit {
		t.Errorf("%d windows are kept, %d are spare, %d shares are free", len(p.free), p.spare, p.shares.free)
	}
}
