package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

func TestEverythingComesBack(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, everyKind())
	settle(t)
	all, directories := treetest.Count(t, tree)

	first := repo.Backup(tree)
	if first.State != "committed" || first.Files != all-directories || first.Directories != directories || first.Errors != 0 {
		t.Errorf("the first backup of %d entries, %d of them directories: %+v", all, directories, first)
	}
	if first.StatCalls != all {
		t.Errorf("%d stat calls for %d entries", first.StatCalls, all)
	}
	// Of three large files two are the same and the third is nearly so; holes are not read.
	if first.NewBytes > 16<<20 || first.ReadBytes > 32<<20 || first.StoredBytes > 16<<20 {
		t.Errorf("the first backup read, found new and stored too much: %+v", first)
	}
	treetest.Equal(t, tree, repo.Restore("latest"))

	pages, packs := repo.Index().Count("SELECT count(*) FROM pages"), len(repo.Index().Packs())
	second := repo.Backup(tree)
	if second.FilesUnchanged != first.Files || second.ReadBytes != 0 || second.NewBytes != 0 || second.StoredBytes != 0 {
		t.Errorf("a backup of what has not changed: %+v", second)
	}
	if second.StatCalls != all {
		t.Errorf("%d stat calls for %d entries", second.StatCalls, all)
	}
	if n := repo.Index().Count("SELECT count(*) FROM pages"); n != pages {
		t.Errorf("a backup of what has not changed made %d pages of %d", n, pages)
	}
	if n := repo.Index().Count("SELECT count(*) FROM pages WHERE last_snapshot IS NOT NULL"); n != 0 {
		t.Errorf("a backup of what has not changed ended %d pages", n)
	}
	if n := len(repo.Index().Packs()); n != packs {
		t.Errorf("a backup of what has not changed made %d packs of %d", n, packs)
	}
	shown, problems := repo.Show(second.Snapshot)
	if shown.StoredBytes != 0 || shown.StatCalls != all || shown.Base != 1 || shown.Number != 2 || len(problems) > 0 {
		t.Errorf("snapshot show: %+v, problems %v", shown, problems)
	}
	treetest.Equal(t, tree, repo.Restore("latest"))
	repo.Index().CheckSettled()
	if orphans := fleet.CheckStore(t, repo.StoreDir(), repo.Index()); orphans != 0 {
		t.Errorf("%d orphans, though nothing went wrong", orphans)
	}
}

// A directory that was moved is known by its inode: nothing in it is read.
func TestMovedDirectoryIsNotReadAgain(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	generate(t, tree, 3, shape{directories: 20, files: 10, meanBytes: 5000})
	settle(t)
	repo.Backup(tree)
	settle(t)
	if err := os.Rename(filepath.Join(tree, "a03"), filepath.Join(tree, "a04", "moved")); err != nil {
		t.Fatal(err)
	}
	settle(t)
	moved := repo.Backup(tree)
	if moved.ReadBytes != 0 || moved.NewBytes != 0 || moved.StoredBytes != 0 {
		t.Errorf("after a move: %+v", moved)
	}
	treetest.Equal(t, tree, repo.Restore("latest"))
}

// A tree is changed at random between snapshots. Each snapshot has what was there at its time.
func TestRandomChanges(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("E2E_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("E2E_SEED=%d makes the same changes", seed)
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, seed, shape{directories: 30, files: 8, meanBytes: 3000})
	m := &mutator{t: t, dir: tree, random: rand.New(rand.NewPCG(seed, 3))}

	var snapshots, copies []string
	for round := range 6 {
		if round > 0 {
			for _, line := range m.mutate(25) {
				t.Logf("%d: %s", round, line)
			}
		}
		copies = append(copies, copyTree(t, tree))
		all, _ := treetest.Count(t, tree)
		made := repo.Backup("--allow-shrink", tree)
		if made.StatCalls != all || made.Errors != 0 {
			t.Errorf("snapshot %d of %d entries: %+v", round+1, all, made)
		}
		snapshots = append(snapshots, made.Snapshot)
	}
	for i, snapshot := range snapshots {
		treetest.Equal(t, copies[i], repo.Restore(snapshot))
	}
	// From any state to any other, in place.
	target := repo.Restore(snapshots[0])
	for _, i := range m.random.Perm(len(snapshots))[:2] {
		repo.Must("restore", snapshots[i], "--target", target, "--target-attributes", "--delete", "--overwrite", "always")
		treetest.Equal(t, copies[i], target)
	}
	repo.Index().CheckSettled()
	fleet.CheckStore(t, repo.StoreDir(), repo.Index())
}
