package cli

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The screen of status --watch: as much as fits on the terminal, the most important first.

// A section is a group of lines on the screen, the most important first.
type section struct {
	lines []string
	least int // minimum number of lines, if there are that many
	what  string
	head  int // lines not counted as rows when the section is cut
}

// screen formats an overview for the given number of columns and lines; 0 means no limit.
func (s *overview) screen(width, height int) string {
	missing, totals := section{least: 3, what: "line"}, section{least: 2, what: "line"}
	waits, failed := section{least: 3, what: "line"}, section{least: 2, what: "failed shard"}
	table := section{lines: s.narrowTable(width), least: 4, what: "snapshot", head: 1}
	for _, text := range texts(s.lacks) {
		missing.lines = append(missing.lines, wrap("MISSING  "+text, width)...)
	}
	if len(s.running) == 0 {
		totals.lines = []string{"No snapshot is running."}
	} else {
		totals.lines = phrased(s.totals(), width)
	}
	for _, w := range s.waits() {
		waits.lines = append(waits.lines, wrap(w.line(s.at), width)...)
	}
	for n := range s.failed {
		failed.lines = append(failed.lines, shortened("FAILED  "+s.failed[n].line(s.at), width))
	}
	all := []*section{&missing, &totals, &waits, &failed, &table}
	if height > 0 {
		allot(height-1, all, []*section{&missing, &waits, &totals, &table, &failed})
	}
	text := shortened(zoned(s.at), width) + "\n"
	for _, part := range all {
		if len(part.lines) > 0 {
			text += "\n" + strings.Join(part.lines, "\n") + "\n"
		}
	}
	return text
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

// A column is a column of the table on the screen.
type column struct {
	name  string
	text  func(*inProgress) string
	right bool // aligned to the right
	leave int  // order in which columns are omitted if there is no room; 0: never
}

var narrowColumns = []column{
	{"SNAPSHOT", func(p *inProgress) string { return p.ID.Short() }, false, 3},
	{"FILER", func(p *inProgress) string { return display(p.Filer.Name) }, false, 0},
	{"SHARD", func(p *inProgress) string { return display(p.Shard.Name) }, false, 0},
	{"AGE", func(p *inProgress) string { return clock(p.at.Sub(p.Started)) }, true, 4},
	{"TASKS", func(p *inProgress) string { return work(p.TasksSettled, p.TasksAnnounced, p.tasks) }, true, 6},
	{"BATCHES", func(p *inProgress) string { return work(p.BatchesSettled, p.BatchesAnnounced, p.read) }, true, 7},
	{"FILES/S", func(p *inProgress) string { return fmt.Sprintf("%.0f", p.filesPerSecond) }, true, 1},
	{"READ/S", func(p *inProgress) string { return size(int64(p.readPerSecond)) }, true, 2},
	{"ERRORS", func(p *inProgress) string { return fmt.Sprint(p.Counts.Errors) }, true, 5},
	{"LEFT", (*inProgress).leftText, true, 0},
}

const (
	gap        = "  "
	leastName  = 8  // minimum width of a filer or shard, if there is no room
	usefulName = 16 // of a shard: columns are omitted until it has this much
)

// narrowTable returns the table of running snapshots, those that need attention first.
func (s *overview) narrowTable(width int) []string {
	if len(s.running) == 0 {
		return nil
	}
	running := slices.Clone(s.running)
	slices.SortStableFunc(running, func(a, b *inProgress) int { return a.rank() - b.rank() })
	columns := slices.Clone(narrowColumns)
	if !slices.ContainsFunc(running, func(p *inProgress) bool { return p.Counts.Errors > 0 }) {
		columns = slices.DeleteFunc(columns, func(c column) bool { return c.name == "ERRORS" })
	}
	rows := make([][]string, 0, len(running)+1)
	for {
		rows = rows[:0]
		rows = append(rows, nil)
		for _, c := range columns {
			rows[0] = append(rows[0], c.name)
		}
		for _, p := range running {
			var row []string
			for _, c := range columns {
				row = append(row, c.text(p))
			}
			rows = append(rows, row)
		}
		if width == 0 || fit(rows, columns, width) {
			return align(rows, columns)
		}
		next := -1
		for n, c := range columns {
			if c.leave > 0 && (next < 0 || c.leave < columns[next].leave) {
				next = n
			}
		}
		if next < 0 {
			return align(rows, columns) // the terminal cuts it
		}
		columns = slices.Delete(columns, next, next+1)
	}
}

// rank is lower for snapshots that need attention.
func (p *inProgress) rank() int {
	switch {
	case p.isStalled():
		return 0
	case p.Cancel != "" || p.State == interrupted:
		return 1
	case p.tasks.working+p.read.working == 0:
		return 2
	case p.Counts.Errors > 0:
		return 3
	}
	return 4
}

// fit shortens filers and shards so that rows fit into width columns, and reports whether they do.
func fit(rows [][]string, columns []column, width int) bool {
	widths := widthsOf(rows)
	need := len(gap) * (len(widths) - 1)
	for _, w := range widths {
		need += w
	}
	last := slices.ContainsFunc(columns, func(c column) bool { return c.leave > 0 })
	for _, name := range []string{"SHARD", "FILER"} {
		n := slices.IndexFunc(columns, func(c column) bool { return c.name == name })
		least := leastName
		if name == "SHARD" && last {
			least = usefulName
		}
		if over := need - width; over > 0 && widths[n] > least {
			to := max(widths[n]-over, least)
			need -= widths[n] - to
			for _, row := range rows {
				row[n] = tail(row[n], to)
			}
		}
	}
	return need <= width
}

func widthsOf(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for n, cell := range row {
			widths[n] = max(widths[n], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

func align(rows [][]string, columns []column) (lines []string) {
	widths := widthsOf(rows)
	for _, row := range rows {
		cells := make([]string, len(row))
		for n, cell := range row {
			pad := strings.Repeat(" ", widths[n]-utf8.RuneCountInString(cell))
			if cells[n] = cell + pad; columns[n].right {
				cells[n] = pad + cell
			}
		}
		lines = append(lines, strings.TrimRight(strings.Join(cells, gap), " "))
	}
	return lines
}

// tail returns the end of a name, which distinguishes paths better than the beginning.
func tail(name string, width int) string {
	runes := []rune(name)
	if len(runes) <= width {
		return name
	}
	return "…" + string(runes[len(runes)-width+1:])
}

func shortened(line string, width int) string {
	if width == 0 {
		return line
	}
	return truncate(line, width)
}

// wrap breaks a line at its spaces. Continuation lines are indented.
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
			lines = append(lines, shortened(line, width))
			line = indent + word
		}
	}
	return append(lines, shortened(line, width))
}
