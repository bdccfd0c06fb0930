package policy

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	_ "time/tzdata" // a container may have none, and all machines must agree

	"github.com/robfig/cron/v3"

	"github.com/bctl/bctl/internal/backup"
)

// maxJitter bounds a policy's jitter, and its recovery point is bounded by maxRecoveryPoint.
const (
	maxJitter        = 7 * 24 * time.Hour
	maxRecoveryPoint = 366 * 24 * time.Hour
)

// A Schedule is the times of one policy. Its methods may be called concurrently.
type Schedule struct {
	cron          cron.Schedule
	zone          *time.Location
	jitter        time.Duration
	windows       []window
	recoveryPoint time.Duration
}

// Parse reads a policy's schedule. Errors wrap backup.ErrInvalid and name the field.
func Parse(p backup.Policy) (*Schedule, error) {
	s := &Schedule{jitter: p.Jitter, recoveryPoint: p.RecoveryPoint}
	var err error
	if s.zone, err = time.LoadLocation(p.TimeZone); err != nil || p.TimeZone == "Local" {
		return nil, fmt.Errorf("time zone %q is not an IANA name (Europe/Berlin): %w", p.TimeZone, backup.ErrInvalid)
	}
	if strings.Contains(p.Schedule, "TZ=") {
		return nil, fmt.Errorf("schedule %q: the time zone has a field of its own: %w", p.Schedule, backup.ErrInvalid)
	}
	if s.cron, err = cron.ParseStandard(p.Schedule); err != nil {
		return nil, fmt.Errorf("schedule %q: %w: %w", p.Schedule, err, backup.ErrInvalid)
	}
	if p.Jitter < 0 || p.Jitter > maxJitter {
		return nil, fmt.Errorf("jitter %v is not between 0 and %v: %w", p.Jitter, maxJitter, backup.ErrInvalid)
	}
	if p.RecoveryPoint < 0 || p.RecoveryPoint > maxRecoveryPoint {
		return nil, fmt.Errorf("recovery point %v is not between 0 and %v: %w", p.RecoveryPoint, maxRecoveryPoint, backup.ErrInvalid)
	}
	if err := CheckFloor(p.Floor); err != nil {
		return nil, err
	}
	for _, text := range p.Windows {
		w, err := parseWindow(text)
		if err != nil {
			return nil, err
		}
		s.windows = append(s.windows, w)
	}
	if s.Next(0, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("schedule %q never comes: %w", p.Schedule, backup.ErrInvalid)
	}
	return s, nil
}

// Next returns when a shard is due for the first time after a time; the zero
// Time where it never is.
func (s *Schedule) Next(shard backup.ShardID, after time.Time) time.Time {
	share := s.share(shard)
	// Seconds are cron's grain, and @every counts from the time that it is given: from a fixed one here, or it would drift.
	if every, ok := s.cron.(cron.ConstantDelaySchedule); ok {
		return nextMultiple(every.Delay, after.Add(-share)).Add(share)
	}
	next := s.occurrence(after.Add(-share))
	if next.IsZero() {
		return time.Time{}
	}
	return next.Add(share).UTC()
}

// occurrence returns the first occurrence after a time. At an hour of the day
// there is one a day, on the days on which the clocks change as well: what falls
// into the hour that is left out comes an hour later, what falls into the one that comes twice comes once.
func (s *Schedule) occurrence(after time.Time) time.Time {
	if spec, ok := s.cron.(*cron.SpecSchedule); !ok || spec.Hour&everyHour != 0 {
		return s.cron.Next(after.In(s.zone))
	}
	wall := after.In(s.zone)
	for next := time.Date(wall.Year(), wall.Month(), wall.Day(), 0, 0, -1, 0, time.UTC); ; {
		if next = s.cron.Next(next); next.IsZero() {
			return next
		}
		if t := time.Date(next.Year(), next.Month(), next.Day(), next.Hour(), next.Minute(), 0, 0, s.zone); t.After(after) {
			return t
		}
	}
}

// everyHour is the bit by which the cron library marks a field that is "*".
const everyHour = 1 << 63

func nextMultiple(d time.Duration, after time.Time) time.Time {
	return after.UTC().Truncate(d).Add(d)
}

// share is the shard's part of the jitter.
func (s *Schedule) share(shard backup.ShardID) time.Duration {
	if s.jitter < time.Second {
		return 0
	}
	h := fnv.New64a()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(shard)))
	return time.Duration(h.Sum64()%uint64(s.jitter/time.Second)) * time.Second
}

// Allowed reports whether a snapshot may be begun at t.
func (s *Schedule) Allowed(t time.Time) bool {
	if len(s.windows) == 0 {
		return true
	}
	local := t.In(s.zone)
	for _, w := range s.windows {
		if w.has(local) {
			return true
		}
	}
	return false
}

// searchOpen is how far Opens looks: each window comes every week, unless the clocks leave its hour out.
const searchOpen = 15 * 24 * time.Hour

// Opens returns the first time from t on, to the minute, at which a snapshot may be begun. It goes from minute to
// minute, so that days on which the clocks change are as Allowed says.
func (s *Schedule) Opens(t time.Time) time.Time {
	if s.Allowed(t) {
		return t
	}
	end := t.Add(searchOpen)
	for t = t.Truncate(time.Minute).Add(time.Minute); t.Before(end); t = t.Add(time.Minute) {
		if s.Allowed(t) {
			return t.UTC()
		}
	}
	return time.Time{} // its only minutes are in an hour that the clocks leave out
}

// Deadline returns until when a shard that is due wants a good snapshot. good is the
// time of the last good one; zero: there is none, and it counts as made when the shard was due.
func (s *Schedule) Deadline(shard backup.ShardID, due, good time.Time) time.Time {
	if s.recoveryPoint == 0 {
		return s.Next(shard, due)
	}
	if good.IsZero() {
		good = due
	}
	return good.Add(s.recoveryPoint)
}
