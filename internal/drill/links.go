package drill

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// maxLinked bounds the files with several names that a comparison remembers. It then begins anew,
// and does not compare later names with those before.
const maxLinked = 1 << 18

// links compares which names are one file. Names of one inode that agree in what the listings have
// of them must be one file, and names that are one file must have had the same inode. This is not
// the code with which a restore decides.
type links struct {
	volumes []volume // of the open directories
	last    int      // number of the last volume

	first map[[16]byte]*linked  // by what the listings have of the names
	have  map[[2]uint64]*linked // by device and inode of the target
}

// A volume is the file system of a directory in the shard.
type volume struct {
	dir    string
	number int
}

// A linked file has several names.
type linked struct {
	path string // its first name
	was  origin
	is   [2]uint64 // device and inode at the target
	seen uint32    // names
}

// An origin is what distinguishes files on the file server.
type origin struct {
	volume int
	inode  uint64
	kind   backup.Kind
	size   int64
}

// enter makes the directory of a page the current one. Walk order is that of the pages.
func (l *links) enter(page *backup.Page) {
	for len(l.volumes) > 0 && !backup.IsBelow(page.Path, l.volumes[len(l.volumes)-1].dir) && l.volumes[len(l.volumes)-1].dir != page.Path {
		l.volumes = l.volumes[:len(l.volumes)-1]
	}
	if len(l.volumes) > 0 && l.volumes[len(l.volumes)-1].dir == page.Path {
		return // a further page
	}
	number := l.volume()
	if page.Self == nil || page.Self.Flags&(backup.Boundary|backup.AttributesUnknown) != 0 {
		l.last++
		number = l.last
	}
	l.volumes = append(l.volumes, volume{page.Path, number})
}

func (l *links) volume() int {
	if len(l.volumes) == 0 {
		return 0
	}
	return l.volumes[len(l.volumes)-1].number
}

// A linkDifference is what compare finds.
type linkDifference int

const (
	linksAgree linkDifference = iota
	isCopy                    // it was a further name of the other, and is a file of its own
	isShared                  // it is a further name of the other, and was another file
)

// compare compares a name with those before it that are, or were, the same file.
func (l *links) compare(path string, e, have *backup.Entry) (what linkDifference, other string) {
	was := origin{l.volume(), e.Inode, e.Kind, e.Size}
	is := [2]uint64{have.Device, have.Inode}
	if f := l.have[is]; f != nil && f.was != was {
		return isShared, f.path
	}
	// A file that is itself a mount point may have the inode number of another file.
	several := e.Nlink > 1 && e.Flags&backup.Boundary == 0
	if !several && have.Nlink < 2 {
		return linksAgree, ""
	}
	if l.have == nil || len(l.have) >= maxLinked {
		l.have, l.first = map[[2]uint64]*linked{}, map[[16]byte]*linked{}
	}
	key := linkKey(&was, e)
	f := l.first[key]
	if !several || f == nil {
		f = &linked{path: path, was: was, is: is, seen: 1}
		l.have[is] = f
		if several {
			l.first[key] = f
		}
		return linksAgree, ""
	}
	if f.seen++; f.seen >= e.Nlink {
		delete(l.first, key) // these were all; the inode number may be used again
	}
	if f.is != is {
		return isCopy, f.path
	}
	return linksAgree, ""
}

// linkKey is a digest of what the listing has of a file: all but its name, ctime, flags, and number
// of names.
//
// Names of one inode that differ in it show states of different times, or holes that the file
// server has reported in different ways: these may be one file at the target, and need not be.
func linkKey(was *origin, e *backup.Entry) [16]byte {
	b := make([]byte, 0, 256+len(e.Target))
	number := func(numbers ...uint64) {
		for _, n := range numbers {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	number(uint64(was.volume), was.inode, uint64(e.Kind), uint64(e.Mode), uint64(e.UID), uint64(e.GID), uint64(e.Size), e.Rdev)
	number(uint64(e.Mtime.Sec), uint64(e.Mtime.Nsec), uint64(e.Btime.Sec), uint64(e.Btime.Nsec))
	number(uint64(len(e.Target)))
	b = append(b, e.Target...)
	b = listing.EncodeXattrs(b, e.Xattrs)
	b = append(b, e.XattrChunk.Chunk[:]...)
	number(uint64(e.Content.Depth))
	for i := range e.Content.Refs {
		ref := &e.Content.Refs[i]
		b = append(b, ref.Chunk[:]...)
		number(uint64(ref.Hole), uint64(ref.Length), uint64(ref.Span))
	}
	sum := blake3.Sum256(b)
	return [16]byte(sum[:16])
}

// describe returns the difference as an error.
func (d linkDifference) describe(other string) error {
	if d == isCopy {
		return fmt.Errorf("it is a file of its own, and was a hard link of /%s", other)
	}
	return fmt.Errorf("it is a hard link of /%s, and was another file", other)
}
