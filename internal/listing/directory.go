package listing

import (
	"encoding/binary"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// DirectoryID returns the DirectoryID of a path within its shard.
func DirectoryID(path string) backup.DirectoryID {
	sum := blake3.Sum256([]byte(path))
	return backup.DirectoryID(sum[:16])
}

// Digest returns the digest of a version of a page: BLAKE3 of its path, key, fingerprint, inode and
// listing.
func Digest(v *backup.PageVersion) (d backup.PageDigest) {
	b := make([]byte, 0, 64+len(v.Path))
	b = binary.AppendUvarint(b, uint64(len(v.Path)))
	b = append(b, v.Path...)
	b = binary.AppendUvarint(b, uint64(v.Key))
	b = append(b, v.Fingerprint[:]...)
	b = binary.AppendUvarint(b, v.Inode)
	h := hashers.Get().(*blake3.Hasher)
	defer hashers.Put(h)
	h.Reset()
	h.Write(b)
	h.Write(v.Listing)
	h.Sum(d[:0])
	return d
}

var hashers = sync.Pool{New: func() any { return blake3.New() }}
