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
// could be followed but make no sense. Parse does not, so that a policy that an earlier version
// accepted is still followed. notes are warnings about settings that are probably not intended.
func Check(p backup.Policy) (notes []string, err error) {
	s, err := Parse(p)
	if err != nil {
		return nil, err
	}
	// The cron library makes a second of any shorter time, also of a negative one.
	if every, err := everyOf(p.Schedule); err != nil || every < minEvery {
		return nil, wrong("schedule", "schedule %q: the time after @every has to be one minute or more", p.Schedule)
	}
	shortest, longest := s.intervals()
	switch point := p.RecoveryPoint; {
	case point == 0:
	case point < shortest:
		return nil, wrong("recovery_point", "recovery point %v is shorter than the schedule's interval of %v, so that every shard would be overdue before it is due again: "+
			"make the recovery point longer, or back up more often", point, shortest)
	case point <= longest:
		notes = append(notes, fmt.Sprintf("the schedule leaves up to %v between two backups, and the recovery point is %v: shards will be overdue until the next backup has ended", longest, point))
	}
	return notes, nil
}

// everyOf returns the time of a schedule "@every TIME". That of a cron expression is its resolution.
func everyOf(schedule string) (time.Duration, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(schedule), "@every ")
	if !ok {
		return minEvery, nil
	}
	return time.ParseDuration(text)
}

// intervals returns the shortest and the longest time between two successive occurrences: of the
// first few thousand or, if they are rare, of some years.
func (s *Schedule) intervals() (shortest, longest time.Duration) {
	const most, least, days = 5000, 3, 800
	at := s.Next(0, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	end := at.AddDate(0, 0, days)
	for n := 0; n < most && (n < least || at.Before(end)); n++ {
		next := s.Next(0, at)
		if next.IsZero() {
			break
		}
		gap := next.Sub(at)
		if shortest == 0 || gap < shortest {
			shortest = gap
		}
		longest, at = max(longest, gap), next
	}
	return shortest, longest
}
