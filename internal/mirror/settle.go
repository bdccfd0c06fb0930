package mirror

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// errVanished: the store has the object no longer.
var errVanished = errors.New("the object is gone")

// A seen is an object as it was read from one side.
type seen struct {
	data []byte
	sum  sum
	err  error // why the bytes cannot be those of the object; nil: they are proven
	gone bool
	// changed: err is that of compare.
	changed bool
}

// whole reports whether the bytes are proven.
func (s *seen) whole() bool { return !s.gone && s.err == nil }

// read reads an object and proves it. An error is one that concerns more than this object.
func (p *Prover) read(ctx context.Context, from Reader, name string) (s seen, err error) {
	s.data, err = from.Get(ctx, name, maxObjectBytes)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		return seen{gone: true}, nil
	case err != nil && damaged(err):
		return seen{err: err}, nil
	case err != nil:
		return s, err
	}
	s.sum = sha256.Sum256(s.data)
	if s.err = p.Prove(name, s.data); s.err != nil && !damaged(s.err) {
		return s, s.err
	}
	return s, nil
}

// readNoted reads an object and proves it, also by the mirror's note, which proves more than a pack
// does.
func (p *Prover) readNoted(ctx context.Context, from Reader, name string, h *held) (seen, error) {
	s, err := p.read(ctx, from, name)
	if err == nil && h.isNoted() {
		s.compare(h)
	}
	return s, err
}

// settle makes the mirror have an object of the store, or reports why it cannot.
func (p *pass) settle(ctx context.Context, name string) error {
	h := p.state.get(name)
	original, err := p.original(ctx, name, &h)
	if err != nil {
		return err
	}
	if original.gone {
		return errVanished
	}
	var copied seen
	if h.isHere() {
		if copied, err = p.prover.readNoted(ctx, p.To, name, &h); err != nil {
			return err
		}
		p.mu.Lock()
		p.summary.Reread++
		p.mu.Unlock()
	} else {
		copied.gone = true
	}
	if p.Replace[name] && original.whole() && copied.whole() && original.sum != copied.sum {
		copied.err = errReplaced
	}
	switch {
	case original.whole() && copied.whole() && original.sum == copied.sum:
		return p.adopt(ctx, name, &h, &copied)
	case original.whole() && copied.whole():
		text := "the store and the mirror have different bytes, and neither is proven to be wrong: nothing was changed"
		if _, is := store.ParseCatalogName(name); is {
			text += ". If the store was made again as of an earlier time, mirror it to another place"
		}
		p.problem(InMirror, name, text)
		return nil
	case !original.whole() && copied.whole():
		after := "; the mirror's is whole"
		if original.changed {
			after = "; the mirror's are"
		}
		p.damagedIn(InStore, name, &original, after)
		return nil
	case !original.whole() && copied.gone:
		p.damagedIn(InStore, name, &original, "; it was not copied")
		return nil
	case !original.whole():
		p.damagedIn(InStore, name, &original, "; so is the mirror's")
		return nil
	}
	return p.put(ctx, name, &h, &original, &copied)
}

// errReplaced is why an object of the mirror is replaced that is as it was copied.
var errReplaced = errors.New("it is to be replaced")

// original reads an object of the store. If it is to replace the mirror's, the note does not count.
func (p *pass) original(ctx context.Context, name string, h *held) (seen, error) {
	if p.Replace[name] {
		return p.prover.read(ctx, p.From, name)
	}
	return p.prover.readNoted(ctx, p.From, name, h)
}

// compare finds bytes that are not those that were copied.
func (s *seen) compare(h *held) {
	if s.whole() && s.sum != h.sum {
		s.changed, s.err = true, fmt.Errorf("its bytes are not those that were copied at first: %w", backup.ErrCorrupt)
	}
}

// adopt notes an object that is whole in the mirror.
func (p *pass) adopt(ctx context.Context, name string, h *held, s *seen) error {
	if h.isNoted() {
		return nil
	}
	p.mu.Lock()
	p.summary.Adopted++
	p.mu.Unlock()
	copied := min(h.since(), p.Now().Unix())
	return p.state.take(ctx, name, note{sizeBytes: int64(len(s.data)), sum: s.sum, copied: copied})
}

// put puts an object into the mirror, in place of a damaged one if there is one.
func (p *pass) put(ctx context.Context, name string, h *held, original, copied *seen) error {
	if !copied.gone {
		// A store refuses to replace an object.
		if err := p.To.Delete(ctx, name); store.IsLocked(err) {
			p.damagedIn(InMirror, name, copied, "; it is locked, so it cannot be replaced")
			return nil
		} else if err != nil {
			return err
		}
	}
	err := p.To.Put(ctx, name, original.data)
	if errors.Is(err, backup.ErrExists) { // another process has put other bytes, or the list is old
		p.problem(InMirror, name, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.summary.Copied++
	p.summary.CopiedBytes += int64(len(original.data))
	if !copied.gone {
		p.summary.Replaced++
	}
	p.mu.Unlock()
	n := note{sizeBytes: int64(len(original.data)), sum: original.sum, copied: p.Now().Unix()}
	if h.isNoted() { // it was there before
		n.copied = h.copied
	}
	if p.Replace[name] { // of two notes, the one with the longer lock counts
		n.locked = h.locked
	}
	return p.state.take(ctx, name, n)
}
