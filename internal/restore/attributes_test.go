package restore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// lockedModes are modes of directories that deny work in them to their owner.
var lockedModes = []uint32{0o500, 0o555, 0o2555, 0o100, 0o070, 0}

// lockedTree is a snapshot of directories that contain files. At the target, each directory exists
// with one of lockedModes.
func lockedTree(t *testing.T) (f *fixture, prepare func(t *testing.T, dir string)) {
	f = newFixture(t)
	self := entry("", backup.Directory)
	self.Mode = 0o755
	unknown := self
	unknown.Flags = backup.AttributesUnknown
	modes := map[string]uint32{}
	var names []backup.Entry
	for _, mode := range lockedModes {
		for what, self := range map[string]*backup.Entry{"known": &self, "unknown": &unknown} {
			name := fmt.Sprintf("%s-%o", what, mode)
			modes[name] = mode
			names = append(names, subdirectory(name))
			f.page(backup.Page{Path: name, Self: self, Entries: []backup.Entry{f.file("file", "new"), subdirectory("sub")}})
			f.page(backup.Page{Path: name + "/sub", Self: self, Entries: []backup.Entry{f.file("file", "new")}})
		}
	}
	f.directory("", names...)
	return f, func(t *testing.T, dir string) {
		t.Helper()
		for name, mode := range modes {
			check(t, os.MkdirAll(filepath.Join(dir, name, "sub"), 0o700))
			for _, path := range []string{filepath.Join(dir, name, "sub"), filepath.Join(dir, name)} {
				check(t, os.Chtimes(path, time.Time{}, time.Unix(1_500_000_000, 5)))
				check(t, unix.Chmod(path, mode))
			}
		}
	}
}

// directoryStates returns the mode and mtime of dir and each directory below it.
func directoryStates(t *testing.T, dir string) map[string]string {
	t.Helper()
	states := map[string]string{}
	var visit func(path string)
	visit = func(path string) {
		st := stat(t, path)
		states[path] = fmt.Sprintf("%o %d.%d", st.Mode&0o7777, st.Mtim.Sec, st.Mtim.Nsec)
		check(t, unix.Chmod(path, 0o700))
		entries, err := os.ReadDir(path)
		check(t, err)
		for _, e := range entries {
			if e.IsDir() {
				visit(filepath.Join(path, e.Name()))
			}
		}
		check(t, unix.Chmod(path, st.Mode&0o7777))
	}
	visit(dir)
	return states
}

// An existing directory that does not get the attributes of the snapshot keeps its mode and mtime:
// with Never, if the attributes are not known, and if the run ends before the directory is
// finished.
func TestDirectoriesThatWereThere(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
	}
	f, prepare := lockedTree(t)
	f.newPack()
	open := func(t *testing.T, dir string) { // otherwise it cannot be removed
		for _, path := range slices.Sorted(maps.Keys(directoryStates(t, dir))) {
			check(t, unix.Chmod(path, 0o700))
		}
	}
	for what, end := range map[string]error{"to the end": nil, "interrupted": context.Canceled, "full": unix.ENOSPC} {
		for _, overwrite := range []Overwrite{Never, IfChanged} {
			t.Run(fmt.Sprintf("%s, %s", what, overwrite), func(t *testing.T) {
				dir := t.TempDir()
				prepare(t, dir)
				before := directoryStates(t, dir)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				o := Options{Snapshot: f.snapshot, Target: dir, Overwrite: overwrite}
				o.fault = func(c target.Call, _ string, _ bool) error {
					if c != target.CallWrite {
						return nil
					}
					if end == context.Canceled {
						cancel()
						return nil
					}
					return end
				}
				_, err := Restore(ctx, f.deps(), o, &observer{})
				if !errors.Is(err, end) {
					t.Fatalf("the run ends with %v", err)
				}
				after := directoryStates(t, dir)
				t.Cleanup(func() { open(t, dir) })
				for _, path := range slices.Sorted(maps.Keys(before)) {
					finished := fmt.Sprintf("755 %d.%d", testTime.Sec, testTime.Nsec)
					gets := overwrite == IfChanged && strings.Contains(path, "/known-")
					switch {
					case gets && after[path] == finished: // before the end
					case gets && end == nil:
						t.Errorf("%s has %s, want %s", path, after[path], finished)
					case after[path] != before[path]:
						t.Errorf("%s has %s, and had %s", path, after[path], before[path])
					}
				}
			})
		}
	}
}

