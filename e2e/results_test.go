package e2e_test

import (
	"database/sql"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// With default settings, a committer is killed while it holds the result of a task. Another
// committer applies the result within seconds, as the same attempt. A transaction of the test that
// locks the table makes sure that the first committer holds the result, and a pause of the second
// one that no other does.
func TestKilledCommittersResultsAreAppliedSoon(t *testing.T) {
	t.Parallel()
	rounds := 2 // a busy machine gets a second chance
	if testtarget.Runs(testtarget.Often) {
		rounds = 12
	}
	f, tree := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1, DefaultSettings: true}), t.TempDir()
	js := connect(t, f)
	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Stat: time.Second}})
	f.Filer("slow")
	f.Shard("slow", filer.Dir)
	var all []time.Duration
	other := f.Committers[0]
	for round := range rounds {
		if err := os.WriteFile(filepath.Join(tree, "file"), []byte("round "+strconv.Itoa(round)), 0o600); err != nil {
			t.Fatal(err)
		}
		settle(t)
		victim := f.Service("committer")
		awaitReady(t, f, "committer", victim.Name)
		if round%2 == 0 { // the one that leads
			victim, other = other, victim
		}
		all = append(all, killWithResult(t, f, js, filer.Dir, victim, other))
		if !testtarget.Runs(testtarget.Often) && all[round] <= handedOutWithin+outsideOfBctl {
			break
		}
	}
	t.Logf("applied after %v", all)
	if slices.Min(all) > handedOutWithin+outsideOfBctl {
		t.Errorf("applied after %v, want %v", all, handedOutWithin)
	}
	checkNothingLeft(t, f)
}

func awaitReady(t *testing.T, f *fleet.Fleet, role, name string) {
	t.Helper()
	fleet.Await(t, name+" to be ready", func() bool {
		return strings.Contains(f.Must("worker", "ls", "--role", role, "--json").Stdout, `"name":"`+name+`","site":"","state":"ready"`)
	})
}

// killWithResult makes a backup, and kills a committer that holds the result of its first task. It
// returns how long after that the result was applied by the other committer.
func killWithResult(t *testing.T, f *fleet.Fleet, js jetstream.JetStream, tree string, victim, other *fleet.Service) time.Duration {
	t.Helper()
	other.Pause()
	queue, err := js.Consumer(t.Context(), "BCTL_COMMIT", "committers")
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * time.Second) // its requests for results, of 1.5 seconds, have ended
	backup, id := f.StartBackupOf("--filer", "slow", "--shard", tree)
	var had map[int64]int64
	fleet.Await(t, "a task to be handed out", func() bool {
		had = attemptsWhere(t, f, "walk_tasks", "lease_until > now()")
		return len(had) > 0
	})
	locked := lockTable(t, f, "walk_tasks")
	fleet.Await(t, "a result to be in the hand of "+victim.Name, func() bool {
		info, err := queue.Info(t.Context())
		return err == nil && info.NumAckPending > 0
	})
	<-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond)
	killed := indexTime(t, f)
	victim.Kill()
	if err := locked.Rollback(); err != nil {
		t.Fatal(err)
	}
	other.Resume()
	fleet.Await(t, "the result to be applied", func() bool {
		for task, attempt := range attemptsWhere(t, f, "walk_tasks", "true") {
			if then, ok := had[task]; ok {
				if attempt != then {
					t.Fatalf("task %d was handed out again: attempt %d after %d", task, attempt, then)
				}
				return false
			}
		}
		return true
	})
	took := indexTime(t, f).Sub(killed).Round(time.Millisecond)
	expect(t, backup.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	return took
}

// lockTable keeps all others from changing a table until the transaction ends.
func lockTable(t *testing.T, f *fleet.Fleet, table string) *sql.Tx {
	t.Helper()
	tx, err := f.Index.DB().Begin()
	if err == nil {
		_, err = tx.Exec("LOCK TABLE " + table + " IN EXCLUSIVE MODE")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}
