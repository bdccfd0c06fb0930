package listing

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// twoFiles is a page whose fingerprint the tests below change.
func twoFiles() (self *backup.Entry, entries []backup.Entry) {
	self = &backup.Entry{Kind: backup.Directory, Mode: 0o755, Inode: 2, Ctime: backup.Time{Sec: 99}}
	return self, []backup.Entry{
		{Name: "a", Kind: backup.File, Mode: 0o644, Inode: 3, Size: 5},
		{Name: "d", Kind: backup.Directory, Inode: 4},
		{Name: "l", Kind: backup.Symlink, Mode: 0o777, Inode: 5, Target: "a"},
	}
}

func TestFingerprintSeesWhatMatters(t *testing.T) {
	self, entries := twoFiles()
	f := NewFingerprinter()
	seenBefore := map[backup.Fingerprint]string{f.Of(0, self, entries, 7): "nothing"}
	for name, change := range map[string]func(self *backup.Entry, e []backup.Entry) []backup.Entry{
		"name":                    func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Name = "b"; return e },
		"kind":                    func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Kind = backup.FIFO; return e },
		"mode":                    func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Mode = 0o600; return e },
		"uid":                     func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].UID = 1; return e },
		"gid":                     func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].GID = 1; return e },
		"nlink":                   func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Nlink = 2; return e },
		"size":                    func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Size = 6; return e },
		"mtime":                   func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Mtime.Sec = 1; return e },
		"mtime nanoseconds":       func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Mtime.Nsec = 1; return e },
		"ctime":                   func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Ctime.Sec = 1; return e },
		"ctime nanoseconds":       func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Ctime.Nsec = 1; return e },
		"inode":                   func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Inode = 9; return e },
		"rdev":                    func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Rdev = 1; return e },
		"target":                  func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[2].Target = "d"; return e },
		"directory's inode":       func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[1].Inode = 9; return e },
		"one less":                func(_ *backup.Entry, e []backup.Entry) []backup.Entry { return e[:2] },
		"none":                    func(_ *backup.Entry, _ []backup.Entry) []backup.Entry { return nil },
		"self's mode":             func(self *backup.Entry, e []backup.Entry) []backup.Entry { self.Mode = 0o700; return e },
		"self's ctime":            func(self *backup.Entry, e []backup.Entry) []backup.Entry { self.Ctime.Sec = 1; return e },
		"self's inode":            func(self *backup.Entry, e []backup.Entry) []backup.Entry { self.Inode = 9; return e },
		"directory's file system": func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[1].Flags |= backup.Boundary; return e },
		"self's file system":      func(self *backup.Entry, e []backup.Entry) []backup.Entry { self.Flags |= backup.Boundary; return e },
		"file's file system":      func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Flags |= backup.Boundary; return e },
		"names run together":      func(_ *backup.Entry, e []backup.Entry) []backup.Entry { e[0].Name = "a\x01"; return e },
	} {
		self, entries := twoFiles()
		fp := f.Of(0, self, change(self, entries), 7)
		if other, ok := seenBefore[fp]; ok {
			t.Errorf("a change of %s gives the fingerprint of a change of %s", name, other)
		}
		seenBefore[fp] = name
	}
	if _, ok := seenBefore[f.Of(0, nil, entries, 7)]; ok {
		t.Error("without self the fingerprint is one of those with it")
	}
	for _, next := range []backup.PageKey{0, 8, 7 << 8} {
		if _, ok := seenBefore[f.Of(0, self, entries, next)]; ok {
			t.Errorf("the page that follows does not show: %d", next)
		}
	}
}

func TestFingerprintSeesNothingElse(t *testing.T) {
	self, entries := twoFiles()
	f := NewFingerprinter()
	want := f.Of(0, self, entries, 7)
	for name, change := range map[string]func(e *backup.Entry){
		"flags":       func(e *backup.Entry) { e.Flags = ^backup.Boundary },
		"birth time":  func(e *backup.Entry) { e.Btime = backup.Time{Sec: 5, Nsec: 6} },
		"device":      func(e *backup.Entry) { e.Device = 9 },
		"xattrs":      func(e *backup.Entry) { e.Xattrs = []backup.Xattr{{Name: "user.a"}} },
		"xattr chunk": func(e *backup.Entry) { e.XattrChunk.Length = 5 },
		"content":     func(e *backup.Entry) { e.Content.Refs = make([]backup.Ref, 1) },
	} {
		self, entries := twoFiles()
		change(self)
		change(&entries[0])
		if f.Of(0, self, entries, 7) != want {
			t.Errorf("a change of %s changes the fingerprint", name)
		}
	}
	// The attributes in a subdirectory's own first page do not matter in its parent.
	entries[1].Mode, entries[1].Mtime.Sec, entries[1].Nlink, entries[1].Size = 0o700, 5, 9, 4096
	if f.Of(0, self, entries, 7) != want {
		t.Error("a subdirectory's attributes change its parent's fingerprint")
	}
}