// A failingCatalog fails after some pages.
type failingCatalog struct {
	*fixture
	pages int
}

var errCatalog = errors.New("the index does not answer")

func (c failingCatalog) Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		n := 0
		for v, err := range c.fixture.Pages(ctx, id, path) {
			if n++; n > c.pages {
				yield(backup.PageVersion{}, errCatalog)
				return
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// The same holds for each page at which the index fails.
func TestDirectoriesThatAreNotFinished(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
	}
	f, prepare := lockedTree(t)
	f.newPack()
	for pages := range len(f.pages) {
		dir := t.TempDir()
		prepare(t, dir)
		before := directoryStates(t, dir)
		d := f.deps()
		d.Catalog = failingCatalog{f, pages + 1}
		_, err := Restore(t.Context(), d, Options{Snapshot: f.snapshot, Target: dir, Overwrite: Never}, &observer{})
		if (pages+1 < len(f.pages)) != errors.Is(err, errCatalog) {
			t.Errorf("after %d pages: %v", pages+1, err)
		}
		after := directoryStates(t, dir)
		for _, path := range slices.Sorted(maps.Keys(before)) {
			if after[path] != before[path] {
				t.Errorf("%s has %s, and had %s", path, after[path], before[path])
			}
			check(t, unix.Chmod(path, 0o700)) // otherwise it cannot be removed
		}
	}
}

// A dry run counts and reports the attributes that a real run sets on existing entries.
func TestDryRunReportsAttributes(t *testing.T) {
	needRoot(t)
	f := newFixture(t)
	blue := []backup.Xattr{xattr("user.color", "blue")}
	self := entry("", backup.Directory)
	self.Mode = 0o755
	with := func(e backup.Entry, xattrs []backup.Xattr, ref backup.Ref) backup.Entry {
		e.Xattrs, e.XattrChunk = xattrs, ref
		return e
	}
	chunks := entry("chunks", backup.File) // with holes, and with a list of its chunks
	chunks.Size = 1 << 20
	chunks.Content = f.list(1, f.chunk([]byte("one"), 0), f.chunk([]byte("three"), 100_000))
	var subs []backup.Entry
	for _, name := range []string{"d-mode", "d-owner", "d-time", "d-xattr", "d-written", "d-right"} {
		subs = append(subs, subdirectory(name))
		f.page(backup.Page{Path: name, Self: &self, Entries: []backup.Entry{f.file("in", "i")}})
	}
	locked := self
	locked.Mode = 0o500
	locked.XattrChunk = f.xattrs(blue...)
	f.page(backup.Page{Path: "d-locked", Self: &locked, Entries: []backup.Entry{f.file("in", "i")}})
	f.page(backup.Page{Self: &self, Entries: append(subs, subdirectory("d-locked"),
		f.file("right", "r"), f.file("mode", "m"), f.file("owner", "o"), with(f.file("xattr", "x"), blue, backup.Ref{}),
		with(f.file("chunk", "c"), nil, f.xattrs(blue...)), f.file("more", "m"), symlink("link", "x"), entry("fifo", backup.FIFO),
		f.file("content", "12345"), f.file("gone", "1234567"), chunks)})
	dir := filepath.Join(t.TempDir(), "target")
	f.restore(Options{Target: dir})
	spoil := func() {
		for _, name := range []string{"mode", "fifo", "d-mode"} {
			check(t, os.Chmod(filepath.Join(dir, name), 0o777))
		}
		for _, name := range []string{"owner", "link", "d-owner"} {
			check(t, os.Lchown(filepath.Join(dir, name), 42, 42))
		}
		for _, name := range []string{"xattr", "chunk", "d-locked"} {
			check(t, unix.Removexattr(filepath.Join(dir, name), "user.color"))
		}
		for _, name := range []string{"more", "d-xattr"} {
			setXattr(t, filepath.Join(dir, name), "user.more", "x")
		}
		for _, name := range []string{"gone", "chunks", "d-written/in"} {
			check(t, os.Remove(filepath.Join(dir, name)))
		}
		write(t, filepath.Join(dir, "content"), "old", backup.Time{Sec: 1})
		for _, path := range []string{"d-written", "."} {
			check(t, os.Chtimes(filepath.Join(dir, path), time.Time{}, testTime.Time()))
		}
		check(t, os.Chtimes(filepath.Join(dir, "d-time"), time.Time{}, time.Unix(1, 0)))
	}
	changed := []string{"chunk", "d-locked", "d-mode", "d-owner", "d-time", "d-xattr", "fifo", "link", "mode", "more", "owner", "xattr"}
	for _, o := range []Options{{}, {TargetAttributes: true}, {Overwrite: Never}} {
		spoil()
		check(t, os.Chmod(dir, 0o711))
		o.Target, o.DryRun = dir, true
		dry, dryObs := f.restore(o)
		o.DryRun = false
		wet, wetObs := f.restore(o)
		if dry != wet {
			t.Errorf("a dry run: %+v, the real one: %+v", dry, wet)
		}
		if !slices.Equal(dryObs.actions(), wetObs.actions()) {
			t.Errorf("a dry run reports %q, the real one %q", dryObs.actions(), wetObs.actions())
		}
		want := changed
		if o.TargetAttributes {
			want = append([]string{""}, changed...)
		}
		if o.Overwrite == Never {
			want = nil
		}
		var got []string
		for _, c := range dryObs.changes {
			if c.Action == Attributes {
				got = append(got, c.Path)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || int(dry.Attributes) != len(want) {
			t.Errorf("%+v: attributes of %q, want %q; %+v", o, got, want, dry)
		}
		if bytes := int64(len("1234567") + len("one") + len("three") + len("i")); o.Overwrite == Never && dry.Bytes != bytes || o.Overwrite != Never && dry.Bytes != bytes+5 {
			t.Errorf("%d bytes", dry.Bytes)
		}
	}
}

// A run that restores nothing removes everything that it has created.
func TestNothingIsLeftOfNothing(t *testing.T) {
	f := destinationTree(t)
	missing := f.file("missing", "m")
	missing.Flags = backup.ContentMissing
	f.directory("single", missing)
	f.newPack()
	noWrite := func(c target.Call, _ string, _ bool) error {
		if c == target.CallCreate {
			return unix.ENOSPC
		}
		return nil
	}
	for what, o := range map[string]Options{
		"nothing is included":       {Include: patterns(t, "nope")},
		"a file without content":    {Path: "single/missing"},
		"a file on a full disk":     {Path: "file", fault: noWrite},
		"nothing in a dry run":      {DryRun: true},
		"no page of the directory":  {Path: "d/none"},
		"included, and no such one": {Include: patterns(t, "/d/nope")},
	} {
		t.Run(what, func(t *testing.T) {
			above := t.TempDir()
			o.Target, o.Snapshot = filepath.Join(above, "a", "b", "target"), f.snapshot
			_, err := Restore(t.Context(), f.deps(), o, &observer{})
			t.Log(err)
			wantNames(t, above)

			// Existing directories stay, empty or not.
			o.Target = filepath.Join(above, "c", "target")
			check(t, os.MkdirAll(o.Target, 0o755))
			_, _ = Restore(t.Context(), f.deps(), o, &observer{})
			wantNames(t, filepath.Join(above, "c"), "target")
			if !o.DryRun {
				wantNames(t, o.Target)
			}
		})
	}
	above := t.TempDir()
	f.restore(Options{Target: filepath.Join(above, "empty"), Path: "d", Include: patterns(t, "in")})
	wantNames(t, filepath.Join(above, "empty"), "in")
}
