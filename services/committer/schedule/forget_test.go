package schedule

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

// A countIndex counts the shards of which snapshots are read to decide about them.
type countIndex struct {
	index.Index
	decided int
}

func (x *countIndex) Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error) {
	x.decided++
	return x.Index.Snapshots(ctx, f)
}

// backupEach makes a snapshot of a shard at each of the given times.
func (f *fixture) backupEach(name string, times ...time.Time) {
	f.Helper()
	for _, at := range times {
		f.now = at
		s, err := f.idx.BeginSnapshot(f.ctx, f.shard(name).ID, backup.Snapshot{}, at)
		f.must(err)
		f.finish(name)
		f.must(f.idx.Recorded(f.ctx, s.ID))
	}
}

// numbers returns the numbers of the snapshots that a shard has.
func (f *fixture) numbers(shard string) (numbers []int) {
	f.Helper()
	list, err := f.idx.Snapshots(f.ctx, index.SnapshotFilter{Shard: shard})
	f.must(err)
	for _, s := range list {
		numbers = append(numbers, int(s.Number))
	}
	return numbers
}

func (f *fixture) wantNumbers(shard string, want ...int) {
	f.Helper()
	if got := f.numbers(shard); !slices.Equal(got, want) {
		f.Fatalf("%s has %v, want %v", shard, got, want)
	}
}

// The scheduler forgets what policies do not keep: after a new snapshot, after a change of the
// policy, and once a day.
func TestForget(t *testing.T) {
	f := newFixture(t)
	f.filer("gold", map[string]string{"tier": "gold"}, "a")
	f.filer("plain", nil, "b")
	f.policy(backup.Policy{Name: "gold", Labels: map[string]string{"tier": "gold"}, Schedule: "0 0 1 1 *", Paused: true, Retention: backup.Retention{Daily: 2}})
	f.policy(backup.Policy{Name: "plain", Schedule: "0 0 1 1 *"})
	day := func(n, hour int) time.Time { return time.Date(2026, 3, n, hour, 0, 0, 0, time.UTC) }
	f.backupEach("a", day(2, 1), day(2, 2), day(3, 1), day(4, 1))
	f.backupEach("b", day(2, 1), day(2, 2))
	x := &countIndex{Index: f.idx}
	s := f.scheduler(x, policy.Limits{})
	f.now = day(4, 2)
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 1, 2, 3, 4) // the policy is paused

	gold := backup.Policy{Name: "gold", Labels: map[string]string{"tier": "gold"}, Schedule: "0 0 1 1 *", Retention: backup.Retention{Daily: 2}}
	f.policy(gold)
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 3, 4)
	f.wantNumbers("b", 1, 2) // its policy has no rules
	decided := x.decided
	if decided != 1 {
		t.Errorf("%d shards decided about, want 1", decided)
	}
	f.must(s.Tick(f.ctx))
	if x.decided != decided {
		t.Error("decided again although nothing has changed")
	}
	f.backupEach("a", day(5, 1))
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 4, 5)

	// A hold keeps a snapshot. When it is removed, the next day's turn forgets the snapshot.
	list, err := f.idx.Snapshots(f.ctx, index.SnapshotFilter{Shard: "a"})
	f.must(err)
	h, err := f.idx.AddHold(f.ctx, index.Hold{Snapshot: list[0].ID, By: "me", Reason: "a case"})
	f.must(err)
	f.backupEach("a", day(6, 1), day(7, 1))
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 4, 6, 7)
	f.must(f.idx.RemoveHold(f.ctx, h.ID, "me", ""))
	f.now = day(7, 23)
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 4, 6, 7)
	f.now = day(8, 1)
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 6, 7)

	// A policy that keeps less takes effect with its change. The last good one stays in any case.
	gold.Retention = backup.Retention{Tags: [][]string{{"none"}}}
	f.policy(gold)
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 7)
	for e, err := range f.idx.Log(f.ctx, time.UnixMicro(0)) {
		f.must(err)
		if e.Action == "forget" && e.By != "policy gold" {
			t.Errorf("%+v", e)
		}
	}
}

