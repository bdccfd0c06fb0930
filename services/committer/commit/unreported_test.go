package commit

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

func TestUnreportedWork(t *testing.T) {
	walk := siteQueue{"walk", backup.DefaultSite}
	task := index.Work{Snapshot: backup.SnapshotID{1}, Task: 1, Attempt: 1}
	taken, again := task, task
	taken.Worker, again.Attempt = "w", 2
	// The walk queue has waiting messages, and those up to delivered were delivered.
	type look struct {
		work               index.Work
		waiting, delivered uint64
		results            uint64 // acknowledged, of 50
		suspect, given     bool
	}
	for name, looks := range map[string][]look{
		"delivered":            {{task, 0, 9, 50, true, false}, {task, 0, 9, 50, true, false}, {task, 0, 9, 50, true, true}},
		"others wait":          {{task, 3, 9, 50, true, false}, {task, 3, 12, 50, true, false}, {task, 3, 15, 50, true, true}},
		"it waits":             {{task, 2, 7, 50, false, false}, {task, 2, 8, 50, false, false}, {task, 2, 8, 50, false, false}, {task, 2, 9, 50, true, false}},
		"a worker reports it":  {{task, 0, 9, 50, true, false}, {task, 0, 9, 50, true, false}, {taken, 0, 9, 50, false, false}},
		"another attempt":      {{task, 0, 9, 50, true, false}, {task, 0, 9, 50, true, false}, {again, 0, 9, 50, true, false}},
		"its result is queued": {{task, 0, 9, 40, true, false}, {task, 0, 9, 45, true, false}, {task, 0, 9, 49, true, false}, {task, 0, 9, 50, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var l strays
			for i, look := range looks {
				_, got := l.look([]index.Work{look.work}, []telemetry.Queue{
					{Name: "walk", Site: backup.DefaultSite, Waiting: look.waiting, Unacknowledged: 1, Last: 9, Delivered: look.delivered},
					{Name: "commit", Unacknowledged: 1, Last: 50, Floor: look.results},
				})
				if given, suspect := got[walk]; suspect != look.suspect || len(given) > 0 != look.given {
					t.Errorf("%+v at look %d", got, i+1)
				}
			}
		})
	}
}

func TestLostWorkers(t *testing.T) {
	oslo, now := siteQueue{"read", "oslo"}, time.Unix(1000, 0)
	suspect := map[siteQueue][]index.Held{oslo: nil}
	newWorkers := func() *workers {
		l := &workers{}
		l.hear(flow.Instance{ID: "a", Role: flow.RoleReader, Site: "oslo", Heard: now}, false)
		return l
	}
	look := func(l *workers, unreported map[siteQueue][]index.Held, absent bool) (asked int, lost []siteQueue) {
		names := l.toLook(unreported, now)
		return len(names), l.looked(names, map[string]bool{"a": absent})
	}
	for name, test := range map[string]struct {
		seen    string // at each look: p resent, a bsent; P and A: and there is unreported work
		lost    int    // the first look at which it counts as lost; 0: none
		forgets bool
	}{
		"it dies":                          {seen: "pPAAA", lost: 5},
		"it comes back":                    {seen: "pPAAPAAP"},
		"it was never present":             {seen: "AAAAAA"},
		"it dies while nothing is missing": {seen: "paaaaaa"},
		"it died before anything was":      {seen: "paaAAA", lost: 6},
		"work is missing for a moment":     {seen: "pPAaa", lost: 5},
		"it is forgotten":                  {seen: "pAAAAAAAAAAAAA", lost: 4, forgets: true},
	} {
		l, first := newWorkers(), 0
		for i, c := range test.seen {
			unreported := suspect
			if c == 'p' || c == 'a' {
				unreported = nil
			}
			if _, lost := look(l, unreported, c == 'a' || c == 'A'); first == 0 && reflect.DeepEqual(lost, []siteQueue{oslo}) {
				first = i + 1
			}
		}
		if first != test.lost || (len(l.of) == 0) != test.forgets {
			t.Errorf("%s: lost at look %d, want %d; %d are remembered", name, first, test.lost, len(l.of))
		}
	}

	l := newWorkers()
	look(l, suspect, false)
	l.hear(flow.Instance{ID: "a", Role: flow.RoleReader, Site: "oslo", Heard: now}, true)
	if asked, _ := look(l, suspect, true); asked > 0 {
		t.Error("it has stopped, and is looked for")
	}
	l = newWorkers()
	look(l, suspect, false)
	if asked, _ := look(l, map[siteQueue][]index.Held{{"read", "rome"}: nil, {"walk", "oslo"}: nil}, false); asked > 0 {
		t.Error("work is missing elsewhere, and it is looked for")
	}
	if !l.wasPresent("a") || l.wasPresent("b") {
		t.Error("who was present is not known")
	}
}

// A walker takes a task and dies before it has reported that: the task is assigned again, although
// its message is not acknowledged. Without a death it is not, although nobody reports it.
func TestWorkThatADeadWorkerDidNotReport(t *testing.T) {
	f := newFixture(t)
	f.queue()
	f.begin()
	s, _ := f.start(f.idx, Options{QueueLease: time.Hour})
	ctx, cancel := context.WithCancel(f.ctx)
	dying := value(flow.Connect(flow.Options{InProcess: f.nats}))(f)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		dying.Announce(ctx, flow.Announcement{Describe: func() flow.Instance {
			return flow.Instance{Role: flow.RoleWalker, Site: backup.DefaultSite, Name: "w1"}
		}})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	f.until(func() bool {
		s.workers.mu.Lock()
		defer s.workers.mu.Unlock()
		for _, w := range s.workers.of {
			return w.present
		}
		return false
	})
	took := make(chan struct{}, 10)
	consuming := make(chan struct{})
	go func() {
		defer close(consuming)
		dying.ConsumeWalk(ctx, backup.DefaultSite, 1, func(*backup.WalkTask, *flow.Delivery) { took <- struct{}{} })
	}()
	t.Cleanup(func() { cancel(); <-consuming })
	next(f, took)
	quiet := time.After(20 * quick.strays)
	for waited := false; !waited; {
		select {
		case <-quiet:
			waited = true
		default:
			if work := f.inHand(); len(work) != 1 || work[0].Attempt != 1 {
				t.Fatalf("%+v, want the first attempt: its worker lives", work)
			}
		}
	}
	dying.Close()
	f.until(func() bool {
		work := f.inHand()
		return len(work) == 1 && work[0].Attempt > 1
	})
}
