package backup

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestPeriods(t *testing.T) {
	for text, want := range map[string]Period{
		"14d": {Days: 14}, "36h": {Hours: 36}, "1y5m7d2h": {Years: 1, Months: 5, Days: 7, Hours: 2}, "1000y": {Years: 1000}, "90m": {Months: 90}, "8d12h": {Days: 8, Hours: 12},
		"0": {}, "0d": {}, "007d": {Days: 7},
	} {
		if got, err := ParsePeriod(text); err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", " ", "d", "1", "-1d", "1d-2h", "1w", "90s", "1h30m", "1d1d", "1d1y", "1.5d", "1 d", " 1d", "1d ", "1001y", "12001m", "100001d", "2400001h",
		"99999999999999999999d", "1D", "١d", "d1", "1dd",
	} {
		got, err := ParsePeriod(text)
		if !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), `"`+text+`"`) {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	for p, want := range map[Period]bool{{}: true, {Days: 1}: true, {Days: -1}: false, {Years: 1001}: false, {Hours: maxHours}: true} {
		if p.Valid() != want {
			t.Errorf("%+v is valid: %t", p, !want)
		}
	}
}

// A day before is the same time of day, also if the clocks change between.
func TestPeriodsAreOfTheCalendar(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2024, 3, 31, 12, 0, 0, 0, berlin)
	for p, want := range map[Period]time.Time{
		{Days: 1}:                     time.Date(2024, 3, 30, 12, 0, 0, 0, berlin),
		{Hours: 24}:                   time.Date(2024, 3, 30, 11, 0, 0, 0, berlin),
		{Months: 1}:                   time.Date(2024, 3, 2, 12, 0, 0, 0, berlin), // 31 February
		{Years: 1, Days: 1, Hours: 1}: time.Date(2023, 3, 30, 11, 0, 0, 0, berlin),
	} {
		if got := p.Before(at); !got.Equal(want) {
			t.Errorf("%s before %s is %s", p, at, got)
		}
	}
}

// A value that an earlier version stored can be read, and is written unchanged.
func TestRetentionKeepsItsForm(t *testing.T) {
	old := `{"last":1,"daily":14,"within":734400000000000}`
	var r Retention
	if err := json.Unmarshal([]byte(old), &r); err != nil || !reflect.DeepEqual(r, Retention{Last: 1, Daily: 14, Within: Period{Days: 8, Hours: 12}}) {
		t.Errorf("%+v, %v", r, err)
	}
	if text, err := json.Marshal(r); err != nil || string(text) != old {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := json.Marshal(Retention{}); err != nil || string(text) != "{}" {
		t.Errorf("%s, %v", text, err)
	}
	for text, want := range map[string]Period{`5400000000000`: {Hours: 2}, `1`: {Hours: 1}, `0`: {}, `"1y5m"`: {Years: 1, Months: 5}, `"36h"`: {Hours: 36}} {
		var p Period
		if err := json.Unmarshal([]byte(text), &p); err != nil || p != want {
			t.Errorf("%s is %+v, %v", text, p, err)
		}
	}
	for _, text := range []string{`"soon"`, `9223372036854775807`, `1.5`, `[]`, `true`, `-3600000000001`} {
		var p Period
		if err := json.Unmarshal([]byte(text), &p); err == nil {
			t.Errorf("%s is %+v", text, p)
		}
	}
}

func TestRetentionInWords(t *testing.T) {
	for want, r := range map[string]Retention{
		"all":                            {},
		"14 daily, 8 weekly, all of 30d": {Daily: 14, Weekly: 8, Within: Period{Days: 30}},
		"3 last, unlimited yearly, one rule after the other": {Last: 3, Yearly: Unlimited, Style: StylePBS},
		"hourly of 2d, tagged legal, tagged a and b":         {WithinHourly: Period{Days: 2}, Tags: [][]string{{"legal"}, {"a", "b"}}},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestCountsTagsAndStyles(t *testing.T) {
	for text, want := range map[string]Count{"0": 0, "7": 7, "2147483647": 2147483647, "unlimited": Unlimited} {
		if got, err := ParseCount(text); err != nil || got != want {
			t.Errorf("%s is %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "all", "2147483648", "1.5", " 1", "x"} {
		if got, err := ParseCount(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
	if got, err := ParseTags(" a, b c"); err != nil || !reflect.DeepEqual(got, []string{"a", "b c"}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{"", ",", "a,,b", " ", "a,"} {
		if got, err := ParseTags(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q is %q, %v", text, got, err)
		}
	}
	for _, s := range []Style{StyleRestic, StylePBS} {
		if got, err := ParseStyle(s.String()); err != nil || got != s {
			t.Errorf("%s is %s, %v", s, got, err)
		}
	}
	if got, err := ParseStyle(""); !errors.Is(err, ErrInvalid) {
		t.Errorf("the empty style is %s, %v", got, err)
	}
}

// A value that was parsed comes back from its text and from JSON.
func FuzzRetentionTexts(f *testing.F) {
	for _, text := range []string{"14d", "1y5m7d2h", "0", "36h", "unlimited", "7", "-1", "a,b", "pbs", "1d1d", "99999999999999999999d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := ParsePeriod(text); err == nil {
			if again, err := ParsePeriod(p.String()); err != nil || again != p || !p.Valid() {
				t.Errorf("%q is %+v, then %+v, %v", text, p, again, err)
			}
			var again Period
			if b, err := json.Marshal(p); err != nil || json.Unmarshal(b, &again) != nil || again != p {
				t.Errorf("%q is %+v, in JSON %s, %+v, %v", text, p, b, again, err)
			}
		} else if !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if c, err := ParseCount(text); err == nil {
			if again, err := ParseCount(c.String()); err != nil || again != c || c < 0 && c != Unlimited {
				t.Errorf("%q is %d, then %d, %v", text, c, again, err)
			}
		}
		if tags, err := ParseTags(text); err == nil {
			if again, err := ParseTags(strings.Join(tags, ",")); err != nil || !reflect.DeepEqual(again, tags) {
				t.Errorf("%q is %q, then %q, %v", text, tags, again, err)
			}
		}
	})
}
