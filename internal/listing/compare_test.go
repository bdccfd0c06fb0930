package listing

import (
	"reflect"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// stored is a file as stored in a snapshot.
func stored() backup.Entry {
	return backup.Entry{
		Name: "f", Kind: backup.File, Mode: 0o644, Size: 5, Inode: 7, Mtime: backup.Time{Sec: 100}, Ctime: backup.Time{Sec: 101, Nsec: 5},
		Xattrs:     []backup.Xattr{{Name: "user.a", Value: []byte("b")}},
		XattrChunk: backup.Ref{Chunk: backup.ChunkID{9}, Length: 70_000, Span: 70_000},
		Content:    backup.Content{Refs: []backup.Ref{{Chunk: backup.ChunkID{1}, Length: 5, Span: 5}}},
	}
}

// seen returns e as a walk finds it.
func seen(e backup.Entry) backup.Entry {
	e.Flags, e.Xattrs, e.XattrChunk, e.Content = 0, nil, backup.Ref{}, backup.Content{}
	return e
}

func with(e backup.Entry, change func(*backup.Entry)) backup.Entry {
	change(&e)
	return e
}

func TestUnchangedFileKeepsItsContent(t *testing.T) {
	e := []backup.Entry{with(seen(stored()), func(e *backup.Entry) { e.Device, e.Btime.Sec, e.Nlink = 5, 3, 2 })}
	c := TakeOver(0, false, e, []backup.Entry{stored()}, nil, nil)
	want := with(stored(), func(e *backup.Entry) { e.Device, e.Btime.Sec, e.Nlink = 5, 3, 2 })
	if !reflect.DeepEqual(e[0], want) {
		t.Errorf("got %+v\nwant %+v", e[0], want)
	}
	if c != (Comparison{Unchanged: 1}) {
		t.Errorf("counted %+v", c)
	}
}

func TestChangedFileIsReadAgain(t *testing.T) {
	for name, change := range map[string]func(now, old *backup.Entry){
		"size":                    func(now, _ *backup.Entry) { now.Size++ },
		"mtime":                   func(now, _ *backup.Entry) { now.Mtime.Nsec++ },
		"mtime, to the past":      func(now, _ *backup.Entry) { now.Mtime.Sec-- },
		"ctime":                   func(now, _ *backup.Entry) { now.Ctime.Nsec++ },
		"inode":                   func(now, _ *backup.Entry) { now.Inode++ },
		"racy":                    func(_, old *backup.Entry) { old.Flags = backup.Racy },
		"could not be read":       func(_, old *backup.Entry) { old.Flags = backup.Unreadable },
		"changed under the read":  func(_, old *backup.Entry) { old.Flags = backup.ChangedWhileRead },
		"is wanted itself":        func(_, old *backup.Entry) { old.Flags, old.Content = backup.Wanted, backup.Content{} },
		"was not looked at":       func(_, old *backup.Entry) { old.Flags = backup.AttributesUnknown },
		"was a symlink":           func(_, old *backup.Entry) { old.Kind = backup.Symlink },
		"racy, and in this again": func(now, old *backup.Entry) { now.Flags, old.Flags = backup.Racy, backup.Racy },
	} {
		t.Run(name, func(t *testing.T) {
			now, old := seen(stored()), stored()
			change(&now, &old)
			e := []backup.Entry{now}
			c := TakeOver(0, false, e, []backup.Entry{old}, nil, nil)
			e[0].Flags = e[0].Flags.WithClass(backup.Unclassified)
			want := with(now, func(e *backup.Entry) { e.Flags |= backup.Wanted })
			if old.Kind == now.Kind { // kept in case the xattrs cannot be read now
				want.Xattrs, want.XattrChunk = old.Xattrs, old.XattrChunk
			}
			if !reflect.DeepEqual(e[0], want) {
				t.Errorf("got %+v\nwant %+v", e[0], want)
			}
			if want := (Comparison{Changed: 1}); c != want {
				t.Errorf("counted %+v, want %+v", c, want)
			}
		})
	}
}

// A file whose xattrs alone could not be read keeps its content.
func TestOnlyXattrsAreReadAgain(t *testing.T) {
	for _, flags := range []backup.Flags{backup.XattrsUnreadable, backup.XattrsWanted, backup.XattrsUnreadable | backup.Boundary} {
		old := with(stored(), func(e *backup.Entry) { e.Flags = flags })
		e := []backup.Entry{seen(stored())}
		if Unchanged(0, &e[0], &old) {
			t.Errorf("flags %b: it counts as unchanged", flags)
		}
		c := TakeOver(0, false, e, []backup.Entry{old}, nil, nil)
		want := with(stored(), func(e *backup.Entry) { e.Flags = backup.XattrsWanted })
		if !reflect.DeepEqual(e[0], want) || c != (Comparison{Unchanged: 1}) {
			t.Errorf("flags %b: got %+v, counted %+v", flags, e[0], c)
		}
	}
}

// A flag that does not concern the content does not cause the file to be read again.
func TestBoundaryIsNoChange(t *testing.T) {
	e := []backup.Entry{with(seen(stored()), func(e *backup.Entry) { e.Flags = backup.Boundary })}
	c := TakeOver(0, false, e, []backup.Entry{with(stored(), func(e *backup.Entry) { e.Flags = backup.Boundary })}, nil, nil)
	if c != (Comparison{Unchanged: 1}) || e[0].Flags != backup.Boundary {
		t.Errorf("got %+v, counted %+v", e[0], c)
	}
}

// The configured comparison determines what counts as a change.
func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(now, old *backup.Entry)
		shows  []backup.Compare // if it alone is compared; kind, size and flags always are
	}{
		{"nothing", func(_, _ *backup.Entry) {}, nil},
		{"mtime", func(now, _ *backup.Entry) { now.Mtime.Sec++ }, []backup.Compare{backup.CompareMtime}},
		{"ctime", func(now, _ *backup.Entry) { now.Ctime.Sec++ }, []backup.Compare{backup.CompareCtime}},
		{"inode", func(now, _ *backup.Entry) { now.Inode++ }, []backup.Compare{backup.CompareInode}},
		{"size", func(now, _ *backup.Entry) { now.Size++ }, []backup.Compare{backup.CompareMtime, backup.CompareCtime, backup.CompareInode}},
		{"racy", func(_, old *backup.Entry) { old.Flags = backup.Racy }, []backup.Compare{backup.CompareMtime, backup.CompareCtime, backup.CompareInode}},
	} {
		for by := range backup.CompareAll + 1 {
			now, old := seen(stored()), stored()
			test.change(&now, &old)
			want := !slices.ContainsFunc(test.shows, func(c backup.Compare) bool { return by.OrAll()&c != 0 })
			if got := TakeOver(by, false, []backup.Entry{now}, []backup.Entry{old}, nil, nil).Unchanged == 1; got != want {
				t.Errorf("%s changed, compared by %v: unchanged %v", test.name, by, got)
			}
		}
	}
}

