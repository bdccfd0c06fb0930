//go:build linux

// Package markdown writes what benchmarks measured into a document.
package markdown

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Put puts a section into the document at path. It replaces the text between the two comments that
// have the section's name, and changes nothing else. If the comments are missing, it appends them.
func Put(path, name, section string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(Replace(string(text), name, section)), 0o644)
}

// Replace is Put for the text of a document.
func Replace(document, name, section string) string {
	begin, end := "<!-- bench "+name+" -->\n", "<!-- end of bench "+name+" -->\n"
	section = begin + section + end
	before, rest, found := strings.Cut(document, begin)
	if _, after, ok := strings.Cut(rest, end); found && ok {
		return before + section + after
	}
	if document != "" {
		document = strings.TrimRight(document, "\n") + "\n\n"
	}
	return document + section
}

// WriteTable writes a table with aligned columns. The first row is its head.
func WriteTable(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		fmt.Fprintln(w, "|")
		if n > 0 {
			continue
		}
		for _, width := range widths {
			fmt.Fprintf(w, "|%s", strings.Repeat("-", width+2))
		}
		fmt.Fprintln(w, "|")
	}
}
