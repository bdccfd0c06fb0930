package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// In a fleet in which each role has only its own rights, the admin alone can purge nothing. With
// the access of a committer and the pruner to the store, the admin removes a file from all
// snapshots. The operator sees that, and restores the rest.
func TestPurgeByTheAdmin(t *testing.T) {
	t.Parallel()
	f := fleet.NewLocked(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 7, spread)
	name := filepath.Join(tree, "secret.txt")
	if err := os.WriteFile(name, []byte("nobody may read this"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Filer("filer")
	f.Shard("filer", tree)
	first := f.Backup("--filer", "filer", "--shard", tree)
	second := f.Backup("--filer", "filer", "--shard", tree)

	args := []string{"purge", "--path", "secret.txt", "--reason", "request 4711", "--yes"}
	if out := f.Run(args...); out.Status == 0 || !strings.Contains(out.Stderr, "--committer") {
		t.Fatalf("an operator purges: %s", out)
	}
	f.GiveKeys("committer")
	admin := f.As("admin")
	lent := []string{"--committer", f.Settings("committer"), "--pruner", f.Settings("pruner")}
	if out := admin.Run(append(args, lent[:2]...)...); out.Status == 0 {
		t.Fatalf("nobody may delete, and yet it purges: %s", out)
	}
	if out := f.Must("status"); !strings.Contains(out.Stdout, "purge of filer") {
		t.Errorf("the operator does not see the purge: %s", out)
	}
	out := admin.Must(append([]string{"purge", "--resume"}, lent...)...)
	if !strings.Contains(out.Stdout, "the rest is neither in the index nor in the store") {
		t.Errorf("%s", out)
	}
	if out := f.Must("status"); strings.Contains(out.Stdout, "purge") {
		t.Errorf("the purge is complete, and the operator sees: %s", out)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	third := f.Backup("--filer", "filer", "--shard", tree)
	treetest.Equal(t, tree, f.Restore(third.Snapshot))
	f.Must("forget", first.Snapshot)
	unneeded := append([]string{"purge", "--unneeded", "--reason", "request 4712", "--yes"}, lent...)
	if out := f.Run(unneeded...); out.Status == 0 {
		t.Fatalf("an operator purges: %s", out)
	}
	if out := admin.Must(unneeded...); !strings.Contains(out.Stdout, "what no snapshot needs is neither in the index nor in the store") {
		t.Errorf("%s", out)
	}
	if _, err := os.Lstat(filepath.Join(f.Restore(second.Snapshot), "secret.txt")); err == nil {
		t.Errorf("snapshot %s still has the file", second.Snapshot)
	}
}
