package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// A scene consists of filers, their snapshots, and the work with workers.
type scene struct {
	now time.Time
	l   looked
}

var sceneTime = time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC)

func newScene(services ...flow.Instance) *scene {
	s := &scene{now: sceneTime}
	s.l.crew = crew{asked: true, heard: sceneTime, services: slices.Clone(services)}
	return s
}

// snapshot adds a filer at oslo with a snapshot that has the given numbers of open tasks and
// batches.
func (s *scene) snapshot(filer string, tasks, batches int64) *index.FilerStatus {
	id := byte(len(s.l.running) + 1)
	f := backup.Filer{ID: backup.FilerID(id), Name: filer, Site: "oslo"}
	s.l.filers = append(s.l.filers, index.FilerStatus{Filer: f, Shards: 1, Running: 1})
	s.l.running = append(s.l.running, backup.Snapshot{
		ID: backup.SnapshotID{id}, State: backup.Running, Filer: f, Shard: backup.Shard{ID: backup.ShardID(id), Name: "/export/" + filer}, Started: s.now.Add(-time.Minute),
		TasksAnnounced: tasks + 1, TasksSettled: 1, BatchesAnnounced: batches + 1, BatchesSettled: 1, Number: 2,
		Counts: backup.Counts{Files: 1000, Bytes: 1 << 20, ReadBytes: 1 << 20},
	})
	return &s.l.filers[len(s.l.filers)-1]
}

// hold assigns work of the newest snapshot to a worker; "" is the queue. Of what is not stalled,
// the worker has found 10 files or read 1 MiB per second.
func (s *scene) assign(n int, worker string, task bool, stalled time.Duration) {
	snapshot := &s.l.running[len(s.l.running)-1]
	filer := &s.l.filers[len(s.l.filers)-1]
	for i := range s.l.crew.services {
		if by := &s.l.crew.services[i]; by.Name == worker {
			r := flow.Reading{Snapshot: snapshot.ID}
			switch {
			case stalled > 0:
			case by.Role == flow.RoleWalker:
				r.Recent = flow.Recent{Seconds: 60, Files: int64(n) * 600}
			default:
				r.Recent = flow.Recent{Seconds: 60, Bytes: int64(n) * 60 << 20, Batches: float64(n)}
			}
			by.Reading = append(slices.Clone(by.Reading), r)
		}
	}
	for range n {
		w := index.Work{Snapshot: snapshot.ID, Attempt: 1, Worker: worker, Until: s.now.Add(time.Minute)}
		if stalled > 0 {
			w.Stalled = s.now.Add(-stalled)
		}
		if task {
			w.Task = backup.TaskID(len(s.l.work) + 1)
			filer.Tasks++
		} else {
			w.Batch = backup.BatchID(len(s.l.work) + 1)
			filer.Batches++
		}
		s.l.work = append(s.l.work, w)
	}
}

func (s *scene) overview() *overview {
	s.l.slots = slotsOf(s.l.filers)
	o := newOverview(&s.l, s.now)
	o.rates(nil)
	return o
}

var everybody = serving("committer - c1", "walker oslo w1", "reader oslo r1")

