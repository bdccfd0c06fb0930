//go:build linux

package slowfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/slowfs"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func lstat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return st
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited a minute for %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func TestShowsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a/file", "content")
	if err := errors.Join(os.Link(dir+"/a/file", dir+"/a/link"), os.Symlink("../a/file", dir+"/a/symlink"), unix.Mkfifo(dir+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	f := slowfs.Mount(t, dir, slowfs.Options{})
	for _, path := range []string{".", "a", "a/file", "a/link", "a/symlink", "fifo"} {
		was, shown := lstat(t, filepath.Join(dir, path)), lstat(t, filepath.Join(f.Dir, path))
		shown.Dev, shown.Atim = was.Dev, was.Atim
		if was != shown {
			t.Errorf("%s is %+v and shown as %+v", path, was, shown)
		}
	}
	if content, err := os.ReadFile(f.Dir + "/a/symlink"); err != nil || string(content) != "content" {
		t.Errorf("read through a symlink: %q, %v", content, err)
	}
	if err := os.WriteFile(f.Dir+"/new", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: %v", err)
	}
	// A change that is made past the file system is visible at once.
	write(t, dir+"/a/file", "more content")
	if st := lstat(t, f.Dir+"/a/file"); st.Size != int64(len("more content")) {
		t.Errorf("size %d after a write", st.Size)
	}
	if err := os.Remove(dir + "/a/symlink"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(f.Dir + "/a/symlink"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("lstat of what was removed: %v", err)
	}
}

func TestListsALargeDirectoryInPages(t *testing.T) {
	dir := t.TempDir()
	for i := range 1000 {
		write(t, fmt.Sprintf("%s/%s%04d", dir, strings.Repeat("x", i%200), i), "")
	}
	f := slowfs.Mount(t, dir, slowfs.Options{})
	if want, got := names(t, dir), names(t, f.Dir); !slices.Equal(want, got) {
		t.Errorf("%d names, and %d are shown", len(want), len(got))
	}
	if pages := f.Counters().Lists; pages < 4 {
		t.Errorf("listed in %d pages", pages)
	}
}

func TestFindsHolesAndData(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(dir + "/sparse")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte("data"), 1<<20); err != nil {
		t.Fatal(err)
	}
	want, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_DATA)
	if err != nil || want == 0 {
		t.Skip("the file system of the temporary directory has no holes")
	}
	shown, err := os.Open(slowfs.Mount(t, dir, slowfs.Options{}).Dir + "/sparse")
	if err != nil {
		t.Fatal(err)
	}
	defer shown.Close()
	if got, err := unix.Seek(int(shown.Fd()), 0, unix.SEEK_DATA); err != nil || got != want {
		t.Errorf("data begins at %d, and is shown at %d: %v", want, got, err)
	}
}

func TestEveryStatIsARequest(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		write(t, fmt.Sprintf("%s/%d", dir, i), "content")
	}
	for _, timeout := range []time.Duration{0, time.Hour} {
		f := slowfs.Mount(t, dir, slowfs.Options{AttrTimeout: timeout})
		root, err := os.Open(f.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		for range 3 {
			before := f.Counters()
			for i := range 10 {
				var st unix.Stat_t
				if err := unix.Fstatat(int(root.Fd()), fmt.Sprint(i), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					t.Fatal(err)
				}
			}
			after := f.Counters()
			if n := after.Stats - before.Stats; n != 10 {
				t.Errorf("10 stats were %d requests: %+v", n, after)
			}
			if n := after.Getattrs - before.Getattrs; timeout != 0 && n != 0 {
				t.Errorf("%d GETATTRs although attributes may be kept", n)
			}
		}
	}
}

func TestCountsOpensAndReads(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "content")
	f := slowfs.Mount(t, dir, slowfs.Options{})
	for range 2 {
		if _, err := os.ReadFile(f.Dir + "/file"); err != nil {
			t.Fatal(err)
		}
	}
	if c := f.Counters(); c.Opens != 2 || c.Reads < 2 || c.ReadBytes != 2*int64(len("content")) || c.Lists != 0 {
		t.Errorf("%+v", c)
	}
}

