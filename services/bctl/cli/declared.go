package cli

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
)

// A declaredFleet is the file that bctl apply reads and bctl export prints. Omitted values have
// their defaults.
type declaredFleet struct {
	Filers   []declaredFiler  `yaml:"filers"`
	Policies []declaredPolicy `yaml:"policies"`
}

type declaredFiler struct {
	Name        string             `yaml:"name"`
	Site        string             `yaml:"site,omitempty"`
	Labels      map[string]string  `yaml:"labels,omitempty"`
	WalkTasks   declaredNumber     `yaml:"walk_tasks,omitempty"`
	ReadBatches declaredNumber     `yaml:"read_batches,omitempty"`
	ReadRate    declaredSize       `yaml:"read_rate,omitempty"`
	Floor       declaredNumber     `yaml:"floor,omitempty"`
	Compare     string             `yaml:"compare,omitempty"`
	Exclusions  declaredExclusions `yaml:",inline"`
	Shards      []declaredShard    `yaml:"shards,omitempty"`
}

type declaredShard struct {
	Name       string             `yaml:"name"`
	Source     string             `yaml:"source,omitempty"`
	Snapshots  string             `yaml:"snapshots,omitempty"`
	Exclusions declaredExclusions `yaml:",inline"`
}

type declaredPolicy struct {
	Name          string             `yaml:"name"`
	Labels        map[string]string  `yaml:"labels,omitempty"`
	Paused        declaredTruth      `yaml:"paused,omitempty"`
	Schedule      string             `yaml:"schedule"`
	TimeZone      string             `yaml:"time_zone,omitempty"`
	Jitter        declaredTime       `yaml:"jitter,omitempty"`
	Windows       []string           `yaml:"windows,omitempty"`
	RecoveryPoint declaredTime       `yaml:"recovery_point,omitempty"`
	Floor         declaredNumber     `yaml:"floor,omitempty"`
	Drill         declaredOften      `yaml:"drill,omitempty"`
	Keep          declaredKeep       `yaml:"keep,omitempty"`
	Exclusions    declaredExclusions `yaml:",inline"`
}

type declaredKeep struct {
	Style         declaredStyle  `yaml:"style,omitempty"`
	Last          declaredCount  `yaml:"last,omitempty"`
	Hourly        declaredCount  `yaml:"hourly,omitempty"`
	Daily         declaredCount  `yaml:"daily,omitempty"`
	Weekly        declaredCount  `yaml:"weekly,omitempty"`
	Monthly       declaredCount  `yaml:"monthly,omitempty"`
	Yearly        declaredCount  `yaml:"yearly,omitempty"`
	Within        declaredPeriod `yaml:"within,omitempty"`
	WithinHourly  declaredPeriod `yaml:"within_hourly,omitempty"`
	WithinDaily   declaredPeriod `yaml:"within_daily,omitempty"`
	WithinWeekly  declaredPeriod `yaml:"within_weekly,omitempty"`
	WithinMonthly declaredPeriod `yaml:"within_monthly,omitempty"`
	WithinYearly  declaredPeriod `yaml:"within_yearly,omitempty"`
	Tags          []declaredTags `yaml:"tags,omitempty,flow"`
}

type declaredExclusions struct {
	Exclude           []string      `yaml:"exclude,omitempty"`
	ExcludeIfPresent  []string      `yaml:"exclude_if_present,omitempty"`
	OneFileSystem     declaredTruth `yaml:"one_file_system,omitempty"`
	ExcludeLargerThan declaredSize  `yaml:"exclude_larger_than,omitempty"`
}

// A declaredNumber is a whole number. The YAML package would truncate 1.5 to 1.
type declaredNumber int

// UnmarshalYAML implements yaml.Unmarshaler.
func (i *declaredNumber) UnmarshalYAML(n *yaml.Node) error {
	value, err := strconv.Atoi(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		if errors.Is(err, strconv.ErrRange) {
			return &lineError{n.Line, n.Column, n.Value + " is too large"}
		}
		return &lineError{n.Line, n.Column, "want a whole number, not " + nodeText(n.Kind, n.Value)}
	}
	*i = declaredNumber(value)
	return nil
}

// A declaredTruth is true or false. The YAML package would also accept the text 'yes' as true.
type declaredTruth bool

// UnmarshalYAML implements yaml.Unmarshaler.
func (b *declaredTruth) UnmarshalYAML(n *yaml.Node) error {
	const text = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Style&text == 0 && n.Decode((*bool)(b)) == nil {
		return nil
	}
	return &lineError{n.Line, n.Column, "want true or false, not " + nodeText(n.Kind, n.Value)}
}

// scalar parses the text of a node. what describes the texts that parse accepts.
func scalar[T any](n *yaml.Node, to *T, parse func(text string) (T, error), what string) error {
	value, err := parse(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return &lineError{n.Line, n.Column, strconv.Quote(n.Value) + " is not " + what}
	}
	*to = value
	return nil
}

// nodeText describes the value of a node in errors.
func nodeText(kind yaml.Kind, value string) string {
	switch kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a group of settings"
	}
	return strconv.Quote(value)
}

// A declaredSize is a number of bytes, written as on the command line: 200MB.
type declaredSize int64

func (s *declaredSize) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, (*int64)(s), func(text string) (int64, error) { return parseSize(strings.TrimSuffix(text, "/s")) }, "a size (500MB, 2GiB)")
}

// MarshalYAML writes the size in the largest unit that divides it.
func (s declaredSize) MarshalYAML() (any, error) {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1e12, "TB"}, {1 << 40, "TiB"}, {1e9, "GB"}, {1 << 30, "GiB"}, {1e6, "MB"}, {1 << 20, "MiB"}, {1e3, "KB"}, {1 << 10, "KiB"}} {
		if n := int64(s); n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name, nil
		}
	}
	return int64(s), nil
}

