package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/source/posix"
)

// A backup excludes the repository's own files if they are in the tree. Otherwise, the repository
// would be backed up into itself, and grow with each backup. A restore neither overwrites nor
// deletes them, nor the files without which the repository cannot be used.

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

// keptPaths returns all paths of the repository, and of the files without which it cannot be used:
// keys, identities and the configuration. If one of these is a symlink, the symlink itself is
// included.
func (a *app) keptPaths(id backup.RepositoryID) ([]string, error) {
	files := []string{a.cfg.WorkerKey, a.cfg.CommitterKey, a.cfg.Identity, a.cfg.Passphrase, a.configFile}
	if path, err := repo.DefaultIdentityPath(id); err == nil { // fails without a home directory
		files = append(files, path)
	}
	paths := ownPaths(a.cfg)
	var links []string
	for _, path := range files {
		info, err := os.Lstat(path)
		if err != nil {
			continue // a snapshot may restore it
		}
		paths = append(paths, path)
		if info.Mode().Type() == fs.ModeSymlink {
			dir, err := realPath(filepath.Dir(path))
			if err != nil {
				return nil, err
			}
			links = append(links, filepath.Join(dir, filepath.Base(path)))
		}
	}
	all, err := everyPath(paths)
	return append(all, links...), err
}

// everyPath returns all paths without symlinks that lead to the files and directories at paths, or
// to parts of these. Some of them may lead through bind mounts.
func everyPath(paths []string) (all []string, err error) {
	for _, path := range paths {
		whole, err := realPath(path)
		if err != nil {
			return nil, err
		}
		seen, err := posix.SeenAt(whole)
		if err != nil {
			return nil, fmt.Errorf("find the bind mounts of %s: %w", path, err)
		}
		all = append(all, seen...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// leftOut returns the given paths (as returned by everyPath) that are in the tree at root, relative
// to it. If root is inside one of them, the error is backup.ErrInvalid.
func leftOut(paths []string, root string) (own []string, err error) {
	whole, err := realPath(root)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		places, err := placesWithin(root, path)
		if err != nil {
			return nil, err
		}
		inside, err := placesWithin(path, whole)
		if err != nil {
			return nil, err
		}
		if len(inside) > 0 {
			return nil, fmt.Errorf("%s is in the repository %s: it cannot be backed up or used as a restore target: %w", root, path, backup.ErrInvalid)
		}
		for _, place := range places {
			if !slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(place+"/", o+"/") }) {
				own = append(own, place)
			}
		}
	}
	return own, nil
}

// inodesOf returns the inodes of the files at paths. If a path is a symlink, it also returns the
// inode of the symlink.
func inodesOf(paths []string) map[restore.Inode]struct{} {
	inodes := make(map[restore.Inode]struct{})
	var st unix.Stat_t
	for _, path := range paths {
		for _, stat := range []func(string, *unix.Stat_t) error{unix.Stat, unix.Lstat} {
			if stat(path, &st) == nil { // a missing file has no inode
				inodes[restore.Inode{Device: st.Dev, Number: st.Ino}] = struct{}{}
			}
		}
	}
	return inodes
}

// placesWithin returns the positions of path below root, by inode and not by name: "." if it is
// root itself. There are several if a directory above root is also mounted below root. path is
// absolute; neither needs to exist.
func placesWithin(root, path string) (places []string, err error) {
	top, err := os.Stat(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for within := "."; ; {
		info, err := os.Stat(path)
		if err == nil && os.SameFile(info, top) {
			places = append(places, within)
		}
		parent := filepath.Dir(path)
		if parent == path {
			return places, nil
		}
		within, path = filepath.Join(filepath.Base(path), within), parent
	}
}

// realPath returns the absolute path with symlinks resolved, as far as it exists.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	whole, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return whole, err
	}
	parent, err := realPath(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// escapePattern returns a pattern that matches only the given path.
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
