package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// sample is an overview with one half-done snapshot, which has a stalled task, on a filer that the
// governor limits.
func sample(now time.Time) *overview {
	p := &inProgress{
		Snapshot: backup.Snapshot{
			ID: backup.SnapshotID{0x3f, 0x2a}, State: backup.Running, Filer: backup.Filer{Name: "nas1", Site: "default"}, Shard: backup.Shard{Name: "/home", Source: "posix:///home"},
			Number: 12, Started: now.Add(-100 * time.Second), Counts: backup.Counts{Files: 500, Bytes: 1 << 20, ReadBytes: 100 << 10},
			TasksSettled: 4, TasksAnnounced: 8, BatchesSettled: 1, BatchesAnnounced: 2,
		},
		base: backup.Counts{Files: 1000, Bytes: 4 << 20}, known: true, at: now,
	}
	s := &overview{at: now, fleet: true, running: []*inProgress{p}, filers: map[string]*index.FilerStatus{}, stalled: map[filerWork]int{}, spared: []index.FilerStatus{{
		Filer: backup.Filer{Name: "nas1"}, Tasks: 2, Batches: 1,
		Load: backup.Load{WalkSlots: 9, ReadSlots: 64, WalkLatency: 3100 * time.Microsecond, WalkIdle: 900 * time.Microsecond},
	}}}
	s.filers["nas1"] = &s.spared[0]
	s.hold(p, index.Work{Task: 7, Attempt: 2, Worker: "walker-1", Path: "old", Until: now.Add(time.Minute), Stalled: now.Add(-42 * time.Second)})
	s.hold(p, index.Work{Task: 8, Attempt: 1, Until: now.Add(5 * time.Minute)})
	s.hold(p, index.Work{Batch: 9, Attempt: 1, Worker: "reader-1", Path: "new\x1b[31m", Until: now.Add(30 * time.Second)})
	return s
}

func TestStatusTable(t *testing.T) {
	s := sample(time.Unix(1_000_000, 0))
	s.rates(nil)
	for _, test := range []struct {
		work bool
		want string
	}{
		{false, `SNAPSHOT  FILER  SHARD  NUMBER   AGE  TASKS  BATCHES  STALLED         FILES                SIZE  FILES/S   READ/S  LEFT  ERRORS
3f2a0000  nas1   /home      12  1:40  4/8+1    1/2+1        1  500 of 1,000  1.0 MiB of 4.0 MiB        5  1.0 KiB  5:00       0

Waiting:
nas1: 1 task stalled 0:42 (walker-1 1)
nas1: 2 tasks wait for a turn in the queue of site default
nas1: 1 task waits for a free walker at site default

Filers that are spared, since they have become slow:
FILER       WALK  READ        STAT  OPEN
nas1   2/9 of 32  1/64  3.1/0.9 ms     -
`},
		{true, `
SNAPSHOT  WORK  ATTEMPT  WORKER    LEASE  PATH
3f2a0000  walk        2  walker-1   1:00  old  stalled: no answer from filer nas1 for 0:42
3f2a0000  walk        1  (queued)   5:00  waits: a free walker at site default
3f2a0000  read        1  reader-1   0:30  "new\x1b[31m"
`},
	} {
		var b strings.Builder
		if err := s.write(&b, test.work, 0); err != nil || !strings.Contains(b.String(), test.want) {
			t.Errorf("%v\n%s\nwant\n%s", err, b.String(), test.want)
		}
	}
}

// Rates are since the previous overview if there was one. An estimate needs a base, or a completed
// walk.
func TestStatusRatesAndEstimate(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	last, s := sample(now.Add(-2*time.Second)), sample(now)
	last.running[0].Counts.Files, last.running[0].Counts.ReadBytes = 300, 60<<10
	s.rates(last)
	p := s.running[0]
	if p.filesPerSecond != 100 || p.readPerSecond != 20<<10 {
		t.Errorf("%v files, %v bytes a second", p.filesPerSecond, p.readPerSecond)
	}
	// Half of the files, half of which are read.
	if left, ok := p.left(); !ok || left != 300*time.Second {
		t.Errorf("left %v, %v", left, ok)
	}
	p.known, p.base = false, backup.Counts{}
	if left, ok := p.left(); ok {
		t.Errorf("left %v, though nobody knows how much there is", left)
	}
	p.TasksSettled = p.TasksAnnounced
	if left, ok := p.left(); !ok || left != 100*time.Second {
		t.Errorf("left %v, %v when the walk is done", left, ok)
	}
}

