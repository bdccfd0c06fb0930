package drill

import (
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A name is compared with the names before it, on the file systems of the shard.
func TestLinks(t *testing.T) {
	page := func(path string, flags backup.Flags) *backup.Page {
		return &backup.Page{Path: path, Self: &backup.Entry{Kind: backup.Directory, Flags: flags}}
	}
	was := func(inode uint64, mode uint32) *backup.Entry {
		return &backup.Entry{Kind: backup.File, Inode: inode, Mode: mode, Nlink: 2}
	}
	one := func(inode uint64) *backup.Entry { return &backup.Entry{Kind: backup.File, Inode: inode, Nlink: 1} }
	is := func(inode uint64, names uint32) *backup.Entry {
		return &backup.Entry{Kind: backup.File, Device: 1, Inode: inode, Nlink: names}
	}
	var l links
	l.enter(page("", 0))
	for _, test := range []struct {
		dir     *backup.Page // entered before
		path    string
		was, is *backup.Entry
		want    linkDifference
		other   string
	}{
		{nil, "a", was(1, 0o644), is(100, 2), linksAgree, ""},
		{nil, "b", was(1, 0o644), is(100, 2), linksAgree, "a"},
		{nil, "c", was(1, 0o644), is(101, 1), linksAgree, ""}, // a and b were all names
		{nil, "d", was(2, 0o644), is(100, 3), isShared, "a"},
		{nil, "e", was(3, 0o644), is(102, 1), linksAgree, ""},
		{nil, "f", was(3, 0o600), is(103, 1), linksAgree, ""}, // another state
		{nil, "g", was(3, 0o644), is(104, 1), isCopy, "e"},
		{nil, "h", one(5), is(105, 2), linksAgree, ""},
		{nil, "i", one(6), is(105, 2), isShared, "h"},
		{nil, "j", was(7, 0o644), is(106, 1), linksAgree, ""},
		// The number of an inode on another file system means another file.
		{page("mnt", backup.Boundary), "mnt/j", was(7, 0o644), is(107, 1), linksAgree, ""},
		{page("mnt/sub", 0), "mnt/sub/j", was(7, 0o644), is(108, 1), isCopy, "mnt/j"},
		{page("other", 0), "other/j", was(7, 0o644), is(109, 1), isCopy, "j"},
	} {
		if test.dir != nil {
			l.enter(test.dir)
		}
		what, other := l.compare(test.path, test.was, test.is)
		if what != test.want || what != linksAgree && other != test.other {
			t.Errorf("%s: %v of %q, want %v of %q", test.path, what, other, test.want, test.other)
		}
	}
}

// The memory of a comparison is bounded.
func TestLinksAreBounded(t *testing.T) {
	var l links
	l.enter(&backup.Page{Self: &backup.Entry{}})
	for i := range uint64(maxLinked + 10) {
		e := backup.Entry{Kind: backup.File, Inode: i, Nlink: 2}
		if what, _ := l.compare("x", &e, &e); what != linksAgree {
			t.Fatal(i, what)
		}
	}
	if len(l.have) != 10 || len(l.first) != 10 {
		t.Errorf("%d, %d are remembered", len(l.have), len(l.first))
	}
}
