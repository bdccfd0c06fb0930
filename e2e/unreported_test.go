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
// within seconds, and not when the queue has waited for an acknowledgement. The reader is paused
// beforehand, so that its report certainly does not leave.
func TestReaderKilledBeforeItReports(t *testing.T) {
	t.Parallel()
	rounds := 2
	if testtarget.Runs(testtarget.Long) {
		rounds = 12
	}
	f, tree := fleet.New(t, fleet.Options{Walkers: 1, Readers: -1, Committers: 1, DefaultSettings: true}), filepath.Join(t.TempDir(), "tree")
	var all []time.Duration
	for round := range rounds {
		if err := os.MkdirAll(tree, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, "file"), []byte("round "+strconv.Itoa(round)), 0o600); err != nil {
			t.Fatal(err)
		}
		settle(t)
		victim := f.Service("reader")
		fleet.Await(t, "the reader to be ready", func() bool {
			return strings.Count(f.Must("worker", "ls", "--role", "reader", "--json").Stdout, `"state":"ready"`) > 0
		})
		<-time.After(seenWithin)
		victim.Pause()
		backup, id := f.StartBackup(tree)
		var had map[int64]int64
		fleet.Await(t, "a batch to be handed out", func() bool {
			had = attemptsWhere(t, f, "read_batches", "lease_until > now()")
			return len(had) > 0
		})
		<-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond)
		killed := indexTime(t, f)
		victim.Kill()
		second := f.Service("reader")
		for batch, attempt := range had {
			fleet.Await(t, "the batch to be handed out again, or settled", func() bool {
				now, open := attemptsWhere(t, f, "read_batches", "true")[batch]
				return !open || now > attempt
			})
		}
		all = append(all, indexTime(t, f).Sub(killed).Round(time.Millisecond))
		expect(t, backup.Wait(), 0)
		checkSnapshot(t, f, id, tree)
		second.Retire()
	}
	t.Logf("handed out again after %v", all)
	if slices.Min(all) > handedOutWithin+outsideOfBctl {
		t.Errorf("handed out again after %v, want %v", all, handedOutWithin)
	}
	checkNothingLeft(t, f)
}
