// Package filetype classifies files by their first bytes, as backup.Class. It does not find out the
// type of a file: it matters only that an encrypted file is Opaque, and that nearly all others are
// not. So the tables need compressed and other dense formats, which would look random. They also
// need encrypted formats that begin with text or zeros, which would not.
package filetype

import (
	"bytes"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
)

// HeadBytes is how much of a file Classify looks at.
const HeadBytes = 512

const (
	// textBytes of text at the beginning make a file a text. Random data is never that long a text.
	textBytes = 64
	// randomBytes at the beginning decide whether data is random. Shorter data never counts as
	// random. Of so many random bytes, hardly any have as many equal pairs as other data.
	randomBytes = 256
	// randomPairs: random data has one pair of equal bytes in 256; compressed formats, with their
	// headers and tables, have more than one in this many, and text and programs one in 10 to 40.
	randomPairs = 160
)

// Classify returns the class of a file that begins with head.
func Classify(head []byte) backup.Class {
	if len(head) == 0 {
		return backup.Plain
	}
	if class := known(head); class != backup.Unclassified {
		return class
	}
	switch {
	case isText(head[:min(len(head), textBytes)]):
		return backup.Typed
	case isRandom(head):
		return backup.Opaque
	}
	return backup.Plain
}

// isText reports whether data is text in UTF-8; its last rune may be incomplete.
func isText(data []byte) bool {
	for i, b := range data {
		if printable[b] {
			continue
		}
		return b >= utf8.RuneSelf && isUTF8(data[i:])
	}
	return true
}

// printable are the bytes of text in ASCII.
var printable = func() (table [256]bool) {
	for b := range byte(0x7f) {
		table[b] = b >= ' ' || isSpace(b)
	}
	return table
}()

func isUTF8(data []byte) bool {
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		if r == utf8.RuneError && n == 1 {
			return !utf8.FullRune(data)
		}
		if r < ' ' && !isSpace(byte(r)) || r == 0x7f {
			return false
		}
		data = data[n:]
	}
	return true
}

// isSpace reports whether a control character occurs in text.
func isSpace(b byte) bool { return '\b' <= b && b <= '\r' || b == 0x1b }

// known returns Typed or Opaque if the file has a known type, and otherwise Unclassified.
func known(head []byte) backup.Class {
	for _, m := range byFirst[head[0]] {
		if len(head) >= len(m.magic) && string(head[:len(m.magic)]) == m.magic {
			return m.class
		}
	}
	if hasInside(head) || isTransportStream(head) {
		return backup.Typed
	}
	return backup.Unclassified
}

// isTransportStream reports whether head begins with three packets of an MPEG transport stream.
func isTransportStream(head []byte) bool {
	const packet, sync = 188, 'G'
	return len(head) > 2*packet && head[0] == sync && head[packet] == sync && head[2*packet] == sync
}

// isRandom counts pairs of equal bytes, as pack.Dense does for the middle of a chunk.
func isRandom(head []byte) bool {
	if len(head) < randomBytes {
		return false
	}
	head = head[:randomBytes]
	left := randomBytes * (randomBytes - 1) / 2 / randomPairs
	var seen [256]uint8
	for _, b := range head {
		n := seen[b]
		if left -= int(n); left <= 0 {
			return false
		}
		seen[b] = n + 1
	}
	return seen[0] < zeroRun || !bytes.Contains(head, zeros[:])
}

// Random data has a run of zeros of this length in one of 2^48 cases. Formats have it.
const zeroRun = 7

var zeros [zeroRun]byte
