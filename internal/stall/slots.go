package stall

import (
	"context"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
)

// Slots divide a scarce resource among filers, so that a slow filer cannot take all of it. A filer
// gets another slot only if the number that it has is below the limit, and below the number of free
// slots. A single filer can reach the limit. Even if several filers keep their slots for long, some
// remain for another filer.
type Slots struct {
	limit int // per filer

	mu      sync.Mutex
	free    int // below 0 if slots were forced
	filers  map[backup.FilerID]*seats
	waiting int    // waiters of all filers
	came    uint64 // waiters so far
	spare   *seats // of a filer that was removed, for the next
}

// The seats of a filer are the slots that it has, and those it waits for.
type seats struct {
	taken   int
	waiting []*waiter // first come, first served
}

type waiter struct {
	number  uint64 // of all filers' waiters, in order
	granted chan struct{}
}

// NewSlots returns this many slots, of which a filer gets no more than the limit.
func NewSlots(total, limit int) *Slots {
	return &Slots{limit: limit, free: total, filers: map[backup.FilerID]*seats{}}
}

// Take waits for a slot, until ctx is done.
func (p *Slots) Take(ctx context.Context, filer backup.FilerID) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	s := p.of(filer)
	if p.may(s) {
		p.grant(s)
		p.mu.Unlock()
		return nil
	}
	w := &waiter{number: p.came, granted: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	p.came++
	p.waiting++
	p.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	p.giveUp(filer, s, w)
	return context.Cause(ctx)
}

// giveUp removes w from the waiters. If w was granted a slot at the same time, giveUp gives that
// back.
func (p *Slots) giveUp(filer backup.FilerID, s *seats, w *waiter) {
	p.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		p.waiting--
		p.forget(filer, s)
	}
	p.mu.Unlock()
	if i < 0 {
		p.Give(filer)
	}
}

// TryTake takes a slot if there is one now.
func (p *Slots) TryTake(filer backup.FilerID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of(filer)
	if !p.may(s) {
		p.forget(filer, s)
		return false
	}
	p.grant(s)
	return true
}

// Force takes a slot even if none is free: for work that had one before, and continues.
func (p *Slots) Force(filer backup.FilerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grant(p.of(filer))
}

// Give gives a slot back. It then grants slots to waiters while there are slots that they may have,
// first to the filer that has the fewest.
func (p *Slots) Give(filer backup.FilerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.of(filer)
	p.free++
	s.taken--
	p.forget(filer, s)
	for p.waiting > 0 {
		next := p.next()
		if next == nil {
			return
		}
		w := next.waiting[0]
		next.waiting = slices.Delete(next.waiting, 0, 1)
		p.waiting--
		p.grant(next)
		close(w.granted)
	}
}

// next returns the filer that gets the next slot, or nil if no waiting filer may have one.
func (p *Slots) next() (next *seats) {
	for _, s := range p.filers {
		if len(s.waiting) == 0 || !p.may(s) {
			continue
		}
		if next == nil || s.taken < next.taken || s.taken == next.taken && s.waiting[0].number < next.waiting[0].number {
			next = s
		}
	}
	return next
}

// Taken returns how many slots all filers have.
func (p *Slots) Taken() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.filers {
		n += s.taken
	}
	return n
}

func (p *Slots) of(filer backup.FilerID) *seats {
	s := p.filers[filer]
	if s == nil {
		s = p.spare
		if p.spare = nil; s == nil {
			s = &seats{}
		}
		p.filers[filer] = s
	}
	return s
}

// forget removes a filer that has no slot, and waits for none.
func (p *Slots) forget(filer backup.FilerID, s *seats) {
	if s.taken == 0 && len(s.waiting) == 0 {
		delete(p.filers, filer)
		p.spare = s
	}
}

func (p *Slots) may(s *seats) bool { return s.taken < min(p.limit, p.free) }

func (p *Slots) grant(s *seats) {
	p.free--
	s.taken++
}
