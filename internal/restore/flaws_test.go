package restore

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// Every flag of an entry that differs from what the file server had is one problem, which describes
// what was restored instead.
func TestFlawedFiles(t *testing.T) {
	for _, test := range []struct {
		flags backup.Flags
		says  string
		made  bool
	}{
		{0, "", true},
		{backup.Racy, "", true},
		{backup.Boundary, "", true},
		{backup.Unreadable, "this is its last good copy, from an earlier snapshot", true},
		{backup.ChangedWhileRead, "its content may mix several states", true},
		{backup.XattrsUnreadable, "its extended attributes could not be read", true},
		{backup.XattrsWanted, "its extended attributes could not be read", true},
		{backup.Unreadable | backup.XattrsUnreadable, "from an earlier snapshot; its extended attributes could not be read", true},
		{backup.Unreadable | backup.ContentMissing, "there is no earlier copy of it", false},
		{backup.Wanted, "there is no earlier copy of it", false},
	} {
		for _, content := range []string{"", "content"} {
			f := newFixture(t)
			e := f.file("file", content)
			e.Flags = test.flags
			f.directory("", e, f.file("other", "other"))
			for _, dry := range []bool{true, false} {
				target := filepath.Join(t.TempDir(), "target")
				sum, obs := f.restore(Options{Target: target, DryRun: dry})
				flawed := int64(0)
				if test.says == "" {
					obs.wantProblems(t)
				} else {
					flawed = 1
					obs.wantProblems(t, "file")
					obs.wantText(t, "file", "backup: it")
					obs.wantText(t, "file", test.says)
				}
				if sum.Flawed != flawed || sum.Problems != flawed {
					t.Errorf("flags %#x, dry run %v: %+v", test.flags, dry, sum)
				}
				switch {
				case dry:
					wantNothing(t, target)
				case test.made:
					wantFile(t, filepath.Join(target, "file"), content)
				default:
					wantNames(t, target, "other")
				}
			}
		}
	}
}

// Flawed entries of all kinds are named, each time they are restored, linked, or kept because they
// match. An entry that is kept because of Never is not the snapshot's, and is not named.
func TestFlawedEntriesOfAllKinds(t *testing.T) {
	f := newFixture(t)
	flawed := func(e backup.Entry) backup.Entry {
		e.Flags |= backup.Unreadable
		return e
	}
	a, b := flawed(f.file("a", "linked")), flawed(f.file("b", "linked"))
	a.Nlink, b.Nlink, a.Inode, b.Inode = 2, 2, 9, 9
	f.directory("", flawed(f.file("file", "1")), flawed(symlink("link", "x")), flawed(entry("fifo", backup.FIFO)), a, b)
	target := t.TempDir()
	for range 2 {
		sum, obs := f.restore(Options{Target: target})
		obs.wantProblems(t, "file", "link", "fifo", "a", "b")
		if sum.Flawed != 5 || sum.Problems != 5 {
			t.Errorf("%+v", sum)
		}
	}
	_, obs := f.restore(Options{Target: target, Overwrite: Never})
	obs.wantProblems(t)
	_, obs = f.restore(Options{Target: target, Include: patterns(t, "f*")})
	obs.wantProblems(t, "file", "fifo")
	_, obs = f.restore(Options{Target: target, Path: "file"})
	obs.wantProblems(t, "file")
}

// A file whose content is missing is not created, and an existing one stays, also with Delete.
func TestMissingContentLeavesWhatIsThere(t *testing.T) {
	f := newFixture(t)
	e := f.file("file", "")
	e.Size, e.Flags = 10, backup.Unreadable|backup.ContentMissing
	e.Nlink = 2
	other := e
	other.Name = "name"
	f.directory("", e, other)
	target := t.TempDir()
	write(t, filepath.Join(target, "file"), "theirs", testTime)
	_, obs := f.restore(Options{Target: target, Overwrite: Always, Delete: true})
	obs.wantProblems(t, "file", "name")
	wantNames(t, target, "file")
	wantFile(t, filepath.Join(target, "file"), "theirs")
}

