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
// work, and hands back what it has: the other reader does all. When its store takes writes again,
// it takes part again.
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
		said := strings.Count(reader.Output(), refuses)
		knows := func() bool { return strings.Count(reader.Output(), refuses) > said }
		before := count(t, metrics, "bctl_retries_total", `work="batch"`)
		for !ready(http.StatusServiceUnavailable, fault.says)() || !knows() {
			round++
			generate(t, filepath.Join(tree, fmt.Sprint(round)), round, shape{directories: 60, files: 5, meanBytes: 6000})
			settle(t)
			running, _ := f.StartBackup(tree) // it may have a part in this one
			fleet.Await(t, "the reader to know, or the backup to end", func() bool { return knows() || running.Ended() })
			if knows() {
				handsBack(t, f, reader, metrics, before)
			}
			check(t, f, running.Wait(), tree)
		}
		fleet.Await(t, "status to name the reader, and why", func() bool {
			line, _, _ := strings.Cut(f.Must("status").Stdout, "\n")
			return strings.HasPrefix(line, "WARNING  readers at site default: "+reader.Name+": not ready: ") && strings.Contains(line, fault.says)
		})
		done, failed := count(t, metrics, "bctl_read_batch_seconds_count"), count(t, metrics, "bctl_retries_total", `work="batch"`)
		backUp()
		if n := count(t, metrics, "bctl_read_batch_seconds_count") - done; n != 0 {
			t.Errorf("with a store that %s it did %v batches", fault.name, n)
		}
		// A reader tries a full store with a batch now and then. It needs no batch to find out that
		// the store refuses its credentials.
		if n := count(t, metrics, "bctl_retries_total", `work="batch"`) - failed; n != 0 && !store.Full.Load() {
			t.Errorf("with a store that %s it took %v batches", fault.name, n)
		}
		store.Heal()
		for !ready(http.StatusOK, "ok")() {
			backUp()
		}
	}
}

// refuses is what a reader logs when it learns that its store refuses writes.
const refuses = "the store refuses writes: this service takes no new work"

// handsBack checks that a reader which knows that its store refuses writes hands batches back, and
// is not noted to have any, in less than the time for which its uploads would be repeated, which is
// 60 s.
func handsBack(t *testing.T, f *fleet.Fleet, reader *fleet.Service, metrics string, before float64) {
	t.Helper()
	const within = 20 * time.Second
	known, handed := time.Now(), 0.0
	fleet.Await(t, "the reader to hand back what it has", func() bool {
		handed = count(t, metrics, "bctl_retries_total", `work="batch"`) - before
		return handed > 0 && len(attempts(t, f, "read_batches", reader.Name)) == 0
	})
	took := time.Since(known)
	t.Logf("%v batches are handed back %.1f s after the reader knew", handed, took.Seconds())
	if took > within {
		t.Errorf("the reader has batches in hand for %v, want %v", took, within)
	}
}
