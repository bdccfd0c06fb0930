package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

var written = time.Date(2026, 11, 22, 1, 2, 3, 4, time.UTC)

const sequence = 0x1234

// exampleCatalog has a filer, a shard and a policy with all fields set, and one of each with none
// set.
func exampleCatalog() *Catalog {
	selection := backup.Selection{Exclude: []string{"*.o", "<&>"}, ExcludeIfPresent: []string{".nobackup"}, OneFileSystem: true, ExcludeLargerBytes: 1 << 40}
	filer := backup.Filer{
		ID: 3, Name: "filer-1", Site: "berlin-2", Limits: backup.Limits{WalkTasks: 4, ReadBatches: 5, ReadBytesPerSecond: 6, Floor: 25},
		Compare: backup.CompareMtime | backup.CompareInode, Selection: selection, Labels: map[string]string{"tier": "gold", "a": "b"}, Retired: true,
	}
	shard := backup.Shard{
		ID: 4, Key: backup.ShardKey{0x5a, 15: 1}, Filer: 3, Name: "/srv/home", Source: "posix:///srv/home", Snapshots: ".snapshot/hourly.*",
		Selection: selection, Retired: true,
	}
	policy := backup.Policy{
		ID: 5, Revision: 6, Name: "nightly", Labels: map[string]string{"tier": "gold"}, Paused: true, Schedule: "0 2 * * *", TimeZone: "Europe/Berlin",
		Jitter: 90 * time.Minute, Windows: []string{"mon-fri 20:00-06:00"}, RecoveryPoint: 36 * time.Hour, Floor: 50, Drill: 7 * 24 * time.Hour,
		Retention: backup.Retention{Last: 1, Hourly: 2, Daily: 3, Weekly: 4, Monthly: 5, Yearly: 6, Within: backup.Period{Days: 2}}, Selection: selection,
	}
	return &Catalog{
		Filers:    []CatalogFiler{FilerOf(&filer), FilerOf(&backup.Filer{Name: "plain", Site: backup.DefaultSite})},
		Shards:    []CatalogShard{ShardOf(&shard, "filer-1"), ShardOf(&backup.Shard{Key: backup.ShardKey{1}, Name: "s", Source: "posix:///s"}, "plain")},
		Policies:  []CatalogPolicy{PolicyOf(&policy), PolicyOf(&backup.Policy{Name: "none", Schedule: "@daily"})},
		Forgotten: []backup.SnapshotID{{1, 15: 2}, {3}},
		Bad:       []CatalogBad{{"01000000000000000000000000000002", "half of it is missing"}},
		Holds:     exampleHolds(),
		Brake:     &CatalogBrake{50, 10, 30, 1 << 30, 2},
		Scrub:     &CatalogScrub{86400, 1 << 40, 9, 400_000, 9_000_000, 1_000_000_000},
	}
}

// exampleHolds are holds on a snapshot, on a shard, and on paths, one of which is not UTF-8.
func exampleHolds() []CatalogHold {
	shard := backup.ShardKey{0x5a, 15: 1}.String()
	holds := []CatalogHold{
		{ID: 1, Snapshot: backup.SnapshotID{1, 15: 2}.String(), By: "a@b", Since: written},
		{ID: 2, Shard: shard, Reason: "case 12", By: "a@b", Login: "operator@a", Since: written},
		{ID: 3, Shard: shard, By: "a@b", Since: written}, {ID: 4, Shard: shard, By: "a@b", Since: written},
	}
	holds[2].SetPath("home/alice")
	holds[3].SetPath("home/\xff")
	return holds
}

// goldenCatalog is the example as of when the golden files were written, without later additions.
func goldenCatalog() *Catalog {
	c := exampleCatalog()
	c.Filers[0].FloorPercent, c.Policies[0].FloorPercent, c.Policies[0].DrillSeconds = 0, 0, 0
	c.Forgotten, c.Holds, c.Bad, c.Brake, c.Scrub = nil, nil, nil, nil, nil
	return c
}

