// Package keytext is the text form of what must not be edited: key files and
// the repository object. A text is lines of a word and a value, in a fixed
// order, each ended by a line feed. The same content always has the same text,
// and nothing but that text is accepted: an edited file could lack a recipient,
// who would then read none of the packs that are written with it.
package keytext

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

const (
	version       = "v1"
	checksumBytes = 8
	timeFormat    = "2006-01-02T15:04:05Z"
)

// ErrVersion: the text is of a version that is not ours. It comes with
// backup.ErrInvalid.
var ErrVersion = errors.New("its version is not known to this version of bctl")

// A Writer makes a text. The zero Writer is not valid.
type Writer struct{ b bytes.Buffer }

// NewWriter returns a Writer whose text begins with the title and the version.
func NewWriter(title string) *Writer {
	w := &Writer{}
	w.Text(title, version)
	return w
}

// Text adds a line. A value with a line feed makes a text that no Reader takes.
func (w *Writer) Text(word, value string) { fmt.Fprintf(&w.b, "%s %s\n", word, value) }

// Hex adds a line whose value is raw in hexadecimal digits.
func (w *Writer) Hex(word string, raw []byte) { w.Text(word, hex.EncodeToString(raw)) }

// Base64 adds a line whose value is raw in base64.
func (w *Writer) Base64(word string, raw []byte) {
	w.Text(word, base64.StdEncoding.EncodeToString(raw))
}

// Time adds a line with a time, in whole seconds.
func (w *Writer) Time(word string, t time.Time) { w.Text(word, t.UTC().Format(timeFormat)) }

// Checksum adds a line with a digest of the lines before it.
func (w *Writer) Checksum() { w.Text("checksum", checksum(w.b.Bytes())) }

// Bytes returns the text so far.
func (w *Writer) Bytes() []byte { return w.b.Bytes() }

// A Reader takes the lines of a text until one is not as expected; from then on
// it returns zeros. Errors wrap backup.ErrInvalid and show no value.
type Reader struct {
	what string // "worker key", for errors
	all  string
	rest string
	err  error
}

// NewReader reads the first line, which must have the title and our version.
func NewReader(what, title string, data []byte, maxBytes int) *Reader {
	r := &Reader{what: what}
	if len(data) > maxBytes {
		r.Fail("%d bytes, at most %d are allowed", len(data), maxBytes)
		return r
	}
	r.all = string(data)
	r.rest = r.all
	found, ok := r.cut(title)
	switch {
	case !ok:
		r.Fail("does not begin with %q", title+" "+version)
	case found != version:
		r.Fail("%w", ErrVersion)
	}
	return r
}

// Fail notes an error, unless there is one already.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(r.what+": "+format+": %w", append(args, backup.ErrInvalid)...)
	}
}

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// cut takes the next line where it begins with word, and returns its value.
func (r *Reader) cut(word string) (value string, ok bool) {
	line, after, ended := strings.Cut(r.rest, "\n")
	value, ok = strings.CutPrefix(line, word+" ")
	if r.err != nil || !ended || !ok {
		return "", false
	}
	r.rest = after
	return value, true
}

// Text takes the next line, which must begin with word.
func (r *Reader) Text(word string) string {
	value, ok := r.cut(word)
	if !ok {
		r.Fail("no valid line %q", word)
	}
	return value
}

// Hex takes a line of hexadecimal digits, in lower case, that fill dst.
func (r *Reader) Hex(word string, dst []byte) {
	if value := r.Text(word); r.err == nil && !DecodeHex(dst, value) {
		r.Fail("no valid line %q", word)
	}
}

// Base64 takes a line of base64, with padding. It is not empty.
func (r *Reader) Base64(word string) []byte {
	value := r.Text(word)
	raw, err := base64.StdEncoding.Strict().DecodeString(value)
	// The decoder skips carriage returns.
	if err != nil || len(raw) == 0 || len(value) != base64.StdEncoding.EncodedLen(len(raw)) {
		r.Fail("no valid line %q", word)
		return nil
	}
	return raw
}

// Time takes a line with a time in UTC, in whole seconds.
func (r *Reader) Time(word string) time.Time {
	value := r.Text(word)
	t, err := time.Parse(timeFormat, value)
	if err != nil || t.Format(timeFormat) != value {
		r.Fail("no valid line %q", word)
		return time.Time{}
	}
	return t
}

// Repeated takes lines that begin with word, at most one more than limit.
func (r *Reader) Repeated(word string, limit int) (values []string) {
	for len(values) <= limit {
		value, ok := r.cut(word)
		if !ok {
			break
		}
		values = append(values, value)
	}
	return values
}

// Before returns the lines that were taken so far.
func (r *Reader) Before() []byte { return []byte(r.all[:len(r.all)-len(r.rest)]) }

// End fails where there is more.
func (r *Reader) End() {
	if r.rest != "" {
		r.Fail("has more than it should")
	}
}

// Checksum takes the last line. A checksum that does not match is
// backup.ErrCorrupt.
func (r *Reader) Checksum() {
	want := checksum(r.Before())
	got := r.Text("checksum")
	r.End()
	if r.err == nil && got != want {
		r.err = fmt.Errorf("%s: checksum does not match: %w", r.what, backup.ErrCorrupt)
	}
}

// DecodeHex fills dst with what text says, in lower case only, so that a value
// has one text.
func DecodeHex(dst []byte, text string) bool {
	if len(text) != hex.EncodedLen(len(dst)) || strings.ToLower(text) != text {
		return false
	}
	_, err := hex.Decode(dst, []byte(text))
	return err == nil
}

func checksum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:checksumBytes])
}
