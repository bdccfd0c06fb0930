package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A backup of what has not changed stats each entry once, by the kernel's
// count, and opens no file.
func TestOneStatAnEntry(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is not installed (Debian: apt-get install strace)")
	}
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 60, shape{directories: 100, files: 30, meanBytes: 10})
	settle(t)
	repo.Backup(tree)
	empty := t.TempDir()
	repo.Backup(empty)
	all, directories := treetest.Count(t, tree)

	// The calls that bctl makes for its own files are the same for an empty tree.
	own := traced(t, repo, strace, empty)
	calls := traced(t, repo, strace, tree)
	more := func(names ...string) (n int64) {
		for _, name := range names {
			n += calls[name] - own[name]
		}
		return n
	}
	// A slow machine divides the walk into more tasks, and each looks at the shard's root.
	looks, tasks := more("fstatfs"), more("fstatfs")/looksPerTask
	if n := more("statx"); n != all-1+looks {
		t.Errorf("%d stat calls for %d entries and %d looks at the root; %v, without entries %v", n, all-1, looks, calls, own)
	}
	// How often SQLite looks at its own files depends on how long the backup takes. One look per
	// directory would show.
	slack := 100 + 20*tasks
	if slack >= directories+20*tasks {
		t.Fatalf("%d directories are too few to tell from SQLite's calls", directories)
	}
	if n := more("stat", "lstat", "fstat", "newfstatat"); n > slack {
		t.Errorf("%d stat calls of other kinds; %v, without entries %v", n, calls, own)
	}
	if n := more("openat2"); n != directories-1+tasks {
		t.Errorf("%d opens for %d directories in %d more tasks; %v, without entries %v", n, directories-1, tasks, calls, own)
	}
	if n := more("open", "openat", "read", "pread64", "preadv2"); n > slack {
		t.Errorf("%d calls that open or read files; %v, without entries %v", n, calls, own)
	}
	t.Logf("%d entries in %d directories: %v; an empty directory: %v", all, directories, calls, own)
}

// looksPerTask is how often a walk task looks at its shard's root, each time
// with one fstatfs: when it opens it, before it believes that something is
// gone, and before it sends its result.
const looksPerTask = 3

// traced returns how often a backup makes each system call on files.
func traced(t *testing.T, repo *fleet.Repo, strace, tree string) map[string]int64 {
	t.Helper()
	counts := filepath.Join(t.TempDir(), "counts")
	client := *repo.Client
	client.Under = []string{strace, "-c", "-f", "-o", counts, "-e", "trace=%file,%desc"}
	client.Must("backup", tree)
	return readCounts(t, counts)
}

// readCounts reads what strace -c has written.
func readCounts(t *testing.T, path string) map[string]int64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		// % time, seconds, usecs/call, calls, errors (if any), syscall
		if fields := strings.Fields(line); len(fields) >= 5 {
			if n, err := strconv.ParseInt(fields[3], 10, 64); err == nil {
				calls[fields[len(fields)-1]] = n
			}
		}
	}
	return calls
}