// A long batch shows progress before its result is in the index.
func TestStatusOfABatchInProgress(t *testing.T) {
	progress := func(read int64, done float64) *overview {
		reader := serving("reader oslo r1")[0]
		s := newScene(append(everybody[:2:2], reader)...)
		s.snapshot("nas1", 0, 1)
		s.hold(1, "r1", false, 0)
		s.l.running[0].BatchesAnnounced, s.l.running[0].BatchesSettled, s.l.running[0].Counts.ReadBytes = 1, 0, 0
		s.l.crew.services[2].Reading = []flow.Reading{{Snapshot: s.l.running[0].ID, BatchesDone: done, ReadBytes: read}, {Snapshot: backup.SnapshotID{99}, BatchesDone: 3}}
		s.l.running[0].TasksSettled = s.l.running[0].TasksAnnounced
		return s.overview()
	}
	now := progress(60<<20, 0.25) // in a minute
	p := now.running[0]
	if left, ok := p.left(); p.readPerSecond != 1<<20 || !ok || left != 3*time.Minute {
		t.Errorf("%v bytes per second, %v left, %v", p.readPerSecond, left, ok)
	}
	if j := now.snapshotJSON(p); j.ReadBytes != 60<<20 {
		t.Errorf("%d bytes read", j.ReadBytes)
	}
	next := progress(64<<20, 0.3)
	next.at = next.at.Add(2 * time.Second)
	if next.rates(now); next.running[0].readPerSecond != 2<<20 {
		t.Errorf("%v bytes per second of late", next.running[0].readPerSecond)
	}
	settled := progress(64<<20, 1).running[0]
	settled.BatchesSettled = 1 // just now
	if settled.readShare() != 1 {
		t.Errorf("%v of the batches", settled.readShare())
	}
}

func TestStatusJSON(t *testing.T) {
	s := sample(time.Unix(1_000_000, 0).UTC())
	text, err := json.Marshal(s.snapshotJSON(s.running[0]))
	for _, want := range []string{
		`"tasks":{"settled":4,"announced":8,"in_hand":1,"stalled":1,"queued":1}`, `"batches":{"settled":1,"announced":2,"in_hand":1,"stalled":0,"queued":0}`,
		`"expected_files":1000,"expected_bytes":4194304`, `"left_seconds":300`,
		`{"kind":"walk","id":7,"attempt":2,"worker":"walker-1","path":"old","lease_until":"1970-01-12T13:47:40Z","stalled_since":"1970-01-12T13:45:58Z","why":"no answer from filer nas1"}`,
		`{"kind":"walk","id":8,"attempt":1,"worker":"","path":"","lease_until":"1970-01-12T13:51:40Z","stalled_since":null,"why":"a free walker at site default"}`,
	} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
}

// The progress line of several snapshots shows stalled work, and drops work that is no longer
// reported.
func TestProgressLineOfSeveral(t *testing.T) {
	now := time.Unix(0, 0)
	p := newTracker()
	p.started, p.now = now, func() time.Time { return now }
	one, two := backup.SnapshotID{1}, backup.SnapshotID{2}
	p.expect(one, 100, 1000)
	p.expect(two, 0, 0)
	p.addKnown(&backup.Progress{Snapshot: two, Worker: "w", FilesFound: 50, FilesDone: 10, BytesDone: 5, StalledTasks: []backup.TaskID{1, 2}, Path: "p"})
	p.addKnown(&backup.Progress{Snapshot: backup.SnapshotID{3}, FilesFound: 7, FilesDone: 7, Path: "another's"})
	p.end(one, &backup.Counts{Files: 90, Bytes: 995})
	if got, want := p.line(), "0:00  1 of 2 snapshots  100 of 140 files  1000 B of 995 B  2 stalled  p"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	now = now.Add(stallsLast + time.Second)
	if got := p.line(); strings.Contains(got, "stalled") {
		t.Error(got)
	}
}

// A latency of 6 µs is not slow, even if it was 1 µs before and the governor has not restored all
// slots yet.
func TestFastFilerIsNotSpared(t *testing.T) {
	for latency, want := range map[time.Duration]bool{6 * time.Microsecond: false, 6 * time.Millisecond: true} {
		f := index.FilerStatus{Load: backup.Load{WalkSlots: 9, WalkLatency: latency, WalkIdle: time.Microsecond}}
		if isSpared(&f) != want {
			t.Errorf("spared at %v: %v", latency, !want)
		}
		f = index.FilerStatus{Load: backup.Load{ReadSlots: 9, ReadLatency: latency, ReadIdle: time.Microsecond}}
		if isSpared(&f) != want {
			t.Errorf("spared at %v an open: %v", latency, !want)
		}
	}
}
