package backup

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
)

// A ChunkHash is the keyed BLAKE3 (256 bit) of a chunk's plaintext. It stands
// in the chunk table of the pack that holds the chunk, and is verified on
// every read.
type ChunkHash [32]byte

// ID returns the name that listings and the index use for the chunk.
func (h ChunkHash) ID() ChunkID { return ChunkID(h[:16]) }

// A ChunkID is the first 128 bits of a ChunkHash.
type ChunkID [16]byte

// String returns the 32 hexadecimal digits.
func (id ChunkID) String() string { return hex.EncodeToString(id[:]) }

// A PackID names one pack. It is random, chosen by the attempt that makes the
// pack, so that two attempts never write the same object.
type PackID [16]byte

// NewPackID returns a random PackID.
func NewPackID() PackID { return PackID(random16()) }

// String returns the 32 hexadecimal digits.
func (id PackID) String() string { return hex.EncodeToString(id[:]) }

// A SnapshotID names one snapshot of one shard for ever and everywhere: in the
// index, in the names of its objects, and on the command line (as hexadecimal,
// where a unique prefix will do).
type SnapshotID [16]byte

// NewSnapshotID returns a random SnapshotID.
func NewSnapshotID() SnapshotID { return SnapshotID(random16()) }

// String returns the 32 hexadecimal digits.
func (id SnapshotID) String() string { return hex.EncodeToString(id[:]) }

// Short returns the first eight digits, for people.
func (id SnapshotID) Short() string { return id.String()[:8] }

// ParseSnapshotID reads the 32 hexadecimal digits of String.
func ParseSnapshotID(s string) (SnapshotID, error) {
	raw, err := parseHex16(s)
	return SnapshotID(raw), err
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

// A ShardKey names a shard for ever and everywhere, whatever it is called and
// whichever index has it.
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

// A FilerID, ShardID, TaskID or BatchID is a row of the index.
type (
	FilerID int64
	ShardID int64
	TaskID  int64 // walk task
	BatchID int64 // read batch
)

// A SnapshotNumber counts the snapshots of one shard: 1, 2, 3 …; 0 is none.
type SnapshotNumber int64

// A DirectoryID is the first 128 bits of the BLAKE3 of a directory's path
// within its shard. A btree key may have 2,704 bytes; a path may have more.
type DirectoryID [16]byte

// String returns the 32 hexadecimal digits.
func (id DirectoryID) String() string { return hex.EncodeToString(id[:]) }

// A Fingerprint is a 128-bit digest of a page's names and attributes, without
// content: equal means unchanged. The zero Fingerprint equals nothing, itself
// included: a page that must be looked at again carries it.
type Fingerprint [16]byte

// Matches reports whether both are the same and neither is zero.
func (f Fingerprint) Matches(other Fingerprint) bool {
	return f == other && f != Fingerprint{}
}

// A PageDigest is the BLAKE3 (256 bit) of one version of a page: where it is,
// its fingerprint and its listing (listing.Digest).
type PageDigest [32]byte

// A PageSet stands for the pages of a snapshot: how many there are, and the sum
// of their digests, as integers of 256 bits, little endian, modulo 2^256. So
// it is kept up to date by what a snapshot adds and ends, without a look at the
// other pages.
//
// It shows that pages are missing or damaged. It does not hold against somebody
// who can choose pages as he likes: what is authentic follows from signatures.
type PageSet struct {
	Pages int64
	Sum   [32]byte
}

// Add adds a page.
func (s *PageSet) Add(d PageDigest) {
	s.Pages++
	s.Sum = add256(s.Sum, d, 0)
}

// Remove takes a page away.
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
