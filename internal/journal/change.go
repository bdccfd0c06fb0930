package journal

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

const (
	added = 1
	ended = 2

	// maxChangeBytes is the maximum encoded length of a change without its path and listing.
	maxChangeBytes = 1 + 16 + 4*binary.MaxVarintLen64
)

func appendChange(b []byte, c *backup.PageChange) []byte {
	kind := byte(added)
	if c.Ended {
		kind = ended
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(c.Path)))
	b = append(b, c.Path...)
	b = binary.AppendUvarint(b, uint64(c.Key))
	if c.Ended {
		return b
	}
	b = append(b, c.Fingerprint[:]...)
	b = binary.AppendUvarint(b, c.Inode)
	b = binary.AppendUvarint(b, uint64(len(c.Listing)))
	return append(b, c.Listing...)
}

func decodeChange(b []byte) (c backup.PageChange, rest []byte, err error) {
	r := reader{b: b}
	kind := r.bytes(1)
	path := r.bytes(r.uvarint())
	key := r.uvarint()
	if !r.bad {
		c.Path, c.Key, c.Ended = string(path), backup.PageKey(key), kind[0] == ended
	}
	if !r.bad && kind[0] == added {
		copy(c.Fingerprint[:], r.bytes(uint64(len(c.Fingerprint))))
		c.Inode = r.uvarint()
		c.Listing = append([]byte(nil), r.bytes(r.uvarint())...)
		c.Digest = listing.Digest(&c.PageVersion)
	}
	if r.bad || kind[0] != added && kind[0] != ended || key > math.MaxInt64 {
		return backup.PageChange{}, nil, fmt.Errorf("segment: a change that is none: %w", backup.ErrCorrupt)
	}
	if err := backup.CheckPath(c.Path); err != nil {
		return backup.PageChange{}, nil, fmt.Errorf("segment: %w: %w", err, backup.ErrCorrupt)
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
