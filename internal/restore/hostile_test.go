package restore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
	"github.com/bctl/bctl/internal/store"
)

// An arena is a target with precious files beside it.
type arena struct {
	t              *testing.T
	target, beside string
}

func newArena(t *testing.T) arena {
	dir := t.TempDir()
	a := arena{t, filepath.Join(dir, "target"), filepath.Join(dir, "beside")}
	check(t, os.Mkdir(a.target, 0o755))
	check(t, os.Mkdir(a.beside, 0o751))
	write(t, filepath.Join(a.beside, "precious"), "precious", testTime)
	return a
}

// untouched checks that nothing outside the target has changed.
func (a arena) untouched() {
	a.t.Helper()
	wantNames(a.t, filepath.Dir(a.target), "target", "beside")
	wantNames(a.t, a.beside, "precious")
	wantFile(a.t, filepath.Join(a.beside, "precious"), "precious")
	if st := stat(a.t, a.beside); st.Mode&0o777 != 0o751 {
		a.t.Errorf("mode of the directory beside is %o", st.Mode)
	}
}

// Package listing refuses to decode such names. If it did not, restore would refuse them.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{"..", ".", "", "../beside/new", "a/b", "/beside", "nul\x00"} {
		a := newArena(t)
		f := newFixture(t)
		root, err := target.Open(target.Options{Path: a.target, Salt: f.snapshot[:]})
		check(t, err)
		obs := &observer{}
		ctx, abort := context.WithCancelCause(context.Background())
		r := &restorer{o: Options{Overwrite: Always, Target: a.target}, obs: obs, root: root, abort: abort, active: map[*file]struct{}{}}
		p := &planner{r: r, bundles: &errgroup.Group{}, bundle: &bundle{}}
		d := &directory{r: r, wanted: true, attributesUnknown: true}
		d.pending.Store(1)
		p.current = d
		check(t, p.planEntries(ctx, []backup.Entry{f.file(name, ""), symlink(name, "/"), subdirectory(name)}))
		check(t, p.flush(ctx))
		check(t, p.bundles.Wait())
		if d.expects(name) {
			t.Errorf("%q is expected as a directory", name)
		}
		if len(obs.problems) != 3 || len(obs.changes) != 0 {
			t.Errorf("%q: problems %v, changes %v", name, obs.problems, obs.changes)
		}
		check(t, root.Close())
		a.untouched()
	}
}

func TestHostileDirectories(t *testing.T) {
	for _, path := range []string{"..", "../beside", "a/../../beside", "./x", "a//b", "/abs", "unlisted", "a/b"} {
		a := newArena(t)
		f := newFixture(t)
		f.directory("", subdirectory("a"), f.file("good", "good"))
		f.directory("a")
		f.directory(path, f.file("new", "evil"))
		sum, _ := f.restore(Options{Target: a.target, Delete: true})
		if sum.Problems == 0 {
			t.Errorf("%q: no problem", path)
		}
		wantFile(t, filepath.Join(a.target, "good"), "good")
		a.untouched()
	}
}

// The snapshot has a symlink that leads outside, and files below its name.
func TestFilesBelowASymlink(t *testing.T) {
	a := newArena(t)
	f := newFixture(t)
	f.directory("", symlink("way-out", a.beside))
	f.directory("way-out", f.file("new", "evil"), f.file("precious", "evil"))
	_, obs := f.restore(Options{Target: a.target, Overwrite: Always, Delete: true})
	obs.wantProblems(t, "way-out")
	a.untouched()
}

// An attacker has planted symlinks at the target.
func TestPlantedSymlinks(t *testing.T) {
	for _, overwrite := range []Overwrite{IfChanged, Always, Never} {
		a := newArena(t)
		f := newFixture(t)
		big := f.file("big", "12345678")
		big.Content.Refs = []backup.Ref{f.chunk([]byte("1234"), 0), f.chunk([]byte("5678"), 0)}
		f.directory("", f.file("precious", "restored"), big, subdirectory("dir"), entry("fifo", backup.FIFO))
		f.directory("dir", f.file("precious", "restored"))
		check(t, os.Symlink(a.beside, filepath.Join(a.target, "dir")))
		for _, name := range []string{"precious", "big", "fifo"} {
			check(t, os.Symlink(filepath.Join(a.beside, "precious"), filepath.Join(a.target, name)))
		}
		f.restore(Options{Target: a.target, Overwrite: overwrite})
		if overwrite != Never {
			wantFile(t, filepath.Join(a.target, "dir/precious"), "restored")
			wantFile(t, filepath.Join(a.target, "precious"), "restored")
			wantFile(t, filepath.Join(a.target, "big"), "12345678")
		}
		a.untouched()
	}
}

