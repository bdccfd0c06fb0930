package backup

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
)

// A ChunkHash is the keyed BLAKE3 (256 bits) of a chunk's plaintext. It is stored in the chunk
// table of the pack that holds the chunk, and is verified on every read.
type ChunkHash [32]byte

// ID returns the identifier by which listings and the index refer to the chunk.
func (h ChunkHash) ID() ChunkID { return ChunkID(h[:16]) }

// A ChunkID is the first 128 bits of a ChunkHash.
type ChunkID [16]byte

// String returns the 32 hexadecimal digits.
func (id ChunkID) String() string { return hex.EncodeToString(id[:]) }

// Probes returns the positions of the chunk in a Bloom filter: at, at+step, at+2*step and so on.
// The id is a hash, so two parts of it are independent hashes. The step is odd, so that in a filter
// whose size is a power of 2 the positions differ.
func (id ChunkID) Probes() (at, step uint64) {
	return binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:]) | 1
}

// A PackID names one pack. It is random and chosen by each attempt to make the pack, so that two
// attempts never write the same object.
type PackID [16]byte

// NewPackID returns a random PackID.
func NewPackID() PackID { return PackID(random16()) }

// String returns the 32 hexadecimal digits.
func (id PackID) String() string { return hex.EncodeToString(id[:]) }

// ParsePackID reads the 32 hexadecimal digits of String.
func ParsePackID(s string) (PackID, error) {
	raw, err := parseHex16(s)
	return PackID(raw), err
}

// A SnapshotID names one snapshot of one shard, permanently and globally: in the index, in the
// names of its objects, and on the command line (in hexadecimal; a unique prefix suffices).
type SnapshotID [16]byte

// NewSnapshotID returns a random SnapshotID.
func NewSnapshotID() SnapshotID { return SnapshotID(random16()) }

// String returns the 32 hexadecimal digits.
func (id SnapshotID) String() string { return hex.EncodeToString(id[:]) }

// Short returns the first eight digits, for display.
func (id SnapshotID) Short() string { return id.String()[:8] }

// ParseSnapshotID reads the 32 hexadecimal digits of String.
func ParseSnapshotID(s string) (SnapshotID, error) {
	raw, err := parseHex16(s)
	return SnapshotID(raw), err
}

// A DrillID names one drill, and its report.
type DrillID [16]byte

// NewDrillID returns a random DrillID.
func NewDrillID() DrillID { return DrillID(random16()) }

// String returns the 32 hexadecimal digits.
func (id DrillID) String() string { return hex.EncodeToString(id[:]) }

// Short returns the first eight digits, for display.
func (id DrillID) Short() string { return id.String()[:8] }

// ParseDrillID reads the 32 hexadecimal digits of String.
func ParseDrillID(s string) (DrillID, error) {
	raw, err := parseHex16(s)
	return DrillID(raw), err
}

// A RepositoryID names a repository: one key, one store, one index.
type RepositoryID [16]byte

// NewRepositoryID returns a random RepositoryID.
func NewRepositoryID() RepositoryID { return RepositoryID(random16()) }

// String returns the 32 hexadecimal digits.
func (id RepositoryID) String() string { return hex.EncodeToString(id[:]) }

// ParseRepositoryID reads the 32 hexadecimal digits of String.
func ParseRepositoryID(s string) (RepositoryID, error) {
	raw, err := parseHex16(s)
	return RepositoryID(raw), err
}

// A ShardKey names a shard permanently and globally. It does not depend on the shard's name or on
// the index that contains it.
type ShardKey [16]byte

// NewShardKey returns a random ShardKey.
func NewShardKey() ShardKey { return ShardKey(random16()) }

// String returns the 32 hexadecimal digits.
func (k ShardKey) String() string { return hex.EncodeToString(k[:]) }

// ParseShardKey reads the 32 hexadecimal digits of String.
func ParseShardKey(s string) (ShardKey, error) {
	raw, err := parseHex16(s)
	return ShardKey(raw), err
}

// FilerID, ShardID, TaskID and BatchID identify rows of the index.
type (
	FilerID int64
	ShardID int64
	TaskID  int64 // walk task
	BatchID int64 // read batch
)

// A SnapshotNumber counts the snapshots of one shard: 1, 2, 3, and so on. 0 means none.
type SnapshotNumber int64

// A DirectoryID is the first 128 bits of the BLAKE3 of a directory's path within its shard. The
// path itself can exceed the 2,704 bytes that a btree key may have.
type DirectoryID [16]byte

// String returns the 32 hexadecimal digits.
func (id DirectoryID) String() string { return hex.EncodeToString(id[:]) }

// A Fingerprint is a 128-bit digest of a page's names and attributes, without content. Equal
// fingerprints mean an unchanged page. The zero Fingerprint equals nothing, not even itself; a page
// that must be read again has it.
type Fingerprint [16]byte

// Matches reports whether f and other are equal and not zero.
func (f Fingerprint) Matches(other Fingerprint) bool {
	return f == other && f != Fingerprint{}
}

// A PageDigest is the BLAKE3 (256 bits) of one version of a page: its path and key, its fingerprint
// and its listing (listing.Digest).
type PageDigest [32]byte

// A PageSet represents the pages of a snapshot: their number, and the sum of their digests as
// 256-bit little-endian integers, modulo 2^256. It can therefore be updated from what a snapshot
// adds and ends, without reading the other pages.
//
// It detects missing and damaged pages. It does not protect against an attacker who can choose
// pages freely; authenticity follows from signatures.
type PageSet struct {
	Pages int64
	Sum   [32]byte
}

// Add adds a page.
func (s *PageSet) Add(d PageDigest) {
	s.Pages++
	s.Sum = add256(s.Sum, d, 0)
}

// Remove removes a page.
func (s *PageSet) Remove(d PageDigest) {
	s.Pages--
	for i := range d {
		d[i] = ^d[i]
	}
	s.Sum = add256(s.Sum, d, 1) // the two's complement
}

// add256 returns a + b + carry modulo 2^256.
func add256(a, b [32]byte, carry uint64) (sum [32]byte) {
	for i := 0; i < len(sum); i += 8 {
		var n uint64
		n, carry = bits.Add64(binary.LittleEndian.Uint64(a[i:]), binary.LittleEndian.Uint64(b[i:]), carry)
		binary.LittleEndian.PutUint64(sum[i:], n)
	}
	return sum
}

func random16() (b [16]byte) {
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return b
}

func parseHex16(s string) (b [16]byte, err error) {
	if len(s) != 32 {
		return b, fmt.Errorf("%q: an id has 32 hexadecimal digits: %w", s, ErrInvalid)
	}
	if _, err := hex.Decode(b[:], []byte(s)); err != nil {
		return b, fmt.Errorf("%q: an id has 32 hexadecimal digits: %w", s, ErrInvalid)
	}
	return b, nil
}