// carriedTree has a directory that could not be read, with the content that an earlier snapshot had
// below it.
func carriedTree(t *testing.T) *fixture {
	f := newFixture(t)
	self := entry("", backup.Directory)
	self.Mode, self.Flags = 0o755, backup.Unreadable
	f.directory("", f.file("file", "1"), subdirectory("carried"), subdirectory("unknown"), subdirectory("read"))
	missing := f.file("missing", "")
	missing.Flags = backup.Unreadable | backup.ContentMissing
	f.page(backup.Page{Path: "carried", Self: &self, Entries: []backup.Entry{f.file("old", "o"), missing, subdirectory("below"), subdirectory("again")}})
	f.directory("carried/below", f.file("deep", "d"))
	f.page(backup.Page{Path: "carried/again", Self: &self, Entries: []backup.Entry{f.file("older", "o")}})
	nothing := backup.Entry{Kind: backup.Directory, Flags: backup.Unreadable | backup.AttributesUnknown}
	f.page(backup.Page{Path: "unknown", Self: &nothing})
	f.directory("read", f.file("new", "n"))
	return f
}

// A directory that vanished before it could be read is named, and not created.
func TestVanishedDirectory(t *testing.T) {
	f := newFixture(t)
	gone := backup.Entry{Kind: backup.Directory, Flags: backup.AttributesUnknown}
	f.directory("", f.file("file", "1"), subdirectory("gone"), subdirectory("there"))
	f.page(backup.Page{Path: "gone", Self: &gone})
	f.directory("there", f.file("x", "x"), subdirectory("gone"))
	f.page(backup.Page{Path: "there/gone", Self: &gone})
	target := filepath.Join(t.TempDir(), "target")
	for range 2 {
		sum, obs := f.restore(Options{Target: target, Delete: true})
		obs.wantProblems(t, "gone", "there/gone")
		obs.wantText(t, "gone", "it vanished, or was replaced")
		if sum.Directories+sum.KeptDirs != 2 || sum.Flawed != 2 {
			t.Errorf("%+v", sum)
		}
		wantNames(t, target, "file", "there")
		wantNames(t, filepath.Join(target, "there"), "x")
	}
}

// A directory that could not be read is named once, at the top. Nothing below it at the target is
// deleted, because the content of the directory is not known.
func TestCarriedDirectories(t *testing.T) {
	f := carriedTree(t)
	target := filepath.Join(t.TempDir(), "target")
	sum, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "carried", "carried/missing", "unknown")
	obs.wantText(t, "carried", "it and everything below it is from an earlier snapshot")
	obs.wantText(t, "unknown", "only its name is known")
	if sum.Flawed != 3 || sum.Problems != 3 {
		t.Errorf("%+v", sum)
	}
	wantFile(t, filepath.Join(target, "carried/again/older"), "o")
	wantNames(t, filepath.Join(target, "unknown"))
	if mode := stat(t, filepath.Join(target, "unknown")).Mode & 0o777; mode != 0o700 {
		t.Errorf("a directory of unknown attributes has mode %o", mode)
	}

	for _, path := range []string{"carried/more", "carried/below/more", "unknown/more", "read/more"} {
		write(t, filepath.Join(target, path), "theirs", testTime)
	}
	dry, dryObs := f.restore(Options{Target: target, Delete: true, DryRun: true})
	sum, obs = f.restore(Options{Target: target, Delete: true})
	obs.wantProblems(t, "carried", "carried/missing", "unknown")
	obs.wantText(t, "carried", "nothing in it is deleted")
	if sum.Deleted != 1 || dry.Deleted != 1 || dry.Problems != 3 || !slices.Contains(dryObs.actions(), "delete read/more") {
		t.Errorf("%+v, in a dry run %+v", sum, dry)
	}
	wantNames(t, filepath.Join(target, "read"), "new")
	for _, path := range []string{"carried/more", "carried/below/more", "unknown/more"} {
		wantFile(t, filepath.Join(target, path), "theirs")
	}
}

