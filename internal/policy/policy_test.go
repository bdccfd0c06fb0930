package policy

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

func parse(t *testing.T, p backup.Policy) *Schedule {
	t.Helper()
	s, err := Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNext(t *testing.T) {
	for _, test := range []struct{ name, schedule, zone, after, want string }{
		{"daily", "30 2 * * *", "", "2026-03-01T02:30:00Z", "2026-03-02T02:30:00Z"},
		{"in its zone", "30 2 * * *", "Europe/Berlin", "2026-01-10T00:00:00Z", "2026-01-10T01:30:00Z"},
		{"descriptor", "@weekly", "", "2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z"},
		// 02:30 does not exist on that day.
		{"when clocks go forward", "30 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"},
		{"the day after", "30 2 * * *", "Europe/Berlin", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"},
		// 02:30 occurs twice, and is used once.
		{"on the day when clocks go back", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T01:30:00Z"},
		{"each hour, also when clocks go back", "0 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z"},
		{"when clocks go back", "30 2 * * *", "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"},
		{"every", "@every 6h", "", "2026-01-10T07:12:00Z", "2026-01-10T12:00:00Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := parse(t, backup.Policy{Schedule: test.schedule, TimeZone: test.zone})
			if got := s.Next(1, at(t, test.after)); !got.Equal(at(t, test.want)) {
				t.Errorf("due %v, want %s", got, test.want)
			}
		})
	}
}

func TestWhatCannotBeParsed(t *testing.T) {
	for name, p := range map[string]backup.Policy{
		"no schedule":         {},
		"six fields":          {Schedule: "0 0 2 * * *"},
		"a date that is none": {Schedule: "0 0 31 2 *"},
		"zone in schedule":    {Schedule: "TZ=Europe/Berlin 0 2 * * *"},
		"zone":                {Schedule: "@daily", TimeZone: "Mars/Olympus"},
		"this machine's zone": {Schedule: "@daily", TimeZone: "Local"},
		"jitter":              {Schedule: "@daily", Jitter: -time.Second},
		"recovery point":      {Schedule: "@daily", RecoveryPoint: 1000 * 24 * time.Hour},
		"window":              {Schedule: "@daily", Windows: []string{"night"}},
		"window of no length": {Schedule: "@daily", Windows: []string{"10:00-10:00"}},
		"window after 24:00":  {Schedule: "@daily", Windows: []string{"24:00-06:00"}},
		"window of no day":    {Schedule: "@daily", Windows: []string{"today 10:00-12:00"}},
	} {
		if _, err := Parse(p); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWindows(t *testing.T) {
	s := parse(t, backup.Policy{Schedule: "@daily", TimeZone: "Europe/Berlin", Windows: []string{"fri-mon 20:00-06:00", "wed 12:00-24:00"}})
	for text, want := range map[string]bool{
		"2026-01-09T20:00:00+01:00": true, // a Friday
		"2026-01-09T19:59:00+01:00": false,
		"2026-01-10T05:59:00+01:00": true,
		"2026-01-10T06:00:00+01:00": false,
		"2026-01-13T03:00:00+01:00": true, // Tuesday, in Monday's window
		"2026-01-13T20:00:00+01:00": false,
		"2026-01-14T23:59:00+01:00": true,
		"2026-01-15T00:00:00+01:00": false,
		"2026-07-10T18:00:00Z":      true, // 20:00 in summer
	} {
		if got := s.Allowed(at(t, text)); got != want {
			t.Errorf("%s: allowed %t", text, got)
		}
	}
}

// For any policy, due times only increase, and jitter preserves a shard's intervals.
func TestNextGoesForward(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := backup.Policy{
			Schedule: rapid.SampledFrom([]string{"@hourly", "*/7 * * * *", "15 3 * * 1", "0 2 29 * *", "@every 90m"}).Draw(rt, "schedule"),
			TimeZone: rapid.SampledFrom([]string{"", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"}).Draw(rt, "zone"),
			Jitter:   time.Duration(rapid.IntRange(0, 7200).Draw(rt, "jitter")) * time.Second,
		}
		s, err := Parse(p)
		if err != nil {
			rt.Fatal(err)
		}
		shard := backup.ShardID(rapid.Int64Range(1, 1<<40).Draw(rt, "shard"))
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.IntRange(0, 400*24*3600).Draw(rt, "now")) * time.Second)
		plain := *s
		plain.jitter = 0
		for range 20 {
			next := s.Next(shard, now)
			if !next.After(now) {
				rt.Fatalf("after %v: %v", now, next)
			}
			if share := s.share(shard); share > p.Jitter || !plain.Next(shard, next.Add(-share-time.Second)).Equal(next.Add(-share)) {
				rt.Fatalf("%v is not an occurrence and %v", next, share)
			}
			if again := s.Next(shard, next.Add(-time.Second)); !again.Equal(next) {
				rt.Fatalf("%v, and %v a second before it", next, again)
			}
			now = next
		}
	})
}

func TestDeadline(t *testing.T) {
	due, good := at(t, "2026-01-10T02:00:00Z"), at(t, "2026-01-09T02:00:07Z")
	s := parse(t, backup.Policy{Schedule: "0 2 * * *"})
	if got := s.Deadline(1, due, good); !got.Equal(at(t, "2026-01-11T02:00:00Z")) {
		t.Errorf("without a recovery point: %v", got)
	}
	s = parse(t, backup.Policy{Schedule: "0 2 * * *", RecoveryPoint: 26 * time.Hour})
	if got := s.Deadline(1, due, good); !got.Equal(at(t, "2026-01-10T04:00:07Z")) {
		t.Errorf("after a good one: %v", got)
	}
	if got := s.Deadline(1, due, time.Time{}); !got.Equal(at(t, "2026-01-11T04:00:00Z")) {
		t.Errorf("before the first: %v", got)
	}
}

// The window opens at the first minute for which Allowed is true, also on days on which the clocks
// change.
func TestOpens(t *testing.T) {
	for _, test := range []struct{ zone, window, at, want string }{
		{"", "20:00-22:00", "2026-11-22T16:00:10Z", "2026-11-22T20:00:00Z"},
		{"", "20:00-22:00", "2026-11-22T21:00:10Z", "2026-11-22T21:00:10Z"}, // it is open
		{"", "20:00-22:00", "2026-11-22T22:00:00Z", "2026-11-23T20:00:00Z"},
		{"Europe/Berlin", "mon-fri 20:00-06:00", "2026-11-21T12:00:00Z", "2026-11-23T19:00:00Z"},
		{"Europe/Berlin", "sun 02:15-02:45", "2026-10-24T12:00:00Z", "2026-10-25T00:15:00Z"}, // the hour occurs twice
		{"Europe/Berlin", "sun 02:15-02:45", "2026-10-25T00:50:00Z", "2026-10-25T01:15:00Z"},
		{"Europe/Berlin", "sun 02:15-02:45", "2026-03-28T12:00:00Z", "2026-04-05T00:15:00Z"}, // the hour is skipped
	} {
		s := parse(t, backup.Policy{Schedule: "@daily", TimeZone: test.zone, Windows: []string{test.window}})
		if got := s.Opens(at(t, test.at)); !got.Equal(at(t, test.want)) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestFor(t *testing.T) {
	policies := []backup.Policy{
		{Name: "z"}, {Name: "y"}, {Name: "gold", Labels: map[string]string{"tier": "gold"}},
		{Name: "prod", Labels: map[string]string{"env": "prod"}}, {Name: "both", Labels: map[string]string{"tier": "gold", "env": "prod"}},
	}
	for _, test := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, "y"},
		{map[string]string{"tier": "silver"}, "y"},
		{map[string]string{"tier": "gold", "rack": "7"}, "gold"},
		{map[string]string{"tier": "silver", "env": "prod"}, "prod"},
		{map[string]string{"tier": "gold", "env": "prod"}, "both"},
	} {
		if p, ok := For(test.labels, policies); !ok || p.Name != test.want {
			t.Errorf("%v: %q, want %q", test.labels, p.Name, test.want)
		}
	}
	if p, ok := For(nil, policies[2:]); ok {
		t.Errorf("%q for a filer without labels", p.Name)
	}
	if p, _ := For(map[string]string{"tier": "gold", "env": "prod"}, policies[2:4]); p.Name != "gold" {
		t.Errorf("%q of two with as many labels, want the first by name", p.Name)
	}
}

func TestPlan(t *testing.T) {
	now := at(t, "2026-01-10T12:00:00Z")
	s := parse(t, backup.Policy{Schedule: "0 2 * * *", RecoveryPoint: 26 * time.Hour})
	for name, test := range map[string]struct {
		past          Past
		due, deadline string
	}{
		"never backed up": {Past{}, "2026-01-10T12:00:00Z", "2026-01-11T14:00:00Z"},
		"never backed up, and the policy has changed": {
			Past{Deadline: at(t, "2026-01-10T11:00:00Z")}, "2026-01-10T12:00:00Z", "2026-01-10T11:00:00Z",
		},
		"done":         {Past{Good: at(t, "2026-01-10T02:00:03Z")}, "2026-01-11T02:00:00Z", "2026-01-11T04:00:03Z"},
		"missed twice": {Past{Good: at(t, "2026-01-08T02:00:00Z")}, "2026-01-09T02:00:00Z", "2026-01-09T04:00:00Z"},
		"failed": {
			Past{Good: at(t, "2026-01-09T02:00:00Z"), Failed: at(t, "2026-01-10T12:00:00Z"), Deadline: at(t, "2026-01-10T04:00:00Z")}, "2026-01-10T12:15:00Z", "2026-01-10T04:00:00Z",
		},
		"failed, and not due so soon":       {Past{Good: at(t, "2026-01-10T03:00:00Z"), Failed: at(t, "2026-01-10T12:00:00Z")}, "2026-01-11T02:00:00Z", "2026-01-11T05:00:00Z"},
		"the last good one is of next year": {Past{Good: at(t, "2027-01-10T12:00:00Z")}, "2026-01-10T12:00:00Z", "2026-01-11T14:00:00Z"},
		"failed after one of next year":     {Past{Good: at(t, "2027-01-10T12:00:00Z"), Failed: at(t, "2026-01-10T12:00:00Z"), Deadline: at(t, "2027-01-11T14:00:00Z")}, "2026-01-10T12:15:00Z", "2026-01-11T14:00:00Z"},
		"the clock went back by seconds":    {Past{Good: at(t, "2026-01-10T12:00:03Z")}, "2026-01-11T02:00:00Z", "2026-01-11T14:00:03Z"},
		"failed hours ago":                  {Past{Good: at(t, "2026-01-09T02:00:00Z"), Failed: at(t, "2026-01-10T02:30:00Z")}, "2026-01-10T02:45:00Z", "2026-01-10T04:00:00Z"},
		"failed when a clock was ahead":     {Past{Good: at(t, "2026-01-09T02:00:00Z"), Failed: at(t, "2027-01-10T02:30:00Z")}, "2026-01-10T12:15:00Z", "2026-01-10T04:00:00Z"},
		"one after it is marked bad":        {Past{Good: at(t, "2026-01-10T03:00:00Z"), Bad: true}, "2026-01-10T12:00:00Z", "2026-01-11T05:00:00Z"},
		"marked bad, and then failed":       {Past{Good: at(t, "2026-01-10T03:00:00Z"), Bad: true, Failed: at(t, "2026-01-10T11:59:00Z")}, "2026-01-10T12:14:00Z", "2026-01-11T05:00:00Z"},
		"failed before there was any good":  {Past{Failed: at(t, "2026-01-10T12:00:00Z"), Deadline: at(t, "2026-01-10T13:00:00Z")}, "2026-01-10T12:15:00Z", "2026-01-10T13:00:00Z"},
	} {
		due, deadline := s.Plan(1, test.past, now)
		if !due.Equal(at(t, test.due)) || !deadline.Equal(at(t, test.deadline)) {
			t.Errorf("%s: due %v, deadline %v", name, due, deadline)
		}
	}
}

// No plan is later than Latest, for any past.
func TestLatest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, err := Parse(backup.Policy{
			Schedule: rapid.SampledFrom([]string{"30 2 * * *", "@every 7m", "@hourly", "0 20 * * fri", "@yearly"}).Draw(rt, "schedule"),
			TimeZone: rapid.SampledFrom([]string{"", "Europe/Berlin", "America/New_York"}).Draw(rt, "zone"),
			Jitter:   time.Duration(rapid.IntRange(0, 7200).Draw(rt, "jitter")) * time.Second,
		})
		if err != nil {
			rt.Fatal(err)
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.IntRange(0, 400*24*3600).Draw(rt, "now")) * time.Second)
		past := Past{Bad: rapid.Bool().Draw(rt, "bad")}
		if rapid.Bool().Draw(rt, "failed") {
			past.Failed = now.Add(time.Duration(rapid.IntRange(-24*3600, 24*3600).Draw(rt, "failed ago")) * time.Second)
		}
		if rapid.Bool().Draw(rt, "good") {
			past.Good = now.Add(time.Duration(rapid.IntRange(-400*24*3600, 400*24*3600).Draw(rt, "ago")) * time.Second)
		}
		shard := backup.ShardID(rapid.Int64Range(1, 1<<40).Draw(rt, "shard"))
		due, _ := s.Plan(shard, past, now)
		latest := s.Latest(now)
		if due.After(latest) {
			rt.Fatalf("%+v at %v: due %v, after %v", past, now, due, latest)
		}
	})
}

