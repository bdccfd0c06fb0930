package diff

import (
	"bytes"
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// moved are the directories that have moved.
type moved struct {
	from   map[string]string // path in the older snapshot, by path in the newer one
	away   map[string]bool   // paths in the older snapshot that have moved elsewhere
	stayed map[string]bool   // paths of directories whose parents moved without them
}

// followsParent reports whether a directory has moved only because the one above it has.
func (m *moved) followsParent(path string) bool {
	above, name := backup.Split(path)
	from, ok := m.from[above]
	return ok && m.from[path] == backup.Join(from, name)
}

// An endedDirectory is one that the older snapshot has at a path where the newer one has none, or
// another one.
type endedDirectory struct {
	path    string
	known   bool        // it is the only one with its inode
	btime   backup.Time // of the directory
	listing []byte      // of its first page, if the file system does not know when it was created
}

func newEndedDirectory(path string, first []byte) endedDirectory {
	page, err := listing.Decode(first)
	if err != nil || page.Self == nil {
		return endedDirectory{} // nothing is known of it
	}
	e := endedDirectory{path: path, known: true, btime: page.Self.Btime}
	if e.btime.IsZero() {
		e.listing = first
	}
	return e
}

// endedDirectories are those that are gone from their paths, by inode.
type endedDirectories map[uint64]endedDirectory

func (gone endedDirectories) add(dir *directory) {
	old, now := first(dir.ended), first(dir.added)
	if old == nil || old.Inode == 0 || now != nil && now.Inode == old.Inode {
		return
	}
	if _, twice := gone[old.Inode]; twice {
		gone[old.Inode] = endedDirectory{} // the file system's inodes do not identify directories
		return
	}
	gone[old.Inode] = newEndedDirectory(dir.path, old.Listing)
}

// moves finds the directories that have moved: those at a new path whose inode another path had
// before. Inodes are used again, so a directory with the inode of one that is gone has moved only
// if it was created at the same time. Where the file system has no such times, it must share a
// file.
func (d *differ) moves(ctx context.Context, gone endedDirectories) (*moved, error) {
	m := &moved{from: map[string]string{}, away: map[string]bool{}, stayed: map[string]bool{}}
	if len(gone) == 0 {
		return m, nil
	}
	for dir, err := range d.directories(ctx) {
		if err != nil {
			return nil, err
		}
		old, now := first(dir.ended), first(dir.added)
		if now == nil || old != nil && now.Inode == old.Inode {
			continue
		}
		if before, ok := gone[now.Inode]; ok && before.known && !m.away[before.path] && m.isMove(dir.path, now.Listing, &before) {
			m.from[dir.path], m.away[before.path] = before.path, true
		}
	}
	return m, nil
}

// isMove reports whether the directory at path is the one that was elsewhere before. Directories
// come after those above them.
func (m *moved) isMove(path string, self []byte, before *endedDirectory) bool {
	above, name := backup.Split(path)
	if from, ok := m.from[above]; ok && backup.Join(from, name) == before.path {
		return true
	}
	now, err := listing.Decode(self)
	if err != nil || now.Self == nil {
		return false
	}
	if !before.btime.IsZero() {
		return now.Self.Btime == before.btime
	}
	old, err := listing.Decode(before.listing)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(now.Entries, func(e backup.Entry) bool {
		return slices.ContainsFunc(old.Entries, func(o backup.Entry) bool { return e.Name == o.Name && identityOf(&e) == identityOf(&o) })
	})
}

// An identity distinguishes a file from others of the same file system, during its life and after
// it: inodes are used again.
type identity struct {
	kind  backup.Kind
	inode uint64
	btime backup.Time
	mtime backup.Time // and the size, if the file system does not know when a file was created
	size  int64
}

// SameFile reports whether two entries, at different paths of two snapshots, are of one file that
// has moved.
func SameFile(old, now *backup.Entry) bool {
	return old.Inode != 0 && identityOf(old) == identityOf(now)
}

func identityOf(e *backup.Entry) identity {
	id := identity{kind: e.Kind, inode: e.Inode, btime: e.Btime}
	if e.Btime.IsZero() {
		id.mtime, id.size = e.Mtime, e.Size
	}
	return id
}

// pair turns files that were removed at one path and added at another into moved ones.
func (d *differ) pair(ctx context.Context, changes []Change) ([]Change, error) {
	removed := map[identity][]int{}
	for i := range changes {
		if c := &changes[i]; c.Kind == Removed && c.Old.Kind != backup.Directory && c.Old.Inode != 0 {
			removed[identityOf(c.Old)] = append(removed[identityOf(c.Old)], i)
		}
	}
	if len(removed) > 0 {
		for i := range changes {
			c := &changes[i]
			if c.Kind != Added || c.New.Kind == backup.Directory || c.New.Inode == 0 {
				continue
			}
			id := identityOf(c.New)
			from := removed[id]
			if len(from) == 0 {
				continue
			}
			removed[id] = from[1:]
			old := &changes[from[0]]
			c.Kind, c.From, c.Old = Moved, old.Path, old.Old
			old.Kind = 0
			if err := d.differs(ctx, c); err != nil {
				return nil, err
			}
		}
		changes = slices.DeleteFunc(changes, func(c Change) bool { return c.Kind == 0 })
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return bytes.Compare(backup.PathKey(a.Path), backup.PathKey(b.Path)) })
	return changes, nil
}
