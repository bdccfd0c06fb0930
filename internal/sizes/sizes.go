package sizes

import (
	"cmp"
	"math"
	"math/bits"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/shares"
)

// A By is what entries are grouped by.
type By int

// What entries are grouped by.
const (
	Directory By = iota // Key.Text is a path within the shard
	Owner               // Key.Number is a uid, or Unknown
	Extension           // Key.Text is an extension, or empty
	Class               // Key.Number is the first size of a size class
	File                // Key.Text is a path: each file is a group
)

// Unknown is the owner of entries of which only the name is known.
const Unknown = -1

// A Key names a group.
type Key struct {
	Text   string
	Number int64
}

// A Sum is how much is in a group. A file with several names counts for each of them, as in
// backup.Counts. Directories are not files, and are in no group of Extension, Class and File.
type Sum struct {
	Files       int64
	Directories int64
	Bytes       int64 // sizes of files; at most backup.MaxCount
	// Missing is the number of files whose content no snapshot has. Their sizes are not in Bytes.
	Missing int64
	// Stored is what the content and the large extended attributes take in the store, compressed
	// and sealed. What several files share counts for each of them.
	Stored int64
	// Unweighed is the number of entries of which the index does not know what they take. They add
	// nothing to Stored.
	Unweighed int64
}

// Add adds t.
func (s *Sum) Add(t *Sum) {
	s.Files += t.Files
	s.Directories += t.Directories
	s.Missing += t.Missing
	s.Unweighed += t.Unweighed
	s.addBytes(t.Bytes)
	s.addStored(t.Stored)
}

// addBytes adds a size. Sparse files can claim sizes whose sum no int64 holds.
func (s *Sum) addBytes(n int64) { s.Bytes = min(s.Bytes+min(n, backup.MaxCount), backup.MaxCount) }

func (s *Sum) addStored(n int64) { s.Stored = min(s.Stored+min(n, backup.MaxCount), backup.MaxCount) }

// add adds an entry, and what it takes in the store or shares.Unknown.
func (s *Sum) add(e *backup.Entry, stored int64) {
	if stored == shares.Unknown {
		s.Unweighed++
	} else {
		s.addStored(stored)
	}
	switch {
	case e.Kind == backup.Directory:
		s.Directories++
		return
	case e.Flags&backup.ContentMissing != 0:
		s.Missing++
	default:
		s.addBytes(e.Size)
	}
	s.Files++
}

// A Row is a group and its sum.
type Row struct {
	Key
	Sum
}

// before orders rows by size, the largest first.
func before(a, b *Row) int {
	return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Files, a.Files), cmp.Compare(a.Text, b.Text), cmp.Compare(a.Number, b.Number))
}

// ownerOf returns the owner of an entry, or Unknown.
func ownerOf(e *backup.Entry) int64 {
	if e.Flags&backup.AttributesUnknown != 0 {
		return Unknown
	}
	return int64(e.UID)
}

// maxExtension is the length of the longest extension in bytes.
const maxExtension = 16

// ExtensionOf returns the extension of a name in lower case, without its dot: what follows the last
// dot, if something precedes that. Without one, or if it is longer than 16 bytes or has a space, it
// is "".
func ExtensionOf(name string) string {
	at := strings.LastIndexByte(name, '.')
	if at <= 0 || len(name)-at-1 > maxExtension || strings.IndexByte(name[at:], ' ') >= 0 {
		return ""
	}
	return strings.ToLower(name[at+1:])
}

// ClassOf returns the first size of the class of a file's size: 0, 1, 1 KiB, 4 KiB, and so on by
// factors of four.
func ClassOf(size int64) int64 {
	switch {
	case size <= 0:
		return 0
	case size < 1<<10:
		return 1
	}
	return 1 << ((bits.Len64(uint64(size)) - 1) &^ 1)
}

// ClassEnd returns the first size after the class that begins at from.
func ClassEnd(from int64) int64 {
	switch {
	case from == 0:
		return 1
	case from == 1:
		return 1 << 10
	case from >= 1<<61:
		return math.MaxInt64
	}
	return from << 2
}
