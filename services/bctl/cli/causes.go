package cli

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
)

const (
	// shownPerCause is how many problems of one cause are printed in full.
	shownPerCause = 3
	// maxCauses bounds the causes that are counted separately, and with them memory and output.
	maxCauses = 20
)

// A causeCounter prints the first problems of each cause, and counts the others: a damaged pack has
// one cause and may have ten thousand problems.
type causeCounter struct {
	term  *terminal
	label string // precedes each line: the shard, if there are several
	all   bool   // print every problem

	mu     sync.Mutex
	causes map[string]*causeCount
	order  []*causeCount
	more   int64 // problems of causes beyond maxCauses
}

// A causeCount is one cause, with the number of its problems.
type causeCount struct {
	text string
	n    int64
}

// problem prints or counts one problem.
func (c *causeCounter) problem(p backup.Problem) {
	if !c.all && !c.first(p) {
		return
	}
	c.print(describeProblem(p))
}

// print prints a line, after the label.
func (c *causeCounter) print(text string) { c.term.println(c.term.wrapped(c.label + text)) }

// first counts a problem, and reports whether it is among the first of its cause.
func (c *causeCounter) first(p backup.Problem) bool {
	key := causeOf(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.causes[key]
	switch {
	case found != nil:
	case len(c.order) == maxCauses:
		c.more++
		return false
	default:
		if c.causes == nil {
			c.causes = map[string]*causeCount{}
		}
		found = &causeCount{text: display(key)}
		c.causes[key] = found
		c.order = append(c.order, found)
	}
	found.n++
	return found.n <= shownPerCause
}

// end prints how many problems were counted but not printed, and where all of them are.
func (c *causeCounter) end(where string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	hidden := c.more
	for _, cause := range c.order {
		if left := cause.n - shownPerCause; left > 0 {
			hidden += left
			c.print(fmt.Sprintf("… and %s more: %s", humanize.Comma(left), cause.text))
		}
	}
	if c.more > 0 {
		c.print(fmt.Sprintf("… and %s of other causes", counted(c.more, "error")))
	}
	if hidden > 0 {
		c.print(where)
	}
	c.causes, c.order, c.more = nil, nil, 0
}

// variable matches what differs between problems of one cause: numbers, and the names of packs and
// chunks.
var variable = regexp.MustCompile(`\b([0-9a-f]{16,}|[0-9]+)\b`)

// causeOf returns the operation and the error of a problem, without its path and without numbers.
func causeOf(p backup.Problem) string {
	dir, name := backup.Split(p.Path)
	text := p.Err
	for _, path := range []string{p.Path, dir, name} {
		text = withoutName(text, path)
	}
	return p.Op + ": " + variable.ReplaceAllString(text, "…")
}

// withoutName replaces a name in a text, where it is not a part of a word.
func withoutName(text, name string) string {
	if name == "" {
		return text
	}
	var b strings.Builder
	written := 0
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return b.String() + text[written:]
		}
		at += from
		end := at + len(name)
		if at > 0 && isWord(text[at-1]) || end < len(text) && isWord(text[end]) {
			from = at + 1
			continue
		}
		b.WriteString(text[written:at] + "…")
		from, written = end, end
	}
}

func isWord(c byte) bool {
	return c >= 0x80 || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
