package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/doctor"
)

// The texts of results, and the lines of doctor, fit a terminal. In a pipe they are not broken.
func TestTextsFitTheTerminal(t *testing.T) {
	const id = "24d19cf9d11f80de4328322ea23625f9"
	outcome := doctor.Outcome{Group: "index", ID: "index.schema", Finding: doctor.Finding{
		Status: doctor.Warning, Seen: "repository " + id + ", with a schema that this bctl supports", Advice: "run bctl migrate --finish when all services have been upgraded",
	}}
	for _, width := range []int{40, 80, 0} {
		var out bytes.Buffer
		a := &app{out: &out, term: &terminal{outIs: width > 0, screen: func() (int, int) { return width, 24 }}}
		p := doctorPrinter{app: a}
		p.print(outcome)
		if p.failed != nil {
			t.Fatal(p.failed)
		}
		if err := a.result(nil, "hold %d keeps snapshot %s of %s %s (bctl hold rm %[1]d removes it)\n", 1, "3f2a0000", "nas1", "/export/home/projects"); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if width == 0 && len(lines) != 3 {
			t.Errorf("a pipe gets %d lines:\n%s", len(lines), out.String())
		}
		for _, line := range lines {
			if width > 0 && utf8.RuneCountInString(line) > width && !strings.Contains(line, id) {
				t.Errorf("%d columns: %q", width, line)
			}
		}
		if joined := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(joined, outcome.Seen+" -> "+outcome.Advice) {
			t.Errorf("%d columns: the finding is not complete:\n%s", width, out.String())
		}
		if width == 80 && !strings.HasPrefix(lines[2], strings.Repeat(" ", 14)) {
			t.Errorf("the second line of a finding is not indented: %q", lines[2])
		}
	}
}

// Equal lines of queued work are counted, and lines of workers are not.
func TestQueuedWorkIsCounted(t *testing.T) {
	queued, working := "3f2a0000  read  (queued)  0:02  waits", "3f2a0000  read  r1  0:02  ."
	for _, test := range []struct {
		lines []string
		want  string
	}{
		{nil, ""},
		{[]string{"HEAD", queued, queued}, "HEAD|" + queued + "|" + queued},
		{[]string{"HEAD", working, working, working, queued, queued, queued, queued}, "HEAD|" + working + "|" + working + "|" + working + "|" + queued + "|… and 3 more like this"},
	} {
		if got := strings.Join(withoutRepetitions(test.lines), "|"); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// The values of details are aligned, and broken where the terminal ends.
func TestDetailsFitTheTerminal(t *testing.T) {
	for width, want := range map[int]string{
		0:  "floor  an eighth of a filer's limits\nkeep   7 daily\n",
		24: "floor  an eighth of a\n       filer's limits\nkeep   7 daily\n",
	} {
		var out bytes.Buffer
		a := &app{out: &out, term: &terminal{outIs: width > 0, screen: func() (int, int) { return width, 24 }}}
		err := a.details(func(row rowFunc) {
			row("floor", "%s", "an eighth of a filer's limits")
			row("keep", "%d daily", 7)
		})
		if err != nil || out.String() != want {
			t.Errorf("%d columns: %v\n%s\nwant\n%s", width, err, out.String(), want)
		}
	}
}
