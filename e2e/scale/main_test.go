//go:build linux

package scale_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/bench/markdown"
	"github.com/bctl/bctl/e2e/fleet"
)

var (
	asserts = flag.Bool("assert", false, "fail where bctl is not as fast as it must be")
	results = flag.String("results", "", "write the results into `DIR`, one file each")
)

func TestMain(m *testing.M) {
	flag.Parse()
	status := m.Run()
	fleet.Cleanup()
	os.Exit(status)
}

// A report is one section of the document.
type report struct {
	b       *testing.B
	name    string
	machine markdown.Machine
	text    strings.Builder
}

func newReport(b *testing.B, name string) *report {
	b.Helper()
	return &report{b: b, name: name, machine: markdown.DescribeMachine(b.TempDir())}
}

// say adds a paragraph.
func (r *report) say(format string, args ...any) { fmt.Fprintf(&r.text, format+"\n\n", args...) }

func (r *report) table(rows [][]string) {
	markdown.WriteTable(&r.text, rows)
	r.text.WriteString("\n")
}

// must is one of the criteria.
func (r *report) must(holds bool, format string, args ...any) {
	r.b.Helper()
	text := fmt.Sprintf(format, args...)
	switch {
	case holds:
		r.b.Logf("ok    %s", text)
	case *asserts:
		r.b.Errorf("FAIL  %s", text)
	default:
		r.b.Logf("FAIL  %s", text)
	}
}

// write shows the section, and writes it into a file.
func (r *report) write() {
	r.b.Helper()
	fmt.Fprintln(os.Stderr, "\n"+r.text.String())
	if *results == "" || r.b.Failed() {
		return
	}
	section := fmt.Sprintf("# %s\n\nMachine: %v. %s.\nLoad averages before %s, after %s.\n\n%s", r.name, &r.machine,
		time.Now().Format(time.DateOnly), r.machine.LoadBefore, markdown.LoadAverages(), strings.TrimRight(r.text.String(), "\n")+"\n")
	if err := os.WriteFile(filepath.Join(*results, r.name+".md"), []byte(section), 0o644); err != nil {
		r.b.Fatal(err)
	}
}