// A declaredTime is a duration, written as on the command line: 90m, 26h, 8d.
type declaredTime time.Duration

func (t *declaredTime) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, (*time.Duration)(t), parseTime, "a time (90m, 26h, 8d)")
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (t declaredTime) MarshalYAML() (any, error) { return timeText(time.Duration(t)), nil }

// A declaredOften is how often something is done: a declaredTime, or a word of the command line.
type declaredOften time.Duration

func (o *declaredOften) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, (*time.Duration)(o), parseDrillEvery, "daily, weekly, monthly or a time (8d)")
}

// MarshalYAML writes a form that UnmarshalYAML reads.
func (o declaredOften) MarshalYAML() (any, error) { return timeText(time.Duration(o)), nil }

// A lineError is an error in one value of the file.
type lineError struct {
	line, column int
	text         string
}

func (e *lineError) Error() string { return e.text }

func declareExclusions(s *backup.Selection) declaredExclusions {
	return declaredExclusions{s.Exclude, s.ExcludeIfPresent, declaredTruth(s.OneFileSystem), declaredSize(s.ExcludeLargerBytes)}
}

func (d *declaredExclusions) selection() backup.Selection {
	return backup.Selection{
		Exclude: d.Exclude, ExcludeIfPresent: d.ExcludeIfPresent, OneFileSystem: bool(d.OneFileSystem), ExcludeLargerBytes: int64(d.ExcludeLargerThan),
	}
}

// declareFiler returns the declaration of a filer, without its shards and without default values.
func declareFiler(f *backup.Filer) declaredFiler {
	d := declaredFiler{
		Name: f.Name, Site: f.Site, Labels: f.Labels, WalkTasks: declaredNumber(f.Limits.WalkTasks), ReadBatches: declaredNumber(f.Limits.ReadBatches),
		ReadRate: declaredSize(f.Limits.ReadBytesPerSecond), Floor: declaredNumber(f.Limits.Floor), Exclusions: declareExclusions(&f.Selection),
	}
	if d.Site == backup.DefaultSite {
		d.Site = ""
	}
	if f.Compare.OrAll() != backup.CompareAll {
		d.Compare = f.Compare.String()
	}
	return d
}

func declareShard(s *backup.Shard) declaredShard {
	d := declaredShard{Name: s.Name, Source: s.Source, Snapshots: s.Snapshots, Exclusions: declareExclusions(&s.Selection)}
	if path, err := posix.Path(s.Source); err == nil && sourceURL(path) == s.Source {
		d.Source = path
		if path == s.Name && filepath.Clean(path) == path {
			d.Source = ""
		}
	}
	return d
}

func declarePolicy(p *backup.Policy) declaredPolicy {
	d := declaredPolicy{
		Name: p.Name, Labels: p.Labels, Paused: declaredTruth(p.Paused), Schedule: p.Schedule, TimeZone: p.TimeZone, Jitter: declaredTime(p.Jitter),
		Windows: p.Windows, RecoveryPoint: declaredTime(p.RecoveryPoint), Floor: declaredNumber(p.Floor), Exclusions: declareExclusions(&p.Selection),
		Drill: declaredOften(p.Drill), Keep: declareKeep(&p.Retention),
	}
	if d.TimeZone == "UTC" {
		d.TimeZone = ""
	}
	return d
}

// policy returns the declared policy. Parse and Check of package policy validate it.
func (d *declaredPolicy) policy() backup.Policy {
	return backup.Policy{
		Name: d.Name, Labels: d.Labels, Paused: bool(d.Paused), Schedule: d.Schedule, TimeZone: d.TimeZone, Jitter: time.Duration(d.Jitter),
		Windows: notEmpty(d.Windows), RecoveryPoint: time.Duration(d.RecoveryPoint), Floor: int(d.Floor), Selection: d.Exclusions.selection(),
		Drill: time.Duration(d.Drill), Retention: d.Keep.retention(),
	}
}

// A setting is one declared value of a filer, shard or policy.
type setting struct {
	name string
	from any // nil: the default
	to   any
}

// settingsOf returns the settings of a declaration that differ from the defaults, by name, and
// their names in order. Shards are not a setting of a filer.
func settingsOf(declared any) (of map[string]any, names []string, err error) {
	var node yaml.Node
	if err := node.Encode(declared); err != nil {
		return nil, nil, err
	}
	of = map[string]any{}
	for n := 0; n+1 < len(node.Content); n += 2 {
		name := node.Content[n].Value
		if name == "name" || name == "shards" {
			continue
		}
		var value any
		if err := node.Content[n+1].Decode(&value); err != nil {
			return nil, nil, err
		}
		of[name], names = value, append(names, name)
	}
	return of, names, nil
}

// changed returns the settings that differ between two declarations.
func changed(from, to any) ([]setting, error) {
	was, wasNames, err := settingsOf(from)
	if err != nil {
		return nil, err
	}
	is, names, err := settingsOf(to)
	if err != nil {
		return nil, err
	}
	for _, name := range wasNames {
		if _, ok := is[name]; !ok {
			names = append(names, name)
		}
	}
	var list []setting
	for _, name := range names {
		if compact(was[name]) != compact(is[name]) {
			list = append(list, setting{name, was[name], is[name]})
		}
	}
	return list, nil
}

// compact returns a value on one line, or "default" for a default.
func compact(value any) string {
	if value == nil {
		return "default"
	}
	if text, ok := value.(string); ok {
		return display(text)
	}
	text, _ := json.Marshal(value) // it contains only texts, numbers, lists and maps
	return string(text)
}
