//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/e2e/bench/markdown"
)

// A section is something that is measured on its own, in a directory of its own.
type section struct {
	name, what string
	run        func(context.Context, *runner) error
}

// sections are in the order in which they are measured.
func sections() []section {
	return []section{
		{"trees", "bctl beside its peers", measureTrees},
		{"startup", "how long a command takes that does little", measureStartup},
		{"calls", "system calls and allocations per file", measureCalls},
		{"cache", "what is left of the page cache", measureCache},
		{"codecs", "compression", measureCodecs},
		{"slowstat", "a filer whose answers take time", measureSlowStat},
		{"index", "what Postgres has to bear", measureIndex},
		{"index-local", "what backups add to the index of one machine", measureLocalIndex},
		{"memory", "memory by the size of the tree", measureMemory},
		{"prune", "forgetting most of many snapshots", measurePrune},
		{"proof", "rebuilding the index, and checks", measureProof},
		{"lookups", "looking for files in many snapshots", measureLookups},
		{"mount", "looking at files through a mount", measureMounts},
		{"walk", "CPU time of a walk by the size of the tree", measureWalk},
		{"knobs", "settings", measureKnobs},
		{"micro", "Go benchmarks", measureMicro},
	}
}

func sectionNames() (names []string) {
	for _, s := range sections() {
		names = append(names, s.name)
	}
	return names
}

// chosen returns the sections that --sections names; without it, all.
func (o *options) chosen() ([]section, error) {
	if o.sections == "" {
		return sections(), nil
	}
	wanted := strings.Split(o.sections, ",")
	for _, name := range wanted {
		if !slices.Contains(sectionNames(), name) {
			return nil, fmt.Errorf("there is no section %s: %s", name, strings.Join(sectionNames(), ", "))
		}
	}
	return slices.DeleteFunc(sections(), func(s section) bool { return !slices.Contains(wanted, s.name) }), nil
}

// A runner has the options, programs and directory that all sections need.
type runner struct {
	o        *options
	self     string // this program
	work     string // its directory
	document *document
}

// A document is what all sections have found.
type document struct {
	options  *options
	data     []any
	verdicts []verdict
}

// A chapter is what a section, or a part of it, adds to the document.
type chapter struct {
	Name     string           `json:"name"`
	Date     string           `json:"date"`
	Machine  markdown.Machine `json:"machine"`
	Data     any              `json:"data,omitempty"`
	Verdicts []verdict        `json:"verdicts"`

	runner *runner
	text   strings.Builder
	plots  map[string]string // SVG, by name
}

func (r *runner) chapter(name string) *chapter {
	return &chapter{
		Name: name, Date: time.Now().Format(time.DateOnly), Machine: markdown.DescribeMachine(r.work), runner: r,
		Verdicts: []verdict{}, plots: map[string]string{},
	}
}

// say adds a paragraph.
func (c *chapter) say(format string, args ...any) { fmt.Fprintf(&c.text, format+"\n\n", args...) }

func (c *chapter) table(rows [][]string) {
	markdown.WriteTable(&c.text, rows)
	c.text.WriteString("\n")
}

// plot adds a picture; its name is unique in the document.
func (c *chapter) plot(name, alt, svg string) {
	c.plots[name] = svg
	c.say("![%s](%s.svg)", alt, name)
}

// must adds a criterion.
func (c *chapter) must(holds bool, criterion, measured, wanted string) {
	c.Verdicts = append(c.Verdicts, verdict{c.Name, criterion, measured, wanted, holds})
}

// atMost is a criterion of a figure.
func (c *chapter) atMost(criterion, format string, measured, wanted float64) {
	c.must(measured <= wanted, criterion, fmt.Sprintf(format, measured), fmt.Sprintf("≤ "+format, wanted))
}

// end shows the chapter and, with -results, writes it and its plots into files there.
func (c *chapter) end() error {
	text := c.complete()
	directory := c.runner.o.results
	if directory == "" {
		return nil
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	for name, svg := range c.plots {
		if err := os.WriteFile(filepath.Join(directory, name+".svg"), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(directory, c.Name+".md"), []byte("# "+text), 0o644)
}

// endIn shows the chapter, and puts it into a document between other text; "": only shows it.
func (c *chapter) endIn(file string) error {
	text := c.complete()
	if file == "" {
		return nil
	}
	return markdown.Put(file, c.Name, "### "+text)
}

// complete returns the whole text of the chapter, from its title on, and shows it.
func (c *chapter) complete() string {
	c.Machine.LoadAfter = markdown.LoadAverages()
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nMachine: %v. %s.\nLoad averages before %s, after %s.\n\n%s", c.Name, &c.Machine, c.Date,
		c.Machine.LoadBefore, c.Machine.LoadAfter, c.text.String())
	if len(c.Verdicts) > 0 {
		writeVerdicts(&b, c.Verdicts)
		b.WriteString("\n")
	}
	fmt.Println(b.String())
	d := c.runner.document
	d.data, d.verdicts = append(d.data, c), append(d.verdicts, c.Verdicts...)
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func (d *document) writeJSON() error {
	if d.options.jsonFile == "" {
		return nil
	}
	data, err := json.MarshalIndent(d.data, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(d.options.jsonFile, append(data, '\n'), 0o644)
}

// A verdict reports whether a criterion holds.
type verdict struct {
	Chapter   string `json:"chapter"`
	Criterion string `json:"criterion"`
	Measured  string `json:"measured"`
	Wanted    string `json:"wanted"`
	Holds     bool   `json:"holds"`
}

func writeVerdicts(w io.Writer, verdicts []verdict) {
	if len(verdicts) == 0 {
		return
	}
	rows := [][]string{{"of", "criterion", "measured", "wanted", "holds"}}
	for _, v := range verdicts {
		rows = append(rows, []string{v.Chapter, v.Criterion, v.Measured, v.Wanted, map[bool]string{true: "yes", false: "**no**"}[v.Holds]})
	}
	markdown.WriteTable(w, rows)
}
