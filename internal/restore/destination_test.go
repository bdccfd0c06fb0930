package restore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// aTarget creates a directory with attributes of its own.
func aTarget(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "target")
	check(t, os.Mkdir(dir, 0o755))
	setXattr(t, dir, "user.theirs", "x")
	check(t, os.Chown(dir, 1000, 2000))
	check(t, unix.Chmod(dir, 0o1777))
	check(t, os.Chtimes(dir, time.Time{}, time.Unix(1_500_000_000, 5)))
	return dir
}

func wantTarget(t *testing.T, dir string, mode, uid uint32, mtime time.Time, ours, theirs string) {
	t.Helper()
	st := stat(t, dir)
	if st.Mode&0o7777 != mode || st.Uid != uid || !time.Unix(st.Mtim.Unix()).Equal(mtime) {
		t.Errorf("%s has mode %o, owner %d, time %v; want %o, %d, %v", dir, st.Mode&0o7777, st.Uid, time.Unix(st.Mtim.Unix()).UTC(), mode, uid, mtime.UTC())
	}
	wantXattr(t, dir, "user.ours", ours)
	wantXattr(t, dir, "user.theirs", theirs)
}

// destinationTree is a snapshot whose root has attributes of its own.
func destinationTree(t *testing.T) *fixture {
	f := newFixture(t)
	self := entry("", backup.Directory)
	self.Mode, self.UID, self.Xattrs = 0o700, 42, []backup.Xattr{xattr("user.ours", "y")}
	f.page(backup.Page{Self: &self, Entries: []backup.Entry{f.file("file", "content"), subdirectory("d")}})
	f.page(backup.Page{Path: "d", Self: &self, Entries: []backup.Entry{f.file("in", "i")}})
	return f
}

