package drill

import (
	"context"
	"errors"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// A watchedStore remembers whether a store has refused a request, or has not answered one. Then
// what was not restored proves nothing.
type watchedStore struct {
	store.Store

	mu  sync.Mutex
	err error // of the first such request
}

// GetRange implements store.Store.
func (s *watchedStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	data, err := s.Store.GetRange(ctx, dst, name, offset, length)
	s.note(ctx, err)
	return data, err
}

// Get implements store.Store.
func (s *watchedStore) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	data, err := s.Store.Get(ctx, name, maxBytes)
	s.note(ctx, err)
	return data, err
}

// note notes an error, unless it is one of the object.
func (s *watchedStore) note(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil || errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// failed returns the first error.
func (s *watchedStore) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
