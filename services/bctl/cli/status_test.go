package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
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
		walk:  recent{flow.Recent{Seconds: 60, Files: 300}, true},
		reads: recent{flow.Recent{Seconds: 50, Bytes: 50 << 10, Batches: 0.5}, true},
	}
	s := &overview{at: now, fleet: true, crew: &crew{asked: true}, running: []*inProgress{p}, filers: map[string]*index.FilerStatus{}, stalled: map[filerWork]int{}, spared: []index.FilerStatus{{
		Filer: backup.Filer{Name: "nas1"}, Tasks: 2, Batches: 1,
		Load: backup.Load{WalkSlots: 9, ReadSlots: 64, WalkLatency: 3100 * time.Microsecond, WalkIdle: 900 * time.Microsecond},
	}}}
	s.filers["nas1"] = &s.spared[0]
	s.assigned(p, index.Work{Task: 7, Attempt: 2, Worker: "walker-1", Path: "old", Until: now.Add(time.Minute), Stalled: now.Add(-42 * time.Second)})
	s.assigned(p, index.Work{Task: 8, Attempt: 1, Until: now.Add(5 * time.Minute)})
	s.assigned(p, index.Work{Batch: 9, Attempt: 1, Worker: "reader-1", Path: "new\x1b[31m", Until: now.Add(30 * time.Second)})
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

Filers with reduced limits, because they have become slow:
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

// Rates are those of the last minute, as the workers report them, however the snapshot began. The
// estimate is made with them, and is that of the slower part.
func TestStatusRatesAndEstimate(t *testing.T) {
	s := sample(time.Unix(1_000_000, 0))
	s.rates(nil)
	p := s.running[0]
	if p.filesPerSecond() != 5 || p.readPerSecond() != 1<<10 {
		t.Errorf("%v files, %v bytes per second", p.filesPerSecond(), p.readPerSecond())
	}
	wants := func(what string, want time.Duration) {
		t.Helper()
		if left, ok := p.left(); ok != (want > 0) || left != want {
			t.Errorf("%s: left %v, %t; want %v", what, left, ok, want)
		}
	}
	wants("1 of 2 batches, of half of the files", 300*time.Second)
	p.reads.Batches = 5
	wants("reading is ten times faster: 500 files left", 100*time.Second)
	p.walk.Files = 30
	wants("the filer has become slow", 1000*time.Second)
	p.walk.Files, p.Counts.Files = 0, 500
	wants("the filer has stopped", 0)
	p.walk.Files, p.known, p.base = 300, false, backup.Counts{}
	wants("nobody knows how much there is", 0)
	p.TasksSettled = p.TasksAnnounced
	wants("the walk is done: 1 batch left", 10*time.Second)
	p.reads.known = false
	wants("nobody knows how fast it is read", 0)
	p.reads.known, p.Started = true, p.at.Add(-time.Second)
	wants("it has only just begun", 0)
}

// A rate that nobody reports is not known. No work with workers is no rate, which is known.
func TestStatusOfUnknownRates(t *testing.T) {
	for name, test := range map[string]struct {
		services    []flow.Instance
		err         error
		assign      func(*scene)
		files, read string
	}{
		"nothing is assigned":     {everybody, nil, func(*scene) {}, "0", "0 B"},
		"a walker reports":        {everybody, nil, func(s *scene) { s.assign(2, "w1", true, 0) }, "20", "0 B"},
		"two readers":             {append(serving("reader oslo r2"), everybody...), nil, func(s *scene) { s.assign(1, "r1", false, 0); s.assign(2, "r2", false, 0) }, "0", "3.0 MiB"},
		"of an earlier version":   {everybody, nil, func(s *scene) { s.assign(1, "old", true, 0); s.assign(1, "r1", false, 0) }, "-", "1.0 MiB"},
		"a worker that is silent": {with(everybody, 1, silent(time.Second)), nil, func(s *scene) { s.assign(1, "w1", true, 0) }, "-", "0 B"},
		"without NATS":            {nil, backup.ErrUnavailable, func(*scene) {}, "-", "-"},
	} {
		s := newScene(test.services...)
		s.l.crew.err = test.err
		s.snapshot("nas1", 3, 3)
		test.assign(s)
		o := s.overview()
		p := o.running[0]
		if files, read := p.filesPerSecondText(), p.readPerSecondText(); files != test.files || read != test.read {
			t.Errorf("%s: %s files, %s per second; want %s, %s", name, files, read, test.files, test.read)
		}
		if j := o.snapshotJSON(p); (j.FilesPerSecond == nil) != (test.files == "-") || (j.ReadPerSecond == nil) != (test.read == "-") || (o.json().ReadPerSecond == nil) != (test.read == "-") {
			t.Errorf("%s: JSON has %v files, %v bytes, and %v in all", name, j.FilesPerSecond, j.ReadPerSecond, o.json().ReadPerSecond)
		}
	}
}

