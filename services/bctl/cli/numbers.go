package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"
)

// Flags that are numbers, sizes and times. Each is checked when the command line is parsed: a
// negative or absurd value is a usage error that names flag and value, before anything is opened.

// A valueError describes an invalid value of a flag: "is not …".
type valueError struct{ text string }

func (e *valueError) Error() string { return e.text }

func wrongValue(format string, args ...any) error { return &valueError{fmt.Sprintf(format, args...)} }

// A parsed is the value of a flag, parsed from text by parse.
type parsed[T any] struct {
	to       *T
	text     string
	typeName string // in the help, if the usage does not name the value
	parse    func(text string) (T, error)
}

func (p *parsed[T]) Set(text string) error {
	value, err := p.parse(text)
	if err == nil {
		*p.to, p.text = value, text
	}
	return err
}

func (p *parsed[T]) String() string { return p.text }
func (p *parsed[T]) Type() string   { return p.typeName }

// most is the maximum of counts, such as the length of a list or the number of kept snapshots.
const most = math.MaxInt32

// numberFlag adds a flag for a whole number between least and greatest.
func numberFlag(flags *pflag.FlagSet, to *int, name string, value, least, greatest int, usage string) {
	numberFlagP(flags, to, name, "", value, least, greatest, usage)
}

// numberFlagP is numberFlag with a shorthand.
func numberFlagP(flags *pflag.FlagSet, to *int, name, shorthand string, value, least, greatest int, usage string) {
	*to = value
	flags.VarP(&parsed[int]{to, strconv.Itoa(value), "int", func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		switch {
		case err == nil && n >= least && n <= greatest:
			return n, nil
		case greatest == most:
			return 0, wrongValue("is not a number of %d or more", least)
		}
		return 0, wrongValue("is not a number from %d to %d", least, greatest)
	}}, name, shorthand, usage)
}

// sizeFlag adds a flag for a number of bytes: 500MB, 2GiB.
func sizeFlag(flags *pflag.FlagSet, to *int64, name, usage string) {
	flags.Var(&parsed[int64]{to, "", "string", parseSize}, name, usage)
}

func parseSize(text string) (int64, error) {
	bytes, err := humanize.ParseBytes(text)
	// A size above zero that is rounded down to 0 bytes is refused too.
	if err != nil || bytes > math.MaxInt64/2 || bytes == 0 && strings.ContainsAny(text, "123456789") {
		return 0, wrongValue("is not a size (500MB, 2GiB; 0: no limit)")
	}
	return int64(bytes), nil
}

// timeFlag adds a flag for a duration, which may use days: 90m, 26h, 8d, 1d12h.
func timeFlag(flags *pflag.FlagSet, to *time.Duration, name, usage string) {
	flags.Var(&parsed[time.Duration]{to, "", "string", parseTime}, name, usage)
}

const day = 24 * time.Hour

func parseTime(text string) (time.Duration, error) {
	const greatest = 100 * 366 * day // more would overflow time.Duration
	days, rest, inDays := strings.Cut(text, "d")
	if !inDays {
		days, rest = "0", text
	}
	if inDays && rest == "" {
		rest = "0s"
	}
	n, err := strconv.ParseUint(days, 10, 16)
	d, err2 := time.ParseDuration(rest)
	// The index stores microseconds.
	if err != nil || err2 != nil || d < 0 || d > greatest || time.Duration(n)*day+d > greatest || d%time.Microsecond != 0 {
		return 0, wrongValue("is not a time (90m, 26h, 8d)")
	}
	return time.Duration(n)*day + d, nil
}

// sinceFlag adds a flag for a point in time, or for its age.
func sinceFlag(flags *pflag.FlagSet, to *time.Time, name, usage string) {
	flags.Var(&parsed[time.Time]{to, "", "string", func(text string) (time.Time, error) { return parseSince(text, time.Now()) }}, name, usage)
}

// sinceLayouts are the forms of a point in time. Those without a zone mean this machine's.
var sinceLayouts = []string{
	time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04Z07:00", "2006-01-02 15:04Z07:00",
	"2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02",
}

// sinceForms says in a flag's usage what parseSince accepts.
const sinceForms = "2006-01-02, 2006-01-02T15:04:05, RFC 3339, or 24h (ago)"

func parseSince(text string, now time.Time) (time.Time, error) {
	first, _, err := parsePeriod(text, now)
	return first, err
}

// parseUntil returns the last moment that text names: that of its day, minute or second.
func parseUntil(text string, now time.Time) (time.Time, error) {
	_, last, err := parsePeriod(text, now)
	return last, err
}

// parsePeriod returns the first and last moments that text names. The empty text is the zero time.
func parsePeriod(text string, now time.Time) (first, last time.Time, err error) {
	if text == "" {
		return first, last, nil
	}
	if d, err := parseTime(text); err == nil {
		return now.Add(-d), now.Add(-d), nil
	}
	for _, layout := range sinceLayouts {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil {
			return t, endOf(t, layout), nil
		}
	}
	return first, last, wrongValue("is not a time (2006-01-02, 2006-01-02T15:04:05 in local time, 2006-01-02T15:04:05Z) or a duration (24h, 8d)")
}

// endOf returns the last moment of the day, minute or second that begins at t, whichever is the
// smallest unit of the layout.
func endOf(t time.Time, layout string) time.Time {
	switch {
	case !strings.Contains(layout, "15"):
		t = t.AddDate(0, 0, 1)
	case !strings.Contains(layout, ":05"):
		t = t.Add(time.Minute)
	case t.Nanosecond() == 0:
		t = t.Add(time.Second)
	default:
		return t
	}
	return t.Add(-1)
}
