package prune

import (
	"context"
	"iter"
	"strings"
	"sync/atomic"

	"github.com/bctl/bctl/internal/store"
)

// Requests are the numbers of requests of a pass to the store, as S3 would need them. Finding the
// objects that nothing needs takes no request, because the index knows every pack.
type Requests struct {
	Deletes int64 // of up to 1,000 objects each
	Packs   int64 // of Deletes, those of packs
	Lists   int64 // of up to 1,000 objects each
	Gets    int64 // reads, and looks at sizes
	Puts    int64
}

// A countedStore counts its requests.
type countedStore struct {
	store.Store
	deletes, packs, lists, gets, puts atomic.Int64
}

// requests returns what was counted.
func (s *countedStore) requests() Requests {
	return Requests{s.deletes.Load(), s.packs.Load(), s.lists.Load(), s.gets.Load(), s.puts.Load()}
}

// Put implements store.Store.
func (s *countedStore) Put(ctx context.Context, name string, data []byte) error {
	s.puts.Add(1)
	return s.Store.Put(ctx, name, data)
}

// PutNew implements store.Store.
func (s *countedStore) PutNew(ctx context.Context, name string, data []byte) error {
	s.puts.Add(1)
	return s.Store.PutNew(ctx, name, data)
}

// GetRange implements store.Store.
func (s *countedStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	s.gets.Add(1)
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// Get implements store.Store.
func (s *countedStore) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	s.gets.Add(1)
	return s.Store.Get(ctx, name, maxBytes)
}

// Stat implements store.Store.
func (s *countedStore) Stat(ctx context.Context, name string) (int64, error) {
	s.gets.Add(1)
	return s.Store.Stat(ctx, name)
}

// List implements store.Store.
func (s *countedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		n := 0
		s.lists.Add(1)
		for o, err := range s.Store.List(ctx, prefix) {
			if n++; n > objectsAtOnce {
				n = 1
				s.lists.Add(1)
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

// Delete implements store.Store.
func (s *countedStore) Delete(ctx context.Context, names ...string) error {
	n := int64((len(names) + objectsAtOnce - 1) / objectsAtOnce)
	s.deletes.Add(n)
	if n > 0 && strings.HasPrefix(names[0], store.PacksPrefix) { // and so the others
		s.packs.Add(n)
	}
	return s.Store.Delete(ctx, names...)
}
