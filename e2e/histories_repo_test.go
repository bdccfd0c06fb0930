package e2e_test

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv"
)

// shiftedProgram is bctl with a clock of the index that BCTL_TEST_CLOCK_SHIFT moves.
var shiftedProgram = sync.OnceValues(func() (string, error) {
	return testenv.Build("bctl-shiftedclock", "./services/bctl", "-tags", "shiftedclock")
})

// historiesAtOnce is how many histories a part of the test makes, one after the other.
const historiesAtOnce = 20

// TestRandomHistories makes random histories of repositories on one machine: commands are killed
// and paused at random, and the clock moves by up to 30 days in both directions. Each snapshot that
// survives is restored and compared. make histories makes 1,000.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	seed, n := historiesFrom(t, 10, 60)
	fleet.Binary(t) // skips the test with -short
	program, err := shiftedProgram()
	if err != nil {
		t.Fatal(err)
	}
	began, all, adding := time.Now(), &tally{map[string]int{}}, sync.Mutex{}
	t.Cleanup(func() { t.Logf("%v; %.0f s", all, time.Since(began).Seconds()) })
	for from := 0; from < n; from += historiesAtOnce {
		t.Run(fmt.Sprint("from ", seed+uint64(from)), func(t *testing.T) {
			t.Parallel()
			for i := from; i < min(n, from+historiesAtOnce); i++ {
				h := newRepoHistory(t, seed+uint64(i), program)
				h.run()
				h.must(os.RemoveAll(h.dir))
				adding.Lock()
				all.addAll(h.tally)
				adding.Unlock()
			}
		})
	}
}

// newRepoHistory begins a history on a repository of its own. In one of four, the brake stops
// nearly everything.
func newRepoHistory(t *testing.T, seed uint64, program string) *history {
	t.Helper()
	dir := t.TempDir()
	client := fleet.NewClient(t, "BCTL_REPO="+dir+"/repo")
	client.Program = program
	env := client.Env
	h := newHistory(t, seed, client, dir)
	h.of = func(n int) []string { return []string{h.trees[n].dir} }
	h.clock = func(by time.Duration) {
		client.Env = append(env[:len(env):len(env)], "BCTL_TEST_CLOCK_SHIFT="+by.String())
	}
	client.Must("init")
	if h.random.IntN(4) == 0 {
		client.Must("brake", "set", "--bytes", "5%", "--min-bytes", "1", "--snapshots", "5%", "--min-snapshots", "1")
	}
	return h
}