func TestWaits(t *testing.T) {
	for _, test := range []struct {
		name     string
		services []flow.Instance
		scene    func(*scene)
		want     string
	}{
		{"nothing runs", everybody, func(*scene) {}, ""},
		{"all is in hand", everybody, func(s *scene) { s.snapshot("nas1", 2, 2); s.assign(2, "w1", true, 0); s.assign(2, "r1", false, 0) }, ""},
		{"a filer hangs", everybody, func(s *scene) {
			s.snapshot("slow1", 2, 16)
			s.assign(1, "w1", true, 20*time.Second)
			s.assign(1, "w1", true, 31*time.Second)
			s.assign(8, "r2", false, 10*time.Second)
			s.assign(8, "r1", false, 9*time.Second)
		}, "slow1: 16 batches, 2 tasks stalled 0:31 (r1 8, r2 8, w1 2)"},
		{"a filer hangs, and its slots are taken", everybody, func(s *scene) {
			s.snapshot("slow1", 0, 20).Limits.ReadBatches = 8
			s.assign(7, "r1", false, time.Second)
			s.assign(1, "", false, 0)
		}, "slow1: 7 batches stalled 0:01 (r1 7)\nslow1: 12 batches wait for a slot: stalled work has 7 of 8\nslow1: 1 batch waits for a free reader at site oslo"},
		{"a reader is lost, and another one is silent", append(with(with(serving("reader oslo r1", "reader oslo r2", "reader oslo r3"), 0, lost(36*time.Second)), 1, silent(12*time.Second)), everybody[:2]...), func(s *scene) {
			s.snapshot("nas1", 0, 4)
			s.assign(1, "r1", false, 0)
			s.assign(2, "r2", false, 0)
			s.assign(1, "r3", false, 0)
		}, "nas1: 2 batches are with r2, which has not answered for 0:12: assigned again within 1:00, unless it answers\n" +
			"nas1: 1 batch is with r1, which is lost (last heard 0:36 ago): assigned again within 1:00, unless it answers"},
		{"a reader was lost, and was started again", append(with(serving("reader oslo r1"), 0, lost(time.Minute)), everybody...), func(s *scene) {
			s.snapshot("nas1", 0, 1)
			s.assign(1, "r1", false, 0)
		}, ""},
		{"no reader", everybody[:2], func(s *scene) {
			s.snapshot("nas1", 0, 5)
			s.snapshot("nas2", 0, 4)
			s.assign(3, "", false, 0)
		}, "nas1, nas2: 9 batches wait: no reader at site oslo"},
		{"a drained reader", with(everybody, 2, func(i *flow.Instance) { i.Draining, i.Drained = true, true }), func(s *scene) { s.snapshot("nas1", 0, 1) },
			"nas1: 1 batch waits: no reader at site oslo takes work: r1: drained"},
		{"no walker sees the filer", everybody, func(s *scene) {
			s.snapshot("nas1", 2, 0)
			s.assign(2, "", true, 0)
			s.l.crew.services[1].HandBacks = []flow.HandBack{{Why: "is it mounted here?", Times: 3, Snapshots: []backup.SnapshotID{s.l.running[0].ID}}}
		}, "nas1: 2 tasks wait for another try: each walker at site oslo has handed work back"},
		{"a walker does not see the filer", append(serving("walker oslo w2"), everybody...), func(s *scene) {
			s.snapshot("nas1", 2, 0)
			s.assign(2, "", true, 0)
			s.l.crew.services[0].HandBacks = []flow.HandBack{{Why: "is it mounted here?", Times: 3, Snapshots: []backup.SnapshotID{s.l.running[0].ID}}}
		}, "nas1: 2 tasks wait for delivery to a free walker at site oslo: at once, or within 20 s if one that took it has died"},
		{"all walkers have work", everybody, func(s *scene) {
			s.snapshot("nas1", 3, 0)
			s.assign(2, "", true, 0)
			s.assign(1, "w1", true, 0)
		}, "nas1: 2 tasks wait for a free walker at site oslo"},
		{"no committer", everybody[1:], func(s *scene) {
			for _, filer := range []string{"nas1", "nas2", "nas3", "nas4"} {
				s.snapshot(filer, 10, 0)
			}
		}, "4 filers: 40 tasks wait: no committer runs: no work is assigned, committed or scheduled"},
		{"the filer's limit", everybody, func(s *scene) { s.snapshot("nas1", 40, 0); s.assign(32, "w1", true, 0) }, "nas1: 8 tasks wait for the filer's limit: 32 at a time"},
		{"the limit of many filers", everybody, func(s *scene) {
			for _, filer := range []string{"nas1", "nas2", "nas3", "nas4", "nas5"} {
				s.snapshot(filer, 40, 0)
				s.assign(32, "w1", true, 0)
			}
		}, "5 filers: 40 tasks wait for the filer's limit: 32 at a time"},
		{"the governor", everybody, func(s *scene) { s.snapshot("nas1", 9, 0).Load.WalkSlots = 4; s.assign(4, "w1", true, 0) },
			"nas1: 5 tasks wait for the filer, which has become slow: 4 of 32 at a time"},
		{"the filer's rate", everybody, func(s *scene) {
			s.snapshot("nas1", 0, 9).Limits.ReadBytesPerSecond = 5 << 20
			s.assign(2, "r1", false, 0)
		},
			"nas1: 7 batches wait for the filer's limit of 5.0 MiB/s: 2 at a time"},
		{"the filer's rate slows reading", everybody, func(s *scene) {
			s.snapshot("nas1", 0, 3).Limits.ReadBytesPerSecond = 10 << 20
			s.assign(2, "r1", false, 0)
			s.l.crew.services[2].Reading[0].Recent.HeldSeconds = 90
			s.snapshot("nas2", 0, 2).Limits.ReadBytesPerSecond = 10 << 20 // it is slower than its limit
			s.assign(2, "r1", false, 0)
			s.l.crew.services[2].Reading[1].Recent.HeldSeconds = 1
		}, "nas1: its read limit of 10 MiB/s slows 2 batches\nnas1: 1 batch waits for a turn in the queue of site oslo"},
		{"the store is full, and work is done", with(everybody, 0, full), func(s *scene) {
			for _, filer := range []string{"nas1", "nas2"} {
				s.snapshot(filer, 0, 0)
			}
			s.snapshot("nas3", 1, 0)
			s.assign(1, "w1", true, 0)
		}, "nas1, nas2: 2 complete snapshots wait to be committed: committers: c1: not ready: store: full"},
		{"the store is full for one committer of two", with(everybody, 0, full), func(s *scene) {
			s.snapshot("nas1", 0, 0)
			s.l.crew.services = append(s.l.crew.services, flow.Instance{Role: flow.RoleCommitter, Name: "c2", Ready: true})
		}, ""},
		{"work is done", everybody, func(s *scene) { s.snapshot("nas1", 0, 0) }, ""},
		{"others first", everybody, func(s *scene) { s.snapshot("nas1", 40, 0); s.assign(3, "w1", true, 0) }, "nas1: 37 tasks wait for a turn in the queue of site oslo"},
		{"it is cancelled", everybody, func(s *scene) { s.snapshot("nas1", 40, 0); s.l.running[0].Cancel = "cancelled" }, ""},
		{"shards", everybody, func(s *scene) {
			filer := backup.Filer{Name: "nas1", Site: "oslo"}
			due := func(state, policy string, opens time.Time) nextRun {
				return nextRun{ShardStatus: index.ShardStatus{Filer: filer}, policy: policy, state: state, due: s.now.Add(-time.Hour), opens: opens}
			}
			later := due("planned", "p", time.Time{})
			later.due = s.now.Add(time.Hour)
			s.l.due = []nextRun{due("waiting", "p", time.Time{}), due("waiting", "p", time.Time{}), due("window", "p", s.now.Add(3*time.Hour)), due("paused", "q", time.Time{}), due("running", "p", time.Time{}), later}
		}, "nas1: 2 due shards wait for a slot at site oslo, or the scheduler\n" +
			"nas1: 1 due shard waits for a window of policy p, which opens " + expected(time.Date(2026, 11, 22, 21, 30, 0, 0, time.UTC), time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC)) + "\n" +
			"nas1: 1 due shard waits for policy q, which is paused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(test.services...)
			test.scene(s)
			var lines []string
			o := s.overview()
			for _, w := range o.waits() {
				lines = append(lines, w.line(o.at))
			}
			if got := strings.Join(lines, "\n"); got != test.want {
				t.Errorf("%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func silent(ago time.Duration) func(*flow.Instance) {
	return func(i *flow.Instance) { i.Silent, i.Heard = true, sceneTime.Add(-ago) }
}

func lost(ago time.Duration) func(*flow.Instance) {
	return func(i *flow.Instance) { i.Silent, i.Lost, i.Heard = true, true, sceneTime.Add(-ago) }
}

// Without NATS, nobody knows whether workers run.
func TestWaitsWithoutNATS(t *testing.T) {
	for _, err := range []error{flow.ErrOtherRepository, flow.ErrDenied, backup.ErrUnavailable} {
		s := newScene()
		s.l.crew = crew{asked: true, err: err}
		s.snapshot("nas1", 40, 3)
		s.assign(1, "", false, 0)
		s.assign(32, "w1", true, 0)
		o := s.overview()
		var lines []string
		for _, w := range o.waits() {
			lines = append(lines, w.line(o.at))
		}
		want := "nas1: 3 batches wait: " + o.lacks[0].Text + "\nnas1: 8 tasks wait for the filer's limit: 32 at a time"
		if got := strings.Join(lines, "\n"); got != want || !strings.HasPrefix(o.lacks[0].Text, "cannot list the services") {
			t.Errorf("%v: %s\nwant\n%s", err, got, want)
		}
	}
}

// Shards that are due wait for a slot of their site, for one of their filer, for workers without
// which no slot becomes free, or for the scheduler: each with the number of shards of that site.
func TestWaitsOfShards(t *testing.T) {
	limited := func(services []flow.Instance) []flow.Instance {
		return with(services, 0, func(i *flow.Instance) { i.Schedules, i.MaxRunning, i.MaxRunningPerFiler = true, 3, 2 })
	}
	both := limited(serving("committer - c1", "walker oslo w1", "reader oslo r1", "walker paris w2", "reader paris r2"))
	for _, test := range []struct {
		name     string
		services []flow.Instance
		running  string // the filers of the running snapshots
		due      string // those of the shards
		want     string
	}{
		{"one site is full", both, "o1 o2 o3 p1", "o4 o5 p2", "o4, o5: 2 due shards wait for a slot: 3 of 3 snapshots of site oslo run\n" +
			"p2: 1 due shard waits for the scheduler, which looks every 10 s (site paris)"},
		{"no site is full", both, "o1 o2 p1", "o3 p2", "o3: 1 due shard waits for the scheduler, which looks every 10 s (site oslo)\n" +
			"p2: 1 due shard waits for the scheduler, which looks every 10 s (site paris)"},
		{"both are full", both, "o1 o2 o3 p1 p2 p3", "o4 p4 p5", "p4, p5: 2 due shards wait for a slot: 3 of 3 snapshots of site paris run\n" +
			"o4: 1 due shard waits for a slot: 3 of 3 snapshots of site oslo run"},
		{"a filer is full", both, "o1 o1", "o1 o1 o2", "o1: 2 due shards wait for a slot: 2 of 2 snapshots of the filer run (site oslo)\n" +
			"o2: 1 due shard waits for the scheduler, which looks every 10 s (site oslo)"},
		{"a full site has no reader", limited(serving("committer - c1", "walker oslo w1")), "o1 o2 o3", "o4", "o4: 1 due shard waits: no reader at site oslo"},
		{"none schedules", with(both, 0, func(i *flow.Instance) { i.Schedules = false }), "o1", "o2",
			"o2: 1 due shard waits for a committer that schedules: one begins within 15 s (site oslo)"},
		{"none is ready", with(both, 0, func(i *flow.Instance) { i.Schedules, i.Ready = false, false }), "o1", "o2",
			"o2: 1 due shard waits for a committer that is ready, and schedules (site oslo)"},
		{"the one that schedules has other limits", append(limited(serving("committer - c1", "walker oslo w1", "reader oslo r1")),
			flow.Instance{ID: "c2", Role: flow.RoleCommitter, MaxRunning: 64, MaxRunningPerFiler: 64}), "o1 o2 o3", "o4",
			"o4: 1 due shard waits for a slot: 3 of 3 snapshots of site oslo run"},
		{"an earlier version", everybody, "o1", "o2", "o2: 1 due shard waits for a slot at site oslo, or the scheduler"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(test.services...)
			sites := map[byte]string{'o': "oslo", 'p': "paris"}
			filers := map[string]*index.FilerStatus{}
			for _, name := range strings.Fields(test.running + " " + test.due) {
				if filers[name] == nil {
					filers[name] = &index.FilerStatus{Filer: backup.Filer{Name: name, Site: sites[name[0]]}, Shards: 1}
				}
			}
			for _, name := range strings.Fields(test.running) {
				filers[name].Running++
			}
			for _, f := range filers {
				s.l.filers = append(s.l.filers, *f)
			}
			for _, name := range strings.Fields(test.due) {
				s.l.due = append(s.l.due, nextRun{ShardStatus: index.ShardStatus{Filer: filers[name].Filer}, state: "waiting", due: s.now})
			}
			var lines []string
			o := s.overview()
			for _, w := range o.waits() {
				lines = append(lines, w.line(o.at))
			}
			if got := strings.Join(lines, "\n"); got != test.want {
				t.Errorf("%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// One machine has no sites, and its process works sequentially, which is not a reason to wait.
func TestWaitsOfOneMachine(t *testing.T) {
	s := newScene()
	s.l.crew = crew{}
	s.snapshot("host", 40, 3)
	s.assign(1, "", false, 0)
	s.assign(2, "host", true, time.Second)
	o := s.overview()
	waits := o.waits()
	if len(waits) != 1 || waits[0].line(o.at) != "host: 2 tasks stalled 0:01 (host 2)" {
		t.Errorf("%+v", waits)
	}
	if why := o.snapshotJSON(o.running[0]).Work[0].Why; why != "a free reader" {
		t.Errorf("%q", why)
	}
}

// LEFT shows the state of a snapshot whose remaining time is not known.
func TestLeftOfWhatStandsStill(t *testing.T) {
	s := newScene(everybody[:2]...)
	s.snapshot("stalled", 1, 0)
	s.assign(1, "w1", true, time.Second)
	s.snapshot("walked", 0, 3) // and there is no reader
	s.assign(1, "", false, 0)
	s.snapshot("walks", 2, 3)
	s.assign(1, "w1", true, 0)
	s.snapshot("done", 0, 0)
	var left []string
	for _, p := range s.overview().running {
		left = append(left, p.leftText())
	}
	if got := strings.Join(left, " "); got != "stalled waiting - committing" {
		t.Error(got)
	}
}

// A shard with a good snapshot since its failure is not shown, and a shard that failed often is
// shown once.
func TestFailuresOfLate(t *testing.T) {
	now := time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC)
	failed := func(shard int64, number backup.SnapshotNumber, ago time.Duration) backup.Snapshot {
		return backup.Snapshot{
			Shard: backup.Shard{ID: backup.ShardID(shard), Name: "/export"}, Filer: backup.Filer{Name: "nas1"}, Number: number, Ended: now.Add(-ago),
			Reason: "cannot walk: no\nsuch directory",
		}
	}
	shards := []index.ShardStatus{{Shard: backup.Shard{ID: 1}, Number: 3}, {Shard: backup.Shard{ID: 2}, Number: 9}, {Shard: backup.Shard{ID: 3}}}
	list := failures([]backup.Snapshot{failed(1, 4, 5*time.Hour), failed(2, 8, 4*time.Hour), failed(3, 1, 3*time.Hour), failed(4, 1, 2*time.Hour), failed(1, 5, time.Hour)}, shards)
	var got []string
	for n := range list {
		got = append(got, list[n].line(now))
	}
	want := "nas1 /export, 60m ago, 2 times: cannot walk: no; nas1 /export, 3h ago: cannot walk: no"
	if strings.Join(got, "; ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}