// An attacker can predict the names of unfinished files.
func TestPlantedTemporaryNames(t *testing.T) {
	a := newArena(t)
	f := newFixture(t)
	f.directory("", f.file("file", "restored"))
	write(t, filepath.Join(a.target, "file"), "old", testTime)
	f.newPack()
	// Learn the name: a file that cannot be finished has it for a moment.
	root, err := target.Open(target.Options{Path: a.target, Salt: f.snapshot[:]})
	check(t, err)
	dir, err := root.Dir("")
	check(t, err)
	out, err := dir.Create(&backup.Entry{Name: "file"}, target.CreateOptions{Temporary: true})
	check(t, err)
	check(t, out.Park())
	dir.Release()
	var temp string
	entries, err := os.ReadDir(a.target)
	check(t, err)
	for _, e := range entries {
		if root.IsOwn(e.Name()) {
			temp = filepath.Join(a.target, e.Name())
		}
	}
	check(t, root.Close())
	check(t, os.Remove(temp))
	check(t, os.Symlink(filepath.Join(a.beside, "precious"), temp))

	f.restore(Options{Target: a.target})
	wantFile(t, filepath.Join(a.target, "file"), "restored")
	wantNames(t, a.target, "file")
	a.untouched()
}

func TestDirectoriesInTheWay(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("empty", "1"), f.file("full", "2"), subdirectory("dir"))
	f.directory("dir", f.file("in", "3"))
	prepare := func() string {
		target := t.TempDir()
		check(t, os.MkdirAll(filepath.Join(target, "full/x"), 0o755))
		check(t, os.Mkdir(filepath.Join(target, "empty"), 0o755))
		write(t, filepath.Join(target, "dir"), "a file", testTime)
		return target
	}
	target := prepare()
	_, obs := f.restore(Options{Target: target, DryRun: true})
	obs.wantProblems(t, "full")
	wantNames(t, target, "empty", "full", "dir")
	wantNames(t, filepath.Join(target, "empty"))
	_, obs = f.restore(Options{Target: target})
	obs.wantProblems(t, "full")
	wantFile(t, filepath.Join(target, "empty"), "1")
	wantFile(t, filepath.Join(target, "dir/in"), "3")

	target = prepare()
	_, obs = f.restore(Options{Target: target, Delete: true})
	obs.wantProblems(t)
	wantFile(t, filepath.Join(target, "full"), "2")

	target = prepare()
	_, obs = f.restore(Options{Target: target, Overwrite: Never})
	obs.wantProblems(t, "dir")
	wantFile(t, filepath.Join(target, "dir"), "a file")
}

// A damaged pack affects only the files that need it, and never yields wrong bytes.
func TestDamage(t *testing.T) {
	for _, damage := range []string{"flipped", "truncated", "missing", "unindexed", "misplaced"} {
		t.Run(damage, func(t *testing.T) {
			f := newFixture(t)
			bad := f.file("bad", strings.Repeat("bad", 1000))
			two := f.file("two", "") // one good chunk, one bad
			id := f.id
			f.newPack()
			good := f.file("good", "good")
			two.Content.Refs = []backup.Ref{good.Content.Refs[0], bad.Content.Refs[0]}
			two.Size = 3004
			f.directory("", bad, good, two)
			f.newPack()
			name := store.PackName(f.snapshot, id)
			data, err := f.store.Get(context.Background(), name, 1<<20)
			check(t, err)
			switch damage {
			case "flipped":
				data[len(data)/2] ^= 1
			case "truncated":
				data = data[:len(data)/2]
			case "unindexed":
				delete(f.at, bad.Content.Refs[0].Chunk)
			case "misplaced":
				at := f.at[good.Content.Refs[0].Chunk]
				at.Length = 3000
				f.at[bad.Content.Refs[0].Chunk] = at
			}
			check(t, f.store.Delete(context.Background(), name))
			if damage != "missing" {
				check(t, f.store.Put(context.Background(), name, data))
			}
			target := t.TempDir()
			sum, obs := f.restore(Options{Target: target})
			obs.wantProblems(t, "bad", "two")
			wantNames(t, target, "good")
			wantFile(t, filepath.Join(target, "good"), "good")
			if sum.Problems != 2 {
				t.Errorf("%+v", sum)
			}
		})
	}
}

