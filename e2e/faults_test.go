package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A write to the store may be lost, or be carried out and then answered with an error. The store
// may refuse everything for a while, be slow, or be full until somebody makes room.
func TestStoreWritesFail(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Proxy: true})
	refused := func(at int64) func() bool { return func() bool { return f.Proxy.Refused.Load() >= at+3 } }
	for i, fault := range []struct {
		name   string
		strike func() (enough func() bool)
	}{
		{"writes fail", func() func() bool {
			f.Proxy.Fail.Store(true)
			return func() bool { return false } // until the end
		}},
		{"refuses", func() func() bool {
			f.Proxy.Refuse.Store(true)
			return refused(f.Proxy.Refused.Load())
		}},
		{"is full", func() func() bool {
			f.Proxy.Full.Store(true)
			return refused(f.Proxy.Refused.Load())
		}},
		{"is slow", func() func() bool {
			f.Proxy.Slow(500 * time.Millisecond)
			return func() bool { return false }
		}},
	} {
		tree := filepath.Join(t.TempDir(), fmt.Sprintf("fault-%d", i))
		generate(t, tree, uint64(30+i), shape{directories: 100, files: 5, meanBytes: 20_000})
		settle(t)
		started := time.Now()
		backup, _ := f.StartBackup(tree)
		enough := fault.strike()
		fleet.Await(t, "the store to have done it", func() bool { return backup.Ended() || enough() })
		f.Proxy.Heal()
		orphans := check(t, f, backup.Wait(), tree)
		t.Logf("the store %s: %.1f s, %d orphans", fault.name, time.Since(started).Seconds(), orphans)
	}
	t.Logf("%d writes lost, %d applied and then an error, %d requests refused", f.Proxy.Lost.Load(), f.Proxy.Applied.Load(), f.Proxy.Refused.Load())
	if f.Proxy.Lost.Load() == 0 || f.Proxy.Applied.Load() == 0 {
		t.Error("no write failed")
	}
}

// Every connection to Postgres that is in a transaction ends, again and again,
// before its commit, while it is committing, or after.
func TestPostgresConnectionsEnd(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 31, spread)
	settle(t)
	backup, _ := f.StartBackup(tree)

	ctx, stop := context.WithCancel(t.Context())
	var owned sync.WaitGroup
	ended := 0
	owned.Go(func() {
		// The longer the backup takes, the rarer: a busy machine gets something done, too.
		for pause := 40 * time.Millisecond; ; pause += pause / 50 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			// One at a time and not each time, so that something gets done.
			var n int
			err := f.Index.DB().QueryRowContext(ctx, `SELECT count(pg_terminate_backend(pid)) FROM (
				SELECT pid FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle' AND random() < 0.5 LIMIT 2) busy`).Scan(&n)
			if err == nil {
				ended += n
			}
		}
	})
	out := backup.Wait()
	stop()
	owned.Wait()
	orphans := check(t, f, out, tree)
	t.Logf("%d connections ended; %d orphans", ended, orphans)
	if ended == 0 {
		t.Error("no connection was ended")
	}
}
