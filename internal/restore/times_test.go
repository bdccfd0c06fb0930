package restore

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// Times are rounded only if the ctime is, too.
func TestSameMtime(t *testing.T) {
	for _, test := range []struct {
		want, mtime, ctime uint32
		same               bool
	}{
		{123_456_789, 123_456_789, 5, true},
		{123_456_789, 0, 0, true},
		{123_456_789, 0, 5, false},
		{123_456_789, 0, 5_000_000, false},
		{123_456_789, 123_000_000, 5_000_000, true},
		{123_456_789, 123_456_000, 5_000, true},
		{123_456_789, 123_456_700, 500, true},
		{123_456_789, 123_456_700, 501, false},
		{123_456_789, 123_456_800, 500, false},
		{0, 5, 0, false},
		{999_999_999, 0, 0, true},
	} {
		e, have := backup.Entry{Mtime: backup.Time{Sec: 7, Nsec: test.want}}, backup.Entry{Mtime: backup.Time{Sec: 7, Nsec: test.mtime}, Ctime: backup.Time{Sec: 9, Nsec: test.ctime}}
		if got := sameMtime(&e, &have); got != test.same {
			t.Errorf("%+v: %v", test, got)
		}
		have.Mtime.Sec++
		if sameMtime(&e, &have) {
			t.Errorf("%+v: another second is the same", test)
		}
	}
}

// On a file system that stores whole seconds, a second run keeps what the first one restored.
func TestWholeSeconds(t *testing.T) {
	needRoot(t)
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	check(t, os.WriteFile(image, nil, 0o600))
	check(t, os.Truncate(image, 8<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-I", "128", image).CombinedOutput(); err != nil {
		t.Skipf("takes mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("takes a loop device: %v: %s", err, out)
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	f := newFixture(t)
	f.directory("", f.file("file", "content"), f.file("other", "content"), subdirectory("dir"), symlink("link", "file"))
	f.directory("dir", f.file("file", "more"))
	to := filepath.Join(dir, "to")
	f.restore(Options{Target: to})
	if st := stat(t, filepath.Join(to, "file")); st.Mtim.Nsec != 0 {
		t.Skipf("this file system has nanoseconds: %d", st.Mtim.Nsec)
	}
	for range 2 {
		sum, obs := f.restore(Options{Target: to, Overwrite: IfChanged, TargetAttributes: true})
		if sum.Kept != 4 || sum.Files != 0 || sum.Attributes != 0 {
			t.Errorf("%+v %q", sum, obs.actions())
		}
	}
	sum, _ := f.restore(Options{Target: to, Overwrite: IfNewer})
	if sum.Kept != 4 || sum.Files != 0 {
		t.Errorf("if-newer: %+v", sum)
	}
	write(t, filepath.Join(to, "file"), "CONTENT", testTime)
	if sum, _ := f.restore(Options{Target: to, Verify: true}); sum.Files != 1 {
		t.Errorf("--verify: %+v", sum)
	}
	wantFile(t, filepath.Join(to, "file"), "content")
}
