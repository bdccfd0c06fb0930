package nfs3

import (
	"context"
	"fmt"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// SetAttr sets attributes of a file: SETATTR (RFC 1813, 3.3.2). guard is the ctime that the file
// must have, or nil; if it has another, the error is StatusNotSync.
func (c *Client) SetAttr(ctx context.Context, h Handle, s SetAttr, guard *Time) error {
	return c.call(ctx, procSetAttr, smallBytes, func(b []byte) []byte {
		b = s.appendTo(xdr.AppendOpaque(b, h))
		if b = xdr.AppendBool(b, guard != nil); guard != nil {
			b = xdr.AppendUint32(xdr.AppendUint32(b, guard.Sec), guard.Nsec)
		}
		return b
	}, func(d *xdr.Decoder) { skipWCC(d) })
}

// create calls a procedure that creates a file. The server need not return its handle.
func (c *Client) create(ctx context.Context, procedure uint32, dir Handle, name string, encode func([]byte) []byte) (f Found, err error) {
	err = c.call(ctx, procedure, smallBytes,
		func(b []byte) []byte { return encode(appendName(b, dir, name)) },
		func(d *xdr.Decoder) {
			f.Handle = decodePostHandle(d)
			decodePostAttr(d, &f.Attr)
			skipWCC(d)
		})
	return f, err
}

// createmode3 of RFC 1813, 3.3.8.
const (
	createUnchecked = 0
	createGuarded   = 1
	createExclusive = 2
)

// Create creates a regular file, or sets the attributes of an existing one: CREATE (RFC 1813,
// 3.3.8). With guarded, an existing file is StatusExist.
func (c *Client) Create(ctx context.Context, dir Handle, name string, s SetAttr, guarded bool) (Found, error) {
	return c.create(ctx, procCreate, dir, name, func(b []byte) []byte {
		mode := uint32(createUnchecked)
		if guarded {
			mode = createGuarded
		}
		return s.appendTo(xdr.AppendUint32(b, mode))
	})
}

// CreateExclusive creates a regular file, or returns the one that the same verifier has created:
// CREATE (RFC 1813, 3.3.8). A call that is executed twice therefore succeeds. The attributes of the
// new file are undefined until SetAttr sets them.
func (c *Client) CreateExclusive(ctx context.Context, dir Handle, name string, v Verifier) (Found, error) {
	return c.create(ctx, procCreate, dir, name, func(b []byte) []byte {
		return xdr.AppendFixed(xdr.AppendUint32(b, createExclusive), v[:])
	})
}

// Mkdir creates a directory: MKDIR (RFC 1813, 3.3.9).
func (c *Client) Mkdir(ctx context.Context, dir Handle, name string, s SetAttr) (Found, error) {
	return c.create(ctx, procMkdir, dir, name, s.appendTo)
}

// Symlink creates a symlink: SYMLINK (RFC 1813, 3.3.10).
func (c *Client) Symlink(ctx context.Context, dir Handle, name, target string, s SetAttr) (Found, error) {
	return c.create(ctx, procSymlink, dir, name, func(b []byte) []byte {
		return xdr.AppendOpaque(s.appendTo(b), target)
	})
}

// Mknod creates a device file, a socket or a FIFO: MKNOD (RFC 1813, 3.3.11). device counts only for
// the two types of device.
func (c *Client) Mknod(ctx context.Context, dir Handle, name string, kind FileType, device Device, s SetAttr) (Found, error) {
	switch kind {
	case BlockDevice, CharDevice, Socket, FIFO:
	default:
		return Found{}, fmt.Errorf("MKNOD: type %d: %w", kind, StatusBadType)
	}
	return c.create(ctx, procMknod, dir, name, func(b []byte) []byte {
		b = s.appendTo(xdr.AppendUint32(b, uint32(kind)))
		if kind == BlockDevice || kind == CharDevice {
			b = xdr.AppendUint32(xdr.AppendUint32(b, device.Major), device.Minor)
		}
		return b
	})
}

// Remove removes a name that is not a directory's: REMOVE (RFC 1813, 3.3.12).
func (c *Client) Remove(ctx context.Context, dir Handle, name string) error {
	return c.call(ctx, procRemove, smallBytes,
		func(b []byte) []byte { return appendName(b, dir, name) }, func(d *xdr.Decoder) { skipWCC(d) })
}

// Rmdir removes an empty directory: RMDIR (RFC 1813, 3.3.13).
func (c *Client) Rmdir(ctx context.Context, dir Handle, name string) error {
	return c.call(ctx, procRmdir, smallBytes,
		func(b []byte) []byte { return appendName(b, dir, name) }, func(d *xdr.Decoder) { skipWCC(d) })
}

// Rename renames a file or a directory, and replaces what has the new name: RENAME (RFC 1813,
// 3.3.14).
func (c *Client) Rename(ctx context.Context, fromDir Handle, from string, toDir Handle, to string) error {
	return c.call(ctx, procRename, smallBytes, func(b []byte) []byte {
		return appendName(appendName(b, fromDir, from), toDir, to)
	}, func(d *xdr.Decoder) {
		skipWCC(d)
		skipWCC(d)
	})
}

// Link gives a file another name: LINK (RFC 1813, 3.3.15).
func (c *Client) Link(ctx context.Context, h, dir Handle, name string) error {
	return c.call(ctx, procLink, smallBytes, func(b []byte) []byte {
		return appendName(xdr.AppendOpaque(b, h), dir, name)
	}, func(d *xdr.Decoder) {
		var a PostAttr
		decodePostAttr(d, &a)
		skipWCC(d)
	})
}
