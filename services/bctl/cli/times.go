package cli

import (
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/policy"
)

// The format of times for people: in this machine's time zone, which is named, and, in lists, with
// the difference from now. All other code in this package uses these functions for that.

// zone is this machine's time zone. Tests set it: time.Local is also read by goroutines that
// libraries start.
var zone = time.Local

// zoned formats a time, or returns "-" if there is none.
func zoned(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(zone).Format("2006-01-02 15:04:05 MST")
}

// happened formats a time in the past: "2026-11-23 01:30:00 CET (9h ago)".
func happened(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return zoned(t) + " (" + agoText(t, now) + ")"
}

// expected formats a time in the future: "2026-11-23 01:30:00 CET (in 9h)", or "(3h ago)".
func expected(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return zoned(t) + " (" + away(t, now) + ")"
}

// away formats a time as its difference from now: "in 9h", or "3h ago"; "-" if there is none.
func away(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case t.After(now):
		return "in " + age(t.Sub(now))
	}
	return age(now.Sub(t)) + " ago"
}

// deadlineText formats a deadline: "2026-11-23 01:30:00 CET (in 3h)", or "(OVERDUE 2h)".
func deadlineText(deadline, now time.Time) string {
	if now.After(deadline) && !deadline.IsZero() {
		return zoned(deadline) + " (OVERDUE " + age(now.Sub(deadline)) + ")"
	}
	return expected(deadline, now)
}

// shortTime formats a time to the minute: "2026-11-23 01:30 CET".
func shortTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(zone).Format("2006-01-02 15:04 MST")
}

// dateOf formats the day of a time, for lists in which the time of day does not matter:
// "2026-11-23 CET".
func dateOf(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(zone).Format("2006-01-02 MST")
}

// nearby is the difference from now up to which a time needs no year.
const nearby = 180 * 24 * time.Hour

// nearTime formats a time for a narrow list: "11-23 01:30 CET", or "2025-11-23 CET" if it is far
// from now.
func nearTime(t, now time.Time) string {
	if t.IsZero() || t.Sub(now).Abs() > nearby {
		return dateOf(t)
	}
	return t.In(zone).Format("01-02 15:04 MST")
}

// noTime are the forms of a cell that has no time.
func noTime(text string) (f forms) {
	for n := range f {
		f[n] = text
	}
	return f
}

// each returns forms to which a change was made.
func (f forms) each(change func(string) string) forms {
	for n := range f {
		f[n] = change(f[n])
	}
	return f
}

// pastForms are the forms of a time in the past: happened, "11-23 01:30 CET (9h ago)", "11-23 01:30
// CET" and "9h ago". If a clock was ahead, each is marked with FUTURE.
func pastForms(t, now time.Time) forms {
	switch near := nearTime(t, now); {
	case t.IsZero():
		return noTime("-")
	case policy.InFuture(t, now):
		return forms{happened(t, now), near + " (FUTURE, by " + age(t.Sub(now)) + ")", near + " FUTURE", "FUTURE"}
	default:
		return forms{happened(t, now), near + " (" + away(t, now) + ")", near, away(t, now)}
	}
}

// startForms are pastForms for a list in which no time is left out: with the year, and never as a
// distance alone.
func startForms(t, now time.Time) forms {
	f := pastForms(t, now)
	f[formBrief] = shortTime(t)
	if policy.InFuture(t, now) {
		f[formBrief] += " FUTURE"
	}
	f[formLong], f[formLeast] = f[formBrief], f[formBrief]
	return f
}

// futureForms are the forms of a time in the future.
func futureForms(t, now time.Time) forms {
	if t.IsZero() {
		return noTime("-")
	}
	near := nearTime(t, now)
	return forms{expected(t, now), near + " (" + away(t, now) + ")", near, away(t, now)}
}

// deadlineForms are the forms of a deadline. Those of one that has passed contain OVERDUE.
func deadlineForms(t, now time.Time) forms {
	if t.IsZero() || !now.After(t) {
		return futureForms(t, now)
	}
	near, late := nearTime(t, now), age(now.Sub(t))
	return forms{deadlineText(t, now), near + " (OVERDUE " + late + ")", near + " OVERDUE", "OVERDUE " + late}
}

// runningAge formats how long something has run, or reports that it was begun in the future because
// a clock was ahead.
func runningAge(started, now time.Time) string {
	if policy.InFuture(started, now) {
		return "FUTURE"
	}
	return clock(now.Sub(started))
}

// agoText formats the age of an event, or how far it lies in the future because a clock was ahead.
func agoText(happened, now time.Time) string {
	if policy.InFuture(happened, now) {
		return "in the FUTURE, by " + age(happened.Sub(now)) + ": a clock was ahead"
	}
	return age(now.Sub(happened)) + " ago"
}

// age formats an age in one unit: 12s, 5m, 3h, 40d.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
