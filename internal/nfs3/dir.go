package nfs3

import (
	"context"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// A Position is where a listing continues. The zero Position is the beginning.
type Position struct {
	Cookie   uint64
	Verifier Verifier
}

// A DirEntry is an entry of a directory. ReadDir, and a server that leaves them out, give no
// attributes and no handle.
type DirEntry struct {
	Name   string // any bytes, also "." and ".."
	FileID uint64
	Cookie uint64
	Attr   PostAttr
	Handle Handle
}

// A DirPage is a part of a listing.
type DirPage struct {
	Entries []DirEntry // share the memory of one page
	Dir     PostAttr   // of the directory itself
	Next    Position   // after the last entry
	EOF     bool       // no entries follow
}

// typicalEntryBytes is about the size of an entry in a reply of READDIRPLUS.
const typicalEntryBytes = 160

// ReadDirPlus lists a part of a directory, with attributes and handles: READDIRPLUS (RFC 1813,
// 3.3.17). The reply has about maxBytes. The entries are appended to dst. The server may return
// fewer entries than fit, even none. It refuses a Position that is no longer valid with
// StatusBadCookie.
func (c *Client) ReadDirPlus(ctx context.Context, dir Handle, at Position, maxBytes uint32, dst []DirEntry) (p DirPage, err error) {
	err = c.call(ctx, procReadDirPlus, 2*int(maxBytes), func(b []byte) []byte {
		b = appendPosition(b, dir, at)
		b = xdr.AppendUint32(b, maxBytes) // dircount: of names and cookies alone
		return xdr.AppendUint32(b, maxBytes)
	}, func(d *xdr.Decoder) { p = decodePage(d, at, dst, true) })
	return p, err
}

// ReadDir lists a part of a directory: READDIR (RFC 1813, 3.3.16). It is as ReadDirPlus, without
// attributes and handles of the entries.
func (c *Client) ReadDir(ctx context.Context, dir Handle, at Position, maxBytes uint32, dst []DirEntry) (p DirPage, err error) {
	err = c.call(ctx, procReadDir, 2*int(maxBytes), func(b []byte) []byte {
		return xdr.AppendUint32(appendPosition(b, dir, at), maxBytes)
	}, func(d *xdr.Decoder) { p = decodePage(d, at, dst, false) })
	return p, err
}

func appendPosition(b []byte, dir Handle, at Position) []byte {
	b = xdr.AppendOpaque(b, dir)
	b = xdr.AppendUint64(b, at.Cookie)
	return xdr.AppendFixed(b, at.Verifier[:])
}

func decodePage(d *xdr.Decoder, at Position, dst []DirEntry, plus bool) (p DirPage) {
	decodePostAttr(d, &p.Dir)
	p.Next = Position{Cookie: at.Cookie, Verifier: decodeVerifier(d)}
	var text strings.Builder
	text.Grow(d.Len() / 3) // names and handles are about a third of a reply
	p.Entries = slices.Grow(dst, d.Len()/typicalEntryBytes)
	for d.Bool() {
		p.Entries = append(p.Entries, DirEntry{})
		e := &p.Entries[len(p.Entries)-1]
		e.FileID = d.Uint64()
		e.Name = keep(&text, d.Opaque(maxNameBytes))
		e.Cookie = d.Uint64()
		if plus {
			decodePostAttr(d, &e.Attr)
			if d.Bool() {
				e.Handle = Handle(keep(&text, d.Opaque(MaxHandleBytes)))
			}
		}
		if d.Err() != nil {
			return DirPage{}
		}
		p.Next.Cookie = e.Cookie
	}
	p.EOF = d.Bool()
	return p
}

// keep returns a copy of b that is part of t. Earlier copies stay valid when t grows.
func keep(t *strings.Builder, b []byte) string {
	from := t.Len()
	t.Write(b)
	return t.String()[from:]
}
