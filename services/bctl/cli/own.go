package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
)

// What belongs to the repository itself is left out of a backup of a tree that it
// is in: it would be backed up into itself, and grow with each backup.

// ownPaths returns the paths on this machine that hold the repository.
func ownPaths(c *config.Config) []string {
	var paths []string
	if c.Repo != "" {
		paths = append(paths, c.Repo)
	}
	if path, local := c.StorePath(); local && path != "" {
		paths = append(paths, path)
	}
	if path, local := c.IndexPath(); local && path != "" {
		paths = append(paths, path, path+"-wal", path+"-shm", path+".locks")
	}
	return paths
}

// leftOut returns what of the tree at root is the repository itself: paths
// relative to root. A tree that is inside the repository is backup.ErrInvalid.
func leftOut(c *config.Config, root string) (own []string, err error) {
	for _, path := range ownPaths(c) {
		within, ok, err := pathWithin(root, path)
		switch {
		case err != nil:
			return nil, err
		case ok && within != ".":
			if !slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(within+"/", o+"/") }) {
				own = append(own, within)
			}
			continue
		case !ok:
			if _, ok, err = pathWithin(path, root); err != nil {
				return nil, err
			}
		}
		if ok {
			return nil, fmt.Errorf("%s is the repository %s, or a part of it: nothing can be backed up from there, or restored to it: %w", root, path, backup.ErrInvalid)
		}
	}
	return own, nil
}

// pathWithin returns where path is below root, whatever the two are called: "."
// where it is root itself. ok is false where it is not below it. Only the last
// component of path need not be there.
func pathWithin(root, path string) (within string, ok bool, err error) {
	top, err := os.Stat(root)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	whole, err := realPath(path)
	if err != nil || whole == "" {
		return "", false, err
	}
	for within = "."; ; {
		info, err := os.Stat(whole)
		if err == nil && os.SameFile(info, top) {
			return within, true, nil
		}
		parent := filepath.Dir(whole)
		if parent == whole {
			return "", false, nil
		}
		within, whole = filepath.Join(filepath.Base(whole), within), parent
	}
}

// realPath returns the absolute path without symlinks; "" where there is not
// even a directory for it.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	whole, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return whole, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Join(parent, filepath.Base(path)), err
}

// escapePattern makes a pattern that matches a path and nothing else.
func escapePattern(path string) string {
	var b strings.Builder
	for _, r := range []byte(path) {
		if strings.IndexByte(`*?[]\!# `, r) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(r)
	}
	return b.String()
}
