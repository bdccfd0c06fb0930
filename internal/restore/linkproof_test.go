package restore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// The backup's view of a file with holes depends on what the file server has in its cache. Names
// with one ctime are nevertheless one file, but only if the ctime proves it.
func TestNamesOfTheSameCtime(t *testing.T) {
	ctime := backup.Time{Sec: 1_600_000_000, Nsec: 5}
	for what, test := range map[string]struct {
		change  func(e *backup.Entry) // of b and c
		compare backup.Compare
		apart   bool
	}{
		"equal":                {change: func(*backup.Entry) {}},
		"ctime is compared":    {change: func(*backup.Entry) {}, compare: backup.CompareCtime},
		"ctime isn't compared": {change: func(*backup.Entry) {}, compare: backup.CompareMtime | backup.CompareInode, apart: true},
		"another ctime":        {change: func(e *backup.Entry) { e.Ctime.Nsec++ }, apart: true},
		"another second":       {change: func(e *backup.Entry) { e.Ctime.Sec++ }, apart: true},
		"no ctime":             {change: func(e *backup.Entry) { e.Ctime = backup.Time{} }, apart: true},
		"racy":                 {change: func(e *backup.Entry) { e.Flags |= backup.Racy }, apart: true},
		"an earlier copy":      {change: func(e *backup.Entry) { e.Flags |= backup.Unreadable }, apart: true},
		"changed while read":   {change: func(e *backup.Entry) { e.Flags |= backup.ChangedWhileRead }, apart: true},
		"xattrs not read":      {change: func(e *backup.Entry) { e.Flags |= backup.XattrsUnreadable }, apart: true},
		"another inode":        {change: func(e *backup.Entry) { e.Inode++ }, apart: true},
		"another size":         {change: func(e *backup.Entry) { e.Size++ }, apart: true},
		"another mode":         {change: func(e *backup.Entry) { e.Mode = 0o600 }, apart: true},
		"another mtime":        {change: func(e *backup.Entry) { e.Mtime.Nsec++ }, apart: true},
		"another birth":        {change: func(e *backup.Entry) { e.Btime.Sec++ }, apart: true},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			var entries []backup.Entry
			for _, name := range []string{"a", "b", "c", "d"} {
				e := f.file(name, "\x00\x00data")
				e.Nlink, e.Inode, e.Ctime = 4, 99, ctime
				if name == "b" || name == "c" { // with a hole at which the others have zeros
					e.Content.Refs = []backup.Ref{f.chunk([]byte("data"), 2)}
					test.change(&e)
				}
				entries = append(entries, e)
			}
			f.directory("", entries...)
			target := t.TempDir()
			for range 2 { // into a new target, and again
				f.restore(Options{Target: target, Compare: test.compare})
				if test.apart {
					wantGroups(t, target, "a d", "b c")
				} else {
					wantGroups(t, target, "a b c d")
				}
				for _, name := range []string{"a", "b", "c", "d"} {
					if what != "another size" {
						wantFile(t, filepath.Join(target, name), "\x00\x00data")
					}
				}
				check(t, os.Remove(filepath.Join(target, "c")))
			}
		})
	}
}

// Names whose ctimes are in whole seconds, as on file systems that store no others, are compared by
// their content.
func TestNamesOfTheSameCoarseCtime(t *testing.T) {
	f := newFixture(t)
	one, other := f.file("a", "content"), f.file("b", "CONTENT")
	for _, e := range []*backup.Entry{&one, &other} {
		e.Nlink, e.Inode, e.Ctime = 2, 99, backup.Time{Sec: 1_600_000_000}
	}
	f.directory("", one, other)
	target := t.TempDir()
	f.restore(Options{Target: target})
	wantGroups(t, target, "a", "b")
	wantFile(t, filepath.Join(target, "b"), "CONTENT")
}

// A name may be matched by its ctime, and match another by its content.
func TestNamesThatAgreeWithDifferentOnes(t *testing.T) {
	f := newFixture(t)
	ctime := backup.Time{Sec: 1_600_000_000, Nsec: 5}
	var entries []backup.Entry
	for _, name := range []string{"a", "b", "c"} {
		e := f.file(name, "\x00\x00data")
		e.Nlink, e.Inode, e.Ctime = 3, 99, ctime
		if name != "a" {
			e.Content.Refs = []backup.Ref{f.chunk([]byte("data"), 2)}
		}
		if name == "c" {
			e.Ctime.Sec++
		}
		entries = append(entries, e)
	}
	f.directory("", entries...)
	target := t.TempDir()
	f.restore(Options{Target: target})
	wantGroups(t, target, "a b c")
}

// Groups of which all names were seen are forgotten, with all their keys.
func TestGroupsAreForgotten(t *testing.T) {
	var l linkGroups
	keys := []linkKey{{1}, {2}, {3}}
	for i := range keys {
		f := &file{dir: &directory{}, e: backup.Entry{Nlink: uint32(len(keys))}}
		if further := l.join([]linkKey{keys[i], keys[(i+1)%len(keys)]}, f); further != (i > 0) {
			t.Errorf("name %d: further is %v", i, further)
		}
	}
	if len(l.groups) != 0 || l.number != 0 {
		t.Errorf("%d keys of %d groups are left", len(l.groups), l.number)
	}
}
