package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A person who watches a fleet in trouble sees all of it, on any terminal: a site without workers,
// a filer that hangs, a shard that has failed.
func TestWatchAFleetInTrouble(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1, Worker: "stall_after: 300ms, stop_timeout: 1s"})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 91, some)
	settle(t)
	f.Filer("nas1")
	f.Shard("nas1", filepath.Join(t.TempDir(), "nowhere"))
	if out := f.Run("backup", "--filer", "nas1"); out.Status != 1 {
		t.Fatalf("%s", out)
	}
	f.Filer("far", "--site", "oslo")
	for n := range 12 {
		dir := filepath.Join(t.TempDir(), fmt.Sprintf("a-shard-with-a-long-name-%d", n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		f.Shard("far", dir)
	}
	f.Must("backup", "--filer", "far", "--detach")
	slow := slowfs.Mount(t, tree, slowfs.Options{})
	t.Cleanup(slow.Resume)
	slow.Hang("")
	f.Filer("slow1")
	f.Shard("slow1", slow.Dir)
	f.Must("backup", "--filer", "slow1", "--detach")

	f.Terminal = testenv.NewTerminal(t, 80, 24)
	watch := f.Start("status", "--watch")
	stalled := "slow1: 1 task stalled 0:"
	for _, size := range []struct {
		columns, lines int
		want           []string // in this order
		shards         []string // in any: their snapshots were begun side by side. With --work
	}{
		{80, 24, []string{"MISSING  no walker and no reader at site oslo", "13 running  1 of these stalled", "12 snapshots are only queued (--work lists them)", stalled, "far: 12 tasks wait: no walker and no reader at site oslo", "FAILED  nas1 ", "SNAPSHOT", "stalled"}, nil},
		{40, 12, []string{"MISSING", "13 running", stalled[:20]}, nil},
		{120, 60, []string{"MISSING", stalled, "FAILED", "SNAPSHOT"}, []string{"a-shard-with-a-long-name-0", "a-shard-with-a-long-name-11"}},
	} {
		f.Terminal.Resize(size.columns, size.lines)
		if size.shards != nil {
			watch.Signal(syscall.SIGINT)
			expect(t, watch.Wait(), 0)
			watch = f.Start("status", "--watch", "--work")
		}
		var screen []string
		fleet.Await(t, fmt.Sprintf("a screen of %dx%d with %q", size.columns, size.lines, size.want), func() bool {
			screen = f.Terminal.Screen()
			text := strings.Join(screen, "\n")
			return !watch.Ended() && fits(screen, size.columns, size.lines) && inOrder(text, size.want) &&
				!slices.ContainsFunc(size.shards, func(name string) bool { return !strings.Contains(text, name) })
		})
		t.Logf("%dx%d\n%s", size.columns, size.lines, strings.Join(screen, "\n"))
	}
	watch.Signal(syscall.SIGINT)
	if out := watch.Wait(); out.Status != 0 || out.Stderr != "" {
		t.Errorf("%s", out)
	}
	f.Terminal = nil
	slow.Resume()
	f.Must("cancel", "--filer", "far")
}

// While the index is away, who watches sees so, above what was known last.
func TestWatchWithoutTheIndex(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1, OwnPostgres: true})
	f.Filer("far", "--site", "oslo")
	f.Shard("far", t.TempDir())
	f.Must("backup", "--filer", "far", "--detach")
	f.Terminal = testenv.NewTerminal(t, 80, 24)
	watch := f.Start("status", "--watch")
	shows := func(parts ...string) {
		t.Helper()
		fleet.Await(t, fmt.Sprintf("%q", parts), func() bool {
			return !watch.Ended() && fits(f.Terminal.Screen(), 80, 24) && inOrder(strings.Join(f.Terminal.Screen(), "\n"), parts)
		})
	}
	const away = "MISSING  the index does not answer"
	shows("MISSING  no walker and no reader at site oslo", "1 running", "1 snapshot is only queued", "far: 1 task waits")
	f.Postgres.Kill()
	shows(away, "MISSING  no walker and no reader at site oslo", "1 running", "1 snapshot is only queued", "far: 1 task waits")
	t.Log(strings.Join(f.Terminal.Screen(), "\n"))
	f.Postgres.Restart()
	fleet.Await(t, "the index to be there again", func() bool {
		text := strings.Join(f.Terminal.Screen(), "\n")
		return !strings.Contains(text, away) && strings.Contains(text, "1 running")
	})

	// It hangs: neither queries nor new connections are answered.
	f.Postgres.Pause()
	terminal := f.Terminal
	f.Terminal = nil
	status := f.Start("status")
	f.Terminal = terminal
	shows(away)
	fleet.Await(t, "status to report what it waits for", func() bool { return strings.Contains(status.Stderr(), "the index has not answered yet") })
	f.Postgres.Resume()
	if out := status.Wait(); out.Status != 0 || !strings.Contains(out.Stdout, "far: 1 task waits") {
		t.Errorf("%s", out)
	}
	fleet.Await(t, "the index to be there again", func() bool {
		text := strings.Join(f.Terminal.Screen(), "\n")
		return !strings.Contains(text, away) && strings.Contains(text, "1 running")
	})
	watch.Signal(syscall.SIGINT)
	expect(t, watch.Wait(), 0)
}

func fits(screen []string, columns, lines int) bool {
	if len(screen) == 0 || len(screen) >= lines {
		return false
	}
	for _, line := range screen {
		if utf8.RuneCountInString(line) >= columns {
			return false
		}
	}
	return true
}

func inOrder(text string, parts []string) bool {
	for _, part := range parts {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return true
}
