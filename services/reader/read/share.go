package read

import (
	"context"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
)

// shares divide a scarce resource among filers, so that a slow one cannot take it all: a filer may
// have no more than the limit, and no more than are free. A single filer gets the limit; no matter
// how many filers hold their shares for long, some remain for another.
type shares struct {
	limit int // per filer

	mu      sync.Mutex
	free    int // below 0 if shares were forced
	held    map[backup.FilerID]int
	waiting []*waiter // first come, first served
}

type waiter struct {
	filer   backup.FilerID
	granted chan struct{}
}

func newShares(total, limit int) *shares {
	return &shares{limit: limit, free: total, held: map[backup.FilerID]int{}}
}

// take waits for a share.
func (s *shares) take(ctx context.Context, filer backup.FilerID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.may(filer) {
		s.grant(filer)
		s.mu.Unlock()
		return nil
	}
	w := &waiter{filer: filer, granted: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 { // it was granted at the same time
		s.give(filer)
	}
	return ctx.Err()
}

// tryTake takes a share if there is one now.
func (s *shares) tryTake(filer backup.FilerID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.may(filer) {
		return false
	}
	s.grant(filer)
	return true
}

// force takes a share even if none is free: for a holder that had one before, and continues its
// work.
func (s *shares) force(filer backup.FilerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grant(filer)
}

// give returns a share, and grants those that have become possible: to the filer that has the
// fewest.
func (s *shares) give(filer backup.FilerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[filer]--; s.held[filer] == 0 {
		delete(s.held, filer)
	}
	for {
		next := -1
		for i, w := range s.waiting {
			if s.may(w.filer) && (next < 0 || s.held[w.filer] < s.held[s.waiting[next].filer]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		s.grant(w.filer)
		close(w.granted)
	}
}

func (s *shares) may(filer backup.FilerID) bool {
	return s.held[filer] < min(s.limit, s.free)
}

func (s *shares) grant(filer backup.FilerID) {
	s.free--
	s.held[filer]++
}
