package restore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/listing"
)

// pagedTree is a snapshot with directories of one page and of several, nested in one another.
func pagedTree(t testing.TB) *fixture {
	f := newFixture(t)
	page := func(first string, more ...backup.Entry) []backup.Entry {
		return append([]backup.Entry{f.file(first+"1", first), f.file(first+"2", first)}, more...)
	}
	f.pagesOf("", page("a"), page("b", subdirectory("big"), subdirectory("bigger")), page("c"))
	f.pagesOf("big", page("d"), page("e"), page("f", subdirectory("flat")), page("g"))
	f.pagesOf("big/flat", page("h"))
	f.pagesOf("bigger", page("i", subdirectory("in")), page("j"))
	f.pagesOf("bigger/in", page("k"))
	return f
}

// allNames returns all paths below a directory.
func allNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		check(t, err)
		rel, err := filepath.Rel(dir, path)
		names = append(names, rel)
		return err
	})
	check(t, err)
	return names
}

// wantNamed checks that each missing path is at or below a path that a problem names.
func wantNamed(t *testing.T, all, got []string, problems []backup.Problem) {
	t.Helper()
	for _, path := range all {
		if slices.Contains(got, path) {
			continue
		}
		named := slices.ContainsFunc(problems, func(p backup.Problem) bool {
			return p.Path == "" || path == p.Path || strings.HasPrefix(path, p.Path+"/")
		})
		if !named {
			t.Errorf("%s is missing, and was not named: %v", path, problems)
		}
	}
}

// Each page, and each pair of pages, is removed from the index in turn. Each directory that lacks
// something is then named. Everything on the other pages is restored, and Delete removes nothing
// because of the missing pages.
func TestMissingPages(t *testing.T) {
	whole := t.TempDir()
	full := pagedTree(t)
	_, obs := full.restore(Options{Target: whole, Pages: full.pageSet()})
	obs.wantProblems(t)
	all := allNames(t, whole)
	set := full.pageSet()
	type page struct {
		path string
		key  backup.PageKey
	}
	var pages []page
	for _, v := range full.pages {
		pages = append(pages, page{v.Path, v.Key})
	}
	drop := func(t *testing.T, gone ...page) {
		f := *full
		f.pages = slices.Clone(full.pages)
		for _, p := range gone {
			f.drop(p.path, p.key)
		}
		if !slices.ContainsFunc(f.pages, func(v backup.PageVersion) bool { return v.Path == "" }) {
			if _, _, err := f.tryRestore(context.Background(), Options{Target: t.TempDir()}); !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("all pages of the root are missing, and restore says %v", err)
			}
			return
		}
		for _, known := range []backup.PageSet{{}, set} {
			target := t.TempDir()
			_, obs := f.restore(Options{Target: target, Pages: known})
			for _, p := range gone {
				at := slices.ContainsFunc(obs.problems, func(q backup.Problem) bool { return q.Path == p.path || strings.HasPrefix(p.path, q.Path+"/") })
				if !at {
					t.Errorf("page %d of %q is missing, and that is not said: %v", p.key, p.path, obs.problems)
				}
			}
			got := allNames(t, target)
			wantNamed(t, all, got, obs.problems)
			for _, v := range f.pages { // nothing else is missing
				p, err := listing.DecodePage(v)
				check(t, err)
				lost := slices.ContainsFunc(gone, func(g page) bool { return strings.HasPrefix(v.Path, g.path+"/") })
				for _, e := range p.Entries {
					if e.Kind != backup.Directory && !lost && !slices.Contains(got, backup.Join(v.Path, e.Name)) {
						t.Errorf("%s is missing, without page %v", backup.Join(v.Path, e.Name), gone)
					}
				}
			}
			_, obs = f.restore(Options{Target: whole, Pages: known, Delete: true})
			if got := allNames(t, whole); !slices.Equal(got, all) {
				t.Errorf("without %v, Delete has left %q of %q: %v", gone, got, all, obs.problems)
			}
		}
	}
	for i := range pages {
		t.Run(fmt.Sprint(pages[i]), func(t *testing.T) { drop(t, pages[i]) })
		for j := range pages[:i] {
			t.Run(fmt.Sprint(pages[i], pages[j]), func(t *testing.T) { drop(t, pages[i], pages[j]) })
		}
	}
}

