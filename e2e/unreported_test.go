package e2e_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// seenWithin is how long the keeper takes to see a new worker: it looks for new ones every second,
// and at its start only once it has been connected for five seconds.
const seenWithin = 7 * time.Second

// A reader receives a batch and is killed before it can report that: the batch is handed out again
// within seconds, and not when the queue has waited for an acknowledgement, which makes no new
// attempt. The reader is paused beforehand, so that its report certainly does not leave. If its
// request for a message ends before there is a batch, the batch waits in the queue, and the round
// does not count.
func TestReaderKilledBeforeItReports(t *testing.T) {
	t.Parallel()
	wanted := 1
	if testtarget.Runs(testtarget.Often) {
		wanted = 12
	}
	f, tree := fleet.New(t, fleet.Options{Walkers: 1, Readers: -1, Committers: 1, DefaultSettings: true}), t.TempDir()
	var all []time.Duration
	for round := 0; len(all) < wanted && round < 10+3*wanted; round++ {
		if err := os.WriteFile(filepath.Join(tree, "file"), []byte("round "+strconv.Itoa(round)), 0o600); err != nil {
			t.Fatal(err)
		}
		settle(t)
		if took, ok := killUnreported(t, f, tree); ok {
			all = append(all, took)
		}
	}
	t.Logf("handed out again after %v", all)
	if len(all) == 0 || slices.Min(all) > handedOutWithin+outsideOfBctl {
		t.Errorf("handed out again after %v, want %v", all, handedOutWithin)
	}
	checkNothingLeft(t, f)
}

// killUnreported makes a backup whose first reader is killed before it reports its batch. It
// returns how long after that the batch was handed out again, if it was before there was another
// reader.
func killUnreported(t *testing.T, f *fleet.Fleet, tree string) (took time.Duration, again bool) {
	t.Helper()
	victim := f.Service("reader")
	fleet.Await(t, "the reader to be ready", func() bool {
		return strings.Contains(f.Must("worker", "ls", "--role", "reader", "--json").Stdout, `"name":"`+victim.Name+`","site":"default","state":"ready"`)
	})
	<-time.After(seenWithin)
	victim.Pause()
	backup, id := f.StartBackup(tree)
	var had map[int64]int64
	fleet.Await(t, "a batch to be handed out", func() bool {
		had = attemptsWhere(t, f, "read_batches", "lease_until > now()")
		return len(had) > 0
	})
	<-time.After(time.Duration(rand.IntN(1000)) * time.Millisecond)
	killed := indexTime(t, f)
	victim.Kill()
	for end := killed.Add(2 * handedOutWithin); !again && indexTime(t, f).Before(end); <-time.After(20 * time.Millisecond) {
		for batch, attempt := range attemptsWhere(t, f, "read_batches", "true") {
			again = again || attempt > had[batch]
		}
	}
	took = indexTime(t, f).Sub(killed).Round(time.Millisecond)
	second := f.Service("reader")
	expect(t, backup.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	second.Retire()
	return took, again
}
