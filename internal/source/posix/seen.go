//go:build linux

package posix

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// SeenAt returns all paths on this machine that lead to the file or directory at path, or to a part
// of it: path itself, the places to which it or a part of it is bind-mounted, and all places of
// each file system that is mounted below it. path must be absolute and without symlinks; it need
// not exist.
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
		top := part.point // a place at which it is known to be visible
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
			// Another mount may hide this one, and the roots of network file systems can look
			// alike.
			if same(at, original) {
				seen = append(seen, at)
			}
		}
	}
	slices.Sort(seen)
	return slices.Compact(seen), nil
}

// within returns path relative to dir; ok is false if path is not in dir.
func within(path, dir string) (rel string, ok bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// same reports whether two paths lead to the same file. For files that do not exist, it reports
// whether they would be at the same place.
func same(a, b string) bool {
	one, errA := os.Lstat(a)
	other, errB := os.Lstat(b)
	if errors.Is(errA, fs.ErrNotExist) && errors.Is(errB, fs.ErrNotExist) {
		return filepath.Base(a) == filepath.Base(b) && a != b && same(filepath.Dir(a), filepath.Dir(b))
	}
	return errA == nil && errB == nil && os.SameFile(one, other)
}
