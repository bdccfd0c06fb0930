package backup

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Retention are the rules that select the snapshots of a shard to keep. A Retention without rules
// keeps all snapshots of a policy's shards. Package retention applies the rules.
type Retention struct {
	Style Style `json:"style,omitempty"`

	Last    Count `json:"last,omitempty"` // the newest, this many
	Hourly  Count `json:"hourly,omitempty"`
	Daily   Count `json:"daily,omitempty"`
	Weekly  Count `json:"weekly,omitempty"`
	Monthly Count `json:"monthly,omitempty"`
	Yearly  Count `json:"yearly,omitempty"`

	// The period ends with the newest snapshot. Within keeps all snapshots of the period. Each of
	// the other rules keeps the newest of each hour, day, week, month or year of its period.
	Within        Period `json:"within,omitzero"`
	WithinHourly  Period `json:"within_hourly,omitzero"`
	WithinDaily   Period `json:"within_daily,omitzero"`
	WithinWeekly  Period `json:"within_weekly,omitzero"`
	WithinMonthly Period `json:"within_monthly,omitzero"`
	WithinYearly  Period `json:"within_yearly,omitzero"`

	// Tags keeps the snapshots that have all tags of one of the lists.
	Tags [][]string `json:"tags,omitempty"`
}

// HasRules reports whether any rule is set.
func (r *Retention) HasRules() bool {
	for _, c := range r.Counts() {
		if c.Count != 0 {
			return true
		}
	}
	for _, p := range r.Periods() {
		if !p.IsZero() {
			return true
		}
	}
	return len(r.Tags) > 0
}

// A CountRule is one rule of a Retention that has a number.
type CountRule struct {
	Name string // as in the fleet file
	Count
}

// A PeriodRule is one rule of a Retention that has a period.
type PeriodRule struct {
	Name string // as in the fleet file
	Period
}

// Counts returns the rules with numbers, also those that are not set, from keep-last to
// keep-yearly.
func (r *Retention) Counts() []CountRule {
	return []CountRule{
		{"last", r.Last}, {"hourly", r.Hourly}, {"daily", r.Daily}, {"weekly", r.Weekly}, {"monthly", r.Monthly}, {"yearly", r.Yearly},
	}
}

// Periods returns the rules with periods, also those that are not set, from keep-within to
// keep-within-yearly.
func (r *Retention) Periods() []PeriodRule {
	return []PeriodRule{
		{"within", r.Within}, {"within_hourly", r.WithinHourly}, {"within_daily", r.WithinDaily},
		{"within_weekly", r.WithinWeekly}, {"within_monthly", r.WithinMonthly}, {"within_yearly", r.WithinYearly},
	}
}

// String returns the rules in words: "14 daily, 8 weekly, all of 30d".
func (r *Retention) String() string {
	var parts []string
	for _, c := range r.Counts() {
		if c.Count != 0 {
			parts = append(parts, c.String()+" "+c.Name)
		}
	}
	for _, p := range r.Periods() {
		if !p.IsZero() {
			every := strings.TrimPrefix(strings.TrimPrefix(p.Name, "within"), "_")
			if every == "" {
				every = "all"
			}
			parts = append(parts, every+" of "+p.String())
		}
	}
	for _, list := range r.Tags {
		parts = append(parts, "tagged "+strings.Join(list, " and "))
	}
	if len(parts) == 0 {
		return "all"
	}
	if r.Style == StylePBS {
		parts = append(parts, "one rule after the other")
	}
	return strings.Join(parts, ", ")
}

// A Style determines how the rules of a Retention work together.
type Style string

// The styles. The zero Style is that of restic.
const (
	StyleRestic Style = ""    // each rule looks at all snapshots
	StylePBS    Style = "pbs" // as in Proxmox Backup Server, a rule looks at what earlier rules leave
)

// ParseStyle reads a style: "restic" or "pbs".
func ParseStyle(text string) (Style, error) {
	switch text {
	case "restic":
		return StyleRestic, nil
	case "pbs":
		return StylePBS, nil
	}
	return "", fmt.Errorf("%q is not restic or pbs: %w", text, ErrInvalid)
}

func (s Style) String() string {
	if s == StyleRestic {
		return "restic"
	}
	return string(s)
}

// A Count is the number of snapshots that a rule keeps. Zero means that the rule is not set.
type Count int

// Unlimited is the Count of a rule that has no limit.
const Unlimited Count = -1

const unlimited = "unlimited"

// ParseCount reads a number of 0 or more, or "unlimited".
func ParseCount(text string) (Count, error) {
	if text == unlimited {
		return Unlimited, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0, fmt.Errorf("%q is not a number of 0 or more, or %q: %w", text, unlimited, ErrInvalid)
	}
	return Count(n), nil
}

