package commit

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// A slowStore is a store whose Puts wait until they are released or cancelled.
type slowStore struct {
	store.Store
	began chan struct{} // one for each Put
	let   chan struct{}
}

func newSlowStore(s store.Store) *slowStore {
	return &slowStore{Store: s, began: make(chan struct{}, 10), let: make(chan struct{})}
}

func (s *slowStore) Put(ctx context.Context, name string, data []byte) error {
	s.began <- struct{}{}
	select {
	case <-s.let:
		return s.Store.Put(ctx, name, data)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slow returns a committer whose store is slow.
func (f *fixture) slow(idx Index, lease time.Duration) (*Service, *slowStore) {
	st := newSlowStore(f.store)
	s := New(Parts{Index: idx, Store: st, Keys: f.keys}, Options{})
	s.times.lease = lease
	return s, st
}

// next returns the next value of c.
func next[T any](f *fixture, c <-chan T) (v T) {
	f.Helper()
	select {
	case v = <-c:
	case <-time.After(within):
		f.Fatal("it does not come about")
	}
	return v
}

// However long a committer writes a segment, no other writes one of the same snapshot.
func TestOneCommitterWritesASegment(t *testing.T) {
	f := newFixture(t)
	snap := f.walked(func(s *backup.SliceWalked) { s.Pages = []backup.PageVersion{pageOf("", "root")} })
	claims := make(chan struct{}, 100)
	counted := &stepIndex{Index: f.idx, after: func(step string) error {
		if step == "claim commit" {
			claims <- struct{}{}
		}
		return nil
	}}
	// Long enough that no machine is late with each renewal.
	first, st := f.slow(counted, 3*time.Second)
	second := f.service(f.idx, Options{})
	ended := make(chan error, 1)
	go func() { ended <- first.finishAll(f.ctx, f.ctx) }()
	next(f, st.began)
	for range 6 { // the claim, and renewals for longer than a lease
		next(f, claims)
		f.must(second.finishAll(f.ctx, f.ctx))
		if got := f.snapshot(snap.ID); got.State != backup.Running || f.store.putsSoFar() != 0 {
			t.Fatalf("the snapshot is %s, %d objects were put by another", got.State, f.store.putsSoFar())
		}
	}
	close(st.let)
	f.must(next(f, ended))
	if got := f.snapshot(snap.ID); got.State != backup.Committed {
		t.Errorf("the snapshot is %s", got.State)
	}
	if n := len(f.segments(snap.ID)); n != 1 || len(st.began) != 0 {
		t.Errorf("%d segments, %d more Puts", n, len(st.began))
	}
}

// A committer dies while it writes a segment: it renews nothing, and returns nothing. Another takes
// over once the lease has expired. If the first was only paused and continues, it changes nothing.
func TestAnotherCommitterTakesACommitOver(t *testing.T) {
	for name, writes := range map[string]bool{"and comes back while it writes": false, "and comes back when it has written": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			snap := f.walked(func(s *backup.SliceWalked) { s.Pages = []backup.PageVersion{pageOf("", "root")} })
			var dead atomic.Bool
			first, st := f.slow(&stepIndex{Index: f.idx, before: func(step string) error {
				if step == "claim commit" && dead.Load() {
					return errPower
				}
				return nil
			}}, 300*time.Millisecond)
			ended := make(chan error, 1)
			go func() { ended <- first.finishAll(f.ctx, f.ctx) }()
			next(f, st.began)
			dead.Store(true)
			second := f.service(f.idx, Options{})
			f.until(func() bool {
				f.must(second.finishAll(f.ctx, f.ctx))
				return f.snapshot(snap.ID).State == backup.Committed
			})
			committed := f.snapshot(snap.ID).Segment
			if writes {
				close(st.let) // its commit comes too late
			} else {
				dead.Store(false) // its renewal finds that the lease is lost, and cancels the Put
			}
			f.must(next(f, ended))
			if got := f.snapshot(snap.ID); got.Segment != committed || committed.Parts == 0 {
				t.Errorf("segment %+v, want that of the second committer: %+v", got.Segment, committed)
			}
			want := 1
			if writes {
				want = 2 // one is an orphan
			}
			if n := len(f.segments(snap.ID)); n != want {
				t.Errorf("%d segments, want %d", n, want)
			}
		})
	}
}
