package rpc

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// Record marking (RFC 5531, 11): a record is a sequence of fragments, each behind a mark of its
// length. The highest bit marks the last fragment.
const (
	markBytes    = 4
	lastFragment = 1 << 31
	// maxEmpty bounds the fragments without content in one record.
	maxEmpty = 64
)

// setMark makes the message a record of one fragment. Its first four bytes are room for the mark.
func setMark(message []byte) {
	binary.BigEndian.PutUint32(message, lastFragment|uint32(len(message)-markBytes))
}

// A record reads the content of one record. After it, Read returns io.EOF.
type record struct {
	from  *bufio.Reader
	left  int // of the current fragment
	last  bool
	empty int
}

func (r *record) Read(p []byte) (int, error) {
	for r.left == 0 {
		if r.last {
			return 0, io.EOF
		}
		if err := r.nextFragment(); err != nil {
			return 0, err
		}
	}
	n, err := r.from.Read(p[:min(len(p), r.left)])
	r.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (r *record) nextFragment() error {
	var mark [markBytes]byte
	if _, err := io.ReadFull(r.from, mark[:]); err != nil {
		return io.ErrUnexpectedEOF
	}
	m := binary.BigEndian.Uint32(mark[:])
	r.left, r.last = int(m&^lastFragment), m&lastFragment != 0
	if r.left == 0 {
		if r.empty++; r.empty > maxEmpty {
			return fmt.Errorf("a record with more than %d empty fragments: %w", maxEmpty, xdr.ErrMalformed)
		}
	}
	return nil
}

// readAll appends the rest of the record to buf, at most limit bytes.
func (r *record) readAll(buf []byte, limit int) ([]byte, error) {
	for {
		if r.left > limit-len(buf) {
			return buf, ErrTooLarge
		}
		if r.left > 0 {
			at := len(buf)
			buf = append(buf, make([]byte, r.left)...)
			n, err := io.ReadFull(r.from, buf[at:])
			if err != nil {
				return buf[:at+n], io.ErrUnexpectedEOF
			}
			r.left = 0
		}
		if r.last {
			return buf, nil
		}
		if err := r.nextFragment(); err != nil {
			return buf, err
		}
	}
}

// discard reads at most limit bytes of the rest of the record, and fails if there are more.
func (r *record) discard(limit int64) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, limit))
	if err == nil && n == limit && (r.left > 0 || !r.last) {
		return ErrTooLarge
	}
	return err
}
