package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/settings"
	"github.com/bctl/bctl/internal/source"
)

// A wantedFiler is a filer that a file declares, and its shards.
type wantedFiler struct {
	backup.Filer
	shards []backup.Shard
}

// A fleetFile is the content of a declaration. Its errors are usage errors that name file and line.
type fleetFile struct {
	name     string
	root     yaml.Node
	filers   []wantedFiler
	policies []backup.Policy
}

// readFleet parses a declaration. Unknown fields, duplicates, and values that the index would
// refuse are errors.
func readFleet(name string, data []byte) (*fleetFile, error) {
	f := &fleetFile{name: name}
	if err := yaml.Unmarshal(data, &f.root); err != nil {
		return nil, f.unreadable(err)
	}
	if key := oddKey(&f.root); key != nil {
		return nil, f.wrong(key.Line, "the name of a setting is a text, not a list or a group of settings")
	}
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
	lines := map[string]int{}
	var wrong []error
	for n := range fleet.Filers {
		w, err := f.filer(&fleet.Filers[n], n)
		if w.Name != "" {
			err = errors.Join(err, f.once(lines, "filer "+display(w.Name), f.line("filers", n)))
		}
		wrong = append(wrong, err)
		f.filers = append(f.filers, w)
	}
	for n := range fleet.Policies {
		d := &fleet.Policies[n]
		p := d.policy()
		err := errors.Join(f.settings(settings.Policy(p), p.Name, "policies", n), f.labels(d.Labels, "policies", n), f.selection(p.Selection, "policies", n))
		if p.Name != "" {
			err = errors.Join(err, f.once(lines, "policy "+display(p.Name), f.line("policies", n)))
		}
		wrong = append(wrong, err)
		f.policies = append(f.policies, p)
	}
	if err := joinErrors(wrong); err != nil {
		return nil, err
	}
	return f, nil
}

// maxErrors is how many errors of one file are reported.
const maxErrors = 20

// joinErrors joins the distinct errors, each in a line of its own, and reports only the number of
// those beyond maxErrors.
func joinErrors(all []error) error {
	joined := errors.Join(all...)
	if joined == nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(joined.Error()) {
		if line = strings.TrimSuffix(line, "\n"); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if more := len(lines) - maxErrors; more > 0 {
		lines = append(lines[:maxErrors], "and "+counted(more, "more error"))
	}
	return usage("%s", strings.Join(lines, "\n"))
}

func (f *fleetFile) wrong(line int, format string, args ...any) error {
	return usage("%s:%d: %s", f.name, line, fmt.Sprintf(format, args...))
}

// settings adds the place in the file to an error in the settings of the item at a path. name is
// the name of the item.
func (f *fleetFile) settings(err error, name string, path ...any) error {
	if err == nil {
		return nil
	}
	path = slices.Clone(path)
	var at *backup.SettingError
	if errors.As(err, &at) {
		for step := range strings.SplitSeq(at.Setting, "/") {
			if n, err := strconv.Atoi(step); err == nil {
				path = append(path, n)
			} else {
				path = append(path, step)
			}
		}
	}
	of := ""
	if name != "" && (at == nil || at.Setting != "name") {
		for n := range path {
			if group, ok := path[n].(string); ok && slices.Contains([]string{"filers", "shards", "policies"}, group) {
				of = map[string]string{"filers": "filer ", "shards": "shard ", "policies": "policy "}[group] + display(name) + ": "
			}
		}
	}
	return f.wrong(f.line(path...), "%s%v", of, wrongSetting(err))
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
	atLine       = regexp.MustCompile(`(?s)^(?:yaml: )?line (\d+): (.*)$`)
	unknownField = regexp.MustCompile(`^field (\S+) not found in type \S+$`)
	wrongType    = regexp.MustCompile("(?s)^cannot unmarshal (!!\\w+)(?: `(.*)`)? into (\\S+)$")
)

// unreadable describes an error of the YAML package in terms of the file instead of Go types.
func (f *fleetFile) unreadable(err error) error {
	var at *lineError
	if errors.As(err, &at) {
		key, _ := f.find(func(value *yaml.Node) bool { return value.Line == at.line && value.Column == at.column })
		return f.wrong(at.line, "%s%s", key, at.text)
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
		} else if key, node := f.find(func(node *yaml.Node) bool { return node.Style&yaml.TaggedStyle != 0 }); node != nil {
			line, text = ":"+strconv.Itoa(node.Line), key+strings.TrimPrefix(text, "yaml: ") // the YAML package names no line for a wrong tag
		}
		if m := unknownField.FindStringSubmatch(text); m != nil {
			text = "no setting is called " + m[1]
		} else if m := wrongType.FindStringSubmatch(text); m != nil {
			text = f.wrongType(line, m[1], m[2], m[3])
		}
		texts[n] = f.name + line + ": " + strings.TrimPrefix(text, "yaml: ")
	}
	return usage("%s", strings.Join(texts, "\n"))
}

// maxQuoted bounds a value in an error.
const maxQuoted = 40

// wrongType describes a value that has a wrong type. The YAML package reports the line as ":3", and
// only the beginning of a long value.
func (f *fleetFile) wrongType(line, tag, value, goType string) string {
	start := strings.TrimSuffix(value, "...")
	key, node := f.find(func(node *yaml.Node) bool {
		return line == ":"+strconv.Itoa(node.Line) && tag == node.ShortTag() && (node.Kind != yaml.ScalarNode || strings.HasPrefix(node.Value, start))
	})
	if node != nil && node.Kind == yaml.ScalarNode {
		value = node.Value
	}
	got := strconv.Quote(shortened(value, maxQuoted))
	switch tag {
	case "!!seq":
		got = "a list"
	case "!!map":
		got = "a group of settings"
	}
	return key + "want " + typeText(goType) + ", not " + got
}

