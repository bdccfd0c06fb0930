package nfs3

import (
	"context"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// appendHandle returns an encoder of a handle alone.
func appendHandle(h Handle) func([]byte) []byte {
	return func(b []byte) []byte { return xdr.AppendOpaque(b, h) }
}

// appendName appends a diropargs3: a directory and a name in it.
func appendName(b []byte, dir Handle, name string) []byte {
	return xdr.AppendOpaque(xdr.AppendOpaque(b, dir), name)
}

// Null does nothing, and so measures a round trip: NULL (RFC 1813, 3.3.0).
func (c *Client) Null(ctx context.Context) error {
	_, err := c.rpc.Call(ctx, procNull, 0, func(b []byte) []byte { return b }, func(d *xdr.Decoder) error { return d.Err() })
	if err != nil {
		return &OpError{Op: ops[procNull], Err: err}
	}
	return nil
}

// GetAttr returns the attributes of a file: GETATTR (RFC 1813, 3.3.1).
func (c *Client) GetAttr(ctx context.Context, h Handle) (a Attr, err error) {
	err = c.call(ctx, procGetAttr, attrBytes, appendHandle(h), func(d *xdr.Decoder) { decodeAttr(d, &a) })
	return a, err
}

// Found is what a name leads to. A procedure that creates a file need not return its handle.
type Found struct {
	Handle Handle
	Attr   PostAttr
}

// Lookup finds a name in a directory: LOOKUP (RFC 1813, 3.3.3). It does not follow symlinks.
func (c *Client) Lookup(ctx context.Context, dir Handle, name string) (f Found, err error) {
	err = c.call(ctx, procLookup, smallBytes,
		func(b []byte) []byte { return appendName(b, dir, name) },
		func(d *xdr.Decoder) {
			f.Handle = decodeHandle(d)
			decodePostAttr(d, &f.Attr)
		})
	return f, err
}

// The rights that Access asks for.
const (
	AccessRead    = 0x01
	AccessLookup  = 0x02
	AccessModify  = 0x04
	AccessExtend  = 0x08
	AccessDelete  = 0x10
	AccessExecute = 0x20
)

// Access returns which of the rights in mask the caller has: ACCESS (RFC 1813, 3.3.4).
func (c *Client) Access(ctx context.Context, h Handle, mask uint32) (granted uint32, err error) {
	err = c.call(ctx, procAccess, smallBytes,
		func(b []byte) []byte { return xdr.AppendUint32(xdr.AppendOpaque(b, h), mask) },
		func(d *xdr.Decoder) {
			var a PostAttr
			decodePostAttr(d, &a)
			granted = d.Uint32() & mask
		})
	return granted, err
}

// ReadLink returns the target of a symlink: READLINK (RFC 1813, 3.3.5).
func (c *Client) ReadLink(ctx context.Context, h Handle) (target string, err error) {
	err = c.call(ctx, procReadLink, maxTargetBytes, appendHandle(h), func(d *xdr.Decoder) {
		var a PostAttr
		decodePostAttr(d, &a)
		target = string(d.Opaque(maxTargetBytes))
	})
	return target, err
}

// FSStat is how full a file system is.
type FSStat struct {
	TotalBytes, FreeBytes, AvailableBytes uint64
	TotalFiles, FreeFiles, AvailableFiles uint64
	InvarSeconds                          uint32 // for how long these numbers will not change
}

// FSStat returns how full the file system of h is: FSSTAT (RFC 1813, 3.3.18).
func (c *Client) FSStat(ctx context.Context, h Handle) (s FSStat, err error) {
	err = c.call(ctx, procFSStat, smallBytes, appendHandle(h), func(d *xdr.Decoder) {
		var a PostAttr
		decodePostAttr(d, &a)
		for _, to := range []*uint64{&s.TotalBytes, &s.FreeBytes, &s.AvailableBytes, &s.TotalFiles, &s.FreeFiles, &s.AvailableFiles} {
			*to = d.Uint64()
		}
		s.InvarSeconds = d.Uint32()
	})
	return s, err
}

// FSInfo is what a server can do.
type FSInfo struct {
	// The largest, preferred and granular sizes of READ and WRITE, and the preferred size of
	// READDIR, in bytes.
	MaxRead, PreferredRead, ReadMultiple    uint32
	MaxWrite, PreferredWrite, WriteMultiple uint32
	PreferredReadDir                        uint32
	MaxFileBytes                            uint64
	Grain                                   Time   // of the server's times
	Properties                              uint32 // PropertyLink and so on
}

// The bits of FSInfo.Properties.
const (
	PropertyLink        = 0x01 // hard links
	PropertySymlink     = 0x02
	PropertyHomogeneous = 0x08 // PathConf is the same for all files
	PropertySetTime     = 0x10 // the server keeps the times that SetAttr sets
)

// FSInfo returns what the server can do: FSINFO (RFC 1813, 3.3.19).
func (c *Client) FSInfo(ctx context.Context, root Handle) (i FSInfo, err error) {
	err = c.call(ctx, procFSInfo, smallBytes, appendHandle(root), func(d *xdr.Decoder) {
		var a PostAttr
		decodePostAttr(d, &a)
		for _, to := range []*uint32{
			&i.MaxRead, &i.PreferredRead, &i.ReadMultiple, &i.MaxWrite, &i.PreferredWrite, &i.WriteMultiple, &i.PreferredReadDir,
		} {
			*to = d.Uint32()
		}
		i.MaxFileBytes, i.Grain, i.Properties = d.Uint64(), decodeTime(d), d.Uint32()
	})
	return i, err
}

// PathConf is what POSIX calls the configurable variables of a path.
type PathConf struct {
	MaxLinks, MaxNameBytes                                    uint32
	NoTrunc, ChownRestricted, CaseInsensitive, CasePreserving bool
}

// PathConf returns the configurable variables of h: PATHCONF (RFC 1813, 3.3.20).
func (c *Client) PathConf(ctx context.Context, h Handle) (p PathConf, err error) {
	err = c.call(ctx, procPathConf, smallBytes, appendHandle(h), func(d *xdr.Decoder) {
		var a PostAttr
		decodePostAttr(d, &a)
		p = PathConf{d.Uint32(), d.Uint32(), d.Bool(), d.Bool(), d.Bool(), d.Bool()}
	})
	return p, err
}
