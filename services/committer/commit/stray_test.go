package commit

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/telemetry"
)

func TestStrays(t *testing.T) {
	task := index.Work{Snapshot: backup.SnapshotID{1}, Task: 1, Attempt: 1}
	batch := index.Work{Snapshot: backup.SnapshotID{1}, Batch: 2, Attempt: 1, Site: "oslo"}
	taken, again := task, task
	taken.Worker, again.Attempt = "w", 2
	// A queue has n messages. Its stream's last message is last; those up to floor are
	// acknowledged.
	type queue struct{ n, last, floor uint64 }
	const walk, read, walkOslo, readOslo, commit = 0, 1, 2, 3, 4
	gone := queue{n: 1 << 60} // it does not exist
	type queues map[int]queue // others are empty
	list := func(some queues) []telemetry.Queue {
		all := []telemetry.Queue{
			{Name: "walk", Site: backup.DefaultSite}, {Name: "read", Site: backup.DefaultSite}, {Name: "walk", Site: "oslo"}, {Name: "read", Site: "oslo"}, {Name: "commit"},
		}
		kept := all[:0]
		for i, q := range all {
			state := some[i]
			if q.Waiting, q.Last, q.Floor = state.n, state.last, state.floor; state != gone {
				kept = append(kept, q)
			}
		}
		return kept
	}
	type look struct {
		work   []index.Work
		queues queues
		want   int
	}
	of := func(work ...index.Work) []index.Work { return work }
	for name, looks := range map[string][]look{
		"twice in no queue":       {{work: of(task, batch)}, {work: of(task, batch), want: 2}},
		"once":                    {{}, {work: of(task)}, {}, {work: of(task)}},
		"a worker reports it":     {{work: of(task)}, {work: of(taken)}, {work: of(taken)}},
		"it was assigned again":   {{work: of(task)}, {work: of(again)}},
		"it waits in its queue":   {{of(task), queues{walk: {1, 9, 8}}, 0}, {of(task), queues{walk: {1, 9, 8}}, 0}, {of(task), queues{walk: {1, 12, 8}}, 0}},
		"a message before it":     {{of(task), queues{walk: {1, 9, 8}}, 0}, {of(task), queues{walk: {3, 12, 9}}, 1}},
		"a message long after it": {{of(task), queues{walk: {1, 9, 8}}, 0}, {of(task), queues{walk: {1, 12, 7}}, 0}, {of(task), queues{}, 1}},
		"a result is under way": {
			{of(task), queues{walk: {1, 9, 8}}, 0}, {of(task), queues{walk: {3, 12, 9}, commit: {5, 70, 65}}, 0},
			{of(task), queues{walk: {3, 12, 9}, commit: {5, 80, 69}}, 0}, {of(task), queues{walk: {3, 12, 9}, commit: {5, 90, 70}}, 1},
		},
		"its result arrived": {
			{of(task), queues{walk: {1, 9, 8}}, 0}, {of(task), queues{walk: {3, 12, 9}, commit: {5, 70, 65}}, 0}, {nil, queues{walk: {3, 12, 9}, commit: {5, 90, 70}}, 0},
		},
		"its queue is not known":    {{work: of(task)}, {work: of(task), queues: queues{walk: gone}}, {work: of(task)}},
		"results are not known":     {{work: of(task)}, {work: of(task), queues: queues{commit: gone}}},
		"another site has work":     {{of(batch), queues{read: {1, 9, 8}}, 0}, {of(batch), queues{walkOslo: {1, 9, 8}}, 1}},
		"its site has other queues": {{of(batch), queues{readOslo: {1, 9, 8}}, 0}, {of(batch), queues{readOslo: {1, 9, 8}}, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var l strays
			for i, look := range looks {
				if got, _ := l.look(look.work, list(look.queues)); len(got) != look.want {
					t.Errorf("%+v at look %d, want %d", got, i+1, look.want)
				}
			}
		})
	}
}