func TestIsRacy(t *testing.T) {
	from := backup.Time{Sec: 100, Nsec: 5}
	for _, test := range []struct {
		by           backup.Compare
		mtime, ctime uint32 // nanoseconds
		want         bool
	}{
		{0, 4, 4, false}, {0, 4, 5, true}, {0, 9, 4, false}, {backup.CompareCtime, 9, 4, false},
		{backup.CompareMtime, 4, 9, false}, {backup.CompareMtime, 5, 4, true}, {backup.CompareMtime | backup.CompareInode, 5, 4, true},
		{backup.CompareMtime | backup.CompareCtime, 5, 4, false},
	} {
		e := backup.Entry{Mtime: backup.Time{Sec: 100, Nsec: test.mtime}, Ctime: backup.Time{Sec: 100, Nsec: test.ctime}}
		if got := IsRacy(test.by, &e, from); got != test.want {
			t.Errorf("by %v, mtime .%d, ctime .%d: racy %v", test.by, test.mtime, test.ctime, got)
		}
	}
}

// File systems with a granularity of one or two seconds hide changes for that long.
func TestIsRacyOnCoarseFileSystems(t *testing.T) {
	from := backup.Time{Sec: 100, Nsec: 5}
	for at, want := range map[backup.Time]bool{
		{Sec: 97}: false, {Sec: 98}: false, {Sec: 98, Nsec: 1}: false, {Sec: 99}: true, {Sec: 99, Nsec: 999_999_999}: false, {Sec: 100}: true,
	} {
		if got := IsRacy(0, &backup.Entry{Ctime: at}, from); got != want {
			t.Errorf("ctime %v: racy %v", at, got)
		}
		if got := IsRacy(backup.CompareMtime, &backup.Entry{Mtime: at}, from); got != want {
			t.Errorf("mtime %v: racy %v", at, got)
		}
	}
}

