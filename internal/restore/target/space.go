//go:build linux

package target

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unknown is a number that the file system does not tell.
const Unknown = -1

// Space is the room that a target has.
type Space struct {
	Bytes int64 // free for the current user, or Unknown
	// Empty reports that the target has no entries, or does not exist. Nothing in it can then be
	// replaced, and no other file system is mounted in it.
	Empty bool
}

// SpaceAt returns the room at a path. If the path does not exist, it is the room of the nearest
// parent that does.
func SpaceAt(path string) (s Space, err error) {
	if s.Empty, err = isEmpty(path); err != nil {
		return s, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return s, err
	}
	for {
		var st unix.Statfs_t
		err := retryEINTR(func() error { return unix.Statfs(path, &st) })
		if errors.Is(err, fs.ErrNotExist) && path != "/" {
			path = filepath.Dir(path)
			continue
		}
		if err != nil {
			return s, err
		}
		s.Bytes = free(&st, os.Geteuid() == 0)
		return s, nil
	}
}

// free returns the free bytes. Only root may use blocks that are reserved.
func free(st *unix.Statfs_t, root bool) int64 {
	blocks := st.Bavail
	if root {
		blocks = st.Bfree
	}
	if st.Blocks == 0 || st.Bsize <= 0 || blocks > math.MaxInt64/uint64(st.Bsize) {
		return Unknown
	}
	return int64(blocks) * st.Bsize
}

// isEmpty reports whether a directory has no entries except lost+found and the mark.
func isEmpty(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	names, err := f.Readdirnames(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	for _, name := range names {
		if name != "lost+found" && !IsMark(name) {
			return false, nil
		}
	}
	return true, nil
}
