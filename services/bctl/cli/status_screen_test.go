package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

var updateScreens = flag.Bool("update", false, "write the golden screens anew")

// crowded is an overview with many problems: no reader at a site, a filer that hangs, failures, and
// 30 snapshots.
func crowded() *overview {
	s := newScene(serving("committer - c1", "walker oslo w1", "walker oslo w2", "reader paris r3", "walker paris w3")...)
	for n := range 26 {
		s.snapshot(fmt.Sprintf("nas%02d", n), 4, 30)
		s.assign(3, "w1", true, 0)
		s.assign(2, "", false, 0)
		if n%5 == 0 {
			s.l.running[n].Counts.Errors = int64(n)
		}
	}
	s.snapshot("slow1", 2, 16)
	s.assign(2, "w2", true, 31*time.Second)
	s.assign(8, "r1", false, 20*time.Second)
	s.assign(8, "r2", false, 10*time.Second)
	s.l.running[26].Shard.Name = "/export/projects/with/a/long/path/to/the/shard"
	s.l.running[3].Cancel = "cancelled by ann"
	s.l.crew.services[3].Ready, s.l.crew.services[3].Reason = false, "store: s3://backups/repo is full: 507 Insufficient Storage"
	s.l.filers = append(s.l.filers, index.FilerStatus{Filer: backup.Filer{Name: "nas90", Site: "paris"}, Shards: 1})
	for n := range 6 {
		id := backup.ShardID(100 + n)
		shard := backup.Shard{ID: id, Name: fmt.Sprintf("/export/%d", n)}
		s.l.shards = append(s.l.shards, index.ShardStatus{Shard: shard})
		s.l.failed = append(s.l.failed, backup.Snapshot{
			Shard: shard, Filer: backup.Filer{Name: "nas90"}, Number: 1, Ended: s.now.Add(time.Duration(n-10) * time.Hour),
			Reason: "cannot walk /export: permission denied; the walkers of site paris cannot read it",
		})
	}
	return s.overview()
}

// queued is an overview in which most snapshots only wait for workers.
func queued() *overview {
	s := newScene(everybody...)
	for n := range 30 {
		s.snapshot(fmt.Sprintf("nas%02d", n), 4, 30)
		if n%10 == 0 {
			s.assign(3, "w1", true, 0)
		}
	}
	s.l.running[5].Counts.Errors = 2
	return s.overview()
}

// A screen has at most as many columns and lines as the terminal, and the most important first.
func TestScreen(t *testing.T) {
	setZone(t, time.UTC)
	quiet := newScene(everybody...).overview()
	calm := newScene(everybody...)
	calm.snapshot("nas1", 40, 3)
	calm.assign(32, "w1", true, 0)
	for name, test := range map[string]struct {
		overview      *overview
		width, height int
		all           bool
	}{
		"quiet": {quiet, 79, 23, false}, "calm": {calm.overview(), 79, 23, false},
		"80x24": {crowded(), 79, 23, false}, "40x24": {crowded(), 39, 23, false}, "20x8": {crowded(), 19, 7, false}, "132x43": {crowded(), 131, 42, false}, "pipe": {crowded(), 0, 0, false},
		"queued": {queued(), 79, 23, false}, "queuedall": {queued(), 79, 23, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.overview.screen(test.width, test.height, test.all)
			lines := strings.Split(strings.TrimRight(got, "\n"), "\n")
			if test.height > 0 && len(lines) > test.height {
				t.Errorf("%d lines, want at most %d", len(lines), test.height)
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); test.width > 0 && n > test.width {
					t.Errorf("%d columns, want at most %d: %s", n, test.width, line)
				}
			}
			golden := filepath.Join("testdata", "screen", name+".txt")
			if *updateScreens {
				if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || string(want) != got {
				t.Errorf("%v; -update writes it anew:\n%s\nwant\n%s", err, got, want)
			}
		})
	}
}

// Snapshots of a site without workers come after those that workers work on, in both forms of
// status.
func TestMovingFirst(t *testing.T) {
	s := newScene(everybody...)
	for n := range 12 {
		s.snapshot(fmt.Sprintf("dead%02d", n), 1, 0)
	}
	s.snapshot("moving", 4, 3)
	s.assign(3, "w1", true, 0)
	o := s.overview()
	var plain strings.Builder
	if err := o.write(&plain, false, 79); err != nil {
		t.Fatal(err)
	}
	for form, text := range map[string]string{"status": plain.String(), "--watch --work": o.screen(79, 60, true)} {
		_, table, _ := strings.Cut(text, "SNAPSHOT ")
		moving, dead := strings.Index(table, "moving"), strings.Index(table, "dead00")
		if moving < 0 || dead < moving {
			t.Errorf("%s: the moving snapshot is at %d, the first waiting one at %d:\n%s", form, moving, dead, text)
		}
	}
}