func TestPick(t *testing.T) {
	now := at(t, "2026-01-10T02:00:00Z")
	candidate := func(shard backup.ShardID, filer backup.FilerID, minutes int) Candidate {
		return Candidate{Shard: shard, Filer: filer, Due: now, Deadline: now.Add(time.Duration(minutes) * time.Minute)}
	}
	all := []Candidate{candidate(1, 1, 30), candidate(2, 1, 10), candidate(3, 1, 20), candidate(4, 2, 40), candidate(5, 3, 50)}
	picked := Pick(all, []Running{{Filer: 1, Snapshots: 1}, {Filer: 9, Snapshots: 1}}, Limits{Running: 5, RunningPerFiler: 2})
	var shards []backup.ShardID
	for _, c := range picked {
		shards = append(shards, c.Shard)
	}
	if len(shards) != 3 || shards[0] != 2 || shards[1] != 4 || shards[2] != 5 {
		t.Errorf("picked %v, want 2 (filer 1 is full then), 4, 5", shards)
	}
	if len(Pick(all, nil, Limits{})) != len(all) {
		t.Error("no limits: all")
	}
}

// A site has its own slots: a full site does not make another wait.
func TestPickPerSite(t *testing.T) {
	now := at(t, "2026-01-10T02:00:00Z")
	candidate := func(shard backup.ShardID, site string) Candidate {
		return Candidate{Shard: shard, Filer: backup.FilerID(shard), Site: site, Due: now, Deadline: now.Add(time.Duration(shard) * time.Minute)}
	}
	all := []Candidate{candidate(1, "dead"), candidate(2, "dead"), candidate(3, "oslo"), candidate(4, "paris"), candidate(5, "oslo"), candidate(6, "oslo")}
	running := []Running{{Filer: 90, Site: "dead", Snapshots: 2}, {Filer: 91, Site: "dead", Snapshots: 1}, {Filer: 92, Site: "paris", Snapshots: 1}}
	var shards []backup.ShardID
	for _, c := range Pick(all, running, Limits{Running: 2}) {
		shards = append(shards, c.Shard)
	}
	if !slices.Equal(shards, []backup.ShardID{3, 4, 5}) {
		t.Errorf("picked %v, want 3 and 5, for which oslo has slots, and 4", shards)
	}
}
