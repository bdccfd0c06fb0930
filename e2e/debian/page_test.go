package debian

import (
	"regexp"
	"strings"
	"testing"
)

// A block is what a page says to type, in one go.
type block struct {
	section string // the heading of the second level that it is below
	kind    string // what stands after "sh": nothing, "download", "lost", "on NAME", "shared"
	text    string
}

var (
	fence   = regexp.MustCompile("^```(\\S*) ?(.*)$")
	heading = regexp.MustCompile(`^## (.+)$`)
)

// blocks returns the shell commands of a page, in order.
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	var section string
	var open *block
	for number, line := range strings.Split(read(t, page), "\n") {
		switch found := fence.FindStringSubmatch(line); {
		case open != nil && line == "```":
			if open.kind != "other" {
				all = append(all, *open)
			}
			open = nil
		case open != nil:
			open.text += line + "\n"
		case found != nil && found[1] == "sh":
			open = &block{section: section, kind: found[2]}
		case found != nil:
			open = &block{kind: "other"}
		case strings.HasPrefix(line, "    ") && strings.TrimSpace(line) != "":
			t.Errorf("%s:%d: a block without a fence is run by nobody", page, number+1)
		default:
			if found := heading.FindStringSubmatch(line); found != nil {
				section = found[1]
			}
		}
	}
	if open != nil {
		t.Fatalf("%s: a block has no end", page)
	}
	return all
}
