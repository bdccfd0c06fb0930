package cli

import "io"

// alignedTogether is the number of rows that are aligned together. A list may be of any length, so
// it is not held in memory. Columns only grow from one part to the next.
const alignedTogether = 1000

// An alignedList prints rows as lines of columns.
type alignedList struct {
	out    io.Writer
	gap    string                // between two columns
	right  func(column int) bool // aligned to the right, as numbers are
	rows   [][]string
	widths []int
}

// add prints a row, or keeps it to be aligned with the next ones.
func (l *alignedList) add(row []string) error {
	l.rows = append(l.rows, row)
	if len(l.rows) < alignedTogether {
		return nil
	}
	return l.flush()
}

// flush prints the rows that are kept.
func (l *alignedList) flush() error {
	if len(l.rows) == 0 {
		return nil
	}
	widths := widthsOf(l.rows)
	widths[len(widths)-1] = 0 // nothing follows the last column
	for n := range l.widths {
		widths[n] = max(widths[n], l.widths[n])
	}
	l.widths = widths
	lines := make([]string, len(l.rows))
	for i, row := range l.rows {
		for n, cell := range row {
			if n > 0 {
				lines[i] += l.gap
			}
			lines[i] += padded(cell, widths[n], l.right(n))
		}
	}
	l.rows = l.rows[:0]
	return writeLines(l.out, lines)
}
