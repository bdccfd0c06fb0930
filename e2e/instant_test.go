package e2e_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// An instant is a target that bctl restore --instant is about to restore into.
type instant struct {
	*testing.T
	repo     *fleet.Repo
	snapshot string
	target   string
	running  *fleet.Running
	held     *os.File // keeps the mount from becoming a plain directory
}

func newInstant(t *testing.T, repo *fleet.Repo, snapshot string) *instant {
	t.Helper()
	needFUSE(t)
	i := &instant{T: t, repo: repo, snapshot: snapshot, target: filepath.Join(t.TempDir(), "target")}
	t.Cleanup(func() {
		i.release()
		for syscall.Unmount(i.target, syscall.MNT_DETACH) == nil {
		}
		_ = syscall.Unmount(filepath.Join(i.target, ".bctl-instant/view"), syscall.MNT_DETACH)
	})
	return i
}

// start starts the restore, and waits until the target can be used. It is false if the restore has
// ended by then.
func (i *instant) start() bool {
	i.Helper()
	i.running = i.repo.Start("restore", i.snapshot, "--target", i.target, "--instant", "--json")
	fleet.Await(i, "the mount", func() bool { return strings.Contains(i.running.Stdout(), `"mounted"`) || i.running.Ended() })
	held, err := os.Open(i.target)
	if err != nil {
		i.Fatal(err)
	}
	i.held = held
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(held.Fd()), &st); err != nil {
		i.Fatal(err)
	}
	return st.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// release lets the mount become a plain directory.
func (i *instant) release() {
	if i.held != nil {
		_ = i.held.Close()
	}
	i.held = nil
}

// finish waits for the end, whose status is 0.
func (i *instant) finish() {
	i.Helper()
	i.release()
	if out := i.running.Wait(); out.Status != 0 {
		i.Fatalf("status %d: %s%s", out.Status, out.Stdout, out.Stderr)
	}
	i.plain()
}

// plain checks that nothing is mounted at the target, and that nothing is left of the work.
func (i *instant) plain() {
	i.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(i.target)) {
		i.Fatalf("something is mounted at the target (%v): %s", err, mounts)
	}
	if _, err := os.Lstat(filepath.Join(i.target, ".bctl-instant")); !os.IsNotExist(err) {
		i.Fatalf("the work's directory is left: %v", err)
	}
}

// The tree can be used while it is restored. At the end, it is what an ordinary restore makes.
func TestInstantRestore(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	treetest.Make(t, tree, everyKind())
	generate(t, tree, 7, shape{directories: 30, files: 20, meanBytes: 20000})
	snapshot := repo.Backup(tree).Snapshot
	i := newInstant(t, repo, snapshot)
	i.start()
	// ctimes, birth times and inode numbers aside, the mount shows what was backed up.
	if output, err := exec.Command("diff", "-r", "--no-dereference", "-x", "special", tree, i.target).CombinedOutput(); err != nil && !bytes.Contains(output, []byte("is a fifo")) && !bytes.Contains(output, []byte("is a socket")) {
		t.Errorf("%v: %s", err, output)
	}
	i.finish()
	treetest.Equal(t, tree, i.target)
	treetest.Equal(t, repo.Restore(snapshot), i.target)
}

// Users read, write, rename and delete while the restore runs, is killed, and runs again. At the
// end, the target has what they saw.
func TestInstantRestoreIsUsed(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	treetest.Make(t, tree, treetest.Tree{"links/a": treetest.File("linked"), "links/b": treetest.HardLink("links/a")})
	generate(t, tree, 8, shape{directories: 60, files: 40, meanBytes: 20000})
	snapshot := repo.Backup(tree).Snapshot
	for _, kills := range []int{0, 1, 3} {
		seed := rand.Uint64()
		t.Logf("seed %d, %d kills", seed, kills)
		i := newInstant(t, repo, snapshot)
		m := &mutator{t: t, dir: i.target, random: rand.New(rand.NewPCG(seed, 1))}
		for k := range kills + 1 {
			mounted := i.start()
			m.mutate(40)
			if !mounted {
				t.Logf("the restore was faster than kill %d", k)
				break
			}
			if k < kills {
				i.release()
				i.running.Kill()
			}
		}
		seen := copyTree(t, i.target)
		i.finish()
		for _, difference := range treetest.Compare(seen, i.target) {
			// Numbers of inodes may change in an overlay. cp then takes a hard link for a copy.
			if !strings.Contains(difference, ": hard link of ") {
				t.Errorf("seed %d, %d kills: %s", seed, kills, difference)
			}
		}
	}
}

// While the store is away, the restore waits, and names are shown.
func TestInstantRestoreWithoutAStore(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 9, shape{directories: 40, files: 40, meanBytes: 50000})
	snapshot := repo.Backup(tree).Snapshot
	i := newInstant(t, repo, snapshot)
	i.start()
	away := repo.StoreDir() + ".away"
	if err := os.Rename(repo.StoreDir(), away); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(i.target, "a0*/b*/c*/f*"))
	if err != nil || len(names) == 0 {
		t.Fatalf("the mount has no names while the store is away: %v", err)
	}
	if err := os.WriteFile(filepath.Join(i.target, "new"), []byte("new"), 0o600); err != nil {
		t.Error(err)
	}
	if err := os.Rename(away, repo.StoreDir()); err != nil {
		t.Fatal(err)
	}
	i.finish()
	if err := os.Remove(filepath.Join(i.target, "new")); err != nil {
		t.Error(err)
	}
	treetest.Equal(t, tree, i.target, treetest.DirectoryTimes)
}
