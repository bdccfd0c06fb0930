//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// writeMarkdown puts the report into the document: what is between the two
// comments that name its preset is replaced, and all else is left as it is.
// Where they are not there, they go to the end.
func (r *report) writeMarkdown(path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var section strings.Builder
	fmt.Fprintf(&section, "### %s\n\nMachine: %v.\n\n", r.Preset, &r.Machine)
	if err := r.writeTables(&section); err != nil {
		return err
	}
	r.writeCommands(&section)
	return os.WriteFile(path, []byte(replaceSection(string(text), r.Preset, section.String())), 0o644)
}

func replaceSection(document, name, section string) string {
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

// writeCommands writes what was run, and of which version.
func (r *report) writeCommands(w *strings.Builder) {
	rows := [][]string{{"tool", "", "version", "backup", "restore"}}
	p := place{bench: "bench", tree: "TREE", repo: "REPO", home: "HOME", target: "TARGET", serial: 1}
	line := func(of func(place) command) string {
		if of == nil {
			return ""
		}
		return "`" + strings.ReplaceAll(strings.Join(of(p).args, " "), "|", `\|`) + "`"
	}
	for _, t := range r.tools {
		rows = append(rows, []string{
			strings.ReplaceAll(t.name, "|", `\|`), t.what, r.Versions[t.name], line(t.backup), line(t.restore),
		})
	}
	writeRows(w, rows)
	w.WriteString("\n")
}
