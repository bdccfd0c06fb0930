package retention

import (
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A Cause is the kind of a Reason.
type Cause int

// The causes. NoRule and NotGood are those of forgotten snapshots, all others those of kept ones.
const (
	ByCount    Cause = iota // keep-last to keep-yearly: Every
	ByPeriod                // keep-within and its variants: Every and Period
	ByTags                  // keep-tag: Tags
	OnHold                  // Hold
	InUse                   // a running snapshot is compared with it
	LastGood                // no other good snapshot is newer
	Unreplaced              // it is not good, but no good one is newer
	NoRule                  // no rule keeps it
	NotGood                 // it is not good, and a newer one is
)

// An Every is a unit of the calendar of which the newest snapshot is kept.
type Every int

// The units. Each is All for rules that keep every snapshot: keep-last and keep-within.
const (
	All Every = iota
	Hour
	Day
	Week // ISO
	Month
	Year
)

// String returns "hourly" and so on.
func (e Every) String() string {
	return [...]string{"all", "hourly", "daily", "weekly", "monthly", "yearly"}[e]
}

// A Reason says why a snapshot is kept or forgotten.
type Reason struct {
	Cause  Cause
	Every  Every
	Oldest bool // it is kept as the oldest snapshot, not as the newest one of its hour, day …
	Period backup.Period
	Tags   []string
	Hold   string
}

// String returns the reason in words. The words of rules are those of restic: "daily snapshot",
// "oldest weekly snapshot", "within 7d", "hourly within 2d", "has tags [a, b]".
func (r Reason) String() string {
	text := ""
	if r.Oldest {
		text = "oldest "
	}
	switch r.Cause {
	case ByCount:
		if r.Every == All {
			return text + "last snapshot"
		}
		return text + r.Every.String() + " snapshot"
	case ByPeriod:
		if r.Every != All {
			text += r.Every.String() + " "
		}
		return text + "within " + r.Period.String()
	case ByTags:
		return "has tags [" + strings.Join(r.Tags, ", ") + "]"
	case OnHold:
		return "on hold: " + r.Hold
	case InUse:
		return "a running snapshot is compared with it"
	case LastGood:
		return "last good snapshot"
	case Unreplaced:
		return "not good, and no good one is newer by 7d"
	case NoRule:
		return "no rule keeps it"
	case NotGood:
		return "not good, and a good one is newer by 7d"
	}
	return fmt.Sprintf("cause %d", r.Cause)
}
