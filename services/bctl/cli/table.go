package cli

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Tables fit the terminal: cells have a shorter form, names are shortened, and the least important
// columns are omitted. In a pipe, and with --wide, a table has everything.

// A column is a column of a table of T.
type column[T any] struct {
	name  string
	text  func(T) string
	brief func(T) string // the text where room is scarce; nil: the same
	when  func(T) forms  // of a time, instead of text and brief
	right bool           // aligned to the right, as numbers are
	leave int            // order in which columns are omitted if there is no room; 0: never
	// cut shortens a cell to a width of at least leastCell or, while other columns can be omitted
	// instead, useful, which is more if the terminal is wide. nil: cells are never shortened.
	cut    func(text string, width int) string
	useful int
	// optional columns are omitted if all their cells are empty.
	optional bool
}

const (
	gap       = "  "
	leastCell = 8 // minimum width of a shortened cell
	narrow    = 80
)

type table[T any] []column[T]

// A form is a form of a cell.
type form int

// The forms of a time, from the longest to the shortest. Other cells have text and, from formBrief
// on, brief.
const (
	formFull  form = iota
	formLong       // where room is left
	formBrief      // where room is scarce
	formLeast      // where room is scarce although all columns that can be omitted are
	formCount
)

// forms are the texts of one cell.
type forms [formCount]string

func (c *column[T]) cell(item T, f form) string {
	switch {
	case c.when != nil:
		return c.when(item)[f]
	case f >= formBrief && c.brief != nil:
		return c.brief(item)
	}
	return c.text(item)
}

// lines formats a table for a width; 0 means no limit.
func (t table[T]) lines(items []T, width int) []string {
	t = slices.DeleteFunc(slices.Clone(t), func(c column[T]) bool {
		return c.optional && !slices.ContainsFunc(items, func(item T) bool { return c.cell(item, formFull) != "" })
	})
	if t.fits(items, width) {
		return t.align(t.rows(items, formFull))
	}
	for _, f := range []form{formBrief, formLeast} {
		all := slices.Clone(t)
		for {
			rows := all.rows(items, f)
			next := all.leastImportant()
			if all.fit(rows, width, next < 0) {
				all.lengthen(rows, items, width)
				return all.align(rows)
			}
			if next < 0 && f == formLeast {
				lines := all.align(rows)
				for n := range lines {
					lines[n] = truncate(lines[n], width)
				}
				return lines
			}
			if next < 0 {
				break
			}
			all = slices.Delete(all, next, next+1)
		}
	}
	return nil // not reached: with formLeast, the loop returns
}

// fits reports whether a table with everything is at most as wide as the width; 0 means no limit.
func (t table[T]) fits(items []T, width int) bool {
	return width == 0 || needed(widthsOf(t.rows(items, formFull))) <= width
}

// lengthen uses the room that rows leave for longer forms of times, from the first column on.
func (t table[T]) lengthen(rows [][]string, items []T, width int) {
	for n := range t {
		if t[n].when == nil {
			continue
		}
		for f := formFull; f < formLeast; f++ {
			before := make([]string, len(rows))
			for i := range rows {
				before[i] = rows[i][n]
				if i > 0 {
					rows[i][n] = t[n].cell(items[i-1], f)
				}
			}
			if needed(widthsOf(rows)) <= width {
				break
			}
			for i := range rows {
				rows[i][n] = before[i]
			}
		}
	}
}

// rows returns the cells of the table, and first its head.
func (t table[T]) rows(items []T, f form) [][]string {
	rows := make([][]string, len(items)+1)
	for n := range rows {
		rows[n] = make([]string, len(t))
	}
	for n := range t {
		rows[0][n] = t[n].name
		for i, item := range items {
			rows[i+1][n] = t[n].cell(item, f)
		}
	}
	return rows
}

// leastImportant returns the column that is omitted next, or -1.
func (t table[T]) leastImportant() int {
	next := -1
	for n, c := range t {
		if c.leave > 0 && (next < 0 || c.leave < t[next].leave) {
			next = n
		}
	}
	return next
}

// fit shortens cells so that rows fit into width columns, and reports whether they do. The last
// columns are shortened first.
func (t table[T]) fit(rows [][]string, width int, last bool) bool {
	widths := widthsOf(rows)
	over := needed(widths) - width
	for n, c := range slices.Backward(t) {
		least := leastCell
		if !last && c.useful > 0 {
			least = c.useful + max(width-narrow, 0)/3 // what a wide terminal has is for names, too
		}
		if c.cut == nil || over <= 0 || widths[n] <= least {
			continue
		}
		to := max(widths[n]-over, least)
		over -= widths[n] - to
		for _, row := range rows {
			row[n] = c.cut(row[n], to)
		}
	}
	return over <= 0
}

// align pads the cells of rows.
func (t table[T]) align(rows [][]string) []string {
	widths := widthsOf(rows)
	lines := make([]string, len(rows))
	for i, row := range rows {
		cells := make([]string, len(row))
		for n, cell := range row {
			cells[n] = padded(cell, widths[n], t[n].right)
		}
		lines[i] = strings.TrimRight(strings.Join(cells, gap), " ")
	}
	return lines
}

func padded(cell string, width int, right bool) string {
	pad := strings.Repeat(" ", max(width-utf8.RuneCountInString(cell), 0))
	if right {
		return pad + cell
	}
	return cell + pad
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

// needed returns the width of a line whose cells have these widths.
func needed(widths []int) int {
	need := len(gap) * (len(widths) - 1)
	for _, w := range widths {
		need += w
	}
	return need
}

// tail returns the end of a name, which distinguishes paths better than the beginning.
func tail(name string, width int) string {
	runes := []rune(name)
	if len(runes) <= width {
		return name
	}
	return "…" + string(runes[len(runes)-width+1:])
}

// wideFlag adds --wide to a command that prints a table.
func (a *app) wideFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.wide, "wide", false, "all columns in full, even if the terminal is narrower")
}

// width returns the width to which results are fitted; 0 means no limit.
func (a *app) width() int {
	if a.wide || !a.term.outIs {
		return 0
	}
	width, _ := a.term.screen()
	return width
}

// writeLines writes lines of text.
func writeLines(w io.Writer, lines []string) error {
	_, err := io.WriteString(w, strings.Join(append(lines, ""), "\n"))
	return err
}

// pointers returns the addresses of the items of a list.
func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for n := range items {
		all[n] = &items[n]
	}
	return all
}