// A different fingerprint for the same page would cause every unchanged file to be compared again.
func TestFingerprintNeverChanges(t *testing.T) {
	self, entries := twoFiles()
	const want = "7b559faef7eb534b9fc8347408f3018c"
	if got := NewFingerprinter().Of(0, self, entries, 7); hex.EncodeToString(got[:]) != want {
		t.Errorf("fingerprint %x, and it was %s", got, want)
	}
}

// A fingerprint ignores attributes that are not compared, except the inode of an entry with several
// links.
func TestFingerprintOfCompare(t *testing.T) {
	changes := map[string]func(self *backup.Entry, e []backup.Entry){
		"mtime":             func(_ *backup.Entry, e []backup.Entry) { e[0].Mtime = backup.Time{Sec: 1, Nsec: 1} },
		"ctime":             func(_ *backup.Entry, e []backup.Entry) { e[0].Ctime = backup.Time{Sec: 1, Nsec: 1} },
		"inode":             func(_ *backup.Entry, e []backup.Entry) { e[0].Inode = 9 },
		"directory's inode": func(_ *backup.Entry, e []backup.Entry) { e[1].Inode = 9 },
		"self's inode":      func(self *backup.Entry, _ []backup.Entry) { self.Inode, self.Nlink = 9, 2 },
		"link's inode":      func(_ *backup.Entry, e []backup.Entry) { e[3].Inode = 9 },
		"size":              func(_ *backup.Entry, e []backup.Entry) { e[0].Size = 9 },
		"mode":              func(_ *backup.Entry, e []backup.Entry) { e[0].Mode = 0 },
		"kind":              func(_ *backup.Entry, e []backup.Entry) { e[0].Kind = backup.FIFO },
	}
	always := []string{"link's inode", "size", "mode", "kind"}
	page := func() (*backup.Entry, []backup.Entry) {
		self, entries := twoFiles()
		self.Nlink = 2
		return self, append(entries, backup.Entry{Name: "z", Kind: backup.File, Nlink: 2, Inode: 6})
	}
	f := NewFingerprinter()
	all := map[backup.Fingerprint]backup.Compare{}
	for by, seen := range map[backup.Compare][]string{
		backup.CompareMtime:                      {"mtime"},
		backup.CompareCtime:                      {"ctime"},
		backup.CompareAll &^ backup.CompareInode: {"mtime", "ctime"},
		backup.CompareAll &^ backup.CompareCtime: {"mtime", "inode", "directory's inode", "self's inode"},
		0:                                        {"mtime", "ctime", "inode", "directory's inode", "self's inode"},
	} {
		self, entries := page()
		want := f.Of(by, self, entries, 7)
		if other, twice := all[want]; twice {
			t.Errorf("%v and %v give the same fingerprint", by, other)
		}
		all[want] = by
		for name, change := range changes {
			self, entries := page()
			change(self, entries)
			if got := f.Of(by, self, entries, 7) != want; got != (slices.Contains(seen, name) || slices.Contains(always, name)) {
				t.Errorf("%v: a change of %s shows: %v", by, name, got)
			}
		}
	}
	self, entries := page()
	if f.Of(0, self, entries, 7) != f.Of(backup.CompareAll, self, entries, 7) {
		t.Error("to compare all is another fingerprint if it is said")
	}
	const want = "bc34b7e35c13223b37e662ff29f97def"
	if got := f.Of(backup.CompareMtime, self, entries, 7); hex.EncodeToString(got[:]) != want {
		t.Errorf("fingerprint by mtime %x, and it was %s", got, want)
	}
}

func TestFingerprintAllocatesNothing(t *testing.T) {
	entries := files(1000)
	f := NewFingerprinter()
	f.Of(0, nil, entries, 7)
	if n := testing.AllocsPerRun(50, func() { f.Of(0, nil, entries, 7) }); n != 0 {
		t.Errorf("%v allocations a page", n)
	}
}