// A missing page is not reported if its part of the tree is not restored, and is reported if it is.
func TestMissingPagesOfAPart(t *testing.T) {
	f := pagedTree(t)
	f.drop("big/flat", 0)
	_, obs := f.restore(Options{Target: t.TempDir(), Path: "bigger"})
	obs.wantProblems(t)
	_, obs = f.restore(Options{Target: t.TempDir(), Path: "big"})
	obs.wantProblems(t, "flat")
	_, obs = f.restore(Options{Target: t.TempDir(), Exclude: patterns(t, "flat")})
	obs.wantProblems(t)
	_, obs = f.restore(Options{Target: t.TempDir(), Include: patterns(t, "h*")})
	obs.wantProblems(t, "big/flat")
	_, obs = f.restore(Options{Target: t.TempDir(), DryRun: true})
	obs.wantProblems(t, "big/flat")
	for i := range f.pages {
		if f.pages[i].Path == "bigger/in" {
			f.pages[i].Listing = []byte("damaged")
		}
	}
	_, obs = f.restore(Options{Target: t.TempDir(), Exclude: patterns(t, "flat", "in")})
	obs.wantProblems(t)
	_, obs = f.restore(Options{Target: t.TempDir(), Path: "bigger"})
	obs.wantProblems(t, "in")
}

// Damaged pages count as missing: everything on the others is restored, and nothing is deleted
// because of the damaged ones.
func TestDamagedPages(t *testing.T) {
	whole := t.TempDir()
	full := pagedTree(t)
	full.restore(Options{Target: whole})
	all := allNames(t, whole)
	for i := range full.pages {
		f := *full
		f.pages = slices.Clone(full.pages)
		damaged := &f.pages[i]
		damaged.Listing = []byte("damaged")
		target := t.TempDir()
		_, obs := f.restore(Options{Target: target, Pages: full.pageSet()})
		obs.wantText(t, damaged.Path, "corrupt")
		wantNamed(t, all, allNames(t, target), obs.problems)
		for _, p := range obs.problems {
			if p.Path == "" && damaged.Path != "" {
				t.Errorf("page %d of %q is damaged: %v", damaged.Key, damaged.Path, p)
			}
		}
		f.restore(Options{Target: whole, Delete: true})
		if got := allNames(t, whole); !slices.Equal(got, all) {
			t.Errorf("page %d of %q is damaged, and Delete has left %q", damaged.Key, damaged.Path, got)
		}
	}
}

// A page in another version than the snapshot's is detected by the sum of all pages.
func TestOtherPages(t *testing.T) {
	f := pagedTree(t)
	set := f.pageSet()
	f.drop("big/flat", 0)
	f.pagesOf("big/flat", []backup.Entry{f.file("h1", "other")})
	target := t.TempDir()
	write(t, filepath.Join(target, "theirs"), "x", testTime)
	_, obs := f.restore(Options{Target: target, Pages: set, Delete: true})
	obs.wantText(t, "", "pages of the snapshot that differ from those it was committed with")
	wantFile(t, filepath.Join(target, "theirs"), "x") // deleted only what had to be by then
	_, obs = f.restore(Options{Target: t.TempDir(), Pages: set, Path: "big"})
	obs.wantProblems(t) // the page set of a part is not known

	f = pagedTree(t)
	set = f.pageSet()
	set.Pages++
	_, obs = f.restore(Options{Target: t.TempDir(), Pages: set})
	obs.wantText(t, "", "the index has 11 pages of the snapshot, which was committed with 12")
}

// With more subdirectories than are remembered by name, those without pages are still detected.
func TestMissingPagesOfManyDirectories(t *testing.T) {
	d := &directory{}
	const more = 10
	listed := 0
	for i := range maxListedNames + more {
		listed += d.list(fmt.Sprint(i), listed)
	}
	if listed != maxListedNames || !d.unlisted {
		t.Fatalf("%d of %d names are remembered", listed, maxListedNames+more)
	}
	for i := range maxListedNames + more {
		if i != maxListedNames+1 {
			d.saw(fmt.Sprint(i))
		}
	}
	if d.expected.count != 1 || d.expected == (nameSet{}) {
		t.Errorf("missing: %+v", d.expected)
	}
	obs := &observer{}
	d.r = &restorer{obs: obs}
	d.attributesUnknown = true
	d.pending.Store(1)
	d.chain.Add(0, 0)
	p := &planner{r: d.r, current: d}
	p.leave()
	obs.wantText(t, "", "the index lacks the pages of subdirectories (1 or more)")
}

// sqliteCatalog has the pages of a fixture in a real index, in which rows can be deleted.
type sqliteCatalog struct {
	*sqliteindex.Index
	f    *fixture
	file string
}

func (c *sqliteCatalog) LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	return c.f.LocateReadable(ctx, ids)
}

func (c *sqliteCatalog) LocateReadableCopies(ctx context.Context, ids []backup.ChunkID) ([][]index.Location, error) {
	return c.f.LocateReadableCopies(ctx, ids)
}

