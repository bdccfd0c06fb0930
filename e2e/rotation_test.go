package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// While a backup runs, every identity and server gets a new certificate and key, the old
// generations are retired, and then the authority itself is rotated and retired. The backup goes
// on, walkers without a restart; what it has stored is restored equal; and what was retired is of
// no use.
func TestRotationDuringABackup(t *testing.T) {
	t.Parallel()
	f := fleet.NewLocked(t, fleet.Options{})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 7, shape{directories: 20, files: 12, meanBytes: 128 << 10})
	f.Filer("filer", "--read-rate", "2MB")
	f.Shard("filer", tree)
	before := filepath.Join(t.TempDir(), "machines")
	copyTo(t, f.Machines, before)

	running, _ := f.StartBackupOf("--filer", "filer", "--shard", tree)
	fleet.Await(t, "files read", func() bool { return f.Index.Work().BatchesSettled > 0 })
	f.Must("deploy", "rotate", f.Installation)
	f.ServersTakeOver()
	f.Distribute()
	f.Replace(f.Readers, f.Committers) // they take the new key of the store
	f.Must("deploy", "retire", f.Installation)
	f.ServersTakeOver()
	if running.Ended() {
		t.Fatalf("the backup has not lasted long enough to see the rotation: %s", running.Wait())
	}
	f.Must("filer", "set", "filer", "--read-rate", "0")
	if out := running.Wait(); out.Status != 0 {
		t.Fatalf("%s", out)
	}
	treetest.Equal(t, tree, f.Restore("latest"))

	old := *f.Client
	old.Env = append(append([]string{}, f.Env...), "BCTL_CONFIG="+filepath.Join(before, "operator", "bctl.yaml"))
	if out := old.Run("status"); out.Status != 1 || !strings.Contains(out.Stderr, "certificate") {
		t.Errorf("a retired operator is not refused: %s", out)
	}
	rotateAuthority(t, f, tree)
}

// rotateAuthority goes through what docs/deploy.md says, with a backup at each step.
func rotateAuthority(t *testing.T, f *fleet.Fleet, tree string) {
	t.Helper()
	backup := func(change string) {
		if err := os.WriteFile(filepath.Join(tree, "change"), []byte(change), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Backup("--filer", "filer", "--shard", tree)
	}
	f.Must("deploy", "rotate", f.Installation, "ca")
	f.ServersTakeOver()
	f.Distribute()
	f.Replace(f.Readers, f.Committers)
	backup("both are trusted")
	if out := f.Run("deploy", "retire", f.Installation, "ca"); out.Status != 1 || !strings.Contains(out.Stderr, "rotate them") {
		t.Errorf("an authority is retired that signed what is in use: %s", out)
	}
	f.Must("deploy", "rotate", f.Installation)
	f.ServersTakeOver()
	f.S3.Restart()
	f.Distribute()
	f.Replace(f.Readers, f.Committers)
	backup("all are of the new one")
	f.Must("deploy", "retire", f.Installation)
	f.Must("deploy", "retire", f.Installation, "ca")
	f.ServersTakeOver()
	f.Distribute()
	backup("the old one is retired")
	treetest.Equal(t, tree, f.Restore("latest"))
}