// Days are those of the policy's time zone.
func TestForgetInZone(t *testing.T) {
	for zone, want := range map[string][]int{"Pacific/Auckland": {2, 4}, "": {3, 4}} {
		f := newFixture(t)
		f.filer("nas", nil, "a")
		f.policy(backup.Policy{Name: "p", Schedule: "0 0 1 1 *", TimeZone: zone, Retention: backup.Retention{Daily: 2}})
		at := func(month time.Month, day, hour int) time.Time {
			return time.Date(2026, month, day, hour, 0, 0, 0, time.UTC)
		}
		// In Auckland, which is 13 hours ahead, the last two are of one day.
		f.backupEach("a", at(2, 10, 12), at(2, 20, 12), at(3, 2, 23), at(3, 3, 1))
		f.must(f.scheduler(f.idx, policy.Limits{}).Tick(f.ctx))
		f.wantNumbers("a", want...)
	}
}

// The brake stops a policy for one shard, and the others go on. After a confirmation, the next tick
// forgets.
func TestForgetIsStopped(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a", "b")
	f.must(f.idx.SetBrake(f.ctx, index.Brake{Snapshots: 50, MinSnapshots: 1, Bytes: 100, MinBytes: 1, Operators: 1}, "me"))
	f.policy(backup.Policy{Name: "p", Schedule: "0 0 1 1 *", Retention: backup.Retention{Last: 2}})
	at := func(hour int) time.Time { return time.Date(2026, 3, 2, hour, 0, 0, 0, time.UTC) }
	f.backupEach("a", at(1), at(2), at(3), at(4), at(5))
	f.backupEach("b", at(6), at(7), at(8))
	s := f.scheduler(f.idx, policy.Limits{})
	for range 2 {
		f.must(s.Tick(f.ctx))
		f.wantNumbers("a", 1, 2, 3, 4, 5)
		f.wantNumbers("b", 2, 3)
	}
	stops, err := f.idx.Stops(f.ctx)
	f.must(err)
	if len(stops) != 1 || len(stops[0].Snapshots) != 3 || stops[0].OfSnapshots != 5 || stops[0].By != "policy p" {
		t.Fatalf("%+v", stops)
	}
	_, err = f.idx.Confirm(f.ctx, stops[0].ID, "me", "")
	f.must(err)
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 4, 5)
	if stops, err = f.idx.Stops(f.ctx); err != nil || len(stops) != 0 {
		t.Errorf("%+v, %v", stops, err)
	}

	// A stop of which the cause is gone is gone, too.
	f.policy(backup.Policy{Name: "p", Schedule: "0 0 1 1 *", Retention: backup.Retention{Last: 4}})
	f.backupEach("a", at(9), at(10))
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 4, 5, 6, 7)
	f.policy(backup.Policy{Name: "p", Schedule: "0 0 1 1 *", Retention: backup.Retention{Last: 1}})
	f.must(s.Tick(f.ctx))
	f.policy(backup.Policy{Name: "p", Schedule: "0 0 1 1 *", Retention: backup.Retention{Last: 3}})
	if stops, err = f.idx.Stops(f.ctx); err != nil || len(stops) == 0 {
		t.Fatalf("%+v, %v; want a stop", stops, err)
	}
	f.must(s.Tick(f.ctx))
	f.wantNumbers("a", 5, 6, 7)
	if stops, err = f.idx.Stops(f.ctx); err != nil || len(stops) != 0 {
		t.Errorf("%+v, %v", stops, err)
	}
}

// A policy that the brake stops for several shards is logged once.
func TestStopsOfAPolicyShareALine(t *testing.T) {
	f := newFixture(t)
	f.filer("nas", nil, "a", "b")
	f.must(f.idx.SetBrake(f.ctx, index.Brake{Snapshots: 50, MinSnapshots: 1, Bytes: 100, MinBytes: 1, Operators: 1}, "me"))
	f.policy(backup.Policy{Name: "p", Schedule: "0 0 1 1 *", Retention: backup.Retention{Last: 1}})
	at := func(hour int) time.Time { return time.Date(2026, 3, 2, hour, 0, 0, 0, time.UTC) }
	f.backupEach("a", at(1), at(2), at(3))
	f.backupEach("b", at(4), at(5), at(6), at(7))
	var log bytes.Buffer
	s := New(&clockIndex{f.idx, f}, Options{Worker: "test", Term: time.Hour, Metrics: f.metrics.Scheduler(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 2 {
		f.must(s.Tick(f.ctx))
	}
	if got := log.String(); strings.Count(got, "the brake has stopped") != 1 || !strings.Contains(got, "policy=p shards=2 filer=nas ") || !strings.Contains(got, "snapshots=5 of=7") {
		t.Error(got)
	}
}
