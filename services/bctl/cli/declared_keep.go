package cli

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
)

// A declaredCount is a number of snapshots, or "unlimited".
type declaredCount backup.Count

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *declaredCount) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Value == backup.Unlimited.String() {
		*c = declaredCount(backup.Unlimited)
		return nil
	}
	var number declaredNumber
	if err := number.UnmarshalYAML(n); err != nil {
		return err
	}
	if number < 0 { // -1 has a meaning of its own
		return &lineError{n.Line, n.Column, n.Value + " is not a number of 0 or more, or unlimited"}
	}
	*c = declaredCount(number)
	return nil
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (c declaredCount) MarshalYAML() (any, error) {
	if backup.Count(c) == backup.Unlimited {
		return backup.Unlimited.String(), nil
	}
	return int(c), nil
}

// A declaredPeriod is a period of the calendar: 14d, 36h, 1y5m7d2h.
type declaredPeriod backup.Period

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *declaredPeriod) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, (*backup.Period)(p), backup.ParsePeriod, "years, months, days and hours in this order (14d, 36h, 1y5m7d2h)")
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (p declaredPeriod) MarshalYAML() (any, error) { return backup.Period(p).String(), nil }

// A declaredStyle is a backup.Style.
type declaredStyle backup.Style

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *declaredStyle) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, (*backup.Style)(s), backup.ParseStyle, "restic or pbs")
}

// declaredTags are tags, all of which a snapshot has: legal, or "monthly,verified".
type declaredTags []string

// UnmarshalYAML implements yaml.Unmarshaler.
func (t *declaredTags) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, (*[]string)(t), backup.ParseTags, "one or more tags, separated by commas")
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (t declaredTags) MarshalYAML() (any, error) { return strings.Join(t, ","), nil }

func declareKeep(r *backup.Retention) declaredKeep {
	var tags []declaredTags
	for _, list := range r.Tags {
		tags = append(tags, list)
	}
	return declaredKeep{
		Style: declaredStyle(r.Style), Last: declaredCount(r.Last), Hourly: declaredCount(r.Hourly), Daily: declaredCount(r.Daily),
		Weekly: declaredCount(r.Weekly), Monthly: declaredCount(r.Monthly), Yearly: declaredCount(r.Yearly),
		Within: declaredPeriod(r.Within), WithinHourly: declaredPeriod(r.WithinHourly), WithinDaily: declaredPeriod(r.WithinDaily),
		WithinWeekly: declaredPeriod(r.WithinWeekly), WithinMonthly: declaredPeriod(r.WithinMonthly), WithinYearly: declaredPeriod(r.WithinYearly),
		Tags: tags,
	}
}

func (k *declaredKeep) retention() backup.Retention {
	var tags [][]string
	for _, list := range k.Tags {
		tags = append(tags, list)
	}
	return backup.Retention{
		Style: backup.Style(k.Style), Last: backup.Count(k.Last), Hourly: backup.Count(k.Hourly), Daily: backup.Count(k.Daily),
		Weekly: backup.Count(k.Weekly), Monthly: backup.Count(k.Monthly), Yearly: backup.Count(k.Yearly),
		Within: backup.Period(k.Within), WithinHourly: backup.Period(k.WithinHourly), WithinDaily: backup.Period(k.WithinDaily),
		WithinWeekly: backup.Period(k.WithinWeekly), WithinMonthly: backup.Period(k.WithinMonthly), WithinYearly: backup.Period(k.WithinYearly),
		Tags: tags,
	}
}
