package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/source"
)

// A wantedFiler is a filer that a file declares, and its shards.
type wantedFiler struct {
	backup.Filer
	line   int
	shards []backup.Shard
}

// A wantedPolicy is a policy that a file declares.
type wantedPolicy struct {
	backup.Policy
	line int
}

// A fleetFile is the content of a declaration. Its errors are usage errors that name file and line.
type fleetFile struct {
	name     string
	root     yaml.Node
	filers   []wantedFiler
	policies []wantedPolicy
}

// readFleet parses a declaration. Unknown fields and duplicates are errors.
func readFleet(name string, data []byte) (*fleetFile, error) {
	f := &fleetFile{name: name}
	var fleet declaredFleet
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	err := decoder.Decode(&fleet)
	if err == nil && decoder.Decode(&yaml.Node{}) == nil {
		err = errors.New("there is a second document: give one file for each")
	}
	if err != nil && !errors.Is(err, io.EOF) { // an empty file declares nothing
		return nil, f.unreadable(err)
	}
	if err := yaml.Unmarshal(data, &f.root); err != nil {
		return nil, f.unreadable(err)
	}
	lines := map[string]int{}
	for n := range fleet.Filers {
		line := f.line("filers", n)
		w, err := f.filer(&fleet.Filers[n], n)
		if err == nil {
			err = f.once(lines, "filer "+display(w.Name), line)
		}
		if err != nil {
			return nil, err
		}
		f.filers = append(f.filers, w)
	}
	for n := range fleet.Policies {
		d, line := &fleet.Policies[n], f.line("policies", n)
		if err := errors.Join(f.once(lines, "policy "+display(d.Name), line), f.labels(line, d.Labels), f.selection(line, &d.Exclusions)); err != nil {
			return nil, err
		}
		f.policies = append(f.policies, wantedPolicy{d.policy(), line})
	}
	return f, nil
}

func (f *fleetFile) wrong(line int, format string, args ...any) error {
	return usage("%s:%d: %s", f.name, line, fmt.Sprintf(format, args...))
}

func (f *fleetFile) once(lines map[string]int, what string, line int) error {
	if before, ok := lines[what]; ok {
		return f.wrong(line, "%s is declared already, in line %d", what, before)
	}
	lines[what] = line
	return nil
}

// line returns the line of an item in the file. path consists of names of groups and indexes of
// items.
func (f *fleetFile) line(path ...any) int {
	node := &f.root
	if len(node.Content) > 0 {
		node = node.Content[0]
	}
	line := node.Line
	for _, step := range path {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		at := -1
		switch step := step.(type) {
		case int:
			at = step
		case string:
			for n := 0; n+1 < len(node.Content); n += 2 {
				if node.Content[n].Value == step {
					at = n + 1
				}
			}
		}
		if at < 0 || at >= len(node.Content) {
			return line
		}
		node = node.Content[at]
		line = node.Line
	}
	return line
}

var (
	atLine       = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)
	unknownField = regexp.MustCompile(`^field (\S+) not found in type \S+$`)
	wrongType    = regexp.MustCompile("^cannot unmarshal (!!\\w+)(?: `(.*)`)? into (\\S+)$")
)

// unreadable describes an error in a file in terms of the file, and not of this program.
func (f *fleetFile) unreadable(err error) error {
	var at *lineError
	if errors.As(err, &at) {
		return f.wrong(at.line, "%s", at.text)
	}
	texts := []string{err.Error()}
	var types *yaml.TypeError
	if errors.As(err, &types) {
		texts = types.Errors
	}
	for n, text := range texts {
		line, found := "", atLine.FindStringSubmatch(text)
		if found != nil {
			line, text = ":"+found[1], found[2]
		}
		if m := unknownField.FindStringSubmatch(text); m != nil {
			text = "no setting is called " + m[1]
		} else if m := wrongType.FindStringSubmatch(text); m != nil {
			text = strings.TrimSpace(display(m[2])+" is not "+typeText(m[3])) + ": it is a " + strings.TrimPrefix(m[1], "!!")
		}
		texts[n] = f.name + line + ": " + strings.TrimPrefix(text, "yaml: ")
	}
	return usage("%s", strings.Join(texts, "\n"))
}

