package cli

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// The screen of status --watch: as much as fits on the terminal, the most important first.

// A section is a group of lines on the screen, the most important first.
type section struct {
	lines []string
	least int // minimum number of lines, if there are that many
	what  string
	head  int // lines not counted as rows when the section is cut
}

// screen formats an overview for the given number of columns and lines; 0 means no limit. Snapshots
// that are only queued are counted, or, if all is set, listed.
func (s *overview) screen(width, height int, all bool) string {
	shown, queued := s.onScreen(all)
	missing, totals := section{least: 3, what: "line"}, section{least: 3, what: "line"}
	waits, failed := section{least: 3, what: "line"}, section{least: 2, what: "failed shard"}
	table := section{least: 4, what: "snapshot", head: 1}
	if len(shown) > 0 {
		table.lines = progressTable.lines(shown, width)
	}
	for _, text := range texts(s.lacks, (*lack).line) {
		missing.lines = append(missing.lines, wrap(text, width)...)
	}
	if len(s.running) == 0 {
		totals.lines = []string{"No snapshot is running."}
	} else {
		totals.lines = phrased(s.totals(), width)
	}
	if queued > 0 {
		text := "1 snapshot is only queued (--work lists it)"
		if queued > 1 {
			text = humanize.Comma(int64(queued)) + " snapshots are only queued (--work lists them)"
		}
		totals.lines = append(totals.lines, wrap(text, width)...)
	}
	restores := section{lines: s.restoreLines(width), least: 2, what: "line", head: 1}
	for _, w := range s.waits() {
		waits.lines = append(waits.lines, wrap(w.line(s.at), width)...)
	}
	for n := range s.failed {
		failed.lines = append(failed.lines, "FAILED  "+s.failed[n].line(s.at))
	}
	sections := []*section{&missing, &totals, &waits, &failed, &restores, &table}
	if height > 0 {
		allot(height-1, sections, []*section{&missing, &waits, &totals, &restores, &table, &failed})
	}
	lines := []string{zoned(s.at)}
	for _, part := range sections {
		if len(part.lines) > 0 {
			lines = append(append(lines, ""), part.lines...)
		}
	}
	for n := range lines {
		lines[n] = shortened(lines[n], width)
	}
	return strings.Join(lines, "\n") + "\n"
}

// allot cuts sections so that all of them, with an empty line before each, have no more than height
// lines. Each gets its minimum; the remaining lines go to the sections in turn, in order.
func allot(height int, all, turn []*section) {
	given := map[*section]int{}
	for _, s := range all {
		if len(s.lines) > 0 && height > 1 {
			given[s] = min(len(s.lines), s.least, height-1)
			height -= given[s] + 1
		}
	}
	for _, s := range turn {
		if given[s] > 0 {
			more := min(len(s.lines)-given[s], max(height, 0))
			given[s] += more
			height -= more
		}
	}
	for _, s := range all {
		s.cut(given[s])
	}
}

// cut keeps n lines, the last of which states how many rows are omitted.
func (s *section) cut(n int) {
	if n >= len(s.lines) {
		return
	}
	if n <= s.head {
		s.lines = nil
		return
	}
	if n == 1 {
		s.lines = s.lines[:1]
		return
	}
	s.lines = append(s.lines[:n-1:n-1], "… and "+counted(len(s.lines)-max(n-1, s.head), "more "+s.what))
}

// onScreen returns the running snapshots for people, those that need attention first and those that
// no worker works on last, and the number of those that are omitted because they are only queued.
func (s *overview) onScreen(all bool) (shown []*inProgress, queued int) {
	for _, p := range s.running {
		if !all && s.fleet && p.isQueued() { // on one machine, its own process works for it
			queued++
			continue
		}
		shown = append(shown, p)
	}
	slices.SortStableFunc(shown, func(a, b *inProgress) int { return a.rank() - b.rank() })
	return shown, queued
}

// isQueued reports whether a snapshot only waits for workers.
func (p *inProgress) isQueued() bool { return p.rank() == rankIdle }

// The ranks of snapshots on the screen.
const (
	rankStalled = iota
	rankEnding
	rankErrors
	rankWorking
	rankIdle // last: all of a site without workers must not hide those that move
)

// rank is lower for snapshots that need attention.
func (p *inProgress) rank() int {
	switch {
	case p.isStalled():
		return rankStalled
	case p.Cancel != "" || p.State == interrupted:
		return rankEnding
	case p.Counts.Errors > 0:
		return rankErrors
	case p.tasks.working+p.read.working == 0 && !p.Complete():
		return rankIdle
	}
	return rankWorking
}

func shortened(line string, width int) string {
	if width == 0 {
		return line
	}
	return truncate(line, width)
}

// wrap breaks a line at its spaces. Continuation lines are indented. A word that is longer than
// width stays whole.
func wrap(text string, width int) []string { return flowed(strings.Split(text, " "), " ", "  ", width) }

// phrased arranges phrases in lines.
func phrased(phrases []string, width int) []string { return flowed(phrases, gap, "", width) }

func flowed(words []string, between, indent string, width int) (lines []string) {
	line := ""
	for n, word := range words {
		switch longer := line + between + word; {
		case n == 0:
			line = word
		case width == 0 || utf8.RuneCountInString(longer) <= width:
			line = longer
		default:
			lines = append(lines, line)
			line = indent + word
		}
	}
	return append(lines, line)
}
