// Package parity computes parity objects over groups of objects of packs, so that a few lost or
// damaged ones of a group come back byte for byte. It needs no key: it works on sealed bytes.
// docs/formats/parity.md is the format.
//
// Make reads the members of a new group, and returns its parity objects. Restore reads what is left
// of a group, and returns what is lost.
//
// # Memory
//
// A member is read in blocks of 4 MiB, and added to the bodies. So Make needs the bodies and a
// block: at most 48 MiB per parity object. Restore reads stripes: 1 MiB of each object, and needs
// the lost objects in addition. Neither depends on how much is stored.
package parity

import (
	"context"
	"errors"
	"fmt"

	"github.com/klauspost/reedsolomon"
	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// A Ranger reads parts of objects.
type Ranger interface {
	GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error)
	Stat(ctx context.Context, name string) (int64, error)
}

const (
	blockBytes  = 4 << 20
	stripeBytes = 1 << 20
)

// A BadMemberError reports an object that cannot be a member of a new group: it is missing, or its
// bytes are not those of its digest.
type BadMemberError struct {
	Member Member
	Err    error
}

func (e *BadMemberError) Error() string { return e.Member.Name() + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *BadMemberError) Unwrap() error { return e.Err }

// lost reports whether an error of the store means that the object is missing, or another one.
func lost(err error) bool {
	return errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrInvalid)
}

// Make reads members, and returns a new group of them with its parity objects. Members with a
// digest must have it; the others get theirs. Members must have their lengths. Errors: those of the
// store, and a BadMemberError.
func Make(ctx context.Context, s Ranger, repository backup.RepositoryID, members []Member, parity int) (Group, [][]byte, error) {
	g := Group{Repository: repository, ID: backup.NewPackID(), Members: append([]Member(nil), members...), Bodies: make([]Digest, parity)}
	code, err := g.code()
	if err != nil {
		return g, nil, err
	}
	head := DescriptionBytes(len(members), parity)
	objects, bodies := make([][]byte, parity), make([][]byte, parity)
	for n := range objects {
		objects[n] = make([]byte, head+g.bodyBytes())
		bodies[n] = objects[n][head:]
	}
	var block []byte
	parts := make([][]byte, parity)
	for i := range g.Members {
		m := &g.Members[i]
		digest, err := eachBlock(ctx, s, m, &block, func(offset int64) error {
			for n := range parts {
				parts[n] = bodies[n][offset:][:len(block)]
			}
			return code.EncodeIdx(block, i, parts)
		})
		if err == nil && m.Digest != (Digest{}) && m.Digest != digest {
			err = &BadMemberError{*m, corrupt("its bytes have changed")}
		}
		if err != nil {
			return g, nil, err
		}
		m.Digest = digest
	}
	for n := range bodies {
		g.Bodies[n] = DigestOf(bodies[n])
	}
	for n := range objects {
		copy(objects[n], g.Describe(n))
	}
	return g, objects, nil
}

// code returns the arithmetic of the group.
func (g *Group) code() (reedsolomon.Encoder, error) {
	return reedsolomon.New(len(g.Members), len(g.Bodies), reedsolomon.WithCauchyMatrix(), reedsolomon.WithMaxGoroutines(2))
}

// eachBlock reads a member into blocks, calls do after each, and returns the digest.
func eachBlock(ctx context.Context, s Ranger, m *Member, block *[]byte, do func(offset int64) error) (digest Digest, err error) {
	size, err := s.Stat(ctx, m.Name())
	if err == nil && size != m.Bytes {
		err = corrupt("it has %d bytes instead of %d", size, m.Bytes)
	}
	h := blake3.New()
	for offset := int64(0); err == nil && offset < m.Bytes; offset += blockBytes {
		if *block, err = s.GetRange(ctx, (*block)[:0], m.Name(), offset, min(blockBytes, m.Bytes-offset)); err != nil {
			break
		}
		h.Write(*block)
		if err := do(offset); err != nil {
			return digest, err
		}
	}
	if err != nil && lost(err) {
		err = &BadMemberError{*m, err}
	}
	h.Sum(digest[:0])
	return digest, err
}

// An object is a member or a parity object of a group: members come first.
func (g *Group) object(i int) (name string, bytes int64, digest Digest, skip int64) {
	if n := i - len(g.Members); n >= 0 {
		head := DescriptionBytes(len(g.Members), len(g.Bodies))
		return g.Name(n), g.bodyBytes(), g.Bodies[n], head
	}
	m := &g.Members[i]
	return m.Name(), m.Bytes, m.Digest, 0
}

// Names returns the names of the members, and of the parity objects after them.
func (g *Group) Names() []string {
	names := make([]string, 0, len(g.Members)+len(g.Bodies))
	for i := range cap(names) {
		name, _, _, _ := g.object(i)
		names = append(names, name)
	}
	return names
}

// ErrTooMany reports that more objects of a group are lost than it has parity objects. It wraps
// backup.ErrCorrupt.
var ErrTooMany = fmt.Errorf("more objects of the parity group are lost than it can restore: %w", backup.ErrCorrupt)

// Restore computes the objects that are named in bad again. It finds by their digests which others
// are lost, too, and returns all of them, by name, each with its digest verified. Nothing is
// written. Errors: ErrTooMany, and those of the store.
func (g *Group) Restore(ctx context.Context, s Ranger, bad map[string]bool) (map[string][]byte, error) {
	names := g.Names()
	isBad := make([]bool, len(names))
	for i, name := range names {
		isBad[i] = bad[name]
	}
	for {
		found := -1
		restored, err := g.restore(ctx, s, names, isBad, &found)
		if found < 0 {
			return restored, err
		}
		isBad[found] = true
	}
}

