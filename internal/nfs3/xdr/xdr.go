// Package xdr encodes and decodes External Data Representation (RFC 4506), as ONC RPC uses it:
// every item is big-endian and padded to four bytes.
//
// A Decoder trusts nothing. It never allocates, and never reads past the message: a length is
// compared with the caller's limit and with the bytes that are left. After the first error, every
// item is zero. So a caller decodes a whole structure, and then looks at Err once.
package xdr

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed reports bytes that are not what the protocol requires.
var ErrMalformed = errors.New("malformed message")

// AppendUint32 appends an unsigned int or an enum (RFC 4506, 4.2 and 4.3).
func AppendUint32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

// AppendUint64 appends an unsigned hyper (RFC 4506, 4.5).
func AppendUint64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// AppendBool appends a bool (RFC 4506, 4.4).
func AppendBool(b []byte, v bool) []byte {
	if v {
		return AppendUint32(b, 1)
	}
	return AppendUint32(b, 0)
}

// AppendFixed appends opaque data of fixed length (RFC 4506, 4.9).
func AppendFixed[T ~string | ~[]byte](b []byte, data T) []byte {
	b = append(b, data...)
	return append(b, padding[:pad(len(data))]...)
}

// AppendOpaque appends opaque data of variable length, or a string (RFC 4506, 4.10 and 4.11).
func AppendOpaque[T ~string | ~[]byte](b []byte, data T) []byte {
	return AppendFixed(AppendUint32(b, uint32(len(data))), data)
}

var padding [3]byte

// pad is the number of bytes that follow n bytes of opaque data.
func pad(n int) int { return -n & 3 }

// A Decoder reads the items of one message, in order.
type Decoder struct {
	rest []byte
	err  error
}

// NewDecoder returns a Decoder of a message. What it returns refers to the message's memory.
func NewDecoder(message []byte) *Decoder { return &Decoder{rest: message} }

// Err returns the first error. It wraps ErrMalformed.
func (d *Decoder) Err() error { return d.err }

// Fail records an error, unless there is one already.
func (d *Decoder) Fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrMalformed)
	}
	d.rest = nil
}

// Len returns the number of bytes that are left.
func (d *Decoder) Len() int { return len(d.rest) }

// Uint32 reads an unsigned int or an enum.
func (d *Decoder) Uint32() uint32 {
	if len(d.rest) < 4 {
		d.Fail("%d bytes are left of 4", len(d.rest))
		return 0
	}
	v := binary.BigEndian.Uint32(d.rest)
	d.rest = d.rest[4:]
	return v
}

// Uint64 reads an unsigned hyper.
func (d *Decoder) Uint64() uint64 {
	if len(d.rest) < 8 {
		d.Fail("%d bytes are left of 8", len(d.rest))
		return 0
	}
	v := binary.BigEndian.Uint64(d.rest)
	d.rest = d.rest[8:]
	return v
}

// Bool reads a bool, which is 0 or 1.
func (d *Decoder) Bool() bool {
	v := d.Uint32()
	if v > 1 {
		d.Fail("a bool is %d", v)
	}
	return v == 1
}

// Fixed reads opaque data of n bytes.
func (d *Decoder) Fixed(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.rest) || n+pad(n) > len(d.rest) {
		d.Fail("%d bytes are left of %d", len(d.rest), n)
		return nil
	}
	data := d.rest[:n:n]
	d.rest = d.rest[n+pad(n):]
	return data
}

// Opaque reads opaque data, or a string, of at most limit bytes.
func (d *Decoder) Opaque(limit int) []byte {
	n := d.Uint32()
	if uint64(n) > uint64(max(limit, 0)) {
		d.Fail("%d bytes, at most %d are allowed", n, limit)
		return nil
	}
	return d.Fixed(int(n))
}
