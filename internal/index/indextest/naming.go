package indextest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// names returns the names that the index has of the fixture's shard, each with its page.
func (f *fixture) names() (found map[string]int, err error) {
	found = map[string]int{}
	err = f.x.EachName(f.ctx, f.shard.ID, func(page backup.PageName, names []string) error {
		for _, name := range names {
			found[fmt.Sprint(page.Key, " ", backup.Join(page.Path, name))]++
		}
		return nil
	})
	return found, err
}

// wantNames checks that the index has each name of each version of a page of the fixture's shard.
// It returns the others, or false if the index says that its names are not complete.
func (f *fixture) wantNames() (others []string, complete bool) {
	f.Helper()
	found, err := f.names()
	if errors.Is(err, index.ErrNamesIncomplete) {
		return nil, false
	}
	f.must(err)
	f.must(f.x.VersionsBelow(f.ctx, f.shard.ID, "", false, func(v *index.PageSpan) error {
		page, err := listing.DecodePage(v.PageVersion)
		for i := range page.Entries {
			name := fmt.Sprint(v.Key, " ", backup.Join(v.Path, page.Entries[i].Name))
			if found[name] == 0 {
				f.Fatalf("the index lacks the name %q of a version from %d to %d", name, v.First, v.Last)
			}
			found[name] = -1
		}
		return err
	}))
	for name, n := range found {
		if n > 0 {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return others, true
}

func (f *fixture) wantNamed(want map[string]int) {
	f.Helper()
	found, err := f.names()
	f.must(err)
	if fmt.Sprint(found) != fmt.Sprint(want) {
		f.Fatalf("names %v, want %v", found, want)
	}
}

// wantNoName checks that no name has a text, not even one of no page.
func (f *fixture) wantNoName(text string) {
	f.Helper()
	found, err := f.names()
	f.must(err)
	for name := range found {
		if strings.Contains(name, text) {
			f.Fatalf("the index still has %q", name)
		}
	}
}

func (f *fixture) collect(want bool) {
	f.Helper()
	did, err := f.x.CollectNames(f.ctx, f.shard.ID)
	f.must(err)
	if did != want {
		f.Fatalf("names collected: %t, want %t", did, want)
	}
}

// pageNamed returns the first page of a directory with files of these names, in one state.
func pageNamed(path string, state int, names ...string) backup.PageVersion {
	page := backup.Page{Path: path, Self: &backup.Entry{Kind: backup.Directory, Inode: 1}}
	for _, name := range slices.Sorted(slices.Values(names)) {
		page.Entries = append(page.Entries, backup.Entry{Name: name, Kind: backup.File, Size: int64(state)})
	}
	data, err := listing.Encode(nil, &page)
	if err != nil {
		panic(err) // a mistake in a test of this package
	}
	v := pageOf(path, fmt.Sprint(state, names))
	v.Listing = data
	return v
}

// Only names that are new to a page are stored, and those of a snapshot that fails are removed.
func testNewNames(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.commitPages(pageNamed("", 1, "d"), pageNamed("d", 1, "a", "new\nline", "\xff"))
	want := map[string]int{"0 d": 1, "0 d/a": 1, "0 d/new\nline": 1, "0 d/\xff": 1}
	f.wantNamed(want)
	f.commitPages(pageNamed("d", 2, "a", "new\nline", "\xff"))
	f.wantNamed(want)
	f.wantRows("name_blocks", 1)
	f.commitPages(pageNamed("d", 3, "a", "b"))
	want["0 d/b"] = 1
	f.wantNamed(want)
	failed := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageNamed("d", 4, "c")} })
	f.fail(failed.ID, "")
	f.wantNamed(want)
	f.collect(false)

	var spans []string
	f.must(f.x.VersionsOf(f.ctx, f.shard.ID, []backup.PageName{{Path: "d"}, {Path: "absent"}, {}}, func(v *index.PageSpan) error {
		spans = append(spans, fmt.Sprintf("%q %d", v.Path, v.First))
		return nil
	}))
	if want := []string{`"d" 1`, `"d" 2`, `"d" 3`, `"" 1`}; !slices.Equal(spans, want) {
		t.Errorf("versions %q, want %q", spans, want)
	}
}