func TestDamagedListing(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("lost", "1"), subdirectory("d"))
	f.directory("d", f.file("found", "2"))
	f.pages[0].Listing[len(f.pages[0].Listing)-1] ^= 0xff
	f.pages[0].Listing[0] = 0xee
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "")
	wantFile(t, filepath.Join(target, "d", "found"), "2")
	_, obs = f.restore(Options{Target: target, Path: "d"})
	obs.wantText(t, "", "whether this could be read")
	wantFile(t, filepath.Join(target, "found"), "2")
}

func TestContentThatMakesNoSense(t *testing.T) {
	f := newFixture(t)
	good := f.chunk([]byte("good"), 0)
	file := func(name string, size int64, c backup.Content) backup.Entry {
		e := entry(name, backup.File)
		e.Size, e.Content = size, c
		return e
	}
	far := good
	far.Hole = 1 << 62
	deep := f.list(1, good)
	deep.Refs[0].Span = 1 << 40
	notAList := backup.Content{Depth: 1, Refs: []backup.Ref{good}}
	f.directory("",
		file("too-long", 3, backup.Content{Refs: []backup.Ref{good}}),
		file("far", 1<<62, backup.Content{Refs: []backup.Ref{far, far}}),
		file("span", 10, deep),
		file("not-a-list", 4, notAList),
		file("wrong-depth", 4, backup.Content{Depth: 3, Refs: f.list(1, good).Refs}),
		f.file("fine", "fine"))
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "too-long", "far", "span", "not-a-list", "wrong-depth")
	wantNames(t, target, "fine")
}

func TestDeeperThanPathMax(t *testing.T) {
	f := newFixture(t)
	component := strings.Repeat("d", 200)
	f.directory("", subdirectory(component))
	path := component
	for range 30 {
		f.directory(path, subdirectory(component))
		path += "/" + component
	}
	f.directory(path, f.file("bottom", "deep"))
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	root, err := os.OpenRoot(target)
	check(t, err)
	for range 31 {
		next, err := root.OpenRoot(component)
		check(t, err)
		root.Close()
		root = next
	}
	defer root.Close()
	if got, err := root.ReadFile("bottom"); err != nil || string(got) != "deep" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestFullTarget(t *testing.T) {
	full := t.TempDir()
	mount(t, full, "size=256k")
	f := newFixture(t)
	var entries []backup.Entry
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		entries = append(entries, f.file(name, strings.Repeat(name, 100_000)))
	}
	f.directory("", entries...)
	_, obs, err := f.tryRestore(context.Background(), Options{Target: full})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), full) {
		t.Errorf("full: %v", err)
	}
	obs.wantProblems(t)
	entriesLeft, err := os.ReadDir(full)
	check(t, err)
	for _, e := range entriesLeft {
		wantFile(t, filepath.Join(full, e.Name()), strings.Repeat(e.Name(), 100_000))
	}
}

// Each attribute that no file system has is a problem, and the rest of the entry is restored.
func TestHostileXattrs(t *testing.T) {
	hostile := []backup.Xattr{
		xattr("", "x"), xattr("user.", "x"), xattr("user.nul\x00", "x"), xattr("none", "x"), xattr("user."+strings.Repeat("n", 300), "x"),
		xattr("user.large", strings.Repeat("x", 70<<10)), xattr("../user.a", "x"), xattr("user.twice", "1"), xattr("user.twice", "2"), xattr("user.fine", "x"),
	}
	for form, put := range xattrForms {
		f := newFixture(t)
		file, link := f.file("file", "content"), symlink("link", "x")
		put(f, &file, hostile)
		put(f, &link, hostile)
		self := entry("", backup.Directory)
		self.Mode = 0o755
		put(f, &self, hostile)
		f.directory("", file, link, subdirectory("d"))
		f.page(backup.Page{Path: "d", Self: &self})
		a := newArena(t)
		for range 2 {
			sum, _ := f.restore(Options{Target: a.target})
			if sum.Problems < 3*7 {
				t.Errorf("%s: %+v", form, sum)
			}
			wantFile(t, filepath.Join(a.target, "file"), "content")
			wantXattr(t, filepath.Join(a.target, "file"), "user.fine", "x")
			wantXattr(t, filepath.Join(a.target, "d"), "user.fine", "x")
			if st := stat(t, filepath.Join(a.target, "file")); st.Mtim.Sec != testTime.Sec {
				t.Errorf("%s: mtime %v", form, st.Mtim)
			}
		}
		a.untouched()
	}
}

