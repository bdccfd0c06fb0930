package policy

import (
	"encoding/binary"
	"hash/fnv"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a container may lack the zone data, and all machines must agree

	"github.com/robfig/cron/v3"

	"github.com/bctl/bctl/internal/backup"
)

// These bound a policy's jitter, its recovery point, and how often it wants drills.
const (
	maxJitter        = 7 * 24 * time.Hour
	maxRecoveryPoint = 366 * 24 * time.Hour
	minDrill         = time.Hour
	maxDrill         = 366 * 24 * time.Hour
)

// A Schedule computes the times of one policy. Its methods may be called concurrently.
type Schedule struct {
	cron          cron.Schedule
	zone          *time.Location
	jitter        time.Duration
	windows       []window
	recoveryPoint time.Duration
}

// schedules describes what a schedule may be.
const schedules = "want a cron expression of five fields, such as \"30 1 * * *\", or @hourly, @daily, @weekly, @monthly, @yearly or \"@every 6h\""

// Parse reads a policy's schedule. Errors are of the type *backup.SettingError.
func Parse(p backup.Policy) (*Schedule, error) {
	s := &Schedule{jitter: p.Jitter, recoveryPoint: p.RecoveryPoint}
	var err error
	if s.zone, err = time.LoadLocation(p.TimeZone); err != nil || p.TimeZone == "Local" {
		return nil, backup.WrongSetting("time_zone", "time zone %q is not an IANA name (Europe/Berlin)", p.TimeZone)
	}
	if err := s.parse(p.Schedule); err != nil {
		return nil, err
	}
	if p.Jitter < 0 || p.Jitter > maxJitter {
		return nil, backup.WrongSetting("jitter", "jitter %v is not between 0 and %v", p.Jitter, maxJitter)
	}
	if p.RecoveryPoint < 0 || p.RecoveryPoint > maxRecoveryPoint {
		return nil, backup.WrongSetting("recovery_point", "recovery point %v is not between 0 and %v", p.RecoveryPoint, maxRecoveryPoint)
	}
	if p.Drill < 0 || p.Drill > maxDrill || p.Drill > 0 && p.Drill < minDrill {
		return nil, backup.WrongSetting("drill", "drill %v is not between %v and %v, or 0", p.Drill, minDrill, maxDrill)
	}
	if err := CheckFloor(p.Floor); err != nil {
		return nil, err
	}
	for n, text := range p.Windows {
		w, err := parseWindow(text)
		if err != nil {
			return nil, &backup.SettingError{Setting: "windows/" + strconv.Itoa(n), Err: err}
		}
		s.windows = append(s.windows, w)
	}
	if s.Next(0, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, backup.WrongSetting("schedule", "schedule %q has no occurrence", p.Schedule)
	}
	return s, nil
}

func (s *Schedule) parse(text string) (err error) {
	if strings.TrimSpace(text) == "" {
		return backup.WrongSetting("schedule", "the schedule is empty: %s", schedules)
	}
	if strings.Contains(text, "TZ=") {
		return backup.WrongSetting("schedule", "schedule %q: set the time zone in its own setting (time_zone)", text)
	}
	if s.cron, err = cron.ParseStandard(text); err != nil {
		return backup.WrongSetting("schedule", "schedule %q: %s (%v)", text, schedules, err)
	}
	return nil
}

// Next returns the first time later than after at which a shard is due, or the zero Time if there
// is none.
func (s *Schedule) Next(shard backup.ShardID, after time.Time) time.Time {
	share := s.share(shard)
	// The library counts @every from the given time, so that occurrences would drift. Here they are
	// multiples of the interval since a fixed time.
	if every, ok := s.cron.(cron.ConstantDelaySchedule); ok {
		return nextMultiple(every.Delay, after.Add(-share)).Add(share)
	}
	next := s.occurrence(after.Add(-share))
	if next.IsZero() {
		return time.Time{}
	}
	return next.Add(share).UTC()
}

// occurrence returns the first occurrence after a time. A schedule with fixed hours has the same
// number of occurrences on days on which the clocks change: an occurrence in the skipped hour comes
// an hour later, and an occurrence in the repeated hour comes once.
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

// share returns the shard's part of the jitter.
func (s *Schedule) share(shard backup.ShardID) time.Duration {
	if s.jitter < time.Second {
		return 0
	}
	h := fnv.New64a()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(shard)))
	return time.Duration(h.Sum64()%uint64(s.jitter/time.Second)) * time.Second
}

// Allowed reports whether a snapshot may begin at t.
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

// searchOpen bounds the search of Opens: each window occurs every week, unless the clocks skip its
// hour.
const searchOpen = 15 * 24 * time.Hour

// Opens returns the first time from t on, to the minute, at which a snapshot may begin, or the zero
// Time if it finds none. It tries each minute, so that it agrees with Allowed on days on which the
// clocks change.
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
	return time.Time{} // all minutes of its windows are in a skipped hour
}

// Deadline returns the time by which a shard that is due needs a good snapshot. good is the time of
// the last good one. If good is zero, there is none, and the deadline is computed as if one had
// been made when the shard was due.
func (s *Schedule) Deadline(shard backup.ShardID, due, good time.Time) time.Time {
	if s.recoveryPoint == 0 {
		return s.Next(shard, due)
	}
	if good.IsZero() {
		good = due
	}
	return good.Add(s.recoveryPoint)
}
