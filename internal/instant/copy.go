package instant

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// overlayPrefix begins the names of the extended attributes that belong to overlayfs. One that a
// file has for another reason gets the prefix twice in upper.
const overlayPrefix = "trusted.overlay."

// copyAttributes gives a directory the attributes of another one.
func copyAttributes(from, to int, tell func(op string, err error)) {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		tell("stat", err)
		return
	}
	try := func(op string, err error) {
		if err != nil {
			tell(op, err)
		}
	}
	try("chown", unix.Fchown(to, int(st.Uid), int(st.Gid)))
	copyXattrs(from, to, tell)
	try("chmod", unix.Fchmod(to, st.Mode&0o7777))
	try("set time", setTime(to, backup.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}))
}

func copyXattrs(from, to int, tell func(op string, err error)) {
	names, err := xattrsOf(procPath(from))
	if err != nil {
		tell("list xattrs", err)
		return
	}
	for _, name := range names {
		if strings.HasPrefix(name, overlayPrefix) {
			continue
		}
		value, err := xattr(procPath(from), name)
		if err == nil {
			err = unix.Fsetxattr(to, name, value, 0)
		}
		if err != nil {
			tell("set xattr "+name, err)
		}
	}
	// What the directory has inherited, or had before.
	have, err := xattrsOf(procPath(to))
	if err != nil {
		tell("list xattrs", err)
	}
	for _, name := range have {
		ours := strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "system.posix_acl_")
		if !ours || slices.Contains(names, name) {
			continue
		}
		if err := unix.Fremovexattr(to, name); err != nil {
			tell("remove xattr "+name, err)
		}
	}
}

// xattrsOf returns the names of the extended attributes at a path, without following a symlink at
// its end, except one of /proc.
func xattrsOf(path string) ([]string, error) {
	list, get := unix.Llistxattr, path
	if isDescriptor(path) {
		list = unix.Listxattr
	}
	for {
		n, err := list(get, nil)
		if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		buf := make([]byte, n)
		if n, err = list(get, buf); errors.Is(err, unix.ERANGE) {
			continue // one was added
		} else if err != nil {
			return nil, err
		}
		var names []string
		for name := range bytes.SplitSeq(bytes.TrimSuffix(buf[:n], []byte{0}), []byte{0}) {
			names = append(names, string(name))
		}
		return names, nil
	}
}

// xattr returns the value of an extended attribute.
func xattr(path, name string) ([]byte, error) {
	get := unix.Lgetxattr
	if isDescriptor(path) {
		get = unix.Getxattr
	}
	for {
		n, err := get(path, name, nil)
		if err != nil || n == 0 {
			return nil, err
		}
		buf := make([]byte, n)
		if n, err = get(path, name, buf); errors.Is(err, unix.ERANGE) {
			continue
		}
		return buf[:max(n, 0)], err
	}
}

// isDescriptor reports whether a path is that of a descriptor itself.
func isDescriptor(path string) bool {
	return strings.LastIndexByte(path, '/') == len("/proc/self/fd")
}

func setTime(fd int, t backup.Time) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: t.Sec, Nsec: int64(t.Nsec)}}, 0)
}

// openIn opens a directory by its name in another one.
func openIn(dir int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// openBelow opens a directory by its path below another one, name by name. The path may be of
// any length.
func openBelow(dir int, path string) (int, error) {
	fd, err := openIn(dir, ".")
	for rest := path; err == nil && rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if err := backup.CheckName(name); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("path %q: %w", path, err)
		}
		above := fd
		fd, err = openIn(above, name)
		unix.Close(above)
	}
	return fd, err
}

// namesIn returns all names in a directory.
func namesIn(dir int) (names []string, err error) {
	err = eachName(dir, func(name string) error {
		names = append(names, name)
		return nil
	})
	return names, err
}

// eachName calls yield for each name in a directory until it returns an error.
func eachName(dir int, yield func(name string) error) error {
	fd, err := openIn(dir, ".") // an offset of its own
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 32<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || n <= 0:
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := yield(name); err != nil {
				return err
			}
		}
	}
}

// gone reports whether an error means that there is nothing of a name.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