func TestRequestsTakeTheirTime(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "content")
	f := slowfs.Mount(t, dir, slowfs.Options{})
	const latency = 20 * time.Millisecond
	for name, test := range map[string]struct {
		latency slowfs.Latency
		do      func() error
	}{
		"stat": {slowfs.Latency{Stat: latency}, func() error { _, err := os.Lstat(f.Dir + "/file"); return err }},
		"open": {slowfs.Latency{Open: latency}, func() error {
			file, err := os.Open(f.Dir + "/file")
			if err != nil {
				return err
			}
			return file.Close()
		}},
		"read": {slowfs.Latency{Read: latency}, func() error { _, err := os.ReadFile(f.Dir + "/file"); return err }},
		"list": {slowfs.Latency{List: latency}, func() error { _, err := os.ReadDir(f.Dir); return err }},
	} {
		f.SetLatency(test.latency)
		start := time.Now()
		if err := test.do(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < latency {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func TestServesSoManyAtATime(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "content")
	const latency, asked = 5 * time.Millisecond, 24
	f := slowfs.Mount(t, dir, slowfs.Options{Latency: slowfs.Latency{Stat: latency}})
	for _, parallel := range []int{2, 8} {
		f.SetParallel(parallel)
		f.Peak()
		start := time.Now()
		var clients sync.WaitGroup
		for range asked {
			clients.Go(func() {
				if _, err := os.Lstat(f.Dir + "/file"); err != nil {
					t.Error(err)
				}
			})
		}
		clients.Wait()
		if took := time.Since(start); took < asked/time.Duration(parallel)*latency {
			t.Errorf("%d requests, %d at a time: took %v", asked, parallel, took)
		}
		if peak := f.Peak(); peak < 1 || peak > asked {
			t.Errorf("%d were under way at once", peak)
		}
	}
}

// stat returns what a process of its own says of a path.
func stat(t *testing.T, path string) (p *exec.Cmd, ended chan error) {
	t.Helper()
	p, ended = exec.Command("stat", "--", path), make(chan error, 1)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- p.Wait() }()
	return p, ended
}

func TestHangs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/dead/file", "")
	write(t, dir+"/deadline", "")
	f := slowfs.Mount(t, dir, slowfs.Options{})
	f.Hang("dead")
	before := f.Counters().Stats
	_, ended := stat(t, f.Dir+"/dead/file")
	await(t, "the request", func() bool { return f.Counters().Stats > before })
	lstat(t, f.Dir+"/deadline") // its name only begins like that
	select {
	case err := <-ended:
		t.Fatalf("an answer from a filer that hangs: %v", err)
	default:
	}
	f.Resume()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	lstat(t, f.Dir+"/dead/file")
}

func TestWhoWaitsCanBeKilled(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "")
	f := slowfs.Mount(t, dir, slowfs.Options{})
	f.Hang("")
	before := f.Counters().Stats
	waiting, ended := stat(t, f.Dir+"/file")
	await(t, "the request", func() bool { return f.Counters().Stats > before })
	// The kernel reports the first signal. The process may have ended before the second one.
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := waiting.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil {
		t.Error("an answer from a filer that hangs")
	}
}

func TestUnmountsWhileItHangs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "")
	var ended chan error
	t.Run("mounted", func(t *testing.T) {
		f := slowfs.Mount(t, dir, slowfs.Options{})
		held, err := os.Open(f.Dir + "/file")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { held.Close() })
		f.Hang("")
		before := f.Counters().Stats
		_, ended = stat(t, f.Dir+"/file")
		await(t, "the request", func() bool { return f.Counters().Stats > before })
	})
	if ended == nil {
		t.Skip("not mounted")
	}
	if err := <-ended; err == nil {
		t.Error("an answer from a filer that hangs")
	}
}

