package nfs3

import (
	"context"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// MaxTransferBytes is the most that Read and Write transfer at once. A server may allow less
// (FSInfo).
const MaxTransferBytes = 1 << 20

// Read reads from a file at an offset: READ (RFC 1813, 3.3.6). n may be less than len(p), even 0;
// only eof says that the file ends after it. Of p, at most MaxTransferBytes are used.
func (c *Client) Read(ctx context.Context, h Handle, offset uint64, p []byte) (n int, eof bool, a PostAttr, err error) {
	p = p[:min(len(p), MaxTransferBytes)]
	err = c.call(ctx, procRead, len(p), func(b []byte) []byte {
		b = xdr.AppendUint64(xdr.AppendOpaque(b, h), offset)
		return xdr.AppendUint32(b, uint32(len(p)))
	}, func(d *xdr.Decoder) {
		decodePostAttr(d, &a)
		count := d.Uint32()
		eof = d.Bool()
		data := d.Opaque(len(p))
		if d.Err() == nil && uint64(count) != uint64(len(data)) {
			d.Fail("READ of %d bytes has %d bytes of data", count, len(data))
			return
		}
		n = copy(p, data)
	})
	if err != nil {
		return 0, false, PostAttr{}, err
	}
	return n, eof, a, nil
}

// Stable is how durable a write is when it is answered (stable_how).
type Stable uint32

// The values of Stable.
const (
	Unstable Stable = 0 // it may be lost when the server restarts, until Commit
	DataSync Stable = 1
	FileSync Stable = 2
)

// Write writes to a file at an offset: WRITE (RFC 1813, 3.3.7). n may be less than len(p). The
// server may do more than was asked for, so committed is what holds. Data that is only Unstable is
// safe once Commit has returned the same verifier; if it returns another, the server has restarted,
// and the data must be written again. Of p, at most MaxTransferBytes are used.
func (c *Client) Write(ctx context.Context, h Handle, offset uint64, p []byte, stable Stable) (n int, committed Stable, v Verifier, err error) {
	p = p[:min(len(p), MaxTransferBytes)]
	err = c.call(ctx, procWrite, smallBytes, func(b []byte) []byte {
		b = xdr.AppendUint64(xdr.AppendOpaque(b, h), offset)
		b = xdr.AppendUint32(b, uint32(len(p)))
		b = xdr.AppendUint32(b, uint32(stable))
		return xdr.AppendOpaque(b, p)
	}, func(d *xdr.Decoder) {
		skipWCC(d)
		count := d.Uint32()
		if d.Err() == nil && uint64(count) > uint64(len(p)) {
			d.Fail("WRITE of %d bytes has written %d", len(p), count)
			return
		}
		n, committed, v = int(count), Stable(d.Uint32()), decodeVerifier(d)
		if d.Err() == nil && committed > FileSync {
			d.Fail("stable_how %d", committed)
		}
	})
	if err != nil {
		return 0, 0, Verifier{}, err
	}
	return n, committed, v, nil
}

// Commit makes what was written to a file durable: COMMIT (RFC 1813, 3.3.21). See Write for what
// the verifier means. Count 0 means everything from offset on.
func (c *Client) Commit(ctx context.Context, h Handle, offset uint64, count uint32) (v Verifier, err error) {
	err = c.call(ctx, procCommit, smallBytes, func(b []byte) []byte {
		return xdr.AppendUint32(xdr.AppendUint64(xdr.AppendOpaque(b, h), offset), count)
	}, func(d *xdr.Decoder) {
		skipWCC(d)
		v = decodeVerifier(d)
	})
	return v, err
}
