package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// minEvery is the minimum time between two occurrences: the resolution of a cron expression.
const minEvery = time.Minute

// Check is Parse for a policy that an operator creates or changes. It also refuses policies that
// are valid but make no sense. Parse accepts these, because an earlier version of bctl may have.
// notes are warnings about settings that are probably not intended.
func Check(p backup.Policy) (notes []string, err error) {
	s, err := Parse(p)
	if err != nil {
		return nil, err
	}
	// The cron library rounds a shorter time up to a second, even a negative one.
	if every, err := everyOf(p.Schedule); err != nil || every < minEvery {
		return nil, backup.WrongSetting("schedule", "schedule %q: the time after @every must be one minute or more", p.Schedule)
	}
	shortest, longest := s.intervals()
	switch point := p.RecoveryPoint; {
	case point == 0:
	case point < shortest:
		of := "schedule's interval"
		if len(p.Windows) > 0 {
			of = "interval that schedule and windows leave,"
		}
		return nil, backup.WrongSetting("recovery_point", "recovery point %v is shorter than the %s of %v, so that every shard would be overdue before it is due again: "+
			"make the recovery point longer, or back up more often", point, of, shortest)
	case point <= longest:
		notes = append(notes, fmt.Sprintf("the schedule leaves up to %v between two backups, and the recovery point is %v: shards will be overdue until the next backup has ended", longest, point))
	}
	if p.Jitter >= shortest {
		notes = append(notes, fmt.Sprintf("the jitter of %v is as long as the interval of %v between two backups, or longer: some shards will be due at their next time already", p.Jitter, shortest))
	}
	return notes, nil
}

// everyOf returns the interval of a schedule "@every TIME". For a cron expression, it returns the
// minimum.
func everyOf(schedule string) (time.Duration, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(schedule), "@every ")
	if !ok {
		return minEvery, nil
	}
	return time.ParseDuration(text)
}

// intervals returns the shortest and the longest time between the beginnings of two successive
// backups: of the first few thousand occurrences or, if they are rare, of some years. A backup
// begins when a window opens. Occurrences that wait for the same window are one backup.
func (s *Schedule) intervals() (shortest, longest time.Duration) {
	const most, least, days = 5000, 3, 800
	at := s.Next(0, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	end, begun := at.AddDate(0, 0, days), s.Opens(at)
	for n := 0; n < most && (n < least || at.Before(end)); n++ {
		if at = s.Next(0, at); at.IsZero() {
			break
		}
		if !at.After(begun) {
			continue
		}
		begins := s.Opens(at)
		if begins.IsZero() {
			break
		}
		gap := begins.Sub(begun)
		if shortest == 0 || gap < shortest {
			shortest = gap
		}
		longest, begun = max(longest, gap), begins
	}
	return shortest, longest
}
