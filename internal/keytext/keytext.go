// Package keytext implements the text form of data that must not be edited: key files and the
// repository object. A text consists of lines of a word and a value, in a fixed order, each
// terminated by a line feed. The same content always has the same text, and only that text is
// accepted. An edited file could lack a recipient, who could then not read the packs that are
// written with it.
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
	millisFormat  = "2006-01-02T15:04:05.000Z"
)

// ErrVersion: the version of the text is not supported. It is always combined with
// backup.ErrInvalid.
var ErrVersion = errors.New("its version is not known to this version of bctl")

// A Writer builds a text. The zero Writer is not valid.
type Writer struct{ b bytes.Buffer }

// NewWriter returns a Writer whose text begins with the title and the version.
func NewWriter(title string) *Writer {
	w := &Writer{}
	w.Text(title, version)
	return w
}

// Text adds a line. A value that contains a line feed makes a text that no Reader accepts.
func (w *Writer) Text(word, value string) { fmt.Fprintf(&w.b, "%s %s\n", word, value) }

// Hex adds a line with raw in hexadecimal digits.
func (w *Writer) Hex(word string, raw []byte) { w.Text(word, hex.EncodeToString(raw)) }

// Base64 adds a line with raw in base64.
func (w *Writer) Base64(word string, raw []byte) {
	w.Text(word, base64.StdEncoding.EncodeToString(raw))
}

// Time adds a line with a time, in whole seconds.
func (w *Writer) Time(word string, t time.Time) { w.Text(word, t.UTC().Format(timeFormat)) }

// Millis adds a line with a time, in whole milliseconds.
func (w *Writer) Millis(word string, t time.Time) { w.Text(word, FormatMillis(t)) }

// FormatMillis returns the text of a time in UTC, in whole milliseconds.
func FormatMillis(t time.Time) string { return t.UTC().Format(millisFormat) }

// ParseMillis is the inverse of FormatMillis.
func ParseMillis(text string) (t time.Time, ok bool) {
	t, err := time.Parse(millisFormat, text)
	return t, err == nil && t.Format(millisFormat) == text
}

// Checksum adds a line with a digest of the lines before it.
func (w *Writer) Checksum() { w.Text("checksum", checksum(w.b.Bytes())) }

// Bytes returns the text so far.
func (w *Writer) Bytes() []byte { return w.b.Bytes() }

// A Reader reads the lines of a text. After the first unexpected line it returns only zeros. Errors
// wrap backup.ErrInvalid and never contain a value.
type Reader struct {
	what string // "worker key", for errors
	all  string
	rest string
	err  error
}

// NewReader reads the first line, which must have the title and the supported version.
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

// Fail records an error, unless there is one already.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(r.what+": "+format+": %w", append(args, backup.ErrInvalid)...)
	}
}

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// cut reads the next line if it begins with word, and returns its value.
func (r *Reader) cut(word string) (value string, ok bool) {
	line, after, ended := strings.Cut(r.rest, "\n")
	value, ok = strings.CutPrefix(line, word+" ")
	if r.err != nil || !ended || !ok {
		return "", false
	}
	r.rest = after
	return value, true
}

// Text reads the next line, which must begin with word.
func (r *Reader) Text(word string) string {
	value, ok := r.cut(word)
	if !ok {
		r.Fail("no valid line %q", word)
	}
	return value
}

// Hex reads a line of lower-case hexadecimal digits that exactly fill dst.
func (r *Reader) Hex(word string, dst []byte) {
	if value := r.Text(word); r.err == nil && !DecodeHex(dst, value) {
		r.Fail("no valid line %q", word)
	}
}

// Base64 reads a line of base64 with padding, which must not be empty.
func (r *Reader) Base64(word string) []byte {
	value := r.Text(word)
	raw, err := base64.StdEncoding.Strict().DecodeString(value)
	// The decoder skips carriage returns, so the length is checked as well.
	if err != nil || len(raw) == 0 || len(value) != base64.StdEncoding.EncodedLen(len(raw)) {
		r.Fail("no valid line %q", word)
		return nil
	}
	return raw
}

// Time reads a line with a time in UTC, in whole seconds.
func (r *Reader) Time(word string) time.Time {
	value := r.Text(word)
	t, err := time.Parse(timeFormat, value)
	if err != nil || t.Format(timeFormat) != value {
		r.Fail("no valid line %q", word)
		return time.Time{}
	}
	return t
}

// Millis reads a line with a time in UTC, in whole milliseconds.
func (r *Reader) Millis(word string) time.Time {
	t, ok := ParseMillis(r.Text(word))
	if !ok {
		r.Fail("no valid line %q", word)
		return time.Time{}
	}
	return t
}

// Repeated reads all lines that begin with word, up to one more than limit.
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

// Before returns the lines read so far.
func (r *Reader) Before() []byte { return []byte(r.all[:len(r.all)-len(r.rest)]) }

// End fails unless all lines were read.
func (r *Reader) End() {
	if r.rest != "" {
		r.Fail("has lines after its end")
	}
}

// Checksum reads the last line. A checksum that does not match is backup.ErrCorrupt.
func (r *Reader) Checksum() {
	want := checksum(r.Before())
	got := r.Text("checksum")
	r.End()
	if r.err == nil && got != want {
		r.err = fmt.Errorf("%s: checksum does not match: %w", r.what, backup.ErrCorrupt)
	}
}

// DecodeHex fills dst with the bytes that text encodes. It accepts lower case only, so that each
// value has one text.
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
