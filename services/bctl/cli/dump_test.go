package cli

import (
	"bytes"
	"testing"
)

// However text comes in parts, no control character reaches the terminal.
func TestTextWriter(t *testing.T) {
	for text, want := range map[string]bool{
		"plain\ttext\r\n": true, "Zürich, 東京, \u00a0": true, "\xff": true, "\xc2": true,
		"\x1b[2J": false, "a\u009b2J": false, "\x7f": false, "\x00": false,
	} {
		for cut := range len(text) + 1 {
			var out bytes.Buffer
			w := &textWriter{to: &out}
			_, err := w.Write([]byte(text[:cut]))
			if err == nil {
				_, err = w.Write(nil)
			}
			if err == nil {
				_, err = w.Write([]byte(text[cut:]))
			}
			if got := err == nil; got != want || got && out.String() != text {
				t.Errorf("%q and %q: %q, %v", text[:cut], text[cut:], &out, err)
			}
		}
	}
}
