package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/bench/profile"
	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// These limits are the cost of a backup of an unchanged tree, per entry, beyond the cost of one of
// an empty tree. A change that exceeds one of these makes bctl slower where there are millions of
// files: make it cheaper, or say in docs/decisions why not. (Rows and messages:
// TestCostOfASnapshot. Stats, opens and reads: TestOneStatAnEntry.)
const (
	maxAllocationsPerEntry    = 0.8
	maxAllocatedBytesPerEntry = 220
	maxCallsPerEntry          = 1.15 // on files and descriptors: one stat per entry, and what opens and lists directories of 50
	// A walk is divided by time as well: a slow machine has more tasks, and
	// writes to the index for each of them.
	maxCallsPerTask = 100
)

// The machine's speed matters to the number of tasks alone, which is counted.
func TestUnchangedCounts(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 61, shape{directories: 200, files: 50, meanBytes: 10})
	settle(t)
	empty := t.TempDir()
	program := plainProgram(t)
	for _, dir := range []string{tree, empty} {
		repo.Backup(dir)
	}
	all, directories := treetest.Count(t, tree)

	// backup runs the plain program, under another one, and lets that write to a file.
	backup := func(dir string, under []string, more ...string) {
		t.Helper()
		args := append(append(under, program, "backup", dir), more...)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "BCTL_REPO="+repo.Dir, "HOME="+repo.Home, profile.EveryAllocation)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	allocations := func(dir string) (objects, bytes float64) {
		t.Helper()
		out := filepath.Join(t.TempDir(), "allocations")
		backup(dir, nil, "--memprofile", out)
		n, size, err := profile.Allocations(t.Context(), out)
		if err != nil {
			t.Fatal(err)
		}
		return float64(n), float64(size)
	}
	objects, bytes := allocations(tree)
	ownObjects, ownBytes := allocations(empty)
	perEntry := (objects - ownObjects) / float64(all)
	bytesPerEntry := (bytes - ownBytes) / float64(all)
	t.Logf("%d entries in %d directories: %.2f allocations, %.0f bytes each; without entries %.0f, %.0f bytes", all, directories, perEntry, bytesPerEntry, ownObjects, ownBytes)
	if perEntry > maxAllocationsPerEntry || bytesPerEntry > maxAllocatedBytesPerEntry {
		t.Errorf("%.2f allocations and %.0f bytes an entry, want at most %v and %v", perEntry, bytesPerEntry, maxAllocationsPerEntry, maxAllocatedBytesPerEntry)
	}

	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is not installed (Debian: apt-get install strace)")
	}
	count := func(dir string) map[string]int64 {
		t.Helper()
		out := filepath.Join(t.TempDir(), "calls")
		backup(dir, []string{strace, "-c", "-f", "-o", out, "-e", "trace=%file,%desc"})
		return readCounts(t, out)
	}
	own, calls := count(empty), count(tree)
	more := int64(0)
	for name, n := range calls {
		switch name {
		case "total": // strace's last line
		case "epoll_pwait": // how often there was something to wait for
		default:
			more += n - own[name]
		}
	}
	tasks := (calls["fstatfs"] - own["fstatfs"]) / looksPerTask
	callsPerEntry := float64(more-tasks*maxCallsPerTask) / float64(all)
	t.Logf("%.3f system calls per entry, with %d more tasks: %v; without entries %v", callsPerEntry, tasks, calls, own)
	if callsPerEntry > maxCallsPerEntry {
		t.Errorf("%.3f system calls per entry, want at most %v: %v; without entries %v", callsPerEntry, maxCallsPerEntry, calls, own)
	}
}

// plainProgram builds bctl as it is shipped: with the race detector pools forget, and more is
// allocated.
func plainProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bctl")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", path, "./services/bctl")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build bctl: %v\n%s", err, output)
	}
	return path
}