// A restore of a part of a directory that could not be read names that directory.
func TestPartOfACarriedDirectory(t *testing.T) {
	f := carriedTree(t)
	for path, problems := range map[string][]string{
		"carried":            {"", "missing"},
		"carried/below":      {""},
		"carried/again":      {""},
		"carried/below/deep": {""},
		"carried/missing":    {"", "missing"},
		"unknown":            {""},
		"read":               nil,
		"read/new":           nil,
	} {
		target := filepath.Join(t.TempDir(), "target")
		sum, obs := f.restore(Options{Target: target, Path: path})
		obs.wantProblems(t, problems...)
		if int(sum.Flawed) != len(problems) {
			t.Errorf("%q: %+v", path, sum)
		}
	}
	target := t.TempDir()
	write(t, filepath.Join(target, "more"), "theirs", testTime)
	_, obs := f.restore(Options{Target: target, Path: "carried/below", Delete: true})
	obs.wantText(t, "", `the directory "/carried" could not be read when the snapshot was taken`)
	wantNames(t, target, "deep", "more")

	f.drop("carried", 0)
	_, obs = f.restore(Options{Target: t.TempDir(), Path: "carried/below"})
	obs.wantText(t, "", "it is not known whether this could be read when the snapshot was taken")
}

// A directory that is not restored is not named. A directory from which only selected files are
// restored is named.
func TestCarriedDirectoriesThatAreNotSelected(t *testing.T) {
	f := carriedTree(t)
	_, obs := f.restore(Options{Target: t.TempDir(), Exclude: patterns(t, "carried", "unknown")})
	obs.wantProblems(t)
	_, obs = f.restore(Options{Target: t.TempDir(), Include: patterns(t, "new")})
	obs.wantProblems(t)
	_, obs = f.restore(Options{Target: t.TempDir(), Include: patterns(t, "deep")})
	obs.wantProblems(t, "carried")
}

// Flaws of directories: their attributes, and attributes that could not be read.
func TestFlawedAttributesOfDirectories(t *testing.T) {
	f := newFixture(t)
	self := entry("", backup.Directory)
	self.Mode, self.Flags = 0o755, backup.XattrsUnreadable
	f.directory("", subdirectory("d"))
	f.page(backup.Page{Path: "d", Self: &self, Entries: []backup.Entry{f.file("in", "i")}})
	target := t.TempDir()
	sum, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "d")
	if sum.Flawed != 1 {
		t.Errorf("%+v", sum)
	}
}

// Attributes that could not be read are no reason to remove attributes at the target.
func TestUnreadableXattrsTakeNothingAway(t *testing.T) {
	f := newFixture(t)
	e := f.file("file", "content")
	e.Flags, e.Xattrs = backup.XattrsUnreadable, []backup.Xattr{xattr("user.a", "1")}
	self := entry("", backup.Directory)
	self.Mode, self.Flags = 0o755, backup.XattrsUnreadable
	f.directory("", e, subdirectory("d"))
	f.page(backup.Page{Path: "d", Self: &self})
	target := t.TempDir()
	f.restore(Options{Target: target})
	for _, path := range []string{"file", "d"} {
		setXattr(t, filepath.Join(target, path), "user.theirs", "x")
	}
	setXattr(t, filepath.Join(target, "file"), "user.a", "2")
	f.restore(Options{Target: target})
	wantXattr(t, filepath.Join(target, "file"), "user.a", "1")
	wantXattr(t, filepath.Join(target, "file"), "user.theirs", "x")
	wantXattr(t, filepath.Join(target, "d"), "user.theirs", "x")
}
