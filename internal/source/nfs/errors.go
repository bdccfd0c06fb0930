//go:build linux

package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/xdr"
	"github.com/bctl/bctl/internal/source"
)

// asError gives an error of package nfs3 the meaning that the port defines. Only the server's own
// answers can mean that an entry is gone.
func asError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*nfs3.Error](err); ok {
		switch {
		case e.Status == nfs3.StatusNoEnt && !takesName(e.Op):
			// No name was looked up, so none is missing (I13). nfs-ganesha answers this if an entry
			// vanishes while its directory is listed.
			return fmt.Errorf("%v: %w", err, source.ErrStale) //nolint:errorlint // it must not count as gone
		case errors.Is(err, nfs3.ErrStale):
			return fmt.Errorf("%w: %w", err, source.ErrStale)
		case errors.Is(err, nfs3.StatusBadCookie):
			// The directory has changed so that its listing cannot continue: it begins again.
			return fmt.Errorf("%w: %w", err, source.ErrStale)
		case errors.Is(err, nfs3.StatusJukebox):
			return fmt.Errorf("%w: %w", err, backup.ErrUnavailable)
		}
		return err
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, fs.ErrClosed):
		return err
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, backup.ErrOutside): // the path of a root
		return err
	case errors.Is(err, xdr.ErrMalformed), errors.Is(err, rpc.ErrTooLarge):
		return fmt.Errorf("%w: %w", err, syscall.EIO)
	}
	// No answer, or a server that refuses this machine.
	return fmt.Errorf("%w: %w", err, backup.ErrUnavailable)
}

// takesName reports whether a procedure finds a file by its name.
func takesName(op string) bool { return op == "LOOKUP" || op == "MNT" }

func pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: path, Err: asError(err)}
}

// isGone reports whether the error means that there is no such directory, or not at this path.
func isGone(err error) bool {
	return source.IsGone(err) || errors.Is(err, source.ErrStale)
}
