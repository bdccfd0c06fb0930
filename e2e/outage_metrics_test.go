package e2e_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
)

// In an outage of Postgres, the metrics of shards stay as they were, so that alerts about shards
// that are overdue do not end: at first, and when the term of the keeper has ended, too.
func TestShardMetricsOutliveAnOutageOfPostgres(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: -1, OwnPostgres: true})
	_, metrics := watchedCommitter(t, f)
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 44, shape{directories: 5, files: 3, meanBytes: 1000})
	settle(t)
	f.Must("policy", "set", "yearly", "--schedule", "@yearly", "--recovery-point", "8783h")
	running, _ := f.StartBackup(tree)
	check(t, f, running.Wait(), tree)
	times := func() [2]float64 {
		return [2]float64{count(t, metrics, "bctl_shard_deadline_timestamp_seconds"), count(t, metrics, "bctl_shard_last_good_timestamp_seconds")}
	}
	var known [2]float64
	fleet.Await(t, "the metrics of the shard", func() bool {
		known = times()
		return known[0] > float64(time.Now().Unix()) && known[1] > 0
	})
	f.Postgres.Kill()
	fleet.Await(t, "the keeper to notice", func() bool { return count(t, metrics, "bctl_fleet_up") == 0 })
	if now := times(); now != known {
		t.Errorf("in the outage, the times of the shard are %v, want %v", now, known)
	}
	fleet.Await(t, "the term to end", func() bool { return count(t, metrics, "bctl_keeper") == 0 })
	if now := times(); now != known {
		t.Errorf("without a keeper, the times of the shard are %v, want %v", now, known)
	}
	f.Postgres.Restart()
	fleet.Await(t, "the outage to end", func() bool { return count(t, metrics, "bctl_fleet_up") == 1 })
	if now := times(); now != known {
		t.Errorf("after the outage, the times of the shard are %v, want %v", now, known)
	}
}
