package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/restore"
)

// The directories of several shards. Each directory has the files of one shard: what one shard has
// at the directory of another one is left out, as if a file system were mounted there.

// A place is the directory that one of several shards is restored into.
type place struct {
	path   string   // absolute, with symlinks resolved
	within []string // directories of other shards, relative to path
	inside bool     // it is within the directory of another shard
}

// places returns the places of the shards. It returns an error if two of them are one, if a symlink
// leads from one to another place, or if --delete in one would delete the other.
func (c *restoreCommand) places(targets []string) ([]place, error) {
	names, places := make([]string, len(targets)), make([]place, len(targets))
	for n, dir := range targets {
		var err error
		if names[n], err = filepath.Abs(dir); err != nil {
			return nil, err
		}
		if places[n].path, err = realPath(dir); err != nil {
			return nil, err
		}
	}
	for n := range places {
		for k := range places {
			if n == k {
				continue
			}
			if err := c.relate(&places[n], &places[k], names[n], names[k]); err != nil {
				return nil, err
			}
		}
	}
	return places, nil
}

// relate notes that b is within a, if it is. The names are those before symlinks were resolved.
func (c *restoreCommand) relate(a, b *place, nameA, nameB string) error {
	rest, within := relative(a.path, b.path)
	named, byName := relative(nameA, nameB)
	switch {
	case a.path == b.path:
		return usage("two shards would be restored into %s: give one of them another directory with --map", display(a.path))
	case byName && (!within || named != rest):
		return usage("a symlink in %s leads from %s to %s: give that directory with --map", display(nameA), display(nameB), display(b.path))
	case !within:
		return nil
	case c.del:
		return usage("--delete in %s would delete what is restored into %s", display(a.path), display(b.path))
	}
	a.within, b.inside = append(a.within, rest), true
	return nil
}

// relative returns b relative to a, if it is below a. Both are clean and absolute.
func relative(a, b string) (rest string, ok bool) {
	return strings.CutPrefix(b, strings.TrimSuffix(a, "/")+"/")
}

// check returns an error if the directory is not the place any more, or is used for another shard.
// A shard that was restored before may have a symlink on the way, and names that differ only in
// case may be one directory.
func (p *place) check(dir string, used map[restore.Inode]string) error {
	now, err := realPath(dir)
	if err != nil {
		return err
	}
	if now != p.path {
		return fmt.Errorf("a symlink that was made meanwhile leads from %s to %s; nothing was restored there", display(dir), display(now))
	}
	if other, ok := used[inodeAt(dir)]; ok {
		return fmt.Errorf("%s is the directory %s, into which another shard was restored: give one of them another directory with --map", display(dir), display(other))
	}
	return nil
}

// use notes that a shard was restored into the directory.
func (p *place) use(dir string, used map[restore.Inode]string) {
	if inode := inodeAt(dir); inode != (restore.Inode{}) {
		used[inode] = dir
	}
}

// inodeAt returns the inode at a path; zero: there is nothing.
func inodeAt(path string) restore.Inode {
	info, err := os.Stat(path)
	if err != nil {
		return restore.Inode{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return restore.Inode{}
	}
	return restore.Inode{Device: st.Dev, Number: st.Ino}
}

// keepParent restores by calling do. If the place is in the directory of another shard, the
// directory that it is made in keeps the mtime that it has from its own snapshot.
func (p *place) keepParent(dryRun bool, do func() error) error {
	if !p.inside || dryRun {
		return do()
	}
	var st unix.Stat_t
	dir := p.path
	for err := unix.Lstat(dir, &st); err != nil; err = unix.Lstat(dir, &st) {
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return do() // which reports what is wrong
		}
		dir = filepath.Dir(dir)
	}
	if dir == p.path {
		return do()
	}
	err := do()
	at := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}}
	if failed := unix.UtimesNanoAt(unix.AT_FDCWD, dir, at, unix.AT_SYMLINK_NOFOLLOW); failed != nil && err == nil {
		err = fmt.Errorf("set time of %s: %w", display(dir), failed)
	}
	return err
}
