package restore

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// withoutFSETID runs the calling test again, as root without CAP_FSETID, as in a container. It is
// false in the process that does so.
func withoutFSETID(t *testing.T) bool {
	t.Helper()
	const env = "BCTL_TEST_WITHOUT_FSETID"
	if os.Getenv(env) != "" {
		return false
	}
	needRoot(t)
	type result struct {
		out []byte
		err error
	}
	self, err := os.Executable()
	check(t, err)
	done := make(chan result)
	go func() {
		// The thread has lost the capability permanently, and ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_FSETID, 0, 0, 0); err != nil {
			done <- result{nil, err}
			return
		}
		cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), env+"=1")
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	r := <-done
	if errors.Is(r.err, unix.EPERM) {
		t.Skip("cannot drop a capability: ", r.err)
	}
	if r.err != nil || !strings.Contains(string(r.out), "--- PASS: "+t.Name()) {
		t.Errorf("without CAP_FSETID: %v\n%s", r.err, r.out)
	}
	return true
}

// chmod(2) clears set-id bits without an error. Each entry that lacks them is named, also if a
// further run finds it that way.
func TestSetIDBitsThatAreNotKept(t *testing.T) {
	if withoutFSETID(t) {
		return
	}
	const group = 12345 // root is not a member of it
	with := func(e backup.Entry, mode, gid uint32) backup.Entry {
		e.Mode, e.GID = mode, gid
		return e
	}
	f := newFixture(t)
	self := with(entry("", backup.Directory), 0o2775, group)
	link1, link2 := with(f.file("link1", "linked"), 0o2755, group), with(f.file("link2", "linked"), 0o2755, group)
	link1.Nlink, link2.Nlink = 2, 2
	f.page(backup.Page{Self: &self, Entries: []backup.Entry{
		with(f.file("both", "b"), 0o6755, group), with(f.file("uid", "u"), 0o4755, group), with(f.file("ours", "o"), 0o6755, 0),
		with(f.file("plain", "p"), 0o755, group), with(f.file("empty", ""), 0o2755, group), with(entry("fifo", backup.FIFO), 0o2644, group),
		link1, link2, subdirectory("dir"), subdirectory("sticky"),
	}})
	f.page(backup.Page{Path: "dir", Self: &self, Entries: []backup.Entry{with(f.file("in", "i"), 0o644, group)}})
	sticky := with(entry("", backup.Directory), 0o1777, group)
	f.page(backup.Page{Path: "sticky", Self: &sticky})
	lacking := []string{"both", "dir", "empty", "fifo", "link1"}

	setgid := filepath.Join(t.TempDir(), "there")
	check(t, os.MkdirAll(filepath.Join(setgid, "dir"), 0o755))
	for _, path := range []string{setgid, filepath.Join(setgid, "dir")} {
		check(t, unix.Chmod(path, 0o2755))
		check(t, os.Chown(path, 0, group))
	}
	for target, lacking := range map[string][]string{
		filepath.Join(t.TempDir(), "new"): append([]string{""}, lacking...), setgid: lacking,
	} {
		for run := range 3 {
			if run > 0 && len(lacking) == 6 {
				lacking = lacking[1:] // now an existing target, which keeps its mode
			}
			_, obs := f.restore(Options{Target: target})
			obs.wantProblems(t, append([]string(nil), lacking...)...)
			obs.wantText(t, "both", "chmod: mode 6755 became 4755")
			obs.wantText(t, "dir", "chmod: mode 2775 became 0775")
			for name, want := range map[string]uint32{"both": 0o4755, "uid": 0o4755, "ours": 0o6755, "plain": 0o755, "dir": 0o775, "sticky": 0o1777, "link2": 0o755} {
				if got := stat(t, filepath.Join(target, name)).Mode & 0o7777; got != want {
					t.Errorf("%s has mode %o, want %o", name, got, want)
				}
			}
			for _, name := range allNames(t, target) {
				if strings.HasPrefix(name, ".bctl-") {
					t.Errorf("%s is left", name)
				}
			}
		}
	}
}

// The kernel replaces times that a file system cannot store, without an error. Each entry whose
// time differs from the snapshot's is named, in each run.
func TestTimesThatAreNotKept(t *testing.T) {
	f := newFixture(t)
	at := func(e backup.Entry, year int) backup.Entry {
		e.Mtime = backup.TimeOf(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
		return e
	}
	var names []backup.Entry
	years := map[string]int{"1800": 1800, "1902": 1902, "1970": 1970, "2039": 2039, "2600": 2600}
	for name, year := range years {
		names = append(names, at(f.file(name, name), year), at(symlink(name+"-link", "x"), year), at(entry(name+"-fifo", backup.FIFO), year), subdirectory(name+"-dir"))
		self := at(entry("", backup.Directory), year)
		self.Mode = 0o755
		f.page(backup.Page{Path: name + "-dir", Self: &self})
	}
	self := at(entry("", backup.Directory), 2600)
	self.Mode = 0o755
	f.page(backup.Page{Self: &self, Entries: names})
	dir := filepath.Join(t.TempDir(), "target")
	for run := range 2 {
		_, obs := f.restore(Options{Target: dir, TargetAttributes: true})
		var wrong []string
		if stat(t, dir).Mtim.Sec != self.Mtime.Sec {
			wrong = append(wrong, "")
		}
		for name, year := range years {
			for _, path := range []string{name, name + "-link", name + "-fifo", name + "-dir"} {
				st := stat(t, filepath.Join(dir, path))
				got := time.Unix(st.Mtim.Unix()).UTC()
				if got.Year() != year {
					wrong = append(wrong, path)
					obs.wantText(t, path, "became "+got.Format("2006-01-02 15:04:05"))
				}
			}
		}
		t.Logf("run %d: %q have other times", run, wrong)
		obs.wantProblems(t, wrong...)
		for _, name := range allNames(t, dir) {
			if strings.HasPrefix(name, ".bctl-") {
				t.Errorf("%s is left", name)
			}
		}
	}
}