// More attributes than any file has, in a few bytes.
func TestHostileNumberOfXattrs(t *testing.T) {
	f := newFixture(t)
	var entries []backup.Entry
	many := f.xattrs(make([]backup.Xattr, 1<<16)...)
	const entriesWithAll = 4
	for i := range entriesWithAll {
		e := entry(fmt.Sprint("fifo", i), backup.FIFO)
		e.XattrChunk = many
		entries = append(entries, e)
	}
	f.directory("", entries...)
	sum, _ := f.restore(Options{Target: t.TempDir()})
	if sum.Files != entriesWithAll || sum.Problems != entriesWithAll<<16 {
		t.Errorf("%+v", sum)
	}
}

// Chains of pages that lead nowhere, in a circle, or to pages of other directories.
func TestHostileChains(t *testing.T) {
	for what, next := range map[string][]backup.PageKey{
		"nowhere":         {5, 0},
		"in a circle":     {7, 7},
		"to the first":    {7, 0, 0},
		"twice":           {7, 7, 0},
		"far away":        {1<<62 + 1, 1<<62 + 6},
		"none to the end": {0, 0},
	} {
		f := newFixture(t)
		self := entry("", backup.Directory)
		self.Mode = 0o755
		keys := []backup.PageKey{0, 7, 9}
		f.directory("", subdirectory("d"), f.file("file", "content"))
		for i := range next {
			p := backup.Page{Path: "d", Key: keys[i], Next: next[i], Entries: []backup.Entry{f.file(fmt.Sprint("f", i), "x")}}
			if i == 0 {
				p.Self = &self
			}
			f.page(p)
		}
		target := t.TempDir()
		check(t, os.Mkdir(filepath.Join(target, "d"), 0o755))
		write(t, filepath.Join(target, "d/theirs"), "x", testTime)
		_, obs := f.restore(Options{Target: target, Delete: true})
		if !slices.Contains(obs.problemPaths(), "d") {
			t.Errorf("%s: %v", what, obs.problems)
		}
		wantFile(t, filepath.Join(target, "d/theirs"), "x")
		wantFile(t, filepath.Join(target, "d/f0"), "x")
	}
}

// A repeated directory, another in its place, and pages out of order.
func TestHostileOrderOfPages(t *testing.T) {
	f := newFixture(t)
	f.directory("", subdirectory("a"), subdirectory("b"))
	f.directory("a", f.file("in", "a"))
	f.directory("b", f.file("in", "b"))
	for _, order := range [][]string{{"", "b", "a", "b"}, {"", "a", "a", "b"}, {"a", "", "b"}, {"", "a", "", "b"}, {"", "b", "a"}, {"a", "b"}} {
		other := *f
		other.pages = nil
		for _, path := range order {
			for _, v := range f.pages {
				if v.Path == path {
					other.pages = append(other.pages, v)
				}
			}
		}
		f.newPack()
		a := newArena(t)
		obs := &observer{}
		deps := f.deps()
		deps.Catalog = inOrder{&other}
		_, err := Restore(t.Context(), deps, Options{Snapshot: f.snapshot, Target: a.target, Pages: f.pageSet(), Delete: true}, obs)
		fine := slices.Equal(order, []string{"", "b", "a"}) // an equally valid order
		if !fine && err == nil && len(obs.problems) == 0 {
			t.Errorf("pages of %q: nothing was said", order)
		}
		a.untouched()
	}
}

// inOrder is a fixture that yields its pages in the given order.
type inOrder struct{ *fixture }

func (c inOrder) Pages(context.Context, backup.SnapshotID, string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		for _, v := range c.pages {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// Flags that are invalid for their entry, or unknown.
func TestHostileFlags(t *testing.T) {
	for flags := range 17 {
		f := newFixture(t)
		bit := backup.Flags(1) << flags
		if flags == 16 {
			bit = ^backup.Flags(0)
		}
		e, fifo, link := f.file("file", "content"), entry("fifo", backup.FIFO), f.file("link", "content")
		e.Flags, fifo.Flags, link.Flags = bit, bit, bit
		e.Nlink, link.Nlink = 2, 2
		self := entry("", backup.Directory)
		self.Mode, self.Flags = 0o755, bit
		f.page(backup.Page{Self: &self, Entries: []backup.Entry{e, fifo, link, subdirectory("d")}})
		f.page(backup.Page{Path: "d", Self: &self, Entries: []backup.Entry{e}})
		a := newArena(t)
		sum, obs := f.restore(Options{Target: a.target, Pages: f.pageSet(), TargetAttributes: true, Delete: true})
		if said := len(obs.problems) > 0; said != (bit&(backup.Flawed|backup.Wanted|backup.XattrsWanted) != 0) {
			t.Errorf("flags %#x: %v", bit, obs.problems)
		}
		if sum.Flawed != sum.Problems {
			t.Errorf("flags %#x: %+v", bit, sum)
		}
		a.untouched()
	}
}
