//go:build linux

package treetest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An Aspect is a property that Compare can ignore.
type Aspect int

const (
	// Owner: uid and gid, which only root can restore.
	Owner Aspect = iota
	// DirectoryTimes: mtimes of directories, which any change in them updates.
	DirectoryTimes
	// Holes: the positions of holes in files.
	Holes
	// Xattrs: extended attributes.
	Xattrs
)

// MaxDifferences is the maximum number of lines that Compare returns, not counting one that reports
// the limit.
const MaxDifferences = 1000

// Compare compares everything that a backup must bring back: names, types, content, modes, owners,
// mtimes to the nanosecond, extended attributes, targets, device numbers, which names are hard
// links of one another, and holes: b must not have data at a hole of a. It returns the differences
// in order, one line "path: what" each; nothing if the trees are equal. Trees may be deeper than
// PATH_MAX. Memory grows with directories and hard links, not with files.
func Compare(a, b string, ignore ...Aspect) []string {
	c := &comparison{ignore: map[Aspect]bool{}, buf: [2][]byte{make([]byte, 256<<10), make([]byte, 256<<10)}}
	for i := range c.links {
		c.links[i] = map[inode]string{}
	}
	for _, aspect := range ignore {
		c.ignore[aspect] = true
	}
	c.roots(a, b)
	if c.more > 0 {
		c.lines = append(c.lines, fmt.Sprintf("… and %d more", c.more))
	}
	return c.lines
}

type inode struct{ device, number uint64 }

type comparison struct {
	ignore map[Aspect]bool
	lines  []string
	more   int
	links  [2]map[inode]string // the first path of each inode with several names
	buf    [2][]byte
}

func (c *comparison) differ(path, format string, args ...any) {
	if len(c.lines) == MaxDifferences {
		c.more++
		return
	}
	if path == "" {
		path = "."
	}
	if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
		path = quoted
	}
	c.lines = append(c.lines, path+": "+fmt.Sprintf(format, args...))
}

func (c *comparison) roots(a, b string) {
	var fds [2]int
	for i, path := range []string{a, b} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			c.differ("", "open %s: %v", path, err)
			return
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	var stats [2]unix.Stat_t
	for i, fd := range fds {
		if err := unix.Fstat(fd, &stats[i]); err != nil {
			c.differ("", "stat: %v", err)
			return
		}
	}
	c.attributes("", stats, [2]string{procPath(fds[0], "."), procPath(fds[1], ".")})
	c.directories("", fds)
}

// procPath is a path to an entry of an open directory, however deep that is.
func procPath(dir int, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(dir) + "/" + name
}

// directories compares the content of two open directories.
func (c *comparison) directories(path string, dirs [2]int) {
	var names [2][]string
	for i, dir := range dirs {
		var err error
		if names[i], err = listNames(dir); err != nil {
			c.differ(path, "list (%s): %v", side(i), err)
			return
		}
	}
	for len(names[0]) > 0 || len(names[1]) > 0 {
		switch {
		case len(names[1]) == 0 || len(names[0]) > 0 && names[0][0] < names[1][0]:
			c.differ(join(path, names[0][0]), "missing")
			names[0] = names[0][1:]
		case len(names[0]) == 0 || names[1][0] < names[0][0]:
			c.differ(join(path, names[1][0]), "not in the original")
			names[1] = names[1][1:]
		default:
			c.entries(join(path, names[0][0]), names[0][0], dirs)
			names[0], names[1] = names[0][1:], names[1][1:]
		}
	}
}

func side(i int) string { return []string{"original", "copy"}[i] }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "/" + name
}

func listNames(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// entries compares the entries with the same name on both sides.
func (c *comparison) entries(path, name string, dirs [2]int) {
	var stats [2]unix.Stat_t
	for i, dir := range dirs {
		if err := unix.Fstatat(dir, name, &stats[i], unix.AT_SYMLINK_NOFOLLOW); err != nil {
			c.differ(path, "stat (%s): %v", side(i), err)
			return
		}
	}
	kind := stats[0].Mode & unix.S_IFMT
	if other := stats[1].Mode & unix.S_IFMT; kind != other {
		c.differ(path, "type %s, was %s", kindName(other), kindName(kind))
		return
	}
	c.attributes(path, stats, [2]string{procPath(dirs[0], name), procPath(dirs[1], name)})
	switch kind {
	case unix.S_IFDIR:
		fds, err := openBoth(dirs, name, unix.O_DIRECTORY)
		if err != nil {
			c.differ(path, "open: %v", err)
			return
		}
		c.directories(path, fds)
		closeBoth(fds)
	case unix.S_IFREG:
		c.files(path, name, dirs, stats)
	case unix.S_IFLNK:
		c.targets(path, name, dirs)
	}
}

func kindName(kind uint32) string {
	switch kind {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "chardev"
	case unix.S_IFBLK:
		return "blockdev"
	}
	return fmt.Sprintf("%#o", kind)
}

func openBoth(dirs [2]int, name string, flags int) (fds [2]int, err error) {
	for i, dir := range dirs {
		if fds[i], err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0); err != nil {
			if i == 1 {
				unix.Close(fds[0])
			}
			return fds, fmt.Errorf("%s: %w", side(i), err)
		}
	}
	return fds, nil
}

