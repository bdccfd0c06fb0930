package rpctest

import (
	"encoding/binary"
	"errors"
	"net"
)

// errClose closes the connection.
var errClose = errors.New("the fault closes the connection")

// WithMark returns a record of one fragment.
func WithMark(answer []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(answer))), answer...)
}

func send(to *net.TCPConn, b []byte) error {
	_, err := to.Write(b)
	return err
}

// Right answers as a good server does.
func Right(to *net.TCPConn, answer []byte) error { return send(to, WithMark(answer)) }

// Dropped does not answer.
func Dropped(*net.TCPConn, []byte) error { return nil }

// Reset resets the connection instead of an answer.
func Reset(to *net.TCPConn, _ []byte) error {
	return errors.Join(to.SetLinger(0), errClose)
}

// Cut closes the connection in the middle of the answer.
func Cut(to *net.TCPConn, answer []byte) error {
	return errors.Join(send(to, WithMark(answer)[:4+len(answer)/2]), errClose)
}

// Twice answers twice.
func Twice(to *net.TCPConn, answer []byte) error {
	return send(to, append(WithMark(answer), WithMark(answer)...))
}

// WrongXIDs sends answers to calls that nobody has made, and then the right one.
func WrongXIDs(to *net.TCPConn, answer []byte) error {
	if err := OnlyWrongXIDs(to, answer); err != nil {
		return err
	}
	return Right(to, answer)
}

// OnlyWrongXIDs sends answers to calls that nobody has made.
func OnlyWrongXIDs(to *net.TCPConn, answer []byte) error {
	for i := range 3 {
		other := append([]byte(nil), answer...)
		binary.BigEndian.PutUint32(other, binary.BigEndian.Uint32(answer)+1_000_000+uint32(i))
		if err := send(to, WithMark(other)); err != nil {
			return err
		}
	}
	return nil
}

// Fragmented returns a Fault that answers in fragments of so many bytes, with empty ones between
// them.
func Fragmented(partBytes int) Fault {
	return func(to *net.TCPConn, answer []byte) error {
		var b []byte
		for i := 0; len(answer) > 0; i++ {
			if i < 20 {
				b = append(b, 0, 0, 0, 0)
			}
			n := min(partBytes, len(answer))
			b = binary.BigEndian.AppendUint32(b, uint32(n))
			b = append(b, answer[:n]...)
			answer = answer[n:]
		}
		return send(to, append(b, 0x80, 0, 0, 0))
	}
}

// Oversized announces an answer of 2 GiB, and sends a part of it.
func Oversized(to *net.TCPConn, answer []byte) error {
	return send(to, append([]byte{0xff, 0xff, 0xff, 0xff}, answer...))
}

// Endless sends a record that has no end.
func Endless(to *net.TCPConn, answer []byte) error {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(answer)))
	b = append(b, answer...)
	for range 1 << 20 {
		if err := send(to, b); err != nil {
			return err
		}
	}
	return errClose
}

// EmptyFragments sends a record of fragments without content.
func EmptyFragments(to *net.TCPConn, _ []byte) error {
	for range 1 << 20 {
		if err := send(to, make([]byte, 4)); err != nil {
			return err
		}
	}
	return errClose
}

// Begun sends all of the answer but its last byte, and keeps the connection open.
func Begun(to *net.TCPConn, answer []byte) error {
	b := WithMark(answer)
	return send(to, b[:len(b)-1])
}

// Replaced returns a Fault that sends other bytes behind the xid.
func Replaced(rest []byte) Fault {
	return func(to *net.TCPConn, answer []byte) error {
		return Right(to, append(answer[:4:4], rest...))
	}
}

// Truncated returns a Fault that sends only the first bytes of the answer, as a whole record.
func Truncated(n int) Fault {
	return func(to *net.TCPConn, answer []byte) error { return Right(to, answer[:min(n, len(answer))]) }
}