// typeText returns a description of a Go type for users.
func typeText(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case goType == "int":
		return "a number"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a text"
	}
	return "a group of settings"
}

func (f *fleetFile) labels(line int, labels map[string]string) error {
	for key, value := range labels {
		if !isLabel(key, value) || strings.Contains(key, "=") {
			return f.wrong(line, "label %q: %q: a key has no spaces, commas, = or - at its end, a value no commas", key, value)
		}
	}
	return nil
}

func (f *fleetFile) selection(line int, d *declaredExclusions) error {
	if _, err := selection.Compile(d.selection()); err != nil {
		return f.wrong(line, "%v", wrongSetting(err))
	}
	return nil
}

// filer returns the filer that the file declares at the given index.
func (f *fleetFile) filer(d *declaredFiler, at int) (w wantedFiler, err error) {
	w.line = f.line("filers", at)
	w.Filer = backup.Filer{
		Name: d.Name, Site: d.Site, Labels: d.Labels, Selection: d.Exclusions.selection(),
		Limits: backup.Limits{WalkTasks: d.WalkTasks, ReadBatches: d.ReadBatches, ReadBytesPerSecond: int64(d.ReadRate), Floor: d.Floor},
	}
	if w.Name == "" {
		return w, f.wrong(w.line, "a filer without a name")
	}
	if w.Site == "" {
		w.Site = backup.DefaultSite
	}
	if err := backup.CheckSite(w.Site); err != nil {
		return w, f.wrong(w.line, "filer %s: %v", display(w.Name), wrongSetting(err))
	}
	for _, n := range []int{d.WalkTasks, d.ReadBatches} {
		if n < 0 || n > maxInHand {
			return w, f.wrong(w.line, "filer %s: %s is not a number from 0 to %d", display(w.Name), strconv.Itoa(n), maxInHand)
		}
	}
	if err := policy.CheckFloor(d.Floor); err != nil {
		return w, f.wrong(w.line, "filer %s: %v", display(w.Name), wrongSetting(err))
	}
	if d.Compare != "" {
		if w.Compare, err = backup.ParseCompare(d.Compare); err != nil {
			return w, f.wrong(w.line, "filer %s: compare: %v", display(w.Name), wrongSetting(err))
		}
	}
	if err := errors.Join(f.labels(w.line, d.Labels), f.selection(w.line, &d.Exclusions)); err != nil {
		return w, err
	}
	lines := map[string]int{}
	for n := range d.Shards {
		line := f.line("filers", at, "shards", n)
		shard, err := f.shard(&d.Shards[n], line)
		if err == nil {
			err = f.once(lines, "shard "+display(shard.Name), line)
		}
		if err != nil {
			return w, err
		}
		w.shards = append(w.shards, shard)
	}
	return w, nil
}

func (f *fleetFile) shard(d *declaredShard, line int) (backup.Shard, error) {
	s := backup.Shard{Name: d.Name, Snapshots: d.Snapshots, Selection: d.Exclusions.selection()}
	where := d.Source
	if filepath.IsAbs(s.Name) {
		s.Name = filepath.Clean(s.Name)
		if where == "" {
			where = s.Name
		}
	}
	switch {
	case s.Name == "":
		return s, f.wrong(line, "a shard without a name")
	case where == "":
		return s, f.wrong(line, "shard %s is not an absolute path, and has no source", display(s.Name))
	}
	var err error
	if s.Source, err = parseSource(where); err != nil {
		return s, f.wrong(line, "shard %s: %s", display(s.Name), strings.TrimPrefix(err.Error(), "--"))
	}
	if s.Snapshots != "" {
		if err := source.CheckPattern(s.Snapshots); err != nil {
			return s, f.wrong(line, "shard %s: snapshots: %v", display(s.Name), err)
		}
	}
	return s, f.selection(line, &d.Exclusions)
}

// has reports whether the file declares a filer, or one of its shards.
func (f *fleetFile) has(filer, shard string) bool {
	return slices.ContainsFunc(f.filers, func(w wantedFiler) bool {
		return w.Name == filer && (shard == "" || slices.ContainsFunc(w.shards, func(s backup.Shard) bool { return s.Name == shard }))
	})
}
