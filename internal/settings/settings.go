// Package settings checks the settings of filers, shards and policies. The index and everything
// else that reads settings use it, and refuse invalid settings before they change anything. All
// errors are of the type *backup.SettingError.
package settings

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/retention"
)

// MaxSlots is the maximum limit of a filer's walk tasks, and of its read batches. No fleet has that
// many slots.
const MaxSlots = 1 << 16

// MaxShardName is the maximum length of a shard's name. An index key in Postgres has at most 2,704
// bytes.
const MaxShardName = 2000

// MaxSourceBytes is the maximum length of a shard's source.
const MaxSourceBytes = 8 << 10

// Upper limits for settings. A selection is sent to workers with each task and batch.
const (
	maxBytesPerSecond = 1 << 50
	maxSelectionBytes = 64 << 10
	maxLabels         = 64
	maxLabelBytes     = 256
	maxScheduleText   = 256
	maxWindows        = 64
)

// IsText reports whether s can be stored in a text column of the index.
func IsText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// name checks a name. The index accepts names that are not plain, because filers of earlier
// versions may have any.
func name(what, s string, maxBytes int) error {
	switch {
	case s == "":
		return backup.WrongSetting("name", "the name of a %s is empty", what)
	case len(s) > maxBytes:
		return backup.WrongSetting("name", "%s name %q… has %d bytes, and the maximum is %d", what, s[:min(len(s), 40)], len(s), maxBytes)
	case !IsText(s):
		return backup.WrongSetting("name", "%s name %q is not UTF-8, or contains a NUL", what, s)
	}
	return nil
}

// FilerName checks the name of a filer.
func FilerName(s string) error { return name("filer", s, backup.MaxNameBytes) }

// ShardName checks the name of a shard.
func ShardName(s string) error { return name("shard", s, MaxShardName) }

// Filer checks the settings of a filer, except for its name.
func Filer(f backup.Filer) error {
	if err := backup.CheckSite(f.Site); err != nil {
		return &backup.SettingError{Setting: "site", Err: err}
	}
	l := f.Limits
	for _, n := range []struct {
		setting string
		value   int
	}{{"walk_tasks", l.WalkTasks}, {"read_batches", l.ReadBatches}} {
		if n.value < 0 || n.value > MaxSlots {
			return backup.WrongSetting(n.setting, "%s: %d is not a number from 0 to %d", n.setting, n.value, MaxSlots)
		}
	}
	if l.ReadBytesPerSecond < 0 || l.ReadBytesPerSecond > maxBytesPerSecond {
		return backup.WrongSetting("read_rate", "read_rate: %d bytes per second is not between 0 and 1 PiB", l.ReadBytesPerSecond)
	}
	if err := policy.CheckFloor(l.Floor); err != nil {
		return err
	}
	if f.Compare&^backup.CompareAll != 0 || f.Compare.OrAll()&(backup.CompareMtime|backup.CompareCtime) == 0 {
		return backup.WrongSetting("compare", "compare: %#x: without mtime or ctime, changed content would not be found", uint8(f.Compare))
	}
	if err := labels(f.Labels); err != nil {
		return err
	}
	return selection(f.Selection)
}

// Shard checks the settings of a shard, except for its name.
func Shard(s backup.Shard) error {
	if s.Source == "" || len(s.Source) > MaxSourceBytes || !IsText(s.Source) {
		return backup.WrongSetting("source", "source %q is empty, has more than %d bytes, or is not UTF-8", s.Source[:min(len(s.Source), 80)], MaxSourceBytes)
	}
	if len(s.Snapshots) > MaxSourceBytes || !IsText(s.Snapshots) || strings.HasPrefix(s.Snapshots, "/") ||
		slices.Contains(strings.Split(s.Snapshots, "/"), "..") {
		return backup.WrongSetting("snapshots", "snapshots %q is not a pattern relative to the source, of at most %d bytes of UTF-8",
			s.Snapshots[:min(len(s.Snapshots), 80)], MaxSourceBytes)
	}
	return selection(s.Selection)
}

// Policy checks a policy.
func Policy(p backup.Policy) error {
	if err := name("policy", p.Name, backup.MaxNameBytes); err != nil {
		return err
	}
	type text struct{ setting, value string }
	texts := []text{{"schedule", p.Schedule}, {"time_zone", p.TimeZone}}
	for n, window := range p.Windows {
		texts = append(texts, text{"windows/" + strconv.Itoa(n), window})
	}
	for _, t := range texts {
		if len(t.value) > maxScheduleText || !IsText(t.value) {
			what, _, _ := strings.Cut(t.setting, "/")
			return backup.WrongSetting(t.setting, "%s: %q has more than %d bytes, or is not UTF-8", what, t.value[:min(len(t.value), 80)], maxScheduleText)
		}
	}
	if len(p.Windows) > maxWindows {
		return backup.WrongSetting("windows", "%d windows are more than %d", len(p.Windows), maxWindows)
	}
	if _, err := policy.Parse(p); err != nil {
		return err
	}
	if err := retention.Check(p.Retention); err != nil {
		return err
	}
	if err := labels(p.Labels); err != nil {
		return err
	}
	return selection(p.Selection)
}

func labels(of map[string]string) error {
	if len(of) > maxLabels {
		return backup.WrongSetting("labels", "%d labels are more than %d", len(of), maxLabels)
	}
	for key, value := range of {
		if key == "" || len(key) > maxLabelBytes || len(value) > maxLabelBytes || !IsText(key) || !IsText(value) {
			return backup.WrongSetting("labels", "label %q=%q: key and value are UTF-8 of at most %d bytes, and the key is not empty",
				key[:min(len(key), 40)], value[:min(len(value), 40)], maxLabelBytes)
		}
	}
	return nil
}

// selection checks that the index can store a selection. Whether its patterns are valid is checked
// by package selection.
func selection(s backup.Selection) error {
	size := 0
	for _, list := range []struct {
		setting string
		texts   []string
	}{{"exclude", s.Exclude}, {"exclude_if_present", s.ExcludeIfPresent}} {
		for n, text := range list.texts {
			if size += len(text); size > maxSelectionBytes {
				return backup.WrongSetting(list.setting, "the exclusions have more than %d bytes", maxSelectionBytes)
			}
			if !IsText(text) {
				return backup.WrongSetting(list.setting+"/"+strconv.Itoa(n), "%s: %q is not UTF-8, or contains a NUL", list.setting, text)
			}
		}
	}
	if s.ExcludeLargerBytes < 0 {
		return backup.WrongSetting("exclude_larger_than", "exclude_larger_than: %d bytes is not a size of 0 or more", s.ExcludeLargerBytes)
	}
	return nil
}
