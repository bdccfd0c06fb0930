// Package hardlink decides which names of a snapshot are one file (I18).
package hardlink

import (
	"encoding/binary"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/seal"
)

// A Key is a digest of what the names of one file have in common: the file system of the shard, the
// inode, the attributes, and a proof that the content is the same. Names of one inode that differ
// in any of these show states of different times; each is a file of its own.
type Key [16]byte

// Missing are the flags of files whose content the snapshot does not have. A stored listing never
// has Wanted, unless another program wrote it.
const Missing = backup.ContentMissing | backup.Wanted

// A Keyer computes keys. It belongs to one goroutine.
type Keyer struct {
	hasher *chunk.Hasher
	ctimes bool
}

// NewKeyer returns a Keyer for a snapshot. key is that of the chunks' hashes, and compare is what
// the snapshot's backup compared: if it did not compare ctimes, an equal ctime does not prove that
// two names are one file.
func NewKeyer(key seal.DedupKey, compare backup.Compare) *Keyer {
	return &Keyer{chunk.NewHasher([32]byte(key)), compare.OrAll()&backup.CompareCtime != 0}
}

// HasOthers reports whether a file may have several names. A file that is itself a mount point may
// have the inode number of another file.
func HasOthers(e *backup.Entry) bool {
	return e.Kind != backup.Directory && e.Nlink > 1 && e.Flags&backup.Boundary == 0
}

// Keys returns the keys of an entry on a file system of the shard. Two names are one file if they
// have a key in common, and their birth times do not differ.
//
// Equal refs prove that the content is the same. Different refs do not prove that it differs: which
// parts of a file are holes depends on what the file server had in its cache, and chunks are cut at
// holes. An equal ctime proves equality as well, because every change of a file sets its ctime to
// the current time.
//
// The birth time of one of the names may be unknown: whether a mount has birth times depends on the
// file server's kernel and on that of the walker. So there are keys with the birth time, which come
// first, and keys without it.
func (k *Keyer) Keys(volume uint64, e *backup.Entry) []Key {
	b := make([]byte, 0, 256+len(e.Target))
	number := func(numbers ...uint64) {
		for _, n := range numbers {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	number(volume, e.Inode, uint64(e.Kind), uint64(e.Mode), uint64(e.UID), uint64(e.GID), uint64(e.Size), e.Rdev)
	number(uint64(e.Mtime.Sec), uint64(e.Mtime.Nsec))
	number(uint64(len(e.Target)))
	b = append(b, e.Target...)
	xattrs := k.xattrChunk(e)
	b = append(b, xattrs[:]...)
	keys, birthless := make([]Key, 0, 4), make([]Key, 0, 2)
	add := func() {
		sum := blake3.Sum256(b)
		birthless = append(birthless, Key(sum[:]))
		if !e.Btime.IsZero() {
			number(uint64(e.Btime.Sec), uint64(e.Btime.Nsec))
			sum = blake3.Sum256(b)
			keys = append(keys, Key(sum[:]))
		}
	}
	common := len(b)
	if k.ctimeProves(e) {
		number(byCtime, uint64(e.Ctime.Sec), uint64(e.Ctime.Nsec))
		add()
	}
	b = b[:common]
	number(byContent, uint64(e.Content.Depth), uint64(len(e.Content.Refs)))
	for i := range e.Content.Refs {
		ref := &e.Content.Refs[i]
		b = append(b, ref.Chunk[:]...)
		number(uint64(ref.Hole), uint64(ref.Length), uint64(ref.Span))
	}
	add()
	return append(keys, birthless...)
}

// The proofs that a key can contain.
const (
	byContent = iota
	byCtime
)

// ctimeProves reports whether the ctime of an entry identifies its content. It does not if the
// backup did not compare ctimes, if a later change could have left the ctime as it is, or if the
// entry has flaws. A ctime in whole seconds proves nothing: on some file systems all files have the
// same ctime, and unions of such file systems can use an inode number twice.
func (k *Keyer) ctimeProves(e *backup.Entry) bool {
	return k.ctimes && e.Kind == backup.File && e.Ctime.Nsec != 0 && e.Flags&(backup.Provisional|Missing) == 0
}

// xattrChunk returns the id of the chunk that contains, or would contain, the extended attributes
// of an entry; zero if it has none.
func (k *Keyer) xattrChunk(e *backup.Entry) backup.ChunkID {
	if e.XattrChunk.Length > 0 {
		return e.XattrChunk.Chunk
	}
	if len(e.Xattrs) == 0 {
		return backup.ChunkID{}
	}
	hash := k.hasher.Sum(listing.EncodeXattrs(nil, e.Xattrs))
	return hash.ID()
}
