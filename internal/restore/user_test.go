package restore

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// Without root, owners are not set, which is reported once, and no file of the wrong owner gets
// set-id bits. Locked directories are made accessible and locked again.
func TestWithoutRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	f := newFixture(t)
	locked := f.file("locked", "l")
	locked.Mode = 0
	theirs := f.file("theirs", "t")
	theirs.UID, theirs.GID, theirs.Mode = 12345, 12345, 0o6755
	also := symlink("also-theirs", "x")
	also.UID = 12345
	f.directory("", locked, theirs, also, f.file("mine", "m"), subdirectory("closed"))
	self := entry("", backup.Directory)
	self.Mode = 0
	f.page(backup.Page{Path: "closed", Self: &self, Entries: []backup.Entry{f.file("in", "i")}})
	target := filepath.Join(t.TempDir(), "target")
	for range 2 {
		sum, obs := f.restore(Options{Target: target})
		obs.wantProblems(t, "")
		if sum.OwnersNotSet != 2 || sum.Problems != 1 {
			t.Errorf("%+v", sum)
		}
		wantFile(t, filepath.Join(target, "mine"), "m")
		for name, want := range map[string]uint32{"theirs": 0o755, "locked": 0, "closed": 0} {
			if got := stat(t, filepath.Join(target, name)).Mode & 0o7777; got != want {
				t.Errorf("%s has mode %o, want %o", name, got, want)
			}
		}
		check(t, os.Chmod(filepath.Join(target, "closed"), 0o700))
		wantFile(t, filepath.Join(target, "closed/in"), "i")
		check(t, os.Chmod(filepath.Join(target, "closed"), 0))
	}
	check(t, os.Chmod(filepath.Join(target, "closed"), 0o700)) // otherwise it cannot be removed

	// The mark is also removed if the owner of the target cannot be set.
	f = newFixture(t)
	theirDirectory := entry("", backup.Directory)
	theirDirectory.Mode, theirDirectory.UID = 0o750, 12345
	f.page(backup.Page{Self: &theirDirectory, Entries: []backup.Entry{f.file("mine", "m")}})
	target = filepath.Join(t.TempDir(), "target")
	f.restore(Options{Target: target})
	wantNames(t, target, "mine")
	if st := stat(t, target); st.Mode&0o7777 != 0o750 || st.Mtim.Sec != testTime.Sec {
		t.Errorf("the target has mode %o, time %v", st.Mode&0o7777, st.Mtim)
	}
}

// A target that its owner may not write gets its mode, and the mark is removed from it.
func TestTargetWithoutTheRightToWrite(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	f := newFixture(t)
	self := entry("", backup.Directory)
	self.Mode = 0o555
	f.page(backup.Page{Self: &self, Entries: []backup.Entry{f.file("file", "f")}})
	target := filepath.Join(t.TempDir(), "target")
	t.Cleanup(func() { check(t, os.Chmod(target, 0o700)) }) // otherwise it cannot be removed
	for range 2 {
		_, obs := f.restore(Options{Target: target})
		obs.wantProblems(t)
		wantNames(t, target, "file")
		if st := stat(t, target); st.Mode&0o7777 != 0o555 || st.Mtim.Sec != testTime.Sec {
			t.Errorf("the target has mode %o, time %v", st.Mode&0o7777, st.Mtim)
		}
	}
}

// asNobody runs the calling test again as another user.
func asNobody(t *testing.T) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "bctl-nobody-") //nolint:usetesting // t.TempDir is below a directory that only its user may enter
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	self, err := os.Executable()
	check(t, err)
	data, err := os.ReadFile(self)
	check(t, err)
	binary := filepath.Join(tmp, "test")
	check(t, os.WriteFile(binary, data, 0o755))
	check(t, os.Chmod(tmp, 0o777))
	cmd := exec.Command(binary, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
