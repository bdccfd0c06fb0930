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
	Paused        bool               `yaml:"paused,omitempty"`
	Schedule      string             `yaml:"schedule"`
	TimeZone      string             `yaml:"time_zone,omitempty"`
	Jitter        declaredTime       `yaml:"jitter,omitempty"`
	Windows       []string           `yaml:"windows,omitempty"`
	RecoveryPoint declaredTime       `yaml:"recovery_point,omitempty"`
	Floor         declaredNumber     `yaml:"floor,omitempty"`
	Keep          declaredKeep       `yaml:"keep,omitempty"`
	Exclusions    declaredExclusions `yaml:",inline"`
}

type declaredKeep struct {
	Last    declaredNumber `yaml:"last,omitempty"`
	Hourly  declaredNumber `yaml:"hourly,omitempty"`
	Daily   declaredNumber `yaml:"daily,omitempty"`
	Weekly  declaredNumber `yaml:"weekly,omitempty"`
	Monthly declaredNumber `yaml:"monthly,omitempty"`
	Yearly  declaredNumber `yaml:"yearly,omitempty"`
	Within  declaredTime   `yaml:"within,omitempty"`
}

type declaredExclusions struct {
	Exclude           []string     `yaml:"exclude,omitempty"`
	ExcludeIfPresent  []string     `yaml:"exclude_if_present,omitempty"`
	OneFileSystem     bool         `yaml:"one_file_system,omitempty"`
	ExcludeLargerThan declaredSize `yaml:"exclude_larger_than,omitempty"`
}

// A declaredNumber is a whole number. The YAML package would make 1 of 1.5.
type declaredNumber int

// UnmarshalYAML implements yaml.Unmarshaler.
func (i *declaredNumber) UnmarshalYAML(n *yaml.Node) error {
	value, err := strconv.Atoi(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		got := strconv.Quote(n.Value)
		switch {
		case n.Kind == yaml.SequenceNode:
			got = "a list"
		case n.Kind == yaml.MappingNode:
			got = "a group of settings"
		case errors.Is(err, strconv.ErrRange):
			return &lineError{n.Line, n.Column, n.Value + " is too large"}
		}
		return &lineError{n.Line, n.Column, "want a whole number, not " + got}
	}
	*i = declaredNumber(value)
	return nil
}

// A declaredSize is a number of bytes, written as on the command line: 200MB.
type declaredSize int64

func (s *declaredSize) UnmarshalYAML(n *yaml.Node) error {
	bytes, err := parseSize(strings.TrimSuffix(n.Value, "/s"))
	if err != nil || n.Kind != yaml.ScalarNode {
		return &lineError{n.Line, n.Column, strconv.Quote(n.Value) + " is not a size (500MB, 2GiB)"}
	}
	*s = declaredSize(bytes)
	return nil
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
	d, err := parseTime(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return &lineError{n.Line, n.Column, strconv.Quote(n.Value) + " is not a time (90m, 26h, 8d)"}
	}
	*t = declaredTime(d)
	return nil
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (t declaredTime) MarshalYAML() (any, error) { return timeText(time.Duration(t)), nil }

// A lineError is an error in one value of the file.
type lineError struct {
	line, column int
	text         string
}

func (e *lineError) Error() string { return e.text }

func declareExclusions(s *backup.Selection) declaredExclusions {
	return declaredExclusions{s.Exclude, s.ExcludeIfPresent, s.OneFileSystem, declaredSize(s.ExcludeLargerBytes)}
}

func (d *declaredExclusions) selection() backup.Selection {
	return backup.Selection{
		Exclude: d.Exclude, ExcludeIfPresent: d.ExcludeIfPresent, OneFileSystem: d.OneFileSystem, ExcludeLargerBytes: int64(d.ExcludeLargerThan),
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
	r := &p.Retention
	d := declaredPolicy{
		Name: p.Name, Labels: p.Labels, Paused: p.Paused, Schedule: p.Schedule, TimeZone: p.TimeZone, Jitter: declaredTime(p.Jitter),
		Windows: p.Windows, RecoveryPoint: declaredTime(p.RecoveryPoint), Floor: declaredNumber(p.Floor), Exclusions: declareExclusions(&p.Selection),
		Keep: declaredKeep{
			declaredNumber(r.Last), declaredNumber(r.Hourly), declaredNumber(r.Daily), declaredNumber(r.Weekly), declaredNumber(r.Monthly),
			declaredNumber(r.Yearly), declaredTime(r.Within),
		},
	}
	if d.TimeZone == "UTC" {
		d.TimeZone = ""
	}
	return d
}

// policy returns the declared policy. Parse and Check of package policy validate it.
func (d *declaredPolicy) policy() backup.Policy {
	k := &d.Keep
	return backup.Policy{
		Name: d.Name, Labels: d.Labels, Paused: d.Paused, Schedule: d.Schedule, TimeZone: d.TimeZone, Jitter: time.Duration(d.Jitter),
		Windows: notEmpty(d.Windows), RecoveryPoint: time.Duration(d.RecoveryPoint), Floor: int(d.Floor), Selection: d.Exclusions.selection(),
		Retention: backup.Retention{
			Last: int(k.Last), Hourly: int(k.Hourly), Daily: int(k.Daily), Weekly: int(k.Weekly), Monthly: int(k.Monthly), Yearly: int(k.Yearly), Within: time.Duration(k.Within),
		},
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
