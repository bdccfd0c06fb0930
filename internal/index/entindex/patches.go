package entindex

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/bctl/bctl/internal/listing"
)

// maxPatch returns the maximum length of a patch, given the stored length of its base: 15% to 35%
// of it. The patches of one base grow with the changes since then, and with these shares they take
// about as many bytes as the bases. The share depends on the page: after a first backup, all pages
// have bases of the same age, and with one share, most pages would be stored whole again by the
// same few backups.
func (id *PageID) maxPatch(base int) int {
	const low, high = 38, 90 // of 256
	share := low + (int(id.Directory[0])+int(id.Key))&255*(high-low)/255
	return base * share / 256
}

// preparePages turns rows with listings into rows for PutPages: it decides how each is stored, and
// leaves out those that equal the open versions of their pages.
//
// A version that replaces another one is stored as a patch of the newest version that is no patch
// itself. So at most one more row is read for each row. If the patch would be too large, or there
// is no such version from before this snapshot, the listing is stored whole, as a patch without a
// base. Its plain form is the same in every version of zstd, and segments have patches of plain
// listings.
//
// The names that the rows bring are noted.
func (tx *Tx) preparePages(ctx context.Context, rows []PageRow, n *namer) ([]PageRow, error) {
	kept := rows[:0]
	for group := range slices.Chunk(rows, pagesLimit) {
		names := make([]PageID, len(group))
		for i := range group {
			names[i] = group[i].id()
		}
		open, err := tx.Hot.OpenPages(ctx, names)
		if err != nil {
			return nil, err
		}
		for i := range group {
			row := group[i]
			group[i].Ends = open[i].First != 0 && open[i].First < group[i].Number
			n.of.compared = nil
			same, plain, err := group[i].replace(&open[i], &n.of)
			if err != nil {
				return nil, err
			}
			if !same {
				n.add(&row, plain, &open[i])
				kept = append(kept, group[i])
			}
		}
	}
	return kept, nil
}

// replace prepares the row to replace the open version. It reports whether that is the same, and
// returns the plain listing, if it is known.
func (p *PageRow) replace(open *OpenPage, of *preparation) (same bool, plain []byte, err error) {
	if open.First == 0 {
		return false, nil, nil
	}
	plain, err = listing.Plain(p.Listing)
	if err != nil { // it is stored as it is, and refused by those who read it
		return p.Fingerprint == open.Fingerprint && bytes.Equal(p.Listing, open.Listing), nil, nil
	}
	if p.Fingerprint == open.Fingerprint {
		if old, err := listing.Plain(Whole(open.Listing, open.BaseListing)); err == nil && bytes.Equal(old, plain) {
			return true, plain, nil
		}
	}
	if !open.Patches || len(plain) > listing.MaxPatchedBytes {
		return false, plain, nil
	}
	return false, plain, p.patch(open, plain, of)
}

// patch makes the row's listing, the plain form of which is given, a patch.
func (p *PageRow) patch(open *OpenPage, plain []byte, of *preparation) error {
	v, err := p.version()
	if err != nil {
		return err
	}
	v.Listing = plain
	p.Digest = listing.Digest(&v)
	if cmp.Or(open.Base, open.First) >= p.Number { // this snapshot began the base, and may replace it now
		p.Listing = listing.AppendPatch(nil, nil, plain)
		return nil
	}
	name := p.id()
	p.Listing, p.Base = of.store(&name, open, plain, nil)
	return nil
}