func TestTakeOver(t *testing.T) {
	name := func(name string, kind backup.Kind) backup.Entry {
		return with(stored(), func(e *backup.Entry) { e.Name, e.Kind = name, kind })
	}
	now := []backup.Entry{
		seen(name("a-new", backup.File)), seen(name("b-directory", backup.Directory)), seen(name("c-link", backup.Symlink)),
		seen(name("d-new-link", backup.Symlink)), seen(name("e-was-directory", backup.File)), seen(name("f", backup.File)),
		seen(name("z-new", backup.FIFO)),
	}
	old := []backup.Entry{
		name("0-gone", backup.File), name("b-directory", backup.Directory), name("c-gone", backup.File), name("c-link", backup.Symlink),
		name("e-was-directory", backup.Directory), name("f", backup.File), name("g-gone", backup.File),
	}
	c := TakeOver(0, false, now, old, nil, nil)
	if want := (Comparison{New: 4, Unchanged: 2}); c != want {
		t.Errorf("counted %+v, want %+v", c, want)
	}
	flags := []backup.Flags{backup.Wanted, 0, 0, backup.XattrsWanted, backup.Wanted, 0, backup.XattrsWanted}
	for i := range now {
		if now[i].Flags.WithClass(backup.Unclassified) != flags[i] {
			t.Errorf("%s has flags %b, want %b", now[i].Name, now[i].Flags, flags[i])
		}
	}
	if now[1].Xattrs != nil {
		t.Error("a subdirectory's entry got xattrs: they are in its own first page")
	}
	if !reflect.DeepEqual(now[2].Xattrs, stored().Xattrs) {
		t.Error("an unchanged symlink lost its xattrs")
	}
}

func TestRemovedDirectories(t *testing.T) {
	list := func(entries ...string) (out []backup.Entry) {
		for _, e := range entries {
			kind := backup.File
			if name, ok := cutSlash(e); ok {
				kind, e = backup.Directory, name
			}
			out = append(out, backup.Entry{Name: e, Kind: kind})
		}
		return out
	}
	for _, test := range []struct{ now, old, want []string }{
		{},
		{old: []string{"a/", "b", "c/"}, want: []string{"a", "c"}},
		{now: []string{"a/", "b/"}, old: []string{"a/", "b/"}},
		{now: []string{"a", "b/"}, old: []string{"a/", "b/"}, want: []string{"a"}},
		{now: []string{"a/", "new/"}, old: []string{"a", "b", "c"}},
		{now: []string{"b", "d/"}, old: []string{"a/", "b/", "c/", "d/", "e/"}, want: []string{"a", "b", "c", "e"}},
	} {
		if got := RemovedDirectories(list(test.now...), list(test.old...)); !slices.Equal(got, test.want) {
			t.Errorf("of %q, now %q: %q removed, want %q", test.old, test.now, got, test.want)
		}
	}
}

func cutSlash(s string) (string, bool) {
	if s[len(s)-1] == '/' {
		return s[:len(s)-1], true
	}
	return s, false
}

// If ctimes are not compared, content that is taken over may be older than the file's present
// ctime. No entry may claim that ctime for it.
func TestContentKeepsItsCtime(t *testing.T) {
	for by := range backup.CompareAll + 1 {
		old := []backup.Entry{stored()}
		e := stored()
		e.Ctime.Sec++
		e.Content = backup.Content{}
		now := []backup.Entry{e}
		TakeOver(by, false, now, old, nil, nil)
		if wanted := now[0].Flags&backup.Wanted != 0; !wanted && now[0].Ctime != old[0].Ctime || wanted && now[0].Ctime != e.Ctime {
			t.Errorf("%v: wanted %v, ctime %v of old %v, now %v", by, wanted, now[0].Ctime, old[0].Ctime, e.Ctime)
		}
	}
}
