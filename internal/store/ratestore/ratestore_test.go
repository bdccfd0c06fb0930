package ratestore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, err := dirstore.Create(filepath.Join(t.TempDir(), "store"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return New(s, 1<<20, 1<<40)
	})
}

// A quick is a store that does nothing, in no time.
type quick struct {
	store.Store
	deletes []int // sizes
}

func (q *quick) String() string                               { return "quick" }
func (q *quick) Put(context.Context, string, []byte) error    { return nil }
func (q *quick) PutNew(context.Context, string, []byte) error { return nil }
func (q *quick) Stat(context.Context, string) (int64, error)  { return 0, nil }
func (q *quick) Get(context.Context, string, int64) ([]byte, error) {
	return make([]byte, 3000), nil
}

func (q *quick) GetRange(_ context.Context, dst []byte, _ string, _, length int64) ([]byte, error) {
	return append(dst, make([]byte, length)...), nil
}

func (q *quick) Delete(_ context.Context, names ...string) error {
	q.deletes = append(q.deletes, len(names))
	return nil
}

func (q *quick) List(context.Context, string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for i := range 2500 {
			if !yield(store.Object{Name: fmt.Sprint(i)}, nil) {
				return
			}
		}
	}
}

// Each operation takes the seconds that its requests and bytes take, beyond the burst of the first
// second.
func TestLimits(t *testing.T) {
	list := func(s *Store) error {
		for _, err := range s.List(context.Background(), "") {
			if err != nil {
				return err
			}
		}
		return nil
	}
	ctx := context.Background()
	for name, test := range map[string]struct {
		requests, bytes int
		seconds         float64
		do              func(s *Store) error
	}{
		"no limit": {0, 0, 0, func(s *Store) error { return s.Put(ctx, "a", make([]byte, 1<<20)) }},
		"put":      {0, 1000, 9, func(s *Store) error { return s.Put(ctx, "a", make([]byte, 10_000)) }},
		"put new":  {0, 1000, 9, func(s *Store) error { return s.PutNew(ctx, "a", make([]byte, 10_000)) }},
		"get":      {0, 1000, 2, func(s *Store) error { _, err := s.Get(ctx, "a", 1<<20); return err }},
		"range":    {0, 1000, 3, func(s *Store) error { _, err := s.GetRange(ctx, nil, "a", -4000, 4000); return err }},
		"requests": {2, 0, 1.5, func(s *Store) error {
			for range 2 {
				if _, err := s.Stat(ctx, "a"); err != nil {
					return err
				}
			}
			if err := s.Put(ctx, "a", nil); err != nil {
				return err
			}
			if _, err := s.GetRange(ctx, nil, "a", 0, 0); err != nil {
				return err
			}
			_, err := s.Get(ctx, "a", 1)
			return err
		}},
		"list":   {1, 0, 2, list},
		"delete": {4, 0, 1.5, func(s *Store) error { return s.Delete(ctx, make([]string, 10)...) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, began := New(&quick{}, test.requests, test.bytes), time.Now()
				if err := test.do(s); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != time.Duration(test.seconds*float64(time.Second)) {
					t.Errorf("took %s, want %v s", took, test.seconds)
				}
			})
		})
	}
}

func TestDeletesAtOnce(t *testing.T) {
	for requests, want := range map[int]string{0: "[10]", 4: "[4 4 2]", 100: "[10]"} {
		synctest.Test(t, func(t *testing.T) {
			q := &quick{}
			if err := New(q, requests, 0).Delete(t.Context(), make([]string, 10)...); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(q.deletes); got != want {
				t.Errorf("%d requests per second: deletes of %s objects, want %s", requests, got, want)
			}
		})
	}
}

// A call that waits ends with its context.
func TestCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := New(&quick{}, 0, 1)
		time.AfterFunc(time.Minute, cancel)
		if err := s.Put(ctx, "a", make([]byte, 1000)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}