// oddKey returns a key that is a list or a map, or nil if there is none. The YAML package panics on
// some such keys.
func oddKey(node *yaml.Node) *yaml.Node {
	for n, child := range node.Content {
		if key := oddKey(child); key != nil {
			return key
		}
		if node.Kind == yaml.MappingNode && n%2 == 0 && child.Kind != yaml.ScalarNode {
			return child
		}
	}
	return nil
}

// find returns the first value of a setting or item of a list for which is returns true, and the
// name of the setting, for messages: "walk_tasks: ".
func (f *fleetFile) find(is func(value *yaml.Node) bool) (key string, value *yaml.Node) {
	type named struct {
		key  string
		node *yaml.Node
	}
	for queue := []named{{"", &f.root}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at.node.Kind != yaml.DocumentNode && is(at.node) {
			return at.key, at.node
		}
		for n, child := range at.node.Content {
			switch {
			case at.node.Kind != yaml.MappingNode:
				queue = append(queue, named{at.key, child})
			case n%2 == 1:
				queue = append(queue, named{at.node.Content[n-1].Value + ": ", child})
			}
		}
	}
	return "", nil
}

// typeText returns a description of a Go type for users.
func typeText(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case strings.HasPrefix(goType, "map["):
		return "names with values"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a text"
	}
	return "a group of settings"
}

func (f *fleetFile) labels(labels map[string]string, path ...any) error {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if !isLabel(key, labels[key]) || strings.Contains(key, "=") {
			return f.wrong(f.line(append(slices.Clone(path), "labels", key)...),
				"label %q: %q: a key has no spaces, commas, = or - at its end, a value no commas", key, labels[key])
		}
	}
	return nil
}

// selection returns an error for patterns that do not compile.
func (f *fleetFile) selection(s backup.Selection, path ...any) error {
	_, err := selection.Compile(s)
	if err == nil {
		return nil
	}
	setting := "exclude_if_present"
	if _, bad := selection.Compile(backup.Selection{Exclude: s.Exclude}); bad != nil {
		setting = "exclude"
	}
	path = append(slices.Clone(path), setting)
	for n, pattern := range s.Exclude {
		if _, bad := selection.Compile(backup.Selection{Exclude: []string{pattern}}); bad != nil {
			path = append(path, n)
			break
		}
	}
	return f.wrong(f.line(path...), "%v", wrongSetting(err))
}

// filer returns the filer that the file declares at the given index.
func (f *fleetFile) filer(d *declaredFiler, at int) (w wantedFiler, err error) {
	w.Filer = backup.Filer{
		Name: d.Name, Site: backup.SiteName(d.Site), Labels: d.Labels, Selection: d.Exclusions.selection(),
		Limits: backup.Limits{WalkTasks: int(d.WalkTasks), ReadBatches: int(d.ReadBatches), ReadBytesPerSecond: int64(d.ReadRate), Floor: int(d.Floor)},
	}
	var all []error
	if d.Compare != "" {
		if w.Compare, err = backup.ParseCompare(d.Compare); err != nil {
			all = append(all, f.settings(&backup.SettingError{Setting: "compare", Err: fmt.Errorf("compare: %w", err)}, w.Name, "filers", at))
		}
	}
	all = append(all,
		f.settings(cmp.Or(settings.FilerName(w.Name), settings.Filer(w.Filer)), w.Name, "filers", at),
		f.labels(d.Labels, "filers", at), f.selection(w.Selection, "filers", at))
	lines := map[string]int{}
	for n := range d.Shards {
		shard, err := f.shard(&d.Shards[n], at, n)
		if shard.Name != "" {
			err = errors.Join(err, f.once(lines, "shard "+display(shard.Name), f.line("filers", at, "shards", n)))
		}
		all = append(all, err)
		w.shards = append(w.shards, shard)
	}
	return w, errors.Join(all...)
}

// shard returns the shard that the file declares at the given indexes.
func (f *fleetFile) shard(d *declaredShard, filer, at int) (backup.Shard, error) {
	path := []any{"filers", filer, "shards", at}
	s := backup.Shard{Name: d.Name, Snapshots: d.Snapshots, Selection: d.Exclusions.selection()}
	where := d.Source
	if filepath.IsAbs(s.Name) {
		s.Name = filepath.Clean(s.Name)
		if where == "" {
			where = s.Name
		}
	}
	if err := settings.ShardName(s.Name); err != nil {
		return s, f.settings(err, "", path...)
	}
	if where == "" {
		return s, f.wrong(f.line(append(path, "name")...), "shard %s is not an absolute path, and has no source", display(s.Name))
	}
	var err error
	if s.Source, err = parseSource(where); err != nil {
		return s, f.settings(&backup.SettingError{Setting: "source", Err: err}, s.Name, path...)
	}
	if s.Snapshots != "" {
		if err := source.CheckPattern(s.Snapshots); err != nil {
			return s, f.settings(&backup.SettingError{Setting: "snapshots", Err: fmt.Errorf("snapshots: %w", err)}, s.Name, path...)
		}
	}
	if err := f.settings(settings.Shard(s), s.Name, path...); err != nil {
		return s, err
	}
	return s, f.selection(s.Selection, path...)
}

// has reports whether the file declares a filer, or one of its shards.
func (f *fleetFile) has(filer, shard string) bool {
	return slices.ContainsFunc(f.filers, func(w wantedFiler) bool {
		return w.Name == filer && (shard == "" || slices.ContainsFunc(w.shards, func(s backup.Shard) bool { return s.Name == shard }))
	})
}
