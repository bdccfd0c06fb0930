package journal

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

const (
	added   = 1
	ended   = 2
	patched = 3 // added, as a patch of the base's version

	// maxChangeBytes is the maximum encoded length of a change without its path and listing.
	maxChangeBytes = 1 + 16 + 4*binary.MaxVarintLen64
)

// appendChange appends a change. The listing of an added page is given as stored: it is a patch if
// kind is patched.
func appendChange(b []byte, kind byte, c *backup.PageChange, stored []byte) []byte {
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(c.Path)))
	b = append(b, c.Path...)
	b = binary.AppendUvarint(b, uint64(c.Key))
	if c.Ended {
		return b
	}
	b = append(b, c.Fingerprint[:]...)
	b = binary.AppendUvarint(b, c.Inode)
	b = binary.AppendUvarint(b, uint64(len(stored)))
	return append(b, stored...)
}

// patchOf returns the patch of a page, given the base's version, and false if there is none. The
// listing must be plain, because the listing that a patch produces is plain.
func patchOf(c *backup.PageChange) ([]byte, bool) {
	if c.Replaces == nil || !listing.IsPlain(c.Listing) || len(c.Listing) > listing.MaxPatchedBytes {
		return nil, false
	}
	base, err := listing.Plain(c.Replaces)
	if err != nil || len(base) > listing.MaxPatchedBytes {
		return nil, false
	}
	return listing.AppendPatch(nil, base, c.Listing), true
}

// A StoredChange is a change as a segment has it.
type StoredChange struct {
	backup.PageChange
	// Patched: the Listing is a patch of the base's version of the page, and there is no Digest.
	Patched bool
}

// Complete makes the listing of a patched change from that of the base's version of the page, nil
// for none, and the digest. A change that is not patched is complete already.
func (c *StoredChange) Complete(base []byte) (err error) {
	if !c.Patched {
		return nil
	}
	if base == nil {
		return fmt.Errorf("segment: page %d of %q has a patch and no base: %w", c.Key, c.Path, backup.ErrCorrupt)
	}
	if base, err = listing.Plain(base); err != nil {
		return err
	}
	if c.Listing, err = listing.Patched(base, c.Listing); err != nil {
		return err
	}
	c.Patched, c.Digest = false, listing.Digest(&c.PageVersion)
	return nil
}

// decodeChange decodes the first change of b. patches says whether patches may occur there.
func decodeChange(b []byte, patches bool) (c StoredChange, rest []byte, err error) {
	r := reader{b: b}
	kind := r.bytes(1)
	path := r.bytes(r.uvarint())
	key := r.uvarint()
	if !r.bad {
		c.Path, c.Key, c.Ended, c.Patched = string(path), backup.PageKey(key), kind[0] == ended, kind[0] == patched
	}
	if !r.bad && !c.Ended {
		copy(c.Fingerprint[:], r.bytes(uint64(len(c.Fingerprint))))
		c.Inode = r.uvarint()
		c.Listing = append([]byte(nil), r.bytes(r.uvarint())...)
	}
	if r.bad || kind[0] < added || kind[0] > patched || c.Patched && !patches || key > math.MaxInt64 {
		return StoredChange{}, nil, fmt.Errorf("segment: invalid change: %w", backup.ErrCorrupt)
	}
	if err := backup.CheckPath(c.Path); err != nil {
		return StoredChange{}, nil, fmt.Errorf("segment: %w: %w", err, backup.ErrCorrupt)
	}
	if !c.Ended && !c.Patched {
		c.Digest = listing.Digest(&c.PageVersion)
	}
	return c, r.b, nil
}

// reader reads values from b. After the first missing value, bad stays true.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}