// Unless TargetAttributes is set, an existing target keeps its attributes, with all other options.
func TestTargetThatWasThere(t *testing.T) {
	needRoot(t)
	f := destinationTree(t)
	f.newPack()
	for what, test := range map[string]struct {
		o       Options
		changed bool
	}{
		"a snapshot":                       {Options{}, false},
		"a directory":                      {Options{Path: "d"}, false},
		"a file":                           {Options{Path: "d/in"}, false},
		"a file, with attributes":          {Options{Path: "d/in", TargetAttributes: true}, false},
		"never":                            {Options{Overwrite: Never}, false},
		"always":                           {Options{Overwrite: Always}, false},
		"delete":                           {Options{Delete: true}, false},
		"delete in a dry run":              {Options{Delete: true, DryRun: true, TargetAttributes: true}, false},
		"attributes":                       {Options{TargetAttributes: true}, true},
		"attributes of a directory":        {Options{Path: "d", TargetAttributes: true}, true},
		"attributes, but never":            {Options{TargetAttributes: true, Overwrite: Never}, false},
		"attributes, of which none is new": {Options{TargetAttributes: true, Overwrite: Always}, true},
	} {
		t.Run(what, func(t *testing.T) {
			dir := aTarget(t)
			tree(t, dir, "more")
			check(t, os.Chtimes(dir, time.Time{}, time.Unix(1_500_000_000, 5)))
			for range 2 {
				test.o.Target = dir
				_, obs := f.restore(test.o)
				obs.wantProblems(t)
				if test.changed {
					wantTarget(t, dir, 0o700, 42, testTime.Time(), "y", "")
				} else {
					wantTarget(t, dir, 0o1777, 1000, time.Unix(1_500_000_000, 5), "", "x")
				}
			}
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		dir := aTarget(t)
		f.interrupt(t, Options{Target: dir})
		wantTarget(t, dir, 0o1777, 1000, time.Unix(1_500_000_000, 5), "", "x")
	})
}

// interrupt restores until the first file is finished.
func (f *fixture) interrupt(t *testing.T, o Options) {
	t.Helper()
	f.newPack()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Snapshot = f.snapshot
	_, err := Restore(ctx, f.deps(), o, &observer{onChange: func(Change) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
}

// A target that a restore has created gets the attributes of the snapshot, even if that restore was
// interrupted and another one has finished it.
func TestTargetThatIsMade(t *testing.T) {
	needRoot(t)
	for _, next := range []Options{{}, {Delete: true}, {Overwrite: Always}, {Overwrite: Never}} {
		f := destinationTree(t)
		made := filepath.Join(t.TempDir(), "a", "target")
		next.Target = made
		f.restore(next)
		wantTarget(t, made, 0o700, 42, testTime.Time(), "y", "")
		wantNames(t, made, "file", "d")

		interrupted := filepath.Join(t.TempDir(), "target")
		next.Target = interrupted
		f.interrupt(t, next)
		f.interrupt(t, Options{Target: interrupted, Overwrite: Always})
		dry := next
		dry.DryRun = true
		_, obs := f.restore(dry)
		if got := obs.deleted(); len(got) > 0 {
			t.Errorf("a dry run would do %q", got)
		}
		sum, obs := f.restore(next)
		obs.wantProblems(t)
		if sum.Deleted != 0 {
			t.Errorf("%+v: %q", sum, obs.actions())
		}
		wantTarget(t, interrupted, 0o700, 42, testTime.Time(), "y", "")
		wantNames(t, interrupted, "file", "d")

		// From here on, it counts as an existing target.
		check(t, os.Chmod(interrupted, 0o751))
		f.restore(next)
		wantTarget(t, interrupted, 0o751, 42, testTime.Time(), "y", "")
	}
}

// The restore that continues may be of a later snapshot, or of another directory of it. A restore
// of a single file in between changes nothing.
func TestAnotherSnapshotGoesOn(t *testing.T) {
	needRoot(t)
	f := destinationTree(t)
	dir := filepath.Join(t.TempDir(), "target")
	f.interrupt(t, Options{Target: dir})
	f.restore(Options{Target: dir, Path: "d/in"})
	f.snapshot = backup.NewSnapshotID()
	sum, obs := f.restore(Options{Target: dir, Path: "d", Delete: true})
	obs.wantProblems(t)
	if sum.Deleted != int64(len(obs.deleted())) {
		t.Errorf("%+v: %q", sum, obs.actions())
	}
	wantTarget(t, dir, 0o700, 42, testTime.Time(), "y", "")
	wantNames(t, dir, "in")
}

// If a target is backed up during a restore, its snapshot contains the mark, as a file or as
// anything else.
func TestMarkInTheSnapshot(t *testing.T) {
	needRoot(t)
	f := destinationTree(t)
	interrupted := filepath.Join(t.TempDir(), "target")
	f.interrupt(t, Options{Target: interrupted})
	mark := markIn(t, interrupted)
	self := entry("", backup.Directory)
	self.Mode = 0o751
	for _, e := range []backup.Entry{f.file(mark, ""), f.file(mark, "content"), symlink(mark, "x"), subdirectory(mark)} {
		f := *f
		f.pages = nil
		f.page(backup.Page{Self: &self, Entries: []backup.Entry{e, f.file("file", "content")}})
		if e.Kind == backup.Directory {
			f.directory(mark, f.file("in", "i"))
		}
		dir := filepath.Join(t.TempDir(), "target")
		for range 2 {
			_, obs := f.restore(Options{Target: dir, Delete: true})
			obs.wantProblems(t)
			wantNames(t, dir, mark, "file")
			if st := stat(t, dir); st.Mode&0o7777 != 0o751 || st.Mtim.Sec != testTime.Sec {
				t.Errorf("%v: the target has mode %o, time %v", e.Kind, st.Mode&0o7777, st.Mtim)
			}
		}
	}
}

// A restore of a single file gives the target no attributes.
func TestTargetThatIsMadeForAFile(t *testing.T) {
	f := destinationTree(t)
	dir := filepath.Join(t.TempDir(), "target")
	f.restore(Options{Target: dir, Path: "file"})
	wantNames(t, dir, "file")
	if mode := stat(t, dir).Mode & 0o7777; mode != 0o700 {
		t.Errorf("mode %o", mode)
	}
}

// If attributes of the target could not be set, the next restore sets them.
func TestAttributesOfTheTargetThatFail(t *testing.T) {
	needRoot(t)
	f := destinationTree(t)
	dir := filepath.Join(t.TempDir(), "target")
	fails := func(c target.Call, _ string, _ bool) error {
		if c == target.CallSetXattr {
			return unix.EIO
		}
		return nil
	}
	_, obs := f.restore(Options{Target: dir, fault: fails})
	obs.wantProblems(t, "", "d")
	_, obs = f.restore(Options{Target: dir, Delete: true})
	obs.wantProblems(t)
	wantTarget(t, dir, 0o700, 42, testTime.Time(), "y", "")
	wantNames(t, dir, "file", "d")
}

// markIn returns the name of the mark in a target.
func markIn(t *testing.T, dir string) string {
	t.Helper()
	for _, name := range allNames(t, dir) {
		if target.IsMark(name) {
			return name
		}
	}
	t.Fatal("an interrupted restore has left no mark")
	return ""
}

// A user who may write to the target cannot make a restore change the target's attributes.
func TestPlantedMark(t *testing.T) {
	needRoot(t)
	f := destinationTree(t)
	interrupted := filepath.Join(t.TempDir(), "target")
	f.interrupt(t, Options{Target: interrupted})
	mark := markIn(t, interrupted)
	for what, plant := range map[string]func(path string) error{
		"another user's": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 1000, 0)) },
		"a symlink":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a directory":    func(path string) error { return os.Mkdir(path, 0o755) },
		"not empty":      func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a name of a file": func(path string) error {
			return errors.Join(os.WriteFile(path+"x", nil, 0o600), os.Link(path+"x", path))
		},
	} {
		dir := aTarget(t)
		check(t, plant(filepath.Join(dir, mark)))
		check(t, os.Chtimes(dir, time.Time{}, time.Unix(1_500_000_000, 5)))
		f.restore(Options{Target: dir})
		if st := stat(t, dir); st.Mode&0o7777 != 0o1777 || st.Uid != 1000 {
			t.Errorf("%s: the target has mode %o, owner %d", what, st.Mode&0o7777, st.Uid)
		}
	}
}

// A target that is not accessible to its owner is made accessible for the restore, and locked
// again.
func TestLockedTarget(t *testing.T) {
	f := destinationTree(t)
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o500))
	f.restore(Options{Target: dir, Path: "d"})
	wantNames(t, dir, "in")
	if mode := stat(t, dir).Mode & 0o7777; mode != 0o500 {
		t.Errorf("mode %o", mode)
	}
	check(t, os.Chmod(dir, 0o700))
}