func TestSnapshotsComeRotateAndGo(t *testing.T) {
	live, monday, tuesday := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, live+"/file", "live")
	write(t, monday+"/file", "monday")
	write(t, tuesday+"/file", "tuesday")
	f := slowfs.Mount(t, live, slowfs.Options{})
	if _, err := os.Lstat(f.Dir + "/.snapshot"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf(".snapshot without a snapshot: %v", err)
	}
	if err := f.AddSnapshot("hourly.0", monday); err != nil {
		t.Fatal(err)
	}
	if list := names(t, f.Dir); !slices.Equal(list, []string{"file"}) {
		t.Errorf("the root has %q", list)
	}
	held, err := os.Open(f.Dir + "/.snapshot/hourly.0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()

	if err := errors.Join(f.RenameSnapshot("hourly.0", "hourly.1"), f.AddSnapshot("hourly.0", tuesday)); err != nil {
		t.Fatal(err)
	}
	if list := names(t, f.Dir+"/.snapshot"); !slices.Equal(list, []string{"hourly.0", "hourly.1"}) {
		t.Errorf(".snapshot has %q", list)
	}
	if was, shown := lstat(t, tuesday), lstat(t, f.Dir+"/.snapshot/hourly.0"); was.Ino != shown.Ino || was.Ctim != shown.Ctim {
		t.Errorf("%+v is shown as %+v", was, shown)
	}
	for path, want := range map[string]string{
		f.Dir + "/.snapshot/hourly.0/file":              "tuesday",
		f.Dir + "/.snapshot/hourly.1/file":              "monday",
		f.Dir + "/file":                                 "live",
		fmt.Sprintf("/proc/self/fd/%d/file", held.Fd()): "monday",
	} {
		if content, err := os.ReadFile(path); err != nil || string(content) != want {
			t.Errorf("%s: %q, %v; want %q", path, content, err, want)
		}
	}

	if err := f.RemoveSnapshot("hourly.1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(f.Dir + "/.snapshot/hourly.1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("lstat of a snapshot that is gone: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(held.Fd()), "file", &st, 0); err != unix.ESTALE {
		t.Errorf("stat in a snapshot that is gone: %v", err)
	}
	if _, err := held.ReadDir(-1); !errors.Is(err, unix.ESTALE) {
		t.Errorf("list a snapshot that is gone: %v", err)
	}
	if f.AddSnapshot("hourly.0", monday) == nil || f.RemoveSnapshot("hourly.1") == nil || f.RenameSnapshot("hourly.1", "x") == nil {
		t.Error("snapshots that are there, or are not, were not told apart")
	}
	f.Hang(".snapshot/hourly.0")
	lstat(t, f.Dir+"/file")
	before := f.Counters().Stats
	_, ended := stat(t, f.Dir+"/.snapshot/hourly.0/file")
	await(t, "the request", func() bool { return f.Counters().Stats > before+1 })
	f.Resume()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestADescriptorStaysWithItsFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a/file", "first")
	f := slowfs.Mount(t, dir, slowfs.Options{})
	held, err := os.Open(f.Dir + "/a")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := os.Rename(dir+"/a", dir+"/b"); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/a/file", "second")
	var st unix.Stat_t
	if err := unix.Fstatat(int(held.Fd()), "file", &st, 0); err != unix.ESTALE {
		t.Errorf("stat in a directory that another has replaced: %v, inode %d", err, st.Ino)
	}
	lstat(t, f.Dir+"/b") // found again under its new name
	if err := unix.Fstatat(int(held.Fd()), "file", &st, 0); err != nil || st.Size != int64(len("first")) {
		t.Errorf("stat in a directory that was moved: %v, %d bytes", err, st.Size)
	}
	for path, want := range map[string]string{"/a/file": "second", "/b/file": "first"} {
		file, err := os.Open(f.Dir + path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if content, err := io.ReadAll(file); err != nil || string(content) != want {
			t.Errorf("%s: %q, %v; want %q", path, content, err, want)
		}
	}
}

func TestXattrs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "")
	if err := unix.Setxattr(dir+"/file", "user.test", []byte("value"), 0); err != nil {
		t.Skipf("the file system of the temporary directory: %v", err)
	}
	value := make([]byte, 100)
	with := slowfs.Mount(t, dir, slowfs.Options{Xattrs: true})
	if n, err := unix.Lgetxattr(with.Dir+"/file", "user.test", value); err != nil || string(value[:n]) != "value" {
		t.Errorf("%q, %v", value[:max(n, 0)], err)
	}
	if n, err := unix.Llistxattr(with.Dir+"/file", value); err != nil || !strings.Contains(string(value[:n]), "user.test\x00") {
		t.Errorf("%q, %v", value[:max(n, 0)], err)
	}
	without := slowfs.Mount(t, dir, slowfs.Options{})
	for range 2 {
		if _, err := unix.Lgetxattr(without.Dir+"/file", "user.test", value); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%v", err)
		}
	}
	if n := without.Counters().Xattrs; n != 0 {
		t.Errorf("%d requests for what there is not", n)
	}
}
