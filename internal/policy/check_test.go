package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Policies that could be followed, but cannot be intended, are refused when they are created.
func TestCheck(t *testing.T) {
	const hour = time.Hour
	for _, test := range []struct {
		schedule, zone string
		point          time.Duration
		refused, note  string
	}{
		{"@every 1s", "", 0, `schedule "@every 1s": the time after @every must be one minute or more`, ""},
		{"@every 59s", "", 0, "one minute or more", ""},
		{"@every -5m", "", 0, `schedule "@every -5m": the time after @every must be one minute or more`, ""},
		{"", "", 0, "the schedule is empty: want a cron expression of five fields", ""},
		{" ", "", 0, "the schedule is empty", ""},
		{"30 1 * *", "", 0, `schedule "30 1 * *": want a cron expression of five fields, such as "30 1 * * *"`, ""},
		{"@every 1m", "", 0, "", ""},
		{"* * * * *", "", 0, "", ""},
		{"30 1 * * *", "", hour, "recovery point 1h0m0s is shorter than the schedule's interval of 24h0m0s", ""},
		{"30 1 * * *", "", 24 * hour, "", "up to 24h0m0s between two backups"},
		{"30 1 * * *", "", 30 * hour, "", ""},
		{"30 1 * * *", "Europe/Berlin", 24*hour + 30*time.Minute, "", "up to 25h0m0s"}, // the day on which clocks go back
		{"30 1 * * *", "Europe/Berlin", 26 * hour, "", ""},
		{"0 20 * * mon-fri", "", 30 * hour, "", "up to 72h0m0s"},
		{"0 20 * * mon-fri", "", 80 * hour, "", ""},
		{"@every 6h", "", 5 * hour, "shorter than the schedule's interval of 6h0m0s", ""},
		{"0 0 1 1 *", "", 30 * hour, "shorter than the schedule's interval of 8760h0m0s", ""},
		{"0 0 29 2 *", "", 366 * 24 * hour, "shorter than", ""},
	} {
		notes, err := Check(backup.Policy{Schedule: test.schedule, TimeZone: test.zone, RecoveryPoint: test.point})
		if (test.refused != "") != errors.Is(err, backup.ErrInvalid) || err != nil && !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%s, %v: %v, want %q", test.schedule, test.point, err, test.refused)
		}
		if got := strings.Join(notes, "\n"); (test.note == "") != (got == "") || !strings.Contains(got, test.note) {
			t.Errorf("%s, %v: notes %q, want %q", test.schedule, test.point, got, test.note)
		}
	}
	for _, test := range []struct {
		windows       string
		jitter, point time.Duration
		refused, note string
	}{
		{"sun 03:00-04:00", 0, 30 * hour, "shorter than the interval that schedule and windows leave, of 168h0m0s", ""},
		{"sun 03:00-04:00", 0, 200 * hour, "", ""},
		{"mon-fri 00:00-06:00", 0, 30 * hour, "", "up to 69h30m0s between two backups"},
		{"01:00-05:00", 0, 30 * hour, "", ""},
		{"", 25 * hour, 0, "", "the jitter of 25h0m0s is as long as the interval of 24h0m0s"},
		{"", 23 * hour, 0, "", ""},
	} {
		p := backup.Policy{Schedule: "30 2 * * *", Jitter: test.jitter, RecoveryPoint: test.point}
		if test.windows != "" {
			p.Windows = []string{test.windows}
		}
		notes, err := Check(p)
		if (test.refused != "") != errors.Is(err, backup.ErrInvalid) || err != nil && !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%+v: %v, want %q", test, err, test.refused)
		}
		if got := strings.Join(notes, "\n"); (test.note == "") != (got == "") || !strings.Contains(got, test.note) {
			t.Errorf("%+v: notes %q, want %q", test, got, test.note)
		}
	}
	if _, err := Parse(backup.Policy{Schedule: "@every 1s", RecoveryPoint: hour}); err != nil {
		t.Errorf("a policy of an earlier version is not followed: %v", err)
	}
}