// A committer claimed work and was killed before it sent the messages: the next one assigns the
// work again at once, and not when its lease expires.
func TestWorkOfADeadCommitterIsHandedOutSoon(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	// Otherwise the keeper would find no streams, and end all leases for that reason.
	value(conn.EnsureStreams(f.ctx, []string{backup.DefaultSite}))(f)
	snap := f.begin()
	dead := f.claimTask() // for an hour
	f.start(f.idx, Options{})
	ctx, stop := context.WithCancel(f.ctx)
	wait := f.work(ctx, conn, "a", "b")
	if got := f.ended(snap.ID); got.State != backup.Committed {
		t.Errorf("%s: %s", got.State, got.Reason)
	}
	stop()
	wait()
	f.wantDone(snap.ID, []string{"a", "b"})

	// It was only paused: its worker's result comes late, and changes nothing (I3).
	slice := indextest.SliceOf(dead)
	slice.Counts = backup.Counts{Files: 100}
	slice.Children = []backup.Child{{Directories: []string{"c"}}}
	for _, o := range value(f.idx.Apply(f.ctx, []index.Result{{Slice: slice}}))(f) {
		if !o.Late || o.Err != nil {
			t.Errorf("%+v, want that it is late", o)
		}
	}
	f.wantDone(snap.ID, []string{"a", "b"})
}

// The message of a committer that was only paused arrives beside that of the second attempt: both
// are worked on, and one result counts (I3).
func TestPausedCommitterSendsAfterAll(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	// Otherwise the keeper would find no streams, and end all leases for that reason.
	value(conn.EnsureStreams(f.ctx, []string{backup.DefaultSite}))(f)
	snap := f.begin()
	paused := f.claimTask()
	f.start(f.idx, Options{})
	f.until(func() bool { // the second attempt is assigned
		work := f.inHand()
		return len(work) == 1 && work[0].Attempt > paused.Attempt
	})
	f.must(flow.Publish(f.ctx, conn, flow.Walk, &paused))
	ctx, stop := context.WithCancel(f.ctx)
	wait := f.work(ctx, conn, "a", "b")
	if got := f.ended(snap.ID); got.State != backup.Committed {
		t.Errorf("%s: %s", got.State, got.Reason)
	}
	stop()
	wait()
	f.wantDone(snap.ID, []string{"a", "b"})
}

// A watched index reports claims and lists of assigned work that the other may see half done.
type watched struct {
	index.Index
	f              *fixture
	service        atomic.Pointer[Service]
	claims, listed atomic.Int64
}

func (x *watched) wantExcluded(n *atomic.Int64) {
	if s := x.service.Load(); s != nil {
		if s.handing.TryLock() {
			s.handing.Unlock()
			x.f.Error("work may be listed between its claim and its message")
		}
		n.Add(1)
	}
}

func (x *watched) ClaimTasks(ctx context.Context, c index.Claim) ([]backup.WalkTask, error) {
	x.wantExcluded(&x.claims)
	return x.Index.ClaimTasks(ctx, c)
}

func (x *watched) ClaimBatches(ctx context.Context, c index.Claim) ([]backup.ReadBatch, error) {
	x.wantExcluded(&x.claims)
	return x.Index.ClaimBatches(ctx, c)
}

func (x *watched) InHand(ctx context.Context, after time.Time, limit int) ([]index.Work, error) {
	x.wantExcluded(&x.listed)
	return x.Index.InHand(ctx, after, limit)
}

// A look for strays lists no work that this committer has claimed and not sent yet, however long
// that takes.
func TestWorkOnItsWayToItsQueueIsNotListed(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	value(conn.EnsureStreams(f.ctx, []string{backup.DefaultSite}))(f)
	f.begin()
	x := &watched{Index: f.idx, f: f}
	s := f.service(x, Options{})
	x.service.Store(s)
	var last strays
	f.must(s.dispatch(f.ctx))
	f.must(s.giveBackStrays(f.ctx, &last))
	if x.claims.Load() < 2 || x.listed.Load() != 1 || len(last.seen) != 1 {
		t.Errorf("%d claims, %d lists, %d attempts seen", x.claims.Load(), x.listed.Load(), len(last.seen))
	}
}

// Work that waits for a worker is in its queue, and remains assigned.
func TestQueuedWorkIsNoStray(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	// Otherwise the keeper would find no streams, and end all leases for that reason.
	value(conn.EnsureStreams(f.ctx, []string{backup.DefaultSite}))(f)
	f.begin()
	s, _ := f.start(f.idx, Options{})
	f.until(func() bool { return s.leading() && len(f.inHand()) == 1 })
	timeout := time.After(20 * quick.strays)
	for done := false; !done; {
		select {
		case <-timeout:
			done = true
		default:
			if work := f.inHand(); len(work) != 1 || work[0].Attempt != 1 {
				t.Fatalf("%+v, want the first attempt", work)
			}
		}
	}
}
