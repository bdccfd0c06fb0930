package journal

import (
	"fmt"
	"math"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Filer returns the filer that f describes.
func (f *CatalogFiler) Filer() (backup.Filer, error) {
	compare, err := compareOf(f.Compare)
	return backup.Filer{
		Name: f.Name, Site: f.Site, Labels: f.Labels, Selection: f.Selection, Retired: f.Retired, Compare: compare,
		Limits: backup.Limits{WalkTasks: f.WalkTasks, ReadBatches: f.ReadBatches, ReadBytesPerSecond: f.ReadBytesPerSecond, Floor: f.FloorPercent},
	}, err
}

// compareOf is the inverse of Compare.String. All attributes are the default.
func compareOf(text string) (backup.Compare, error) {
	compare, err := backup.ParseCompare(text)
	if compare == backup.Compare(0).OrAll() {
		compare = 0
	}
	return compare, err
}

// Shard returns the shard that s describes. It belongs to the filer with the name s.Filer.
func (s *CatalogShard) Shard() (backup.Shard, error) {
	key, err := backup.ParseShardKey(s.Key)
	return backup.Shard{Key: key, Name: s.Name, Source: s.Source, Snapshots: s.Snapshots, Selection: s.Selection, Retired: s.Retired}, err
}

// Policy returns the policy that p describes.
func (p *CatalogPolicy) Policy() (backup.Policy, error) {
	retention, err := p.Retention.retention()
	if err != nil {
		return backup.Policy{}, fmt.Errorf("policy %q: %w", p.Name, err)
	}
	return backup.Policy{
		Name: p.Name, Labels: p.Labels, Paused: p.Paused, Schedule: p.Schedule, TimeZone: p.TimeZone, Jitter: duration(p.JitterSeconds),
		Windows: p.Windows, RecoveryPoint: duration(p.RecoveryPointSeconds), Floor: p.FloorPercent, Selection: p.Selection, Retention: retention,
		Drill: duration(p.DrillSeconds),
	}, nil
}

// duration returns a number of seconds to the microsecond, as the index has it.
func duration(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds*1e6)) * time.Microsecond
}

func (c *CatalogRetention) retention() (r backup.Retention, err error) {
	r = backup.Retention{
		Style: c.Style, Last: c.Last, Hourly: c.Hourly, Daily: c.Daily, Weekly: c.Weekly, Monthly: c.Monthly, Yearly: c.Yearly, Tags: c.Tags,
	}
	for _, period := range []struct {
		text string
		to   *backup.Period
	}{
		{c.Within, &r.Within}, {c.WithinHourly, &r.WithinHourly}, {c.WithinDaily, &r.WithinDaily},
		{c.WithinWeekly, &r.WithinWeekly}, {c.WithinMonthly, &r.WithinMonthly}, {c.WithinYearly, &r.WithinYearly},
	} {
		if period.text == "" {
			continue
		}
		if *period.to, err = backup.ParsePeriod(period.text); err != nil {
			return r, err
		}
	}
	if c.WithinSeconds > 0 {
		hours := int(math.Round(c.WithinSeconds / 3600))
		r.Within = backup.Period{Days: hours / 24, Hours: hours % 24}
	}
	return r, nil
}

// Snapshot returns the snapshot that a record describes. Filer and Shard have their names, and the
// shard its key and its source.
func (c *Commit) Describe() (s backup.Snapshot, err error) {
	j := &c.Snapshot
	s = backup.Snapshot{
		Number: j.Number, State: c.State, Reason: c.Reason, Started: j.Started, Ended: c.Ended, Source: j.Source,
		Selection: j.Selection, Tags: j.Tags, AllowShrink: j.AllowShrink, NewRoot: j.NewRoot, Counts: c.Counts,
		ChurnScore: max(c.ChurnScore, 0), Alarm: c.Alarm,
	}
	s.Filer.Name, s.Shard.Name, s.Shard.Source = j.Filer, j.Shard, j.Source
	if j.Read != "" {
		s.Source = j.Read
	}
	if s.ID, err = backup.ParseSnapshotID(j.ID); err != nil {
		return s, err
	}
	if s.Shard.Key, err = backup.ParseShardKey(j.ShardKey); err != nil {
		return s, err
	}
	if s.Compare, err = compareOf(j.Compare); err != nil {
		return s, err
	}
	if s.Root, err = backup.ParseRoot(j.Root); err != nil {
		return s, err
	}
	if j.Base != nil {
		s.Base = j.Base.Number
		if s.BaseID, err = backup.ParseSnapshotID(j.Base.ID); err != nil {
			return s, err
		}
	}
	if c.State == backup.Committed {
		s.Committed = c.Ended
		if s.Pages, err = c.Content.PageSet(); err != nil {
			return s, err
		}
	}
	if g := c.Segment; g != nil {
		s.Segment.Parts, s.Segment.Checkpoint = g.Parts, g.Checkpoint
		s.Segment.Attempt, err = backup.ParsePackID(g.Attempt)
	}
	return s, err
}