func encodeCatalog(t testing.TB, k keys, c *Catalog) []byte {
	t.Helper()
	data, err := EncodeCatalog(k.Keys, sequence, written, c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCatalogComesBack(t *testing.T) {
	k := newKeys(t)
	for _, want := range []*Catalog{exampleCatalog(), {}} {
		h, got, err := OpenCatalog(encodeCatalog(t, k, want), sequence, k.trust())
		header := CatalogHeader{version, sequence, written, len(want.Filers), len(want.Shards), len(want.Policies), len(want.Forgotten), len(want.Holds), len(want.Bad)}
		if err != nil || h != header || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, %+v\ngot  %+v\nwant %+v", err, h, got, want)
		}
	}
}

// The catalog has every field that operators can set, but no identifiers of index rows.
func TestCatalogHasEverything(t *testing.T) {
	c := exampleCatalog()
	for _, v := range []any{c.Filers[0], c.Shards[0], c.Policies[0]} {
		value := reflect.ValueOf(v)
		for i := range value.NumField() {
			if value.Field(i).IsZero() {
				t.Errorf("%T.%s is not filled in", v, value.Type().Field(i).Name)
			}
		}
	}
	for _, test := range []struct {
		noun, line any
		without    []string
	}{
		{backup.Filer{}, CatalogFiler{}, []string{"ID", "Limits"}}, // limits are four fields
		{backup.Shard{}, CatalogShard{}, []string{"ID"}},
		// Durations are seconds, the floor is percent.
		{backup.Policy{}, CatalogPolicy{}, []string{"ID", "Revision", "Jitter", "RecoveryPoint", "Floor", "Drill"}},
		{backup.Retention{}, CatalogRetention{}, nil},
	} {
		noun, line := reflect.TypeOf(test.noun), reflect.TypeOf(test.line)
		for i := range noun.NumField() {
			name := noun.Field(i).Name
			if _, ok := line.FieldByName(name); !ok && !strings.Contains(fmt.Sprint(test.without), name) {
				t.Errorf("%v.%s is not in %v", noun, name, line)
			}
		}
	}
	p := c.Policies[0]
	if p.JitterSeconds != 5400 || p.RecoveryPointSeconds != 129600 || p.DrillSeconds != 604800 || p.Retention.WithinSeconds != 172800 {
		t.Errorf("durations are %v, %v, %v and %v seconds", p.JitterSeconds, p.RecoveryPointSeconds, p.DrillSeconds, p.Retention.WithinSeconds)
	}
}

// A comparison of the lines shows every change and nothing else.
func TestLinesAreTheSameForTheSameCatalog(t *testing.T) {
	one, err := exampleCatalog().Lines()
	if err != nil {
		t.Fatal(err)
	}
	two, err := exampleCatalog().Lines()
	if err != nil || !bytes.Equal(one, two) || bytes.Count(one, []byte("\n")) != 15 {
		t.Errorf("%v\n%s\n%s", err, one, two)
	}
}

// The catalog of a large fleet has several frames, each of whole lines.
func TestLargeCatalog(t *testing.T) {
	k := newKeys(t)
	c := &Catalog{}
	for i := range 40_000 {
		c.Shards = append(c.Shards, ShardOf(&backup.Shard{Key: backup.ShardKey{byte(i), byte(i >> 8)}, Name: fmt.Sprintf("/srv/%d", i), Source: "posix:///srv"}, "f"))
	}
	_, got, err := OpenCatalog(encodeCatalog(t, k, c), sequence, k.trust())
	if err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("%d shards of %d: %v", len(got.Shards), len(c.Shards), err)
	}
}

func TestCatalogsBeginWithOne(t *testing.T) {
	for _, n := range []int64{0, -1, math.MinInt64} {
		if _, err := EncodeCatalog(newKeys(t).Keys, n, written, &Catalog{}); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("catalog %d: %v", n, err)
		}
	}
}

// A path of any bytes comes back, and a value that is no hold is refused.
func TestHoldsOfACatalog(t *testing.T) {
	k := newKeys(t)
	_, c, err := OpenCatalog(encodeCatalog(t, k, exampleCatalog()), sequence, k.trust())
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []string{"", "", "home/alice", "home/\xff"} {
		if path, err := c.Holds[n].PathOnHold(); err != nil || path != want {
			t.Errorf("hold %d: path %q, %v; want %q", n, path, err, want)
		}
	}
	good := exampleHolds()
	for n, change := range []func(*CatalogHold){
		func(h *CatalogHold) { h.ID = 0 },
		func(h *CatalogHold) { h.Snapshot = good[0].Snapshot },
		func(h *CatalogHold) { h.Shard = "" },
		func(h *CatalogHold) { h.Shard = "x" },
		func(h *CatalogHold) { h.Shard, h.Snapshot = "", good[0].Snapshot },
		func(h *CatalogHold) { h.Path = "../x" },
		func(h *CatalogHold) { h.PathBytes = "?" },
	} {
		bad := good[2]
		change(&bad)
		if _, _, err := OpenCatalog(encodeCatalog(t, k, &Catalog{Holds: []CatalogHold{bad}}), sequence, k.trust()); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("change %d: error %v", n, err)
		}
	}
}

// What a catalog has becomes what the operators have set again.
func TestSettingsComeBack(t *testing.T) {
	filer := backup.Filer{
		Name: "nas1", Site: "oslo", Labels: map[string]string{"a": "b"}, Compare: backup.CompareMtime, Retired: true,
		Limits: backup.Limits{WalkTasks: 3, ReadBatches: 4, ReadBytesPerSecond: 5, Floor: 6}, Selection: backup.Selection{Exclude: []string{"*.tmp"}},
	}
	c := FilerOf(&filer)
	if got, err := c.Filer(); err != nil || !reflect.DeepEqual(got, filer) {
		t.Errorf("%+v, %v", got, err)
	}
	shard := backup.Shard{Key: backup.NewShardKey(), Name: "home", Source: "posix:///srv", Snapshots: ".snapshot/*", Retired: true, Selection: filer.Selection}
	s := ShardOf(&shard, "nas1")
	if got, err := s.Shard(); err != nil || !reflect.DeepEqual(got, shard) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, within := range []backup.Period{{}, {Days: 2, Hours: 3}, {Hours: 5}, {Days: 40}, {Years: 1, Months: 2, Days: 3}} {
		policy := backup.Policy{
			Name: "nightly", Labels: filer.Labels, Paused: true, Schedule: "@daily", TimeZone: "Europe/Oslo", Jitter: 90*time.Second + 7*time.Microsecond, Windows: []string{"mon 1:00-2:00"},
			RecoveryPoint: 36 * time.Hour, Floor: 20, Selection: filer.Selection,
			Retention: backup.Retention{
				Style: backup.StylePBS, Last: 1, Hourly: 2, Daily: 3, Weekly: 4, Monthly: 5, Yearly: backup.Unlimited, Within: within,
				WithinHourly: backup.Period{Hours: 1}, WithinDaily: backup.Period{Days: 1}, WithinWeekly: backup.Period{Days: 7}, WithinMonthly: backup.Period{Months: 1}, WithinYearly: backup.Period{Years: 2},
				Tags: [][]string{{"a", "b"}},
			},
		}
		p := PolicyOf(&policy)
		if got, err := p.Policy(); err != nil || !reflect.DeepEqual(got, policy) {
			t.Errorf("%+v, %v\nwant %+v", got, err, policy)
		}
	}
}
