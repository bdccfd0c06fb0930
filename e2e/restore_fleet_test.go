package e2e_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// sharedTree backs up a tree with all kinds of entries, and returns the snapshot and an ordinary
// restore of it.
func sharedTree(t *testing.T, f *fleet.Fleet, seed uint64) (snapshot, single string) {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, seed, shape{directories: 300, files: 12, meanBytes: 3000})
	treetest.Make(t, filepath.Join(tree, "every"), everyKind())
	for _, name := range []string{"a00/one", "a05/two", "every/three", "four"} {
		if err := os.Link(filepath.Join(tree, "every/text"), filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	settle(t)
	backup, _ := f.StartBackup(tree)
	out := backup.Wait()
	if out.Status != 0 {
		t.Fatalf("%s", out)
	}
	snapshot = out.Summary(t).Snapshot
	return snapshot, f.Restore(snapshot)
}

// What three restorers restore together is what one machine restores alone, also if two restores
// are shared at a time.
func TestRestoreIsShared(t *testing.T) {
	t.Parallel()
	f, targets := fleet.New(t, fleet.Options{}), t.TempDir()
	snapshot, single := sharedTree(t, f, 70)
	for range 3 {
		f.Service("restorer", "BCTL_RESTORER_TARGETS="+targets)
	}
	one, two := filepath.Join(targets, "one"), filepath.Join(targets, "two")
	first := f.Start("restore", snapshot, "--target", one, "--fleet")
	second := f.Start("restore", snapshot, "--target", two, "--fleet")
	for _, running := range []*fleet.Running{first, second} {
		if out := running.Wait(); out.Status != 0 {
			t.Errorf("%s", out)
		}
	}
	treetest.Equal(t, single, one)
	treetest.Equal(t, single, two)
	if n := f.Index.Count("SELECT count(*) FROM restore_tasks"); n != 0 {
		t.Errorf("%d tasks are left", n)
	}
}

// Restorers, the operator's command and Postgres are killed at random moments. The restore goes on,
// and ends with what one machine restores alone.
func TestSharedRestoreSurvivesKills(t *testing.T) {
	t.Parallel()
	f, targets := fleet.New(t, fleet.Options{OwnPostgres: true}), t.TempDir()
	snapshot, single := sharedTree(t, f, 71)
	var restorers []*fleet.Service
	for range 3 {
		restorers = append(restorers, f.Service("restorer", "BCTL_RESTORER_TARGETS="+targets))
	}
	random := rand.New(rand.NewPCG(71, rand.Uint64()))
	for _, target := range []string{"one", "two", "three"} {
		shared := filepath.Join(targets, target)
		start := func() *fleet.Running { return f.Start("restore", snapshot, "--target", shared, "--fleet") }
		command, kills := start(), 0
		for ; kills < 12 && !command.Ended(); kills++ {
			<-time.After(time.Duration(random.IntN(700)) * time.Millisecond)
			switch victim := random.IntN(6); victim {
			case 0, 1, 2:
				restorers[victim].Kill()
				restorers[victim].Restart()
			case 3:
				for _, r := range restorers {
					r.Kill()
				}
				for _, r := range restorers {
					r.Restart()
				}
			case 4:
				if !command.Ended() {
					command.Kill()
					command = start()
				}
			case 5:
				f.Postgres.Kill()
				f.Postgres.Restart()
			}
		}
		out := command.Wait()
		for tries := 0; out.Status != 0 && tries < 5 && strings.Contains(out.Stderr, "unavailable"); tries++ { // it began while Postgres was away
			out = start().Wait()
		}
		if out.Status != 0 {
			t.Fatalf("%s", out)
		}
		t.Logf("%s: %d kills", target, kills)
		treetest.Equal(t, single, shared)
	}
}