func closeBoth(fds [2]int) {
	unix.Close(fds[0])
	unix.Close(fds[1])
}

// attributes compares everything except content, target and names.
func (c *comparison) attributes(path string, stats [2]unix.Stat_t, names [2]string) {
	a, b := &stats[0], &stats[1]
	kind := a.Mode & unix.S_IFMT
	if a.Mode != b.Mode {
		c.differ(path, "mode %04o, was %04o", b.Mode&0o7777, a.Mode&0o7777)
	}
	if !c.ignore[Owner] && (a.Uid != b.Uid || a.Gid != b.Gid) {
		c.differ(path, "owner %d:%d, was %d:%d", b.Uid, b.Gid, a.Uid, a.Gid)
	}
	if a.Mtim != b.Mtim && (kind != unix.S_IFDIR || !c.ignore[DirectoryTimes]) {
		c.differ(path, "mtime %s, was %s", timeString(b.Mtim), timeString(a.Mtim))
	}
	if a.Rdev != b.Rdev && (kind == unix.S_IFCHR || kind == unix.S_IFBLK) {
		c.differ(path, "device %d:%d, was %d:%d", unix.Major(b.Rdev), unix.Minor(b.Rdev), unix.Major(a.Rdev), unix.Minor(a.Rdev))
	}
	if kind != unix.S_IFDIR {
		c.hardLinks(path, stats)
	}
	if !c.ignore[Xattrs] {
		c.xattrs(path, names)
	}
}

func timeString(t unix.Timespec) string {
	return time.Unix(t.Unix()).UTC().Format("2006-01-02T15:04:05.000000000")
}

// hardLinks compares the first path of each inode.
func (c *comparison) hardLinks(path string, stats [2]unix.Stat_t) {
	var first [2]string
	for i := range stats {
		first[i] = path
		if stats[i].Nlink < 2 {
			continue
		}
		key := inode{stats[i].Dev, stats[i].Ino}
		if known, ok := c.links[i][key]; ok {
			first[i] = known
		} else {
			c.links[i][key] = path
		}
	}
	if first[0] != first[1] {
		c.differ(path, "hard link of %q, was of %q", first[1], first[0])
	}
}

func (c *comparison) xattrs(path string, names [2]string) {
	var values [2]map[string]string
	for i, name := range names {
		var err error
		if values[i], err = readXattrs(name, c.buf[i]); err != nil {
			c.differ(path, "xattrs (%s): %v", side(i), err)
			return
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values[0])) {
		value, ok := values[1][name]
		if !ok {
			c.differ(path, "xattr %s missing", name)
		} else if value != values[0][name] {
			c.differ(path, "xattr %s %q, was %q", name, value, values[0][name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values[1])) {
		if _, ok := values[0][name]; !ok {
			c.differ(path, "xattr %s not in the original", name)
		}
	}
}

func readXattrs(path string, buf []byte) (map[string]string, error) {
	n, err := unix.Llistxattr(path, buf)
	if err == unix.EOPNOTSUPP || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		n, err := unix.Lgetxattr(path, name, buf)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		values[name] = string(buf[:n])
	}
	return values, nil
}

func (c *comparison) targets(path, name string, dirs [2]int) {
	var targets [2][]byte
	for i, dir := range dirs {
		n, err := unix.Readlinkat(dir, name, c.buf[i])
		if err != nil {
			c.differ(path, "readlink (%s): %v", side(i), err)
			return
		}
		targets[i] = c.buf[i][:n]
	}
	if !bytes.Equal(targets[0], targets[1]) {
		c.differ(path, "target %q, was %q", targets[1], targets[0])
	}
}

// files compares content and holes.
func (c *comparison) files(path, name string, dirs [2]int, stats [2]unix.Stat_t) {
	if stats[0].Size != stats[1].Size {
		c.differ(path, "size %d, was %d", stats[1].Size, stats[0].Size)
		return
	}
	if stats[0].Size == 0 || stats[0].Ino == stats[1].Ino && stats[0].Dev == stats[1].Dev {
		return
	}
	fds, err := openBoth(dirs, name, unix.O_NONBLOCK)
	if err != nil {
		c.differ(path, "open: %v", err)
		return
	}
	defer closeBoth(fds)
	if !c.ignore[Holes] {
		c.holes(path, fds, stats)
	}
	c.content(path, fds, stats[0].Size)
}

func (c *comparison) content(path string, fds [2]int, size int64) {
	for offset := int64(0); offset < size; {
		want := min(size-offset, int64(len(c.buf[0])))
		for i, fd := range fds {
			if n, err := readFull(fd, c.buf[i][:want], offset); err != nil {
				c.differ(path, "read (%s) at %d: %v", side(i), offset+int64(n), err)
				return
			}
		}
		if a, b := c.buf[0][:want], c.buf[1][:want]; !bytes.Equal(a, b) {
			at := 0
			for a[at] == b[at] {
				at++
			}
			c.differ(path, "content differs from byte %d on", offset+int64(at))
			return
		}
		offset += want
	}
}

func readFull(fd int, p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		got, err := unix.Pread(fd, p[n:], offset+int64(n))
		if err != nil && err != unix.EINTR {
			return n, err
		}
		if got == 0 {
			return n, io.ErrUnexpectedEOF
		}
		n += max(got, 0)
	}
	return n, nil
}
