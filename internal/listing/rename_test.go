package listing

import (
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// An unchanged file keeps its class, and one that is to be read is told what was there.
func TestClasses(t *testing.T) {
	file := func(name string, size int64, f backup.Flags) backup.Entry {
		return backup.Entry{Name: name, Kind: backup.File, Size: size, Inode: 7, Mtime: backup.Time{Sec: 1}, Flags: f}
	}
	class := func(c backup.Class) backup.Flags { return backup.Flags(0).WithClass(c) }
	old := []backup.Entry{
		file("a", 1, class(backup.Opaque)), file("b", 1, class(backup.Typed)), file("c", 1, backup.Flags(0).WithEarlier(backup.SameName, backup.Typed)),
		{Name: "d", Kind: backup.Symlink}, file("e", 1, backup.Flags(0).WithEarlier(backup.SameName, backup.Typed)),
	}
	now := []backup.Entry{file("a", 1, 0), file("b", 2, 0), file("c", 2, 0), file("d", 1, 0), file("e", 1, 0)}
	TakeOver(0, false, now, old, nil, nil)
	if now[0].Flags != class(backup.Opaque) {
		t.Errorf("flags %b of an unchanged file", now[0].Flags)
	}
	for i, want := range map[int]backup.Flags{
		1: backup.Wanted.WithEarlier(backup.SameName, backup.Typed),
		2: backup.Wanted.WithEarlier(backup.SameName, backup.Unclassified), // an older reader has left it
		3: backup.Wanted.WithEarlier(backup.NoneEarlier, backup.Unclassified),
		4: 0,
	} {
		if now[i].Flags != want {
			t.Errorf("%s: flags %b, want %b", now[i].Name, now[i].Flags, want)
		}
	}
	var counts backup.Counts
	left := []backup.Entry{file("b", 2, class(backup.Opaque))}
	TakeContent(0, now, left, &counts)
	if now[1].Flags != class(backup.Opaque) || counts != (backup.Counts{FilesJudged: 1, TypesLost: 1, FilesOpaque: 1}) {
		t.Errorf("flags %b of what an interrupted snapshot has, counts %+v", now[1].Flags, counts)
	}
}

func TestRename(t *testing.T) {
	type want struct {
		earlier backup.Earlier
		was     backup.Class
	}
	wanted := func(name string, inode uint64) backup.Entry {
		return backup.Entry{Name: name, Kind: backup.File, Inode: inode, Flags: backup.Wanted.WithEarlier(backup.NoneEarlier, 0)}
	}
	for name, c := range map[string]struct {
		entries []backup.Entry
		gone    []Gone
		want    []want
		left    int
	}{
		"by inode":         {[]backup.Entry{wanted("x", 5)}, []Gone{{"a", 4, backup.Plain}, {"b", 5, backup.Typed}}, []want{{backup.OtherName, backup.Typed}}, 1},
		"inodes first":     {[]backup.Entry{wanted("a.x", 1), wanted("b", 2)}, []Gone{{"a.doc", 2, backup.Typed}, {"a.c", 3, backup.Plain}}, []want{{backup.OtherName, backup.Plain}, {backup.OtherName, backup.Typed}}, 0},
		"no inode":         {[]backup.Entry{wanted("x", 0)}, []Gone{{"a", 0, backup.Unclassified}}, []want{{backup.NoneEarlier, 0}}, 1},
		"another ending":   {[]backup.Entry{wanted("a.doc.x", 1)}, []Gone{{"a.doc", 2, backup.Unclassified}}, []want{{backup.OtherName, backup.Unclassified}}, 0},
		"instead of it":    {[]backup.Entry{wanted("a.x", 1)}, []Gone{{"a.doc", 2, backup.Typed}}, []want{{backup.OtherName, backup.Typed}}, 0},
		"each name once":   {[]backup.Entry{wanted("a.x", 1), wanted("a.y", 1)}, []Gone{{"a.doc", 2, backup.Typed}}, []want{{backup.OtherName, backup.Typed}, {backup.NoneEarlier, 0}}, 0},
		"hidden":           {[]backup.Entry{wanted(".x", 1)}, []Gone{{".y", 2, backup.Unclassified}}, []want{{backup.NoneEarlier, 0}}, 1},
		"any order":        {[]backup.Entry{wanted("x", 1), wanted("y", 1)}, []Gone{{"a", 2, 0}, {"b", 3, backup.Typed}}, []want{{backup.SameName, backup.Typed}, {backup.NoneEarlier, 0}}, 1},
		"nothing is new":   {[]backup.Entry{{Name: "x", Kind: backup.File, Inode: 5}}, []Gone{{"a", 5, backup.Typed}}, []want{{backup.NotCompared, 0}}, 1},
		"it was there too": {[]backup.Entry{{Name: "x", Inode: 5, Flags: backup.Wanted.WithEarlier(backup.SameName, backup.Opaque)}}, []Gone{{"a", 5, backup.Typed}}, []want{{backup.SameName, backup.Opaque}}, 1},
	} {
		left := Rename(c.entries, c.gone)
		for i := range c.entries {
			if e, was := c.entries[i].Flags.Earlier(); (want{e, was}) != c.want[i] {
				t.Errorf("%s: %s has %d, %d, want %+v", name, c.entries[i].Name, e, was, c.want[i])
			}
		}
		if len(left) != c.left {
			t.Errorf("%s: left %+v", name, left)
		}
	}
}