// On one machine, rates are since the oldest look within a minute, or since the start of a younger
// snapshot. Otherwise they are not known.
func TestStatusRatesOnOneMachine(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	look := func(at time.Time, read int64) *overview {
		s := sample(at)
		s.fleet, s.running[0].Started, s.running[0].Counts.ReadBytes = false, now.Add(-time.Hour), read
		s.running[0].walk, s.running[0].reads = recent{}, recent{}
		return s
	}
	of := func(s *overview, before ...*overview) string {
		s.rates(before)
		return s.running[0].readPerSecondText()
	}
	first := look(now.Add(-80*time.Second), 0)
	if got := of(look(now, 50<<10)); got != "-" {
		t.Errorf("%s without an earlier look", got)
	}
	if got := of(look(now, 50<<10), first); got != "-" {
		t.Errorf("%s with one that is too old", got)
	}
	if got := of(look(now, 50<<10), first, look(now.Add(-40*time.Second), 10<<10), look(now.Add(-2*time.Second), 50<<10)); got != "1.0 KiB" {
		t.Errorf("%s after 40 seconds", got)
	}
	young := look(now, 50<<10)
	young.running[0].Started = now.Add(-25 * time.Second)
	if got := of(young); got != "2.0 KiB" {
		t.Errorf("%s of a snapshot of 25 seconds", got)
	}
}

// A long batch shows progress before its result is in the index.
func TestStatusOfABatchInProgress(t *testing.T) {
	reader := serving("reader oslo r1")[0]
	s := newScene(append(everybody[:2:2], reader)...)
	s.snapshot("nas1", 0, 1)
	running := &s.l.running[0]
	running.BatchesAnnounced, running.BatchesSettled, running.Counts.ReadBytes, running.TasksSettled = 1, 0, 0, running.TasksAnnounced
	s.assign(1, "r1", false, 0)
	s.l.crew.services[2].Reading = []flow.Reading{
		{Snapshot: running.ID, BatchesDone: 0.25, ReadBytes: 60 << 20, Recent: flow.Recent{Seconds: 30, Bytes: 60 << 20, Batches: 0.125}}, {Snapshot: backup.SnapshotID{99}, BatchesDone: 3},
	}
	o := s.overview()
	p := o.running[0]
	if left, ok := p.left(); p.readPerSecond() != 2<<20 || !ok || left != 3*time.Minute {
		t.Errorf("%v bytes per second, %v left, %v", p.readPerSecond(), left, ok)
	}
	if j := o.snapshotJSON(p); j.ReadBytes != 60<<20 {
		t.Errorf("%d bytes read", j.ReadBytes)
	}
	p.BatchesSettled = 1 // just now
	if p.batchesDone() != 1 {
		t.Errorf("%v of one batch", p.batchesDone())
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

// While the store is full, nobody knows when a snapshot ends, and leases of batches say nothing.
func TestStatusOfAFullStore(t *testing.T) {
	full := func(s *flow.Instance) {
		s.Ready, s.Reason = false, "store: s3://x: put packs/1: "+store.ErrFull.Error()
	}
	both := serving("reader default r1", "reader default r2", "reader oslo r3")
	for name, test := range map[string]struct {
		services []flow.Instance
		full     bool
	}{
		"for all readers":      {with(with(both, 0, full), 1, full), true},
		"for one of them":      {with(both, 0, full), false},
		"and one does not run": {with(with(both, 0, full), 1, func(s *flow.Instance) { s.Silent = true }), true},
		"not the store":        {with(with(both, 0, blocked), 1, blocked), false},
		"at another site":      {with(both, 2, full), false},
	} {
		s := sample(time.Unix(1_000_000, 0))
		p := s.running[0]
		p.full = (&crew{asked: true, services: test.services}).storeFull("default")
		s.rates(nil)
		p.work = p.work[1:] // those that do not stall
		p.tasks.stalled = 0
		var b strings.Builder
		if err := s.write(&b, true, 0); err != nil {
			t.Fatal(err)
		}
		_, known := p.left()
		if p.full != test.full || known == test.full || strings.Count(b.String(), "store full") != map[bool]int{true: 2}[test.full] {
			t.Errorf("%s: full %t, left is known %t:\n%s", name, p.full, known, b.String())
		}
	}
}

func blocked(s *flow.Instance) { s.Ready, s.Reason = false, "index: away" }
