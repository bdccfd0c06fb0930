//go:build linux

package drill

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// A prober finds out what the file system of a drill, and its user, cannot have: it gives an
// attribute to an empty entry of the same kind, and looks whether the entry has it.
type prober struct {
	dir   string
	known map[string]bool // by attribute and value: the target can have it
	made  int
}

// maxKnown bounds the answers that are remembered.
const maxKnown = 1 << 16

// carries reports whether an entry of the kind of e can have an attribute. set gives it to the
// entry at path and reports whether it has it then.
func (p *prober) carries(e *backup.Entry, attribute string, set func(path string) bool) bool {
	key := e.Kind.String() + " " + attribute
	carried, ok := p.known[key]
	if ok {
		return carried
	}
	if len(p.known) >= maxKnown {
		clear(p.known)
	}
	p.made++
	path := filepath.Join(p.dir, fmt.Sprint(p.made))
	carried = makeProbe(path, e) == nil && set(path)
	_ = os.RemoveAll(path) // the whole directory is removed at the end
	p.known[key] = carried
	return carried
}

// makeProbe makes an empty entry of the kind of e.
func makeProbe(path string, e *backup.Entry) error {
	switch e.Kind {
	case backup.File:
		return os.WriteFile(path, nil, 0o600)
	case backup.Directory:
		return os.Mkdir(path, 0o700)
	case backup.Symlink:
		return os.Symlink(e.Target, path)
	case backup.FIFO:
		return unix.Mknod(path, unix.S_IFIFO|0o600, 0)
	case backup.Socket:
		return unix.Mknod(path, unix.S_IFSOCK|0o600, 0)
	case backup.CharDev:
		return unix.Mknod(path, unix.S_IFCHR|0o600, int(e.Rdev))
	case backup.BlockDev:
		return unix.Mknod(path, unix.S_IFBLK|0o600, int(e.Rdev))
	}
	return errors.ErrUnsupported
}

// exists reports whether the target can have an entry of this kind.
func (p *prober) exists(e *backup.Entry) bool {
	return p.carries(e, fmt.Sprint("kind ", e.Rdev), func(string) bool { return true })
}

// linked reports whether an entry of this kind can have a second name.
func (p *prober) linked(e *backup.Entry) bool {
	return p.carries(e, "link", func(path string) bool {
		defer os.Remove(path + ".link")
		return os.Link(path, path+".link") == nil
	})
}

// hole reports whether a file of the size of e can have a hole between two offsets, with data
// around it.
func (p *prober) hole(e *backup.Entry, from, to int64) bool {
	return p.carries(e, fmt.Sprint("hole ", from, " ", to, " ", e.Size), func(path string) bool {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return false
		}
		defer f.Close()
		err = f.Truncate(e.Size)
		for _, at := range []int64{from - 1, to} {
			if at >= 0 && at < e.Size && err == nil {
				_, err = f.WriteAt([]byte{1}, at)
			}
		}
		if err != nil || f.Sync() != nil {
			return false
		}
		h := holes{in: f, size: e.Size}
		h.compare(from, to)
		from, to := h.filled()
		return from == to
	})
}

func (p *prober) owner(e *backup.Entry) bool {
	return p.carries(e, fmt.Sprint("owner ", e.UID, ":", e.GID), func(path string) bool {
		var st unix.Stat_t
		return os.Lchown(path, int(e.UID), int(e.GID)) == nil && unix.Lstat(path, &st) == nil && st.Uid == e.UID && st.Gid == e.GID
	})
}

// mode reports whether the target can have the mode. Set-id bits belong to an owner: without it, a
// restore leaves them out.
func (p *prober) mode(e *backup.Entry) bool {
	return p.carries(e, fmt.Sprintf("mode %o of %d:%d", e.Mode, e.UID, e.GID), func(path string) bool {
		if e.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && os.Lchown(path, int(e.UID), int(e.GID)) != nil {
			return false
		}
		var st unix.Stat_t
		return unix.Chmod(path, e.Mode) == nil && unix.Lstat(path, &st) == nil && st.Mode&0o7777 == e.Mode
	})
}

func (p *prober) mtime(e *backup.Entry) bool {
	return p.carries(e, fmt.Sprint("mtime ", e.Mtime.Sec, " ", e.Mtime.Nsec), func(path string) bool {
		to := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: e.Mtime.Sec, Nsec: int64(e.Mtime.Nsec)}}
		var st unix.Stat_t
		if unix.UtimesNanoAt(unix.AT_FDCWD, path, to, unix.AT_SYMLINK_NOFOLLOW) != nil || unix.Lstat(path, &st) != nil {
			return false
		}
		sec, nsec := st.Mtim.Unix()
		return sec == e.Mtime.Sec && nsec == int64(e.Mtime.Nsec)
	})
}

func (p *prober) xattr(e *backup.Entry, x *backup.Xattr) bool {
	return p.carries(e, "xattr "+x.Name+" "+string(x.Value), func(path string) bool {
		if unix.Lsetxattr(path, x.Name, x.Value, 0) != nil {
			return false
		}
		have := make([]byte, len(x.Value)+1)
		n, err := unix.Lgetxattr(path, x.Name, have)
		return err == nil && bytes.Equal(have[:n], x.Value)
	})
}
