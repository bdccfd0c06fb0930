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
// "2026-11-23".
func dateOf(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(zone).Format(time.DateOnly)
}

// briefAgo formats a time in the past as its distance: "9h ago", or "FUTURE" if a clock was ahead.
func briefAgo(t, now time.Time) string {
	if policy.InFuture(t, now) {
		return "FUTURE"
	}
	return away(t, now)
}

// briefDeadline formats a deadline as its distance: "in 3h", or "OVERDUE 2h".
func briefDeadline(deadline, now time.Time) string {
	if now.After(deadline) && !deadline.IsZero() {
		return "OVERDUE " + age(now.Sub(deadline))
	}
	return away(deadline, now)
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
