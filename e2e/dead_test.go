package e2e_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
	"github.com/bctl/bctl/services/committer/commit"
)

// attempts returns the attempts at the work that a worker was last noted to have, by id.
func attempts(t *testing.T, f *fleet.Fleet, table, worker string) map[int64]int64 {
	t.Helper()
	return attemptsWhere(t, f, table, "worker = $1 AND lease_until > now()", worker)
}

func attemptsWhere(t *testing.T, f *fleet.Fleet, table, where string, args ...any) map[int64]int64 {
	t.Helper()
	rows, err := f.Index.DB().Query("SELECT id, attempt FROM "+table+" WHERE "+where, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	found := map[int64]int64{}
	for rows.Next() {
		var id, attempt int64
		if err := rows.Scan(&id, &attempt); err != nil {
			t.Fatal(err)
		}
		found[id] = attempt
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// killWithWork kills a worker that has work in hand, and returns when, and the attempts at that.
func killWithWork(t *testing.T, f *fleet.Fleet, table string, s *fleet.Service) (killed time.Time, had map[int64]int64) {
	t.Helper()
	fleet.Await(t, s.Name+" to have work in hand", func() bool {
		had = attempts(t, f, table, s.Name)
		return len(had) > 1
	})
	killed = time.Now()
	s.Kill()
	return killed, had
}

// awaitAgain waits until all work that a worker had is handed out again, or settled, and fails the
// test unless that took less than half of the lease.
func awaitAgain(t *testing.T, f *fleet.Fleet, table string, killed time.Time, had map[int64]int64) {
	t.Helper()
	again := map[int64]bool{}
	fleet.Await(t, "the work of the worker that was killed to be handed out again", func() bool {
		now := attemptsWhere(t, f, table, "true")
		open := 0
		for id, attempt := range had {
			switch then, ok := now[id]; {
			case ok && then > attempt:
				again[id] = true
			case ok && !again[id]:
				open++
			}
		}
		return open == 0
	})
	took := time.Since(killed)
	t.Logf("%s: %d in hand, %d handed out again, the last %.1f s after the kill", table, len(had), len(again), took.Seconds())
	if len(again) == 0 {
		t.Errorf("%s: what was in hand was all settled: nothing is proven", table)
	}
	if took > commit.DefaultLease/2 {
		t.Errorf("%s: it took %v; the lease is %v", table, took, commit.DefaultLease)
	}
}

// With default settings, the work of a worker that is killed is handed out again in seconds, and
// not after its lease. A worker that is only slow, or paused, keeps what it has.
func TestKilledWorkersWorkIsHandedOutSoon(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: 2, Readers: -1, Committers: -1, DefaultLeases: true}), filepath.Join(t.TempDir(), "tree")
	_, metrics := watchedCommitter(t, f)
	generate(t, tree, 22, some)
	settle(t)
	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Stat: time.Second, Open: time.Second}})
	f.Filer("slow")
	f.Shard("slow", filer.Dir)
	backup, id := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)

	paused := f.Walkers[1]
	fleet.Await(t, "work in the hand of both workers", func() bool {
		return len(attempts(t, f, "walk_tasks", paused.Name)) > 1 && len(attempts(t, f, "walk_tasks", f.Walkers[0].Name)) > 1
	})
	paused.Pause()
	its := attempts(t, f, "walk_tasks", paused.Name)
	killed, had := killWithWork(t, f, "walk_tasks", f.Walkers[0])
	awaitAgain(t, f, "walk_tasks", killed, had)
	now := attemptsWhere(t, f, "walk_tasks", "true")
	for task, attempt := range its {
		if then, ok := now[task]; ok && then != attempt {
			t.Errorf("task %d of the worker that is paused was handed out again: attempt %d", task, then)
		}
	}
	paused.Resume()
	reader := f.Service("reader")
	killed, had = killWithWork(t, f, "read_batches", reader)
	awaitAgain(t, f, "read_batches", killed, had)
	for _, work := range []string{"task", "batch"} {
		fleet.Await(t, "the death of the worker to be counted", func() bool {
			return count(t, metrics, "bctl_workers_died_total", `work="`+work+`"`) == 1
		})
	}

	filer.SetLatency(slowfs.Latency{})
	f.Service("reader")
	expect(t, backup.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	checkNothingLeft(t, f)
}

// When all committers are killed at once and started again, nobody has seen that the old leaders
// lived. New ones lead and schedule when the terms have ended: seconds later, and not after several
// ticks.
func TestAllCommittersKilled(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Committers: 1, DefaultLeases: true})
	roles := []string{"keeper", "scheduler"}
	old := f.Committers[0]
	for _, role := range roles {
		fleet.Await(t, "the only committer to lead as "+role, func() bool { return strings.HasPrefix(leaderOf(t, f, role), old.Name+"-") })
	}
	killed := time.Now()
	old.Kill()
	second := f.Service("committer")
	for _, role := range roles {
		fleet.Await(t, "the new committer to lead as "+role, func() bool { return strings.HasPrefix(leaderOf(t, f, role), second.Name+"-") })
		took := time.Since(killed)
		t.Logf("the new committer leads as %s %.1f s after the kill", role, took.Seconds())
		if took > 20*time.Second {
			t.Errorf("it leads as %s after %v, want 15 s, and some for a busy machine", role, took)
		}
	}
}

// leaderOf returns the committer that led a role last; "" if none did.
func leaderOf(t *testing.T, f *fleet.Fleet, role string) (holder string) {
	t.Helper()
	err := f.Index.DB().QueryRow("SELECT holder FROM leaders WHERE role = $1", role).Scan(&holder)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return holder
}

// The committer that leads is killed together with a reader. Another committer leads soon, and
// hands the reader's work out again.
func TestKilledLeaderIsReplacedSoon(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1, DefaultLeases: true}), filepath.Join(t.TempDir(), "tree")
	roles := []string{"keeper", "scheduler"}
	first := map[string]string{}
	fleet.Await(t, "the only committer to lead", func() bool {
		for _, role := range roles {
			first[role] = leaderOf(t, f, role)
		}
		return first["keeper"] != "" && first["scheduler"] != ""
	})
	second := f.Service("committer")
	generate(t, tree, 23, some)
	settle(t)
	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Open: time.Second}})
	f.Filer("slow")
	f.Shard("slow", filer.Dir)
	fleet.Await(t, "the second committer to have seen the leaders", func() bool {
		return strings.Count(second.Output(), "leader seen: if it dies") >= len(roles)
	})
	backup, id := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	killed, had := killWithWork(t, f, "read_batches", f.Readers[0])
	f.Committers[0].Kill()
	f.Service("reader")
	for _, role := range roles {
		fleet.Await(t, "another committer to lead as "+role, func() bool { return strings.HasPrefix(leaderOf(t, f, role), second.Name+"-") })
		t.Logf("another %s leads %.1f s after the kill", role, time.Since(killed).Seconds())
	}
	if !strings.Contains(second.Output(), "leader lost: ") {
		t.Error("the terms have run out: nothing is proven")
	}
	awaitAgain(t, f, "read_batches", killed, had)
	filer.SetLatency(slowfs.Latency{})
	expect(t, backup.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	checkNothingLeft(t, f)
}
