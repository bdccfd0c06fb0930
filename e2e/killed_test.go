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
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// After a backup was killed at any moment, the next one is another snapshot, which has the whole
// tree as it is now.
func TestKilledBackupBeginsAgain(t *testing.T) {
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
		all, directories := treetest.Count(t, tree)
		made := repo.Backup("--allow-shrink", tree)
		if made.State != "committed" || made.StatCalls != all || made.Directories != directories || made.Errors != 0 {
			t.Errorf("round %d, a tree of %d entries after %d kills: %+v", round, all, kills, made)
		}
		if _, resumed := before[made.Snapshot]; resumed {
			t.Errorf("round %d: the snapshot was begun before its backup was asked for", round)
		}
		treetest.Equal(t, tree, repo.Restore(made.Snapshot))
		index.CheckSettled()
		orphans := fleet.CheckStore(t, repo.StoreDir(), index)
		t.Logf("round %d: killed %d times, %d orphans", round, kills, orphans)
		if round == 0 {
			takes /= 4 // an incremental one is faster
		}
		m.mutate(60)
	}
}

// The content that a killed backup stored is used: the next backup looks at each entry again, and
// reads no file twice.
func TestWhatAKilledBackupStoredIsUsed(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	var repo *fleet.Repo
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 5, shape{directories: 120, files: 40, meanBytes: 100, longNames: true})
	settle(t)
	all, _ := treetest.Count(t, tree)
	var read int64 // files that the killed backup read
	for tries := 0; read == 0; tries++ {
		if tries == 10 {
			t.Fatal("the backup was killed too late, again")
		}
		repo = fleet.NewRepo(t)
		index := repo.Index()
		backup := repo.Start("backup", tree)
		fleet.Await(t, "a settled batch", func() bool { return backup.Ended() || index.Work().BatchesSettled > 0 })
		backup.Pause() // nothing is settled between our look and the kill
		if index.Work().State == "running" {
			read = index.Count("SELECT count(*) FROM chunks")
		}
		backup.Kill()
	}

	late := 0
	m := &mutator{t: t, dir: tree}
	m.look()
	for _, directory := range m.dirs {
		if err := os.WriteFile(filepath.Join(directory, "late"), []byte("late"), 0o644); err != nil {
			t.Fatal(err)
		}
		late++
	}
	made := repo.Backup(tree)
	if made.StatCalls != all+int64(late) {
		t.Errorf("%d stat calls, want %d", made.StatCalls, all+int64(late))
	}
	listed := repo.Must("ls", "--json", "--recursive", "latest").Stdout
	if n := strings.Count(listed, `/late"`); n != late {
		t.Errorf("%d of %d files that came after the kill are in the snapshot", n, late)
	}
	treetest.Equal(t, tree, repo.Restore("latest"))

	whole := fleet.NewRepo(t).Backup(tree)
	t.Logf("the killed backup read %d files, of %d bytes the next read %d", read, whole.NewBytes, made.NewBytes)
	if made.NewBytes >= whole.NewBytes {
		t.Errorf("the next backup read all %d bytes", made.NewBytes)
	}
}

// An interrupt is no failure: bctl says that the next backup reuses the content that this one has
// stored.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 6, shape{directories: 40, files: 30, meanBytes: 20_000, longNames: true})
	index := repo.Index()
	const what = "reuses the content that this one has stored"
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}
	for i, signal := range signals {
		backup := repo.Start("backup", tree)
		fleet.Await(t, "a running snapshot", func() bool {
			return backup.Ended() || len(index.Snapshots()) == i+1 && index.Work().State == "running"
		})
		backup.Signal(signal)
		out := backup.Wait()
		if out.Status != 130 || !strings.Contains(out.Stderr, what) {
			t.Errorf("after %v: %s", signal, out)
		}
	}
	made := repo.Backup(tree)
	if made.State != "committed" || len(index.Snapshots()) != len(signals)+1 {
		t.Errorf("the backup after interrupts: %+v, of snapshots %v", made, index.Snapshots())
	}
	treetest.Equal(t, tree, repo.Restore("latest"))
}
