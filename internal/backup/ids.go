package backup

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
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
