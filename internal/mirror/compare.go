package mirror

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/store"
)

// A Comparison is the result of Compare.
type Comparison struct {
	Summary
	// Missing are objects that the mirror lacks.
	Missing, MissingBytes int64
	// Unmarked are objects that the store has no longer, and of which the mirror has not noted it.
	Unmarked int64
	// Read are the objects that were read, on both sides.
	Read int64
}

// Differs reports whether anything is missing or damaged.
func (c *Comparison) Differs() bool { return c.Missing > 0 || len(c.Problems) > 0 }

// Compare compares the store with its mirror, and changes nothing. Objects are compared by name and
// size, and a share of them (Options.Reread) is read on both sides, proven, and compared with the
// notes. Of the Options, it uses From, To, Reread, Workers, Now and Progress.
func Compare(ctx context.Context, o Options) (Comparison, error) {
	o.DryRun = true
	var c Comparison
	p, err := newPass(ctx, o)
	if err != nil {
		return c, err
	}
	listed := map[string]int64{store.ConfigName: int64(len(p.prover.object))}
	for _, prefix := range slices.Backward(store.MirroredPrefixes) { // what refers to others first
		some, err := p.list(ctx, prefix)
		if err != nil {
			return c, err
		}
		for name, size := range some {
			listed[name] = size
		}
	}
	var both []string
	for name, size := range listed {
		h := p.state.get(name)
		switch {
		case !h.isHere():
			if needed, err := p.isNeeded(ctx, name); err != nil {
				return c, err
			} else if !needed {
				continue
			}
			c.Missing++
			c.MissingBytes += size
			p.report(Problem{Side: InMirror, Name: name, Text: "it is missing", Missing: true})
		case h.listed != size || h.isNoted() && h.sizeBytes != size:
			if !p.isReplaced(name) {
				p.sizes(name, &h, size)
			}
		case p.rereads(&h) || !h.isNoted() && o.Reread > 0:
			both = append(both, name)
		}
	}
	slices.Sort(both)
	p.begin("reading both", int64(len(both)))
	if err := p.each(ctx, both, p.Workers, p.compareBoth); err != nil {
		return c, err
	}
	for name, h := range p.state.objects {
		if _, there := listed[name]; !there && h.isHere() && h.goneSince == 0 {
			c.Unmarked++
		}
	}
	p.count()
	slices.SortFunc(p.summary.Problems, func(a, b Problem) int { return cmp.Compare(a.Name, b.Name) })
	c.Summary, c.Read = p.summary, int64(len(both))
	return c, nil
}

// isNeeded reports whether the mirror must have an object of the store: not a damaged catalog that
// a newer one has replaced, which is never copied.
func (p *pass) isNeeded(ctx context.Context, name string) (bool, error) {
	if !p.isReplaced(name) {
		return true, nil
	}
	s, err := p.prover.read(ctx, p.From, name)
	return s.whole(), err
}

// sizes reports an object of different sizes.
func (p *pass) sizes(name string, h *held, size int64) {
	switch {
	case h.isNoted() && h.sizeBytes == size:
		p.problem(InMirror, name, fmt.Sprintf("it has %d bytes, and the store's has %d", h.listed, size))
	case h.isNoted() && h.sizeBytes == h.listed:
		p.problem(InStore, name, fmt.Sprintf("it has %d bytes, and had %d when it was copied", size, h.listed))
	default:
		p.problem(InMirror, name, fmt.Sprintf("it has %d bytes, and the store's has %d: it is not known which is right", h.listed, size))
	}
}

// compareBoth reads an object on both sides.
func (p *pass) compareBoth(ctx context.Context, name string) error {
	h := p.state.get(name)
	original, err := p.prover.readNoted(ctx, p.From, name, &h)
	if err != nil {
		return err
	}
	copied, err := p.prover.readNoted(ctx, p.To, name, &h)
	if err != nil || original.gone || copied.gone { // deleted meanwhile
		return err
	}
	if original.err != nil {
		p.damagedIn(InStore, name, &original, "")
	}
	if copied.err != nil {
		p.damagedIn(InMirror, name, &copied, "")
	}
	if original.whole() && copied.whole() && original.sum != copied.sum {
		p.problem(InMirror, name, "the store and the mirror have different bytes, and neither is proven to be wrong")
	}
	return nil
}