// inSQLite commits the fixture's pages as a snapshot, and makes the fixture one of that snapshot.
func (f *fixture) inSQLite() *sqliteCatalog {
	f.t.Helper()
	ctx, file := f.t.Context(), filepath.Join(f.t.TempDir(), "index.db")
	x, err := sqliteindex.Open(ctx, file)
	check(f.t, err)
	f.t.Cleanup(func() { x.Close() })
	_, _, err = x.Migrate(ctx)
	check(f.t, err)
	filer, err := x.EnsureFiler(ctx, "filer")
	check(f.t, err)
	shard, err := x.EnsureShard(ctx, filer.ID, "home", "posix:///home")
	check(f.t, err)
	now := time.Unix(1_600_000_000, 0)
	s, err := x.BeginSnapshot(ctx, shard.ID, backup.Snapshot{ID: f.snapshot}, now)
	check(f.t, err)
	tasks, err := x.ClaimTasks(ctx, index.Claim{Snapshots: []backup.SnapshotID{s.ID}, Lease: time.Minute, Limit: 1, Now: now})
	check(f.t, err)
	for i := range f.pages {
		f.pages[i].Fingerprint, f.pages[i].Inode = backup.Fingerprint{byte(i + 1)}, uint64(i)
		if f.pages[i].Key != 0 {
			f.pages[i].Inode = 0
		}
	}
	slice := &backup.SliceWalked{Snapshot: s.ID, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true, Pages: f.pages}
	outcomes, err := x.Apply(ctx, []index.Result{{Slice: slice}})
	check(f.t, err)
	check(f.t, outcomes[0].Err)
	check(f.t, x.Commit(ctx, s.ID, backup.Segment{Parts: 1}, f.pageSet(), now))
	return &sqliteCatalog{x, f, file}
}

func (c *sqliteCatalog) drop(path string, key backup.PageKey) {
	c.f.t.Helper()
	db, err := sql.Open("sqlite", c.file)
	check(c.f.t, err)
	defer db.Close()
	done, err := db.Exec("DELETE FROM pages WHERE path_key = ? AND page = ?", backup.PathKey(path), int64(key))
	check(c.f.t, err)
	if n, err := done.RowsAffected(); n != 1 {
		c.f.t.Fatalf("%d rows of %q are gone (%v)", n, path, err)
	}
}

func TestMissingRowsOfSQLite(t *testing.T) {
	f := pagedTree(t)
	c := f.inSQLite()
	f.newPack()
	snapshot, err := c.Snapshot(t.Context(), f.snapshot)
	check(t, err)
	if snapshot.Pages.Pages != 11 {
		t.Fatalf("%+v", snapshot.Pages)
	}
	restore := func() *observer {
		obs, deps := &observer{}, f.deps()
		deps.Catalog = c
		_, err := Restore(t.Context(), deps, Options{Snapshot: f.snapshot, Target: t.TempDir(), Pages: snapshot.Pages}, obs)
		check(t, err)
		return obs
	}
	restore().wantProblems(t)
	c.drop("big", listing.Key("e1"))
	obs := restore()
	obs.wantProblems(t, "big")
	obs.wantText(t, "big", "the index has 3 of its pages, and lacks others; another snapshot may have what is missing")
	c.drop("bigger/in", 0)
	obs = restore()
	obs.wantProblems(t, "big", "bigger/in")
	obs.wantText(t, "bigger/in", "the index has none of its pages")
	c.drop("bigger", 0)
	obs = restore()
	obs.wantProblems(t, "big", "bigger") // no page lists bigger/in any more
	obs.wantText(t, "bigger", "the index lacks its first page")
}

// A target that does not exist is not created for a snapshot that has no pages.
func TestSnapshotWithoutPages(t *testing.T) {
	f := newFixture(t)
	f.newPack()
	target := filepath.Join(t.TempDir(), "target")
	_, _, err := f.tryRestore(context.Background(), Options{Target: target, Delete: true})
	if !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("restore: %v", err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("target: %v", err)
	}
}

// A directory with too many names for Delete is checked like any other.
func TestMissingPagesWhereNamesAreForgotten(t *testing.T) {
	obs := &observer{}
	d := &directory{r: &restorer{o: Options{Delete: true}, obs: obs}}
	d.r.remembered.Store(maxRememberedNames)
	d.remember("name")
	d.deleteOthers()
	obs.wantText(t, "", "nothing in it was deleted")
	d.chain.Add(0, 1)
	(&planner{r: d.r, current: d}).ownPagesEnd(d)
	obs.wantText(t, "", "the index has 1 of its pages")
}
