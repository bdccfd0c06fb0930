package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A PlaceReader returns the places of chunks in packs.
type PlaceReader interface {
	Places(ctx context.Context, rows []int64) iter.Seq2[index.PlaceOf, error]
}

// ProvePack reads a whole pack with one request, and compares it with its checksums, without a key.
// It returns what is damaged, or nil. buf is storage for the bytes, which it returns. Damage to
// frames in which the index places nothing is none: a repair has dropped them, and the pack will be
// thinned. Adopted checksums do not show what is damaged, the bytes or the checksums: the finding
// is unsure. An error reports that the store or the index did not answer.
func ProvePack(ctx context.Context, s pack.Ranger, places PlaceReader, repository backup.RepositoryID, p *index.PackToProve, buf []byte) ([]byte, *Finding, error) {
	if p.Bytes > pack.MaxBytes || p.Bytes < 0 {
		return buf, damageOf(p.Row, p.PackPlace, fmt.Sprintf("the index says that it has %d bytes", p.Bytes)), nil
	}
	data, err := s.GetRange(ctx, buf, store.PackName(p.Snapshot, p.Object), p.Offset, p.Bytes)
	if err == nil {
		buf = data
		var damaged []uint32
		if damaged, err = pack.Prove(data, repository, cmp.Or(p.Sealed, p.Pack), p.FrameBytes, p.Sums); err == nil && damaged == nil {
			return buf, nil, nil
		}
		if err == nil {
			text := fmt.Sprintf("frames that do not match their checksums: %d of %d", len(damaged), len(p.FrameBytes))
			if p.Adopted {
				text = fmt.Sprintf("frames that are not as a scrub has read them first: %d of %d. They are damaged, or were damaged then", len(damaged), len(p.FrameBytes))
			}
			f := damageOf(p.Row, p.PackPlace, text)
			f.Damage.Whole, f.Damage.Frames, f.Damage.Unsure = false, map[uint32]bool{}, p.Adopted
			for _, n := range damaged {
				f.Damage.Frames[n] = true
			}
			f, err := needed(ctx, places, f)
			return buf, f, err
		}
	}
	if fatal(err) {
		return buf, nil, err
	}
	f := unreadable(p.Row, p.PackPlace, err)
	if p.Adopted && errors.Is(err, backup.ErrCorrupt) { // the table alone may be what differs
		_, whole := pack.Prove(buf, repository, cmp.Or(p.Sealed, p.Pack), p.FrameBytes, nil)
		f.Damage.Unsure = whole == nil
	}
	return buf, f, nil
}

// unreadable returns a finding of a whole pack that cannot be read.
func unreadable(row int64, at index.PackPlace, err error) *Finding {
	f := damageOf(row, at, err.Error())
	f.Damage.Missing = errors.Is(err, backup.ErrNotFound)
	return f
}

// damageOf returns a finding of a whole pack.
func damageOf(row int64, at index.PackPlace, text string) *Finding {
	return &Finding{Kind: Pack, Object: store.PackName(at.Snapshot, at.Object), Text: text, Damage: &Damage{Row: row, Pack: at, Whole: true}}
}

// needed returns nil if the index places nothing in the damaged frames of a pack: they were dropped
// by a repair, and the pack will be thinned.
func needed(ctx context.Context, places PlaceReader, f *Finding) (*Finding, error) {
	for place, err := range places.Places(ctx, []int64{f.Damage.Row}) {
		if err != nil {
			return nil, err
		}
		if f.Damage.Has(&place) {
			return f, nil
		}
	}
	return nil, nil
}

// ProveSigned reads an object of the journal, and verifies its signature, without a key. It returns
// what is damaged, or nil. An object that is gone is not damaged: the check of the level Objects
// knows which ones there must be.
func ProveSigned(ctx context.Context, s Getter, repository backup.RepositoryID, signer seal.Signer, name string) (*Finding, error) {
	data, err := s.Get(ctx, name, pack.MaxBytes)
	if errors.Is(err, backup.ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		err = pack.Verify(data, name, repository, signer)
	}
	switch {
	case err == nil:
		return nil, nil
	case fatal(err):
		return nil, err
	}
	return &Finding{Kind: kindOf(name), Object: name, Text: err.Error()}, nil
}

// A Getter is the part of a store that returns whole objects.
type Getter interface {
	Get(ctx context.Context, name string, maxBytes int64) ([]byte, error)
}

// kindOf returns what an object of the journal is.
func kindOf(name string) Kind {
	switch {
	case strings.HasPrefix(name, store.SegmentsPrefix):
		return Segment
	case strings.HasPrefix(name, store.CommitsPrefix):
		return Record
	case strings.HasPrefix(name, store.CatalogPrefix):
		return Catalog
	}
	return Copy
}
