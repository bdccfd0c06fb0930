//go:build linux

package posix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A mounted is one line of /proc/self/mountinfo: the file system with this
// device shows its directory or file root at point.
type mounted struct{ id, device, root, point string }

// SeenAt returns all paths on this machine that lead to the file or directory at
// path, or to a part of it, through whatever mounts: path itself, the places to
// which it is bind-mounted, and those of what is mounted below it. path is
// absolute and has no symlinks; it need not exist.
func SeenAt(path string) ([]string, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	id, err := mountID(path)
	if err != nil {
		return nil, err
	}
	seen := []string{path}
	for _, part := range mounts {
		top := part.point // where it is known to be seen
		if part.id == id {
			rel, _ := within(path, part.point)
			top, part.root = path, filepath.Join(part.root, rel)
		} else if rel, below := within(part.point, path); !below || rel == "." {
			continue
		}
		for _, m := range mounts {
			if m.device != part.device {
				continue
			}
			at, original := m.point, top
			if rel, ok := within(part.root, m.root); ok {
				at = filepath.Join(m.point, rel)
			} else if rel, ok := within(m.root, part.root); ok {
				original = filepath.Join(top, rel)
			} else {
				continue
			}
			// Another mount may hide this one, and roots of network file systems can look alike.
			if same(at, original) {
				seen = append(seen, at)
			}
		}
	}
	slices.Sort(seen)
	return slices.Compact(seen), nil
}

// readMounts returns all mounts. The form of a line is in proc_pid_mountinfo(5).
func readMounts() (mounts []mounted, err error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) >= 5 {
			mounts = append(mounts, mounted{id: f[0], device: f[2], root: unescape(f[3]), point: unescape(f[4])})
		}
	}
	return mounts, nil
}

// mountID returns the id of the mount that path is on, or would be on. statx(2)
// has it since Linux 5.8 only.
func mountID(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
		return mountID(filepath.Dir(path))
	}
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", fmt.Errorf("/proc/self/fdinfo does not say which mount %s is on", path)
}

// within returns path relative to dir; ok is false where it is not in dir.
func within(path, dir string) (rel string, ok bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// same reports whether two paths lead to the same file, or to the same place
// for one that does not exist.
func same(a, b string) bool {
	one, errA := os.Lstat(a)
	other, errB := os.Lstat(b)
	if errors.Is(errA, fs.ErrNotExist) && errors.Is(errB, fs.ErrNotExist) {
		return filepath.Base(a) == filepath.Base(b) && a != b && same(filepath.Dir(a), filepath.Dir(b))
	}
	return errA == nil && errB == nil && os.SameFile(one, other)
}
