package prune

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/store"
)

// A proof is how the bytes of an object compare with the checksums that readers have made of what
// they sealed. Parity is made without keys, so nothing else shows that it was made of sound bytes.
type proof struct {
	known  bool // the index has the checksums of all packs in the object
	damage int  // damaged frames with needed chunks; math.MaxInt: more than frames is damaged, or all is missing
}

func (p proof) sound() bool { return p.known && p.damage == 0 }

// proveObject compares the packs of an object with their checksums. rows are those of its packs.
// Errors are those of the index, and those of the store that concern more than this object.
func (o *Options) proveObject(ctx context.Context, from pack.Ranger, repository backup.RepositoryID, rows []int64) (p proof, err error) {
	packs, err := o.Index.PacksToProve(ctx, rows)
	if err != nil {
		return p, err
	}
	p.known = len(packs) > 0
	for i := range packs {
		k := &packs[i]
		// Adopted checksums are those of bytes that may have been damaged already.
		p.known = p.known && len(k.Sums) > 0 && !k.Adopted
		_, found, err := check.ProvePack(ctx, from, o.Index, repository, k, nil)
		switch {
		case err != nil:
			return p, err
		case found == nil:
		case found.Damage.Whole:
			p.damage = math.MaxInt
		case p.damage < math.MaxInt:
			p.damage += len(found.Damage.Frames)
		}
	}
	return p, nil
}

// bytesOf are the bytes of an object in memory, as check.ProvePack reads them.
type bytesOf []byte

// GetRange implements pack.Ranger.
func (b bytesOf) GetRange(_ context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if offset < 0 || length < 0 || offset > int64(len(b)) || length > int64(len(b))-offset {
		return dst, fmt.Errorf("%s: it ends before: %w", name, backup.ErrCorrupt)
	}
	return append(dst, b[offset:offset+length]...), nil
}

// Stat implements pack.Ranger.
func (b bytesOf) Stat(context.Context, string) (int64, error) { return int64(len(b)), nil }

// A provenStore is the store as parity.Make reads it: an object that becomes a member for the first
// time is read at once, and is damaged unless its packs are as they were sealed.
type provenStore struct {
	store.Store
	t    *tending
	of   map[string]*candidate
	name string // of the object in data
	data []byte
}

// GetRange implements parity.Ranger.
func (s *provenStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	c := s.of[name]
	if c == nil || c.Digest != (parity.Digest{}) {
		return s.Store.GetRange(ctx, dst, name, offset, length)
	}
	if s.name != name {
		s.name = ""
		data, err := s.Store.GetRange(ctx, s.data[:0], name, 0, c.Bytes)
		if err != nil {
			return dst, err
		}
		s.data = data
		p, err := s.t.proveObject(ctx, bytesOf(data), s.t.repository, s.t.rowsOf(c))
		if err != nil {
			return dst, err
		}
		if p.damage > 0 {
			return dst, fmt.Errorf("it is not what was sealed: %w", backup.ErrCorrupt)
		}
		s.name = name
	}
	return bytesOf(s.data).GetRange(ctx, dst, name, offset, length)
}

// rowsOf returns the rows of the packs of an object.
func (t *tending) rowsOf(c *candidate) (rows []int64) {
	if t.packsIn == nil {
		t.packsIn = map[string][]int64{}
		for i := range t.packs {
			if k := &t.packs[i]; !k.Deleting && k.Bytes > 0 {
				name := store.PackName(k.Snapshot, k.Object)
				t.packsIn[name] = append(t.packsIn[name], k.Row)
			}
		}
	}
	return t.packsIn[c.Name()]
}

// makeGroup is parity.Make for members that are proven. A member whose old group was made of
// damaged bytes, and that was put back since, counts as new.
func (t *tending) makeGroup(ctx context.Context, of []candidate, number int) (parity.Group, [][]byte, error) {
	s := &provenStore{Store: t.Store, t: t, of: map[string]*candidate{}}
	members := make([]parity.Member, len(of))
	for i := range of {
		members[i], s.of[of[i].Name()] = of[i].Member, &of[i]
	}
	for {
		g, objects, err := parity.Make(ctx, s, t.repository, members, number)
		bad, is := errors.AsType[*parity.BadMemberError](err)
		if !is || bad.Member.Digest == (parity.Digest{}) {
			return g, objects, err
		}
		c := s.of[bad.Member.Name()]
		p, proveErr := t.proveObject(ctx, t.Store, t.repository, t.rowsOf(c))
		if proveErr != nil {
			return g, objects, proveErr
		}
		if !p.sound() {
			return g, objects, err
		}
		c.Digest = parity.Digest{}
		for i := range members {
			if members[i].Name() == c.Name() {
				members[i].Digest = c.Digest
			}
		}
	}
}
