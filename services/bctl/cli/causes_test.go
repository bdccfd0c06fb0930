package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// Problems of one cause differ in their paths and in numbers only.
func TestCauseOf(t *testing.T) {
	for _, test := range []struct{ path, err, want string }{
		{"d1/f", "permission denied", "op: permission denied"},
		{"d", "permission denied", "op: permission denied"},
		{"d1/f", "open /srv/d1/f: no", "op: open /srv/…: no"},
		{"d1/f", "make f in d1: no", "op: make … in …: no"},
		{"h", "repository /tmp/h3c: the h is odd", "op: repository /tmp/h3c: the … is odd"},
		{"x", "frame 17 of pack 24d19cf9d11f80de4328322ea23625f9: corrupt", "op: frame … of pack …: corrupt"},
		{"", "no", "op: no"},
	} {
		if got := causeOf(backup.Problem{Path: test.path, Op: "op", Err: test.err}); got != test.want {
			t.Errorf("%q, %q: %q, want %q", test.path, test.err, got, test.want)
		}
	}
}

// However many causes there are, the output stays short, and all problems are counted.
func TestManyCauses(t *testing.T) {
	var out bytes.Buffer
	c := causeCounter{term: &terminal{out: &out, err: &out}}
	for n := range 1000 {
		for range 10 {
			c.problem(backup.Problem{Path: "p", Op: "op", Err: strings.Repeat("x", n)})
		}
	}
	c.end("where")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := maxCauses*(shownPerCause+1) + 2; len(lines) != want {
		t.Errorf("%d lines, want %d", len(lines), want)
	}
	if want := fmt.Sprintf("… and 9,%d errors of other causes\nwhere\n", 1000-10*maxCauses); !strings.HasSuffix(out.String(), want) {
		t.Errorf("the last lines are %q, want %q", lines[len(lines)-2:], want)
	}
}
