package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
)

// A reader whose credentials the store refuses, and one whose store is full, says so, takes no
// work, and hands back what it has: the other reader does all. No pack counts as lost. When its
// store takes writes again, it finds that out without a backup, and takes part again.
func TestReaderWithoutAStore(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{S3: true, Walkers: 1, Readers: 1, Committers: 1})
	address := fmt.Sprintf("127.0.0.1:%d", mustPort(t))
	reader, store := f.ProxyOf("reader", "BCTL_HTTP_LISTEN="+address)
	tree := filepath.Join(t.TempDir(), "tree")
	metrics, round := "http://"+address+"/metrics", uint64(30)
	backUp := func() {
		t.Helper()
		round++
		generate(t, filepath.Join(tree, fmt.Sprint(round)), round, shape{directories: 60, files: 5, meanBytes: 6000})
		// Packs of the round before have this content.
		generate(t, filepath.Join(tree, fmt.Sprint(round, "again")), round-1, shape{directories: 60, files: 5, meanBytes: 6000})
		settle(t)
		running, _ := f.StartBackup(tree)
		check(t, f, running.Wait(), tree)
	}
	ready := func(want int, says string) func() bool {
		return func() bool {
			status, body := readiness(t, address)
			return status == want && strings.Contains(body, says)
		}
	}
	for _, fault := range []struct {
		name  string
		begin func()
		says  string
	}{
		{"refuses the credentials", func() { store.Deny.Store(true) }, "store: "},
		{"is full", func() { store.Full.Store(true) }, "disk full"},
	} {
		fleet.Await(t, "the reader is ready", ready(http.StatusOK, "ok"))
		fault.begin()
		said := strings.Count(reader.Output(), "takes no new work")
		for !ready(http.StatusServiceUnavailable, fault.says)() || strings.Count(reader.Output(), "takes no new work") == said {
			backUp() // it may have a part in this one
		}
		backUp() // then it has nothing in hand any more
		fleet.Await(t, "status to name the reader, and why", func() bool {
			line, _, _ := strings.Cut(f.Must("status").Stdout, "\n")
			return strings.HasPrefix(line, "WARNING  readers at site default: "+reader.Name+": not ready: ") && strings.Contains(line, fault.says)
		})
		done, failed := count(t, metrics, "bctl_read_batch_seconds_count"), count(t, metrics, "bctl_retries_total", `work="batch"`)
		backUp()
		if n := count(t, metrics, "bctl_read_batch_seconds_count") - done; n != 0 {
			t.Errorf("with a store that %s it did %v batches", fault.name, n)
		}
		if n := count(t, metrics, "bctl_retries_total", `work="batch"`) - failed; n != 0 {
			t.Errorf("with a store that %s it took %v batches", fault.name, n)
		}
		store.Heal()
		healed := time.Now()
		fleet.Await(t, "the reader to be ready again in a fleet at rest", ready(http.StatusOK, "ok"))
		t.Logf("after a store that %s it is ready again within %v", fault.name, time.Since(healed).Round(time.Second/10))
		if n := count(t, metrics, "bctl_packs_lost_total"); n != 0 {
			t.Errorf("with a store that %s %v packs count as lost", fault.name, n)
		}
		done = count(t, metrics, "bctl_read_batch_seconds_count")
		for count(t, metrics, "bctl_read_batch_seconds_count") == done {
			backUp()
		}
	}
}