func (c Count) String() string {
	if c == Unlimited {
		return unlimited
	}
	return strconv.Itoa(int(c))
}

// A Period is a length of time by the calendar: a month has 28 to 31 days, and a day has 23 to 25
// hours.
type Period struct{ Years, Months, Days, Hours int }

// The greatest numbers of a Period. Days and hours can be written as nanoseconds.
const (
	maxYears  = 1000
	maxMonths = 12 * maxYears
	maxDays   = 100_000
	maxHours  = 24 * maxDays
)

// A periodUnit is one number of a Period.
type periodUnit struct {
	name byte
	most int
	n    *int
}

// units returns the numbers of p in the order of the text form.
func (p *Period) units() [4]periodUnit {
	return [4]periodUnit{{'y', maxYears, &p.Years}, {'m', maxMonths, &p.Months}, {'d', maxDays, &p.Days}, {'h', maxHours, &p.Hours}}
}

// ParsePeriod reads a period as restic writes it: years, months, days and hours, each optional, in
// this order ("1y5m7d2h"). "0" is the zero Period.
func ParsePeriod(text string) (p Period, err error) {
	if text == "0" {
		return Period{}, nil
	}
	rest := text
	for _, unit := range p.units() {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if digits == 0 || digits == len(rest) || rest[digits] != unit.name {
			continue
		}
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n > unit.most {
			return Period{}, fmt.Errorf("%q: %s%c is more than %d%c: %w", text, rest[:digits], unit.name, unit.most, unit.name, ErrInvalid)
		}
		*unit.n, rest = n, rest[digits+1:]
	}
	if rest != "" || text == "" {
		return Period{}, fmt.Errorf("%q is not a number of years, months, days and hours, in this order (14d, 36h, 1y5m7d2h): %w", text, ErrInvalid)
	}
	return p, nil
}

// String returns the form that ParsePeriod reads.
func (p Period) String() string {
	if p.IsZero() {
		return "0"
	}
	var text []byte
	for _, unit := range p.units() {
		if *unit.n != 0 {
			text = append(strconv.AppendInt(text, int64(*unit.n), 10), unit.name)
		}
	}
	return string(text)
}

// IsZero reports whether p is empty.
func (p Period) IsZero() bool { return p == Period{} }

// Valid reports whether all numbers are in the bounds of ParsePeriod.
func (p Period) Valid() bool {
	for _, unit := range p.units() {
		if *unit.n < 0 || *unit.n > unit.most {
			return false
		}
	}
	return true
}

// Before returns the time that is p before t, by the calendar of t's location.
func (p Period) Before(t time.Time) time.Time {
	return t.AddDate(-p.Years, -p.Months, -p.Days).Add(-time.Duration(p.Hours) * time.Hour)
}

// Duration returns the length of a period of days and fewer than 24 hours. It counts a day as 24
// hours. ok is false for other periods. PeriodOf is the inverse.
func (p Period) Duration() (d time.Duration, ok bool) {
	if p.Years != 0 || p.Months != 0 || p.Hours >= 24 {
		return 0, false
	}
	return time.Duration(p.Days*24+p.Hours) * time.Hour, true
}

// PeriodOf returns a period of days and hours. A part of an hour counts as an hour.
func PeriodOf(d time.Duration) Period {
	hours := int((d + time.Hour - 1) / time.Hour)
	return Period{Days: hours / 24, Hours: hours % 24}
}

// MarshalJSON writes nanoseconds where Duration allows, as earlier versions did, and the text form
// otherwise.
func (p Period) MarshalJSON() ([]byte, error) {
	if d, ok := p.Duration(); ok {
		return json.Marshal(int64(d))
	}
	return json.Marshal(p.String())
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Period) UnmarshalJSON(text []byte) (err error) {
	if len(text) > 0 && text[0] == '"' {
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		*p, err = ParsePeriod(s)
		return err
	}
	var d int64
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	if d < 0 || d > math.MaxInt64-int64(time.Hour) {
		return fmt.Errorf("%d nanoseconds are negative, or too many: %w", d, ErrInvalid)
	}
	*p = PeriodOf(time.Duration(d))
	return nil
}

// ParseTags reads a list of tags, separated by commas.
func ParseTags(text string) ([]string, error) {
	tags := strings.Split(text, ",")
	for n := range tags {
		if tags[n] = strings.TrimSpace(tags[n]); tags[n] == "" {
			return nil, fmt.Errorf("%q is not a list of tags, separated by commas (daily,important): %w", text, ErrInvalid)
		}
	}
	return tags, nil
}
