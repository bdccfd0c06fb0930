//go:build linux

package nfs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
)

// completing bounds the calls in flight for the entries of one page.
const completing = 16

// A lack is what a page lacks of an entry: the target of a symlink, or why it is not known.
type lack struct {
	target string
	op     string
	err    error
}

// complete asks for what a page lacks: attributes and handles, if the server leaves them out, and
// the targets of symlinks. It fails only for reasons that concern all entries.
func (d *directory) complete(ctx context.Context, listed []nfs3.DirEntry) (lacks map[int]lack, err error) {
	var indexes []int
	for i := range listed {
		if l := &listed[i]; !l.Attr.Known || l.Attr.Type == nfs3.Symlink {
			indexes = append(indexes, i)
		}
	}
	if len(indexes) == 0 {
		return nil, nil
	}
	results := make([]lack, len(indexes))
	var calls errgroup.Group
	calls.SetLimit(completing)
	for at, i := range indexes {
		calls.Go(func() error {
			results[at] = d.completeOne(ctx, &listed[i])
			err := results[at].err
			if errors.Is(err, nfs3.ErrStale) || errors.Is(asError(err), backup.ErrUnavailable) || ctx.Err() != nil {
				return err
			}
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, err
	}
	lacks = make(map[int]lack, len(indexes))
	for at, i := range indexes {
		lacks[i] = results[at]
	}
	return lacks, nil
}

func (d *directory) completeOne(ctx context.Context, l *nfs3.DirEntry) (r lack) {
	nfs := d.tree.server.nfs
	if !l.Attr.Known && l.Handle != "" {
		var err error
		l.Attr.Attr, err = nfs.GetAttr(ctx, l.Handle)
		l.Attr.Known = err == nil
	}
	const tries = 3 // it is replaced meanwhile
	for try := 1; ; try++ {
		if !l.Attr.Known || l.Handle == "" || try > 1 {
			found, err := d.tree.server.lookup(ctx, d.handle, l.Name)
			if err != nil {
				return lack{op: "stat", err: err}
			}
			l.Handle, l.Attr = found.Handle, found.Attr
		}
		if l.Attr.Type != nfs3.Symlink {
			return lack{}
		}
		target, err := nfs.ReadLink(ctx, l.Handle)
		if err == nil {
			return lack{target: target}
		}
		if try == tries || !errors.Is(err, nfs3.ErrStale) && !errors.Is(err, nfs3.StatusInval) {
			return lack{op: "readlink", err: err}
		}
	}
}

var kinds = [...]backup.Kind{
	nfs3.Regular: backup.File, nfs3.Directory: backup.Directory, nfs3.BlockDevice: backup.BlockDev, nfs3.CharDevice: backup.CharDev,
	nfs3.Symlink: backup.Symlink, nfs3.Socket: backup.Socket, nfs3.FIFO: backup.FIFO,
}

// entryOf returns attributes as an entry. Those that no file can have are an error.
func entryOf(a *nfs3.Attr) (e backup.Entry, err error) {
	var kind backup.Kind
	if int64(a.Type) < int64(len(kinds)) {
		kind = kinds[a.Type]
	}
	e = backup.Entry{
		Kind: kind, Mode: a.Mode & 0o7777, UID: a.UID, GID: a.GID, Nlink: a.Nlink,
		Mtime: backup.Time{Sec: int64(a.Mtime.Sec), Nsec: a.Mtime.Nsec}, Ctime: backup.Time{Sec: int64(a.Ctime.Sec), Nsec: a.Ctime.Nsec},
		Inode: a.FileID, Device: a.FSID,
	}
	const second = 1_000_000_000
	switch {
	case e.Kind == 0:
		return e, fmt.Errorf("file type %d: %w", a.Type, backup.ErrInvalid)
	case e.Mtime.Nsec >= second || e.Ctime.Nsec >= second:
		return e, fmt.Errorf("times with %d and %d nanoseconds: %w", e.Mtime.Nsec, e.Ctime.Nsec, backup.ErrInvalid)
	case int64(a.Size) < 0:
		return e, fmt.Errorf("a size of %d bytes: %w", a.Size, backup.ErrInvalid)
	}
	switch e.Kind {
	case backup.File:
		e.Size = int64(a.Size)
	case backup.CharDev, backup.BlockDev:
		e.Rdev = unix.Mkdev(a.Device.Major, a.Device.Minor)
	}
	return e, nil
}
