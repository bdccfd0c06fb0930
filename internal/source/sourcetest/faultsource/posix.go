package faultsource

import (
	"fmt"
	"io/fs"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// Posix returns the error that the source posix returns from a call if the kernel returns errno.
func Posix(call Call, errno syscall.Errno) error {
	switch call {
	case OpenRoot, Resolve:
		return rootError(call, errno)
	case Check:
		return fmt.Errorf("the root: %w: %w", stale(errno), backup.ErrUnavailable)
	case OpenDirectory:
		if errno == syscall.ELOOP { // a symlink
			return &fs.PathError{Op: "open", Err: fmt.Errorf("%w: %w", errno, backup.ErrOutside)}
		}
		return &fs.PathError{Op: "open", Err: stale(errno)}
	case OpenFile:
		if errno == syscall.ELOOP {
			return &fs.PathError{Op: "open", Err: fmt.Errorf("%w: %w", errno, source.ErrReplaced)}
		}
		return &fs.PathError{Op: "open", Err: stale(errno)}
	case StatDirectory, List, DirectoryXattrs, EntryXattrs, FileXattrs:
		return &fs.PathError{Op: string(call), Err: stale(errno)}
	case StatEntry, ReadLink, StatFile, Extent, Read:
		return stale(errno)
	}
	panic("no call of a source: " + call)
}

// stale wraps source.ErrStale if errno means that.
func stale(errno syscall.Errno) error {
	if errno == syscall.ESTALE {
		return fmt.Errorf("%w: %w", errno, source.ErrStale)
	}
	return errno
}

func rootError(call Call, errno syscall.Errno) error {
	switch errno {
	case syscall.ENOENT:
		return fmt.Errorf("%s: %w: %w", call, errno, backup.ErrNotFound)
	case syscall.EACCES:
		return fmt.Errorf("%s: %w", call, errno)
	case syscall.ENOTDIR, syscall.ELOOP:
		if call == Resolve { // nothing is at the pattern's path
			return fmt.Errorf("%s: %w: %w", call, errno, backup.ErrNotFound)
		}
		return fmt.Errorf("%s: %w: %w", call, errno, backup.ErrInvalid)
	case syscall.ENAMETOOLONG:
		if call == OpenRoot {
			return fmt.Errorf("%s: %w: %w", call, errno, backup.ErrInvalid)
		}
	}
	return fmt.Errorf("%s: %w: %w", call, errno, backup.ErrUnavailable)
}
