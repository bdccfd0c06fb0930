package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index"
)

// setZone sets the time zone of all output until the test ends.
func setZone(t *testing.T, to *time.Location) {
	t.Helper()
	before := zone
	zone = to
	t.Cleanup(func() { zone = before })
}

// Times have a zone and a difference from now. An event in the future is shown as such; it used to
// be "0s" old.
func TestTimes(t *testing.T) {
	setZone(t, time.FixedZone("CET", 3600))
	now := time.Date(2026, 11, 22, 16, 0, 0, 0, time.UTC)
	for _, test := range []struct{ got, want string }{
		{happened(now.Add(-3*time.Hour), now), "2026-11-22 14:00:00 CET (3h ago)"},
		{happened(now.Add(5*time.Second), now), "2026-11-22 17:00:05 CET (0s ago)"},
		{happened(now.AddDate(1, 0, 0), now), "2027-11-22 17:00:00 CET (in the FUTURE, by 365d: a clock was ahead)"},
		{happened(time.Time{}, now), "-"},
		{expected(now.Add(3*time.Minute), now), "2026-11-22 17:03:00 CET (in 3m)"},
		{expected(now.Add(3*time.Hour), now), "2026-11-22 20:00:00 CET (in 3h)"},
		{expected(now.Add(-time.Hour), now), "2026-11-22 16:00:00 CET (60m ago)"},
		{expected(time.Time{}, now), "-"},
		{deadlineText(now.Add(-50*time.Hour), now), "2026-11-20 15:00:00 CET (OVERDUE 2d)"},
		{deadlineText(now.Add(50*time.Hour), now), "2026-11-24 19:00:00 CET (in 2d)"},
		{deadlineText(time.Time{}, now), "-"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
	// One of its shards is in the future. The oldest of the others must not hide that.
	f := index.FilerStatus{Shards: 2, Oldest: now.Add(-time.Hour), Newest: now.AddDate(1, 0, 0)}
	if got := lastGood(&f, now); !strings.Contains(got, "(in the FUTURE, by 365d: ") {
		t.Errorf("%q", got)
	}
	if got := lastGoodForms(&f, now); !strings.Contains(got[formBrief], "FUTURE") || got[formLeast] != "FUTURE" {
		t.Errorf("%q", got)
	}
}

// Where room is scarce, a time keeps its day, its time of day and its zone, and what must not be
// missed; where there is room, also its difference from now.
func TestFormsOfTimes(t *testing.T) {
	setZone(t, time.FixedZone("CET", 3600))
	now := time.Date(2026, 11, 22, 16, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		got  forms
		want []string // from formLong on
	}{
		{pastForms(now.Add(-3*time.Hour), now), []string{"11-22 14:00 CET (3h ago)", "11-22 14:00 CET", "3h ago"}},
		{pastForms(now.AddDate(-1, 0, 0), now), []string{"2025-11-22 CET (365d ago)", "2025-11-22 CET", "365d ago"}},
		{pastForms(now.Add(2*time.Hour), now), []string{"11-22 19:00 CET (FUTURE, by 2h)", "11-22 19:00 CET FUTURE", "FUTURE"}},
		{pastForms(time.Time{}, now), []string{"-", "-", "-"}},
		{startForms(now.Add(-3*time.Hour), now), []string{"2026-11-22 14:00 CET", "2026-11-22 14:00 CET", "2026-11-22 14:00 CET"}},
		{startForms(now.Add(2*time.Hour), now), []string{"2026-11-22 19:00 CET FUTURE", "2026-11-22 19:00 CET FUTURE", "2026-11-22 19:00 CET FUTURE"}},
		{futureForms(now.Add(9*time.Hour), now), []string{"11-23 02:00 CET (in 9h)", "11-23 02:00 CET", "in 9h"}},
		{futureForms(time.Time{}, now), []string{"-", "-", "-"}},
		{deadlineForms(now.Add(9*time.Hour), now), []string{"11-23 02:00 CET (in 9h)", "11-23 02:00 CET", "in 9h"}},
		{deadlineForms(now.Add(-50*time.Hour), now), []string{"11-20 15:00 CET (OVERDUE 2d)", "11-20 15:00 CET OVERDUE", "OVERDUE 2d"}},
	} {
		if !slices.Equal(test.got[formLong:], test.want) {
			t.Errorf("%q, want %q", test.got[formLong:], test.want)
		}
	}
	for got, want := range map[string]string{
		runningAge(now.Add(-90*time.Second), now): "1:30",
		runningAge(now.Add(5*time.Second), now):   "0:00", // less than clocks may differ by
		runningAge(now.Add(2*time.Hour), now):     "FUTURE",
		dateOf(now):                               "2026-11-22 CET",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Only times.go formats times for people, so that none lacks its zone. Other files format RFC 3339
// for programs, and parse user input.
func TestTimesAreWrittenInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	layout := regexp.MustCompile(`\.Format\((?:"[^"]*"|time\.\w+)\)`)
	for _, file := range files {
		if file == "times.go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range layout.FindAllString(string(text), -1) {
			if !strings.Contains(found, "RFC3339") && !strings.Contains(found, `Z")`) {
				t.Errorf("%s: %s", file, found)
			}
		}
	}
}
