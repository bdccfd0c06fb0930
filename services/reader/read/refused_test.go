package read

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
)

// A retryingStore repeats all requests for as long as it refuses them, as the client of a store
// does for minutes. The reader knows of a refusal after the first attempt.
type retryingStore struct {
	store.Store
	why     atomic.Pointer[error] // why requests are refused; nil: they are not
	known   atomic.Bool
	waiting chan string // names of objects whose requests are being repeated
	puts    atomic.Int64
}

func (r *retryingStore) refuse(err error) {
	if err == nil {
		r.why.Store(nil)
		r.known.Store(false)
		return
	}
	r.why.Store(&err)
}

func (r *retryingStore) refused() error {
	if why := r.why.Load(); why != nil && r.known.Load() {
		return *why
	}
	return nil
}

func (r *retryingStore) repeat(ctx context.Context, name string) error {
	if r.why.Load() == nil {
		return nil
	}
	r.waiting <- name
	<-ctx.Done()
	return ctx.Err()
}

func (r *retryingStore) Put(ctx context.Context, name string, data []byte) error {
	r.puts.Add(1)
	if err := r.repeat(ctx, name); err != nil {
		return err
	}
	return r.Store.Put(ctx, name, data)
}

func (r *retryingStore) Stat(ctx context.Context, name string) (int64, error) {
	if err := r.repeat(ctx, name); err != nil {
		return 0, err
	}
	return r.Store.Stat(ctx, name)
}

// refusing returns a running reader with a retryingStore.
func (f *fixture) refusing(t *testing.T) (*retryingStore, *run) {
	refuses := &retryingStore{Store: f.store, waiting: make(chan string, 64)}
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{Linger: time.Millisecond, Refused: refuses.refused})
	s.Store = refuses
	f.reader = s
	return refuses, runReader(t, s)
}

// While an upload is repeated, the store becomes known to refuse writes: all batches are handed
// back at once, those whose content is in the upload and those that are still read. Nothing more is
// uploaded. When the store accepts writes again, the same attempts are read, and settled once.
func TestUploadThatIsRefusedHoldsNoBatch(t *testing.T) {
	for name, why := range map[string]error{"full": store.ErrFull, "credentials": fmt.Errorf("expired token: %w", fs.ErrPermission)} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, treetest.Tree{
				"a": treetest.Dir(), "a/1": treetest.File("one"), "b": treetest.Dir(), "b/2": treetest.File("two"),
				"c": treetest.Dir(), "c/3": treetest.File(random(3, 20<<20)), "d": treetest.Dir(), "d/4": treetest.File("four"),
			})
			refuses, r := f.refusing(t)
			batches := f.batchesOf("a", "b", "c", "d", "")
			begun, release := f.unsteady().hang(t, "3")
			refuses.refuse(why)
			told := []told{r.give(batches[0]), r.give(batches[1])}
			<-refuses.waiting
			told = append(told, r.give(batches[2]))
			<-begun
			refuses.known.Store(true)
			release()
			told = append(told, r.give(batches[3]))
			known := time.Now()
			for _, d := range told {
				d.wants(t, "handed back")
			}
			if took := time.Since(known); took > 20*time.Second {
				t.Errorf("they are handed back after %v", took)
			}
			if n := refuses.puts.Load(); n > 2 { // of a and b, before the refusal was known
				t.Errorf("%d uploads begin at a store that refuses them", n)
			}
			if s := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t); s.Complete() || s.Counts.Errors != 0 {
				t.Errorf("a batch was settled: %+v", s)
			}
			refuses.refuse(nil)
			for _, msg := range batches {
				r.give(msg).wants(t, "acknowledged")
			}
			f.commit()
			f.wantTree()
		})
	}
}

// A check whether the store has a pack is not repeated for minutes either, and what it could not
// find out is not believed: the pack does not count as lost.
func TestCheckThatIsRefusedHoldsNoBatch(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File("content")})
	f.read(f.batchOf(""))
	f.commit()
	refuses, r := f.refusing(t) // it remembers nothing of the first one
	refuses.refuse(fmt.Errorf("expired token: %w", fs.ErrPermission))
	msg := f.batchOf("")
	d := r.give(msg)
	<-refuses.waiting
	refuses.known.Store(true)
	d.wants(t, "handed back")
	refuses.refuse(nil)
	r.give(msg).wants(t, "acknowledged")
	f.commit()
	f.wantTree()
	if n := f.reader.LostPacks(); n != 0 {
		t.Errorf("%d packs count as lost", n)
	}
	if n := refuses.puts.Load(); n != 0 {
		t.Errorf("%d packs were stored again", n)
	}
}

// A store that is only away refuses nothing: what is uploaded is not given up.
func TestTransientErrorsHoldTheBatch(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File("content")})
	refuses, r := f.refusing(t)
	refuses.refuse(backup.StoreAway)
	d := r.give(f.batchOf(""))
	<-refuses.waiting
	select {
	case how := <-d:
		t.Errorf("the batch is %s", how)
	case <-time.After(3 * refusedEvery):
	}
}

// The error of a request is that of the store, unless the request was given up.
func TestErrorsOfRequests(t *testing.T) {
	why := fmt.Errorf("expired: %w", fs.ErrPermission)
	s := &Service{opts: Options{Refused: func() error { return nil }}}
	if err := s.whileAccepted(t.Context(), func(context.Context) error { return errPower }); !errors.Is(err, errPower) || isRefused(err) {
		t.Errorf("error %v", err)
	}
	s.opts.Refused = func() error { return why }
	err := s.whileAccepted(t.Context(), func(context.Context) error { t.Error("a request is made"); return nil })
	if !isRefused(err) || errors.Is(err, fs.ErrPermission) || err.Error() != why.Error() {
		t.Errorf("error %v", err)
	}
}
