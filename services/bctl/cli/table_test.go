package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// listsOfAll returns each list, formatted for a width, with rows that are wide.
func listsOfAll(now time.Time) map[string]func(width int) []string {
	const path = "/export/projects/with/a/long/path/to/the/shard"
	nas := backup.Filer{Name: "nas-with-a-long-name.example.com", Site: "frankfurt", Labels: map[string]string{"env": "production", "tier": "gold"}}
	snapshots := []backup.Snapshot{
		{ID: backup.SnapshotID{1}, Filer: nas, Shard: backup.Shard{Name: path}, Number: 365, State: backup.Committed, Started: now.Add(-33 * time.Hour),
			Counts: backup.Counts{Files: 123_456_789, Bytes: 98 << 40, StoredBytes: 512 << 30, Errors: 1234}, Tags: []string{"nightly", "before-the-upgrade"}},
		{ID: backup.SnapshotID{2}, Filer: nas, Shard: backup.Shard{Name: "/home"}, Number: 7, State: interrupted, Started: now.Add(-time.Hour),
			Source: "posix:///home?snapshot=.snapshot%2Fhourly.2026-11-22_1700"},
		{ID: backup.SnapshotID{3}, Filer: nas, Shard: backup.Shard{Name: "/home"}, Number: 8, State: backup.Failed, Started: now.Add(-time.Minute),
			Reason: "cannot walk /home: permission denied; the walkers of site frankfurt cannot read it"},
	}
	load := backup.Load{WalkSlots: 9, ReadSlots: 12, WalkLatency: 3100 * time.Microsecond, WalkIdle: 900 * time.Microsecond, ReadLatency: 8 * time.Millisecond, ReadIdle: 2 * time.Millisecond}
	filers := []index.FilerStatus{
		{Filer: nas, Shards: 12, Running: 3, Tasks: 8, Batches: 4, Load: load, Oldest: now.Add(-50 * time.Hour), Newest: now, Deadline: now.Add(-2 * time.Hour), Overdue: 3},
		{Filer: backup.Filer{Name: "nas2", Retired: true}},
		{Filer: backup.Filer{Name: "nas3"}, Shards: 2, Newest: now.Add(400 * 24 * time.Hour)},
	}
	shards := []index.ShardStatus{
		{Shard: backup.Shard{Name: path, Source: "posix:///mnt/elsewhere"}, Filer: nas, LastGood: backup.SnapshotID{1}, Number: 365, Time: now.Add(-33 * time.Hour), Files: 123_456_789, Bytes: 98 << 40,
			Running: backup.SnapshotID{9}, Plan: index.Plan{Deadline: now.Add(-3 * time.Hour)}},
		{Shard: backup.Shard{Name: "/home", Retired: true}, Filer: nas},
	}
	policies := []policyRow{
		{Policy: &backup.Policy{Name: "nightly", Schedule: "30 1 * * mon-fri", Paused: true, TimeZone: "America/Argentina/Buenos_Aires", Windows: []string{"mon-fri 20:00-06:00", "sat,sun 00:00-24:00"},
			RecoveryPoint: 30 * time.Hour, Labels: nas.Labels}, filers: make([]index.FilerStatus, 200), shards: 10_000, overdue: 12},
	}
	runs := []nextRun{
		{ShardStatus: shards[0], policy: "nightly-with-a-long-name", state: "waiting", due: now.Add(-time.Hour), deadline: now.Add(-3 * time.Hour), opens: now.Add(time.Hour)},
	}
	services := workers()
	services[0].Name, services[0].Site = "reader-7f9c6d5b4-x2x9z.backup.example.com", "frankfurt"
	for n := range services {
		services[n].Heard = now.Add(-4 * time.Minute)
		if !services[n].Started.IsZero() {
			services[n].Started = now.Add(-50 * time.Hour)
		}
	}
	crowd := crowded()
	return map[string]func(width int) []string{
		"snapshot ls": func(width int) []string { return snapshotLines(pointers(snapshots), now, heldBy{}, width) },
		"filer ls":    func(width int) []string { return filerTable(now).lines(pointers(filers), width) },
		"shard ls":    func(width int) []string { return shardTable(now).lines(pointers(shards), width) },
		"policy ls":   func(width int) []string { return policyTable.lines(policies, width) },
		"policy next": func(width int) []string { return runTable(now).lines(pointers(runs), width) },
		"worker ls":   func(width int) []string { return serviceTable(now).lines(pointers(services), width) },
		"status": func(width int) []string {
			var text strings.Builder
			if err := crowd.write(&text, true, width); err != nil {
				return nil
			}
			lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
			return lines
		},
	}
}

// A table fits the terminal. Without a limit it has everything.
func TestTablesFit(t *testing.T) {
	setZone(t, time.UTC)
	now := sceneTime
	var got strings.Builder
	lists := listsOfAll(now)
	for _, name := range []string{"snapshot ls", "filer ls", "shard ls", "policy ls", "policy next", "worker ls", "status"} {
		for _, width := range []int{200, 80, 60, 40, 20} {
			for _, line := range lists[name](width) {
				if n := utf8.RuneCountInString(line); n > width {
					t.Errorf("%s: %d columns, want at most %d: %s", name, n, width, line)
				}
			}
		}
		shown := lists[name](80)
		got.WriteString("$ bctl " + name + "\n" + strings.Join(shown[:min(len(shown), 45)], "\n") + "\n\n")
		full := strings.Join(lists[name](0), "\n")
		if strings.Contains(full, "…") || !strings.Contains(full, "/long/path/to/the/shard") && name != "filer ls" && name != "policy ls" && name != "worker ls" {
			t.Errorf("%s is cut without need:\n%s", name, full)
		}
	}
	golden := filepath.Join("testdata", "screen", "lists.txt")
	if *updateScreens {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != got.String() {
		t.Errorf("%v; -update writes it anew:\n%s\nwant\n%s", err, got.String(), want)
	}
}

// A list of any length is printed in parts, whose columns are aligned.
func TestLongList(t *testing.T) {
	setZone(t, time.UTC)
	for _, test := range []struct {
		numeric     bool
		first, last string
	}{
		{false, "-rw-r--r-- 1 root root 5 1970-01-01 00:00:01 UTC a", "-rw-r--r-- 1 4000000000 4000000000 1234567 1970-01-01 00:00:01 UTC z"},
		{true, "-rw-r--r-- 1 0 0 5 1970-01-01 00:00:01 UTC a", "-rw-r--r-- 1 4000000000 4000000000 1234567 1970-01-01 00:00:01 UTC z"},
	} {
		var out strings.Builder
		l := newLongList(&out, test.numeric)
		add := func(name string, id uint32, size int64) {
			e := backup.Entry{Name: name, Kind: backup.File, Mode: 0o644, Nlink: 1, UID: id, GID: id, Size: size, Mtime: backup.TimeOf(time.Unix(1, 0))}
			if err := l.add(name, &e); err != nil {
				t.Fatal(err)
			}
		}
		for range alignedTogether {
			add("a", 0, 5)
		}
		if strings.Count(out.String(), "\n") != alignedTogether {
			t.Errorf("%d lines after %d entries", strings.Count(out.String(), "\n"), alignedTogether)
		}
		add("z", 4_000_000_000, 1_234_567)
		add("b", 0, 5)
		if err := l.flush(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != alignedTogether+2 || lines[0] != test.first || lines[alignedTogether] != test.last || len(lines[alignedTogether+1]) != len(test.last) {
			t.Errorf("%d lines:\n%s\n%s\n%s", len(lines), lines[0], lines[alignedTogether], lines[len(lines)-1])
		}
	}
}