// Damage to names hides nothing: the index says that they are not complete, until they are
// collected again.
func testDamagedNames(t *testing.T, fresh func(testing.TB) Database) {
	for _, damage := range []string{
		"UPDATE name_blocks SET block = %s WHERE number = 2",
		"DELETE FROM name_blocks WHERE number = 2",
		"UPDATE name_blocks SET shard = shard + 1 WHERE number = 2",
		"DELETE FROM name_groups WHERE number = 2",
	} {
		f := newFixture(t, fresh)
		bytes := "x'00112233445566778899aabbccddeeff0011'"
		if f.db.UUIDs {
			bytes = `'\x00112233445566778899aabbccddeeff0011'`
		}
		f.commitPages(pageNamed("", 1, "a", "b"))
		f.commitPages(pageNamed("", 2, "a", "c"))
		running := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageNamed("", 3, "d")} })
		if strings.Contains(damage, "%s") {
			damage = fmt.Sprintf(damage, bytes)
		}
		f.exec(damage)
		if _, err := f.names(); !errors.Is(err, index.ErrNamesIncomplete) {
			t.Fatalf("after %s: %v", damage, err)
		}
		f.collect(true)
		f.collect(false)
		f.commit(running)
		if others, complete := f.wantNames(); !complete || len(others) > 0 {
			t.Errorf("names of no page: %q; complete: %t", others, complete)
		}
	}
}

// Services of an older version write pages without their names. A page that follows is stored with
// all of its names, because the index has not those of the page before.
func testNamesBesideOldServices(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.commitPages(pageNamed("d", 1, "a", "b"))
	if _, complete := f.wantNames(); !complete {
		t.Fatal("the names are not complete")
	}
	f.exec("INSERT INTO pages (shard, page, first_snapshot, inode, directory, fingerprint, digest, path_key, listing)" +
		" SELECT shard, page + 1, first_snapshot, inode, directory, fingerprint, digest, path_key, listing FROM pages")
	f.exec("DELETE FROM pages WHERE page = 1")
	f.exec("DELETE FROM name_blocks") // as if that had been their page
	f.exec("DELETE FROM name_groups")
	if _, complete := f.wantNames(); complete {
		t.Fatal("the names are complete")
	}
	f.commitPages(pageNamed("d", 2, "a", "c"))
	f.exec("DELETE FROM names_incomplete")
	f.exec("DELETE FROM pages WHERE first_snapshot = 1") // as prune does
	f.wantNames()
	f.exec("INSERT INTO names_incomplete (shard, marks) VALUES (1, 1)")
	f.collect(true)
	if others, complete := f.wantNames(); !complete || len(others) > 0 {
		t.Errorf("names of no page: %q; complete: %t", others, complete)
	}
}

// Random histories: whatever is begun, committed, given up, forgotten and pruned, and in whatever
// order, the index has all names, or says that it has not.
func testNamesOfHistories(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	r := rand.New(rand.NewPCG(17, 1))
	var last tree
	var snapshots []backup.Snapshot
	for range 25 {
		switch n := r.IntN(6); {
		case n == 0 && len(snapshots) > 2:
			f.must(f.forget(snapshots[0]))
			snapshots = snapshots[1:]
			_, err := f.x.DropVersions(f.ctx, f.shard.ID)
			f.must(err)
		case n == 1:
			s := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageNamed("other", n, "failed")} })
			f.fail(s.ID, "")
		case n == 2:
			f.must(f.x.RollBack(f.ctx, f.shard.ID, 1<<40))
			f.exec("DELETE FROM name_blocks WHERE id % 3 = 0")
			_, complete := f.wantNames()
			f.collect(!complete)
		default:
			next := randomTree(r, last)
			snapshots = append(snapshots, f.commitTree(next, last))
			last = next
		}
		if _, complete := f.wantNames(); !complete {
			t.Fatal("the names are not complete")
		}
	}
}
