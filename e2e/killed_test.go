package e2e_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A backup that is killed at any moment is gone on with by the next.
func TestKilledBackupIsResumed(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	// Long names: listings of 400 KB in all, so that a task is not the whole tree.
	generate(t, tree, 4, shape{directories: 60, files: 40, meanBytes: 8000, longNames: true})
	index := repo.Index()
	m := &mutator{t: t, dir: tree, random: rand.New(rand.NewPCG(4, 4))}

	other := fleet.NewRepo(t)
	started := time.Now()
	other.Backup(tree)
	takes := time.Since(started)
	for round := range 2 {
		kills := 0
		for range 3 {
			backup := repo.Start("backup", tree)
			<-time.After(rand.N(takes * 3 / 4))
			if !backup.Ended() {
				kills++
			}
			backup.Kill()
		}
		before := index.Snapshots()
		all, directories := entries(t, tree)
		made := repo.Backup("--allow-shrink", tree)
		if made.State != "committed" || made.StatCalls != all || made.Directories != directories || made.Errors != 0 {
			t.Errorf("round %d, a tree of %d entries after %d kills: %+v", round, all, kills, made)
		}
		_, resumed := before[made.Snapshot]
		treetest.Equal(t, tree, repo.Restore(made.Snapshot))
		index.CheckSettled()
		orphans := fleet.CheckStore(t, repo.StoreDir(), index)
		t.Logf("round %d: killed %d times, resumed: %v, %d orphans", round, kills, resumed, orphans)
		if round == 0 {
			takes /= 4 // an incremental one is faster
		}
		m.mutate(60)
	}
}

// What was settled before the process died is not walked again: what is new
// there by now is for the next snapshot.
func TestSettledTasksAreNotWalkedAgain(t *testing.T) {
	t.Parallel()
	var repo *fleet.Repo
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 5, shape{directories: 120, files: 40, meanBytes: 100, longNames: true})
	settle(t)
	var index *fleet.Index
	var settled fleet.Work
	for tries := 0; ; tries++ {
		repo = fleet.NewRepo(t)
		index = repo.Index()
		backup := repo.Start("backup", tree)
		fleet.Await(t, "a settled task", func() bool { return backup.Ended() || index.Work().TasksSettled > 0 })
		backup.Pause() // nothing is settled between our look and the kill
		settled = index.Work()
		backup.Kill()
		if settled.State == "running" && settled.TasksSettled < settled.TasksAnnounced {
			break
		}
		if tries == 10 {
			t.Fatalf("the backup was killed too late, again: %+v", settled)
		}
	}

	count := int64(0)
	m := &mutator{t: t, dir: tree}
	m.look()
	for _, directory := range m.dirs {
		if err := os.WriteFile(filepath.Join(directory, "late"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		count++
	}
	resumed := repo.Backup(tree)
	if n := index.Work(); n.TasksSettled < settled.TasksSettled || len(index.Snapshots()) != 1 {
		t.Errorf("it was not resumed: %+v, before %+v", n, settled)
	}
	listed := repo.Must("ls", "--json", "--recursive", "latest").Stdout
	late := int64(strings.Count(listed, `/late"`))
	t.Logf("%d of %d directories were walked before the kill", count-late, count)
	if late == count || late == 0 {
		t.Errorf("%d of %d directories have what came after the kill", late, count)
	}
	if all, _ := entries(t, tree); resumed.StatCalls != all-count+late {
		t.Errorf("%d stat calls, want %d", resumed.StatCalls, all-count+late)
	}
	repo.Backup(tree)
	treetest.Equal(t, tree, repo.Restore("latest"))
}

// An interrupt is no failure: bctl says that the next backup goes on.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 6, shape{directories: 40, files: 30, meanBytes: 20_000, longNames: true})
	index := repo.Index()
	for i, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		backup := repo.Start("backup", tree)
		fleet.Await(t, "a running snapshot", func() bool {
			if i > 0 {
				return backup.Ended() || strings.Contains(backup.Stderr(), "going on with the snapshot")
			}
			return backup.Ended() || index.Work().State == "running"
		})
		backup.Signal(signal)
		out := backup.Wait()
		if out.Status != 130 || !strings.Contains(out.Stderr, "goes on where this one stopped") {
			t.Errorf("after %v: %s", signal, out)
		}
	}
	if made := repo.Backup(tree); made.State != "committed" || len(index.Snapshots()) != 1 {
		t.Errorf("the backup after interrupts: %+v, of snapshots %v", made, index.Snapshots())
	}
	treetest.Equal(t, tree, repo.Restore("latest"))
}
