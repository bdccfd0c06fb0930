// Package ratestore limits how much a process asks of a store.
package ratestore

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/bctl/bctl/internal/store"
)

// listObjects is how many objects of a list count as one request: those of a page of S3's.
const listObjects = 1000

// A Store is a store.Store that waits before requests, so that all callers together stay within the
// limits. Each object of a Delete counts as a request, as it does for S3 servers that limit
// requests. Bytes are those that are read or written.
type Store struct {
	store.Store
	requests, bytes *rate.Limiter
}

// New limits a store to requests and bytes per second, with bursts of one second. 0 is no limit.
func New(s store.Store, requestsPerSecond, bytesPerSecond int) *Store {
	return &Store{s, limiter(requestsPerSecond), limiter(bytesPerSecond)}
}

func limiter(perSecond int) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), perSecond)
}

// wait waits until n more fit. op and name are those of the operation that waits.
func (s *Store) wait(ctx context.Context, l *rate.Limiter, n int64, op, name string) error {
	for n > 0 && l.Limit() != rate.Inf {
		part := min(n, int64(l.Burst()))
		if err := l.WaitN(ctx, int(part)); err != nil {
			return &store.Error{Store: s.String(), Op: op, Name: name, Err: err}
		}
		n -= part
	}
	return nil
}

// put waits before a Put of data.
func (s *Store) put(ctx context.Context, name string, data []byte) error {
	if err := s.wait(ctx, s.requests, 1, "put", name); err != nil {
		return err
	}
	return s.wait(ctx, s.bytes, int64(len(data)), "put", name)
}

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, name string, data []byte) error {
	if err := s.put(ctx, name, data); err != nil {
		return err
	}
	return s.Store.Put(ctx, name, data)
}

// PutNew implements store.Store.
func (s *Store) PutNew(ctx context.Context, name string, data []byte) error {
	if err := s.put(ctx, name, data); err != nil {
		return err
	}
	return s.Store.PutNew(ctx, name, data)
}

// GetRange implements store.Store. It waits for the bytes after they were read, as does Get: there
// may be fewer than the caller asks for.
func (s *Store) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if err := s.wait(ctx, s.requests, 1, "get", name); err != nil {
		return nil, err
	}
	data, err := s.Store.GetRange(ctx, dst, name, offset, length)
	if err == nil {
		err = s.wait(ctx, s.bytes, int64(len(data)-len(dst)), "get", name)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	if err := s.wait(ctx, s.requests, 1, "get", name); err != nil {
		return nil, err
	}
	data, err := s.Store.Get(ctx, name, maxBytes)
	if err == nil {
		err = s.wait(ctx, s.bytes, int64(len(data)), "get", name)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// Stat implements store.Store.
func (s *Store) Stat(ctx context.Context, name string) (int64, error) {
	if err := s.wait(ctx, s.requests, 1, "stat", name); err != nil {
		return 0, err
	}
	return s.Store.Stat(ctx, name)
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		if err := s.wait(ctx, s.requests, 1, "list", prefix); err != nil {
			yield(store.Object{}, err)
			return
		}
		n := 0
		for o, err := range s.Store.List(ctx, prefix) {
			if !yield(o, err) {
				return
			}
			if n++; n%listObjects != 0 {
				continue
			}
			if err := s.wait(ctx, s.requests, 1, "list", prefix); err != nil {
				yield(store.Object{}, err)
				return
			}
		}
	}
}

// Delete implements store.Store. It deletes as many objects at once as the limit allows in a
// second.
func (s *Store) Delete(ctx context.Context, names ...string) error {
	atOnce := max(len(names), 1)
	if s.requests.Limit() != rate.Inf {
		atOnce = s.requests.Burst()
	}
	var locked *store.LockedError
	for group := range slices.Chunk(names, atOnce) {
		if err := s.wait(ctx, s.requests, int64(len(group)), "delete", group[0]); err != nil {
			return err
		}
		err := s.Store.Delete(ctx, group...)
		some, refused := errors.AsType[*store.LockedError](err)
		switch {
		case !refused && err != nil:
			return err
		case refused && locked == nil:
			locked = some
		case refused:
			locked.Names = append(locked.Names, some.Names...)
		}
	}
	if locked != nil {
		return &store.Error{Store: s.String(), Op: "delete", Err: locked}
	}
	return nil
}

// Lock implements store.Store.
func (s *Store) Lock(ctx context.Context, name string, until time.Time) error {
	if err := s.wait(ctx, s.requests, 1, "lock", name); err != nil {
		return err
	}
	return s.Store.Lock(ctx, name, until)
}
