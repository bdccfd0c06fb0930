package restore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/hardlink"
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
				e.Nlink, e.Inode, e.Ctime, e.Btime = 4, 99, ctime, backup.Time{Sec: 1_500_000_000}
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

// A mount may begin or cease to report birth times. A name without one is a name of the file whose
// other names have one, in whatever order they are restored. Different birth times are those of
// different files. The same content proves that they are one file, or the same ctime.
func TestBirthTimesThatAreUnknown(t *testing.T) {
	for _, test := range []struct {
		births string // of a, b, c …; "-": unknown
		groups []string
	}{
		{"--", []string{"a b"}},
		{"1-", []string{"a b"}},
		{"-1", []string{"a b"}},
		{"1-1", []string{"a b c"}},
		{"-1-1", []string{"a b c d"}},
		{"1--1", []string{"a b c d"}},
		{"12", []string{"a", "b"}},
		{"1212", []string{"a c", "b d"}},
		{"-12", []string{"a b", "c"}},
		{"1-2", []string{"a b", "c"}},
		{"12-", []string{"a c", "b"}},
		{"1-212", []string{"a b d", "c e"}},
	} {
		for _, by := range []string{"content", "ctime"} {
			t.Run(test.births+" "+by, func(t *testing.T) {
				f := newFixture(t)
				var entries []backup.Entry
				for i, birth := range test.births {
					e := f.file(string(rune('a'+i)), "\x00\x00data")
					e.Nlink, e.Inode = uint32(len(test.births)), 99
					e.Ctime = backup.Time{Sec: 1_600_000_000, Nsec: 5}
					switch {
					case by == "content":
						e.Ctime.Sec += int64(i)
					case i%2 == 1: // holes differ
						e.Content.Refs = []backup.Ref{f.chunk([]byte("data"), 2)}
					}
					if e.Btime = (backup.Time{}); birth != '-' {
						e.Btime.Sec = int64(birth)
					}
					entries = append(entries, e)
				}
				f.directory("", entries...)
				target := t.TempDir()
				for range 2 { // into a new target, and again
					f.restore(Options{Target: target})
					wantGroups(t, target, test.groups...)
					check(t, os.Remove(filepath.Join(target, "b")))
				}
			})
		}
	}
}

// Groups of which all names were seen are forgotten, with all their keys.
func TestGroupsAreForgotten(t *testing.T) {
	var l linkGroups
	keys := []hardlink.Key{{1}, {2}, {3}}
	for i := range keys {
		f := &file{dir: &directory{}, e: backup.Entry{Nlink: uint32(len(keys))}}
		if further := l.join([]hardlink.Key{keys[i], keys[(i+1)%len(keys)]}, f); further != (i > 0) {
			t.Errorf("name %d: further is %v", i, further)
		}
	}
	if len(l.groups) != 0 || l.number != 0 {
		t.Errorf("%d keys of %d groups are left", len(l.groups), l.number)
	}
}
