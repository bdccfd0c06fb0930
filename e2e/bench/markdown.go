//go:build linux

package main

import (
	"fmt"
	"strings"

	"github.com/bctl/bctl/e2e/bench/markdown"
)

// writeMarkdown puts the report into the document.
func (r *report) writeMarkdown(path string) error {
	var section strings.Builder
	fmt.Fprintf(&section, "### %s\n\nMachine: %v.\n\n", r.Preset, &r.Machine)
	if err := r.writeTables(&section); err != nil {
		return err
	}
	r.writeCommands(&section)
	return markdown.Put(path, r.Preset, section.String())
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
	markdown.WriteTable(w, rows)
	w.WriteString("\n")
}