// restore is Restore for known damage. If it finds another damaged object, it sets found.
func (g *Group) restore(ctx context.Context, s Ranger, names []string, bad []bool, found *int) (map[string][]byte, error) {
	var sources, lost []int
	for i := range names {
		switch {
		case bad[i]:
			lost = append(lost, i)
		case len(sources) < len(g.Members):
			sources = append(sources, i)
		}
	}
	if len(lost) > len(g.Bodies) {
		return nil, fmt.Errorf("%d of %d objects: %w", len(lost), len(names), ErrTooMany)
	}
	if len(lost) == 0 {
		return nil, nil
	}
	r, err := newRestoring(g, sources, lost)
	if err != nil {
		return nil, err
	}
	for offset := int64(0); offset < g.bodyBytes(); offset += stripeBytes {
		if err := r.stripe(ctx, s, offset, found); err != nil || *found >= 0 {
			return nil, err
		}
	}
	for i, h := range r.hashes {
		_, _, digest, _ := g.object(i)
		if got := (Digest(h.Sum(nil))); got != digest {
			*found = i
			return nil, nil
		}
	}
	restored := map[string][]byte{}
	for _, i := range lost {
		_, bytes, digest, skip := g.object(i)
		data := r.lost[i]
		if DigestOf(data[skip:][:bytes]) != digest {
			return nil, corrupt("what was computed of %s has another digest", names[i])
		}
		restored[names[i]] = data
	}
	return restored, nil
}

// A restoring computes lost objects from others.
type restoring struct {
	*Group
	code    reedsolomon.Encoder
	sources []int
	hashes  map[int]*blake3.Hasher // of the sources
	buffers map[int][]byte         // of these
	lost    map[int][]byte         // whole objects
	wanted  []bool
}

func newRestoring(g *Group, sources, lost []int) (*restoring, error) {
	code, err := g.code()
	if err != nil {
		return nil, err
	}
	r := &restoring{Group: g, code: code, sources: sources, hashes: map[int]*blake3.Hasher{}, buffers: map[int][]byte{}, lost: map[int][]byte{},
		wanted: make([]bool, len(g.Members)+len(g.Bodies))}
	size := min(stripeBytes, g.bodyBytes())
	for _, i := range sources {
		r.hashes[i], r.buffers[i] = blake3.New(), make([]byte, 0, size)
	}
	for _, i := range lost {
		_, bytes, _, skip := g.object(i)
		r.lost[i], r.wanted[i] = make([]byte, skip+bytes), true
		if skip > 0 {
			copy(r.lost[i], g.Describe(i-len(g.Members)))
		}
	}
	return r, nil
}

// stripe computes the bytes from offset on. found is set to a source that is lost.
func (r *restoring) stripe(ctx context.Context, s Ranger, offset int64, found *int) error {
	length := min(stripeBytes, r.bodyBytes()-offset)
	shards := make([][]byte, len(r.wanted))
	for _, i := range r.sources {
		name, bytes, _, skip := r.object(i)
		b := r.buffers[i][:0]
		if n := min(length, bytes-offset); n > 0 {
			var err error
			if b, err = s.GetRange(ctx, b, name, skip+offset, n); err != nil {
				if lost(err) {
					*found = i
					return nil
				}
				return err
			}
			r.hashes[i].Write(b)
		}
		if offset == 0 { // a longer object is another one
			size, err := s.Stat(ctx, name)
			if lost(err) || err == nil && size != skip+bytes {
				*found = i
				return nil
			}
			if err != nil {
				return err
			}
		}
		n := len(b)
		b = b[:length]
		clear(b[n:])
		r.buffers[i], shards[i] = b, b
	}
	if err := r.code.ReconstructSome(shards, r.wanted); err != nil {
		return err
	}
	for i, data := range r.lost {
		_, bytes, _, skip := r.object(i)
		if bytes > offset {
			copy(data[skip+offset:skip+bytes], shards[i])
		}
	}
	return nil
}

// CheckCost returns how many requests Check makes for a parity object, and how many bytes it reads.
func (g *Group) CheckCost(number int) (requests int, bytes int64) {
	_, body, _, _ := g.object(len(g.Members) + number)
	return 2 + int((body+blockBytes-1)/blockBytes), g.ObjectBytes()
}

// Check reads an object of the group as a whole, and compares its length and its digest. Errors:
// those of the store, and backup.ErrCorrupt.
func (g *Group) Check(ctx context.Context, s Ranger, name string) error {
	for i, at := range g.Names() {
		if at != name {
			continue
		}
		_, bytes, digest, skip := g.object(i)
		size, err := s.Stat(ctx, name)
		if err == nil && size != skip+bytes {
			err = corrupt("it has %d bytes, and must have %d", size, skip+bytes)
		}
		var block []byte
		if err == nil && skip > 0 {
			if block, err = s.GetRange(ctx, nil, name, 0, skip); err == nil {
				err = g.CheckDescription(block, i-len(g.Members))
			}
		}
		h := blake3.New()
		for offset := int64(0); err == nil && offset < bytes; offset += blockBytes {
			block, err = s.GetRange(ctx, block[:0], name, skip+offset, min(blockBytes, bytes-offset))
			h.Write(block)
		}
		if err == nil && Digest(h.Sum(nil)) != digest {
			err = corrupt("its bytes have changed since its parity group was made")
		}
		return err
	}
	return fmt.Errorf("%s is not in the group: %w", name, backup.ErrInvalid)
}
