package indextest

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// Names may contain any bytes, and paths have any length. Two paths whose common prefix is longer
// than the part in an index are still distinct.
func testNames(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	deep := strings.TrimSuffix(strings.Repeat("0123456789abcde/", 625), "/") // 9,999 bytes
	var every []string
	for b := 1; b < 256; b++ {
		if b != '/' && b != '.' {
			every = append(every, string([]byte{byte(b)}), "x"+string([]byte{byte(b)})+"y")
		}
	}
	list := append(every, "", deep, deep+"/one", deep+"/one/below", deep+"/on", deep+"/two", deep+"/one!", deep[:1023], deep[:1022], deep[:1024-16]+strings.Repeat("z", 100))
	var pages []backup.PageVersion
	for _, path := range list {
		pages = append(pages, pageOf(path, "listing of "+path))
	}
	large := pageOf("large", "")
	large.Listing = bytes.Repeat([]byte("\x00\xff"), 1<<20)
	empty := backup.PageVersion{Path: "empty", Listing: []byte{}}
	pages = append(pages, large, empty)
	s := f.commitPages(pages...)
	slices.SortFunc(pages, comparePages)
	got := f.pages(s, "")
	if len(got) != len(pages) {
		t.Fatalf("%d pages, want %d", len(got), len(pages))
	}
	for i := range pages {
		if !reflect.DeepEqual(normal(got[i]), normal(pages[i])) {
			t.Fatalf("page %d is %.200q, want %.200q", i, fmt.Sprint(got[i]), fmt.Sprint(pages[i]))
		}
	}
	f.wantPaths(f.pages(s, deep+"/one"), deep+"/one", deep+"/one/below")
	f.wantPaths(f.pages(s, "x"), "x")
	f.wantPaths(f.pages(s, "nowhere"))

	// Ranges end within the common prefix.
	below := backup.PathKey(deep + "/one")
	marks, next, err := f.x.Marks(f.ctx, f.shard.ID, s.Number, below, backup.PathKeyEnd(deep+"/one"), 100)
	f.must(err)
	if len(marks) != 2 || next != nil || marks[0].Directory != listing.DirectoryID(deep+"/one") {
		t.Fatalf("%d marks below, more at %q; want 2", len(marks), next)
	}
	second := f.walk(func(r *backup.SliceWalked) { r.Removed = []string{deep + "/one", "x"} })
	f.commit(second)
	if n := len(f.pages(second, "")); n != len(pages)-3 {
		t.Fatalf("%d pages after two removals, want %d", n, len(pages)-3)
	}
	f.wantPaths(f.pages(second, deep), deep, deep+"/on", deep+"/one!", deep+"/two")
}

func normal(p backup.PageVersion) backup.PageVersion {
	if len(p.Listing) == 0 {
		p.Listing = nil
	}
	p.Digest = backup.PageDigest{} // see testDamagedPages
	return p
}

// An unchanged page that is put again is not a new version. A directory that is removed and created
// again in the same snapshot is one.
func testVersions(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitPages(pageOf("", "root"), pageOf("a", "a"), pageOf("b", "b"), pageOf("b/c", "c"), pageOf("b!", "no"), pageOf("bb", "no"))
	second := f.walk(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{pageOf("", "root"), pageOf("a", "changed"), pageOf("b", "again")}
		r.Removed = []string{"b"}
		r.Ended = []backup.PageName{{Path: "nowhere", Key: 5}, {Path: "b!"}}
	})
	var got []string
	for _, c := range f.changes(second) {
		content := ""
		if !c.Ended {
			content = contentOf(c.Listing)
		}
		got = append(got, fmt.Sprintf("%s %t %s", c.Path, c.Ended, content))
	}
	want := []string{"a false changed", "b false again", "a true ", "b true ", "b/c true ", "b! true "}
	if !slices.Equal(got, want) {
		t.Fatalf("changes %q, want %q", got, want)
	}
	f.commit(second)
	f.wantPaths(f.pages(second, ""), "", "a", "b", "bb")
	f.wantPaths(f.pages(first, ""), "", "a", "b", "b/c", "b!", "bb")
	f.wantPaths(f.pages(first, "b"), "b", "b/c")
	if changes := f.changes(first); len(changes) != 6 || changes[0].Ended || changes[0].Inode != inodeOf("") {
		t.Fatalf("changes %+v, want six that began", changes)
	}
	// A reader may stop early. A snapshot that never existed has no changes.
	for range f.x.Changes(f.ctx, first.ID) {
		break
	}
	for range f.x.Pages(f.ctx, first.ID, "") {
		break
	}
	for _, err := range f.x.Changes(f.ctx, backup.NewSnapshotID()) {
		f.wants(err, backup.ErrNotFound)
	}
}

// Results of one snapshot arrive in any order. A removal in one does not affect pages that another
// has put, and of a page that is put twice the later one counts.
func testOrderOfResults(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.commitPages(pageOf("", "root"), pageOf("a", "old"), pageOf("a/b", "old"), pageOf("c", "old"))
	s := f.walk(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{pageOf("a/b", "new"), pageOf("c", "new")}
		r.Children = children([][]string{{"x"}, {"y"}})
	})
	tasks := f.claimTasks(s)
	removing := SliceOf(tasks[0])
	removing.Removed = []string{"a"}
	removing.Ended = []backup.PageName{{Path: "c"}}
	f.accept(index.Result{Slice: removing})
	twice := SliceOf(tasks[1])
	twice.Pages = []backup.PageVersion{pageOf("z", "first"), pageOf("z", "second"), pageOf("c", "newest")}
	if o := f.apply(index.Result{Slice: twice}, index.Result{Slice: twice}); !o[0].Complete || o[1] != (index.Outcome{Late: true}) {
		t.Fatalf("%+v, want the first accepted and the second late", o)
	}
	f.commit(s)
	f.wantPaths(f.pages(s, ""), "", "a/b", "c", "z")
	if got := f.pages(s, "z"); contentOf(got[0].Listing) != "second" {
		t.Fatalf("page %+v, want the later one", got)
	}
	if got := f.pages(s, "c"); contentOf(got[0].Listing) != "newest" {
		t.Fatalf("page %+v, want the later one", got)
	}
}

// An unchanged tree adds no row.
func testUnchangedTree(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	pages := []backup.PageVersion{pageOf("", "root"), pageOf("a", "a")}
	f.commitPages(pages...)
	f.wantRows("pages", 2)
	for range 3 {
		f.commitPages()
		f.commitPages(pages...) // even if they are sent
	}
	f.wantRows("pages", 2)
	f.fail(f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("a", "b")} }).ID, "")
	for table, want := range map[string]int{"pages": 2, "snapshots": 8, "walk_tasks": 0, "read_batches": 0, "slice_parts": 0} {
		f.wantRows(table, want)
	}
}

func testWalking(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	root, a, second := pageOf("", "root"), pageOf("a", "a1"), pageOf("a", "a2")
	second.Key, second.Inode = 77, 0
	twin := pageOf("twin", "")
	twin.Inode = inodeOf("a/b")
	s := f.commitPages(root, a, second, pageOf("a/b", "b"), twin)
	later := f.walk(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{pageOf("a", "new")}
		r.Removed = []string{"twin"}
	})
	f.commit(later)
	for _, test := range []struct {
		base backup.SnapshotNumber
		want []string
	}{{1, []string{"a2", "", "root", "a1"}}, {2, []string{"a2", "", "root", "new"}}} {
		listings, err := f.x.Listings(f.ctx, f.shard.ID, test.base, []backup.PageName{{Path: "a", Key: 77}, {Path: "nowhere"}, {Path: ""}, {Path: "a"}})
		f.must(err)
		for i, want := range test.want {
			if (want == "") != (listings[i] == nil) || want != "" && contentOf(listings[i]) != want {
				t.Fatalf("listings %q in snapshot %d, want %q", listings, test.base, test.want)
			}
		}
	}
	if listings, err := f.x.Listings(f.ctx, f.shard.ID, 1, nil); err != nil || len(listings) != 0 {
		t.Fatalf("listings %q, %v of nothing", listings, err)
	}
	keys, err := f.x.PageKeys(f.ctx, f.shard.ID, 1, "a")
	f.must(err)
	none, err := f.x.PageKeys(f.ctx, f.shard.ID, 1, "nowhere")
	f.must(err)
	if !slices.Equal(keys, []backup.PageKey{0, 77}) || len(none) != 0 {
		t.Fatalf("keys %v and %v", keys, none)
	}
	for _, test := range []struct {
		base  backup.SnapshotNumber
		inode uint64
		want  string
		ok    bool
	}{
		{s.Number, inodeOf("a"), "a", true}, {later.Number, inodeOf("a"), "a", true},
		{s.Number, inodeOf("a/b"), "", false}, // two directories have this inode
		{later.Number, inodeOf("a/b"), "a/b", true},
		{s.Number, 4711, "", false}, {s.Number, 0, "", false},
	} {
		path, ok, err := f.x.DirectoryByInode(f.ctx, f.shard.ID, test.base, test.inode)
		f.must(err)
		if path != test.want || ok != test.ok {
			t.Fatalf("inode %x in snapshot %d is %q, %t; want %q, %t", test.inode, test.base, path, ok, test.want, test.ok)
		}
	}
}

// Marks are returned in order, a bounded number at a time, and never a part of a directory.
func testMarks(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	var pages []backup.PageVersion
	for d := range 20 {
		for key := range d + 1 {
			p := pageOf(fmt.Sprintf("d/%02d", d), fmt.Sprint(key))
			p.Key = backup.PageKey(key * 1000)
			pages = append(pages, p)
		}
	}
	pages = append(pages, pageOf("", "root"), pageOf("d", "d"), pageOf("z", "z"))
	s := f.commitPages(pages...)
	slices.SortFunc(pages, comparePages)
	f.commit(f.walk(func(r *backup.SliceWalked) { r.Removed = []string{"d"} })) // not visible in snapshot 1

	all := func(from, to []byte, limit int) (got []index.PageMark) {
		for {
			marks, next, err := f.x.Marks(f.ctx, f.shard.ID, s.Number, from, to, limit)
			f.must(err)
			whole := len(marks) > 0 && marks[0].Directory == marks[len(marks)-1].Directory
			if len(marks) > limit && !whole {
				t.Fatalf("%d marks, the limit is %d", len(marks), limit)
			}
			got = append(got, marks...)
			if next == nil {
				return got
			}
			if bytes.Compare(next, from) <= 0 {
				t.Fatalf("next is %q after %q", next, from)
			}
			if _, err := backup.PathOfKey(next); err != nil {
				t.Fatal(err)
			}
			from = next
		}
	}
	for _, test := range []struct{ from, to string }{{"", ""}, {"d", "d"}, {"d/07", "d/11"}, {"d/19", ""}, {"y", ""}, {"zz", ""}} {
		from, to := backup.PathKey(test.from), []byte(nil)
		if test.to != "" {
			to = backup.PathKeyEnd(test.to)
		}
		var want []index.PageMark
		for _, p := range pages {
			if key := backup.PathKey(p.Path); bytes.Compare(key, from) >= 0 && (to == nil || bytes.Compare(key, to) < 0) {
				want = append(want, index.PageMark{Directory: listing.DirectoryID(p.Path), Key: p.Key, Fingerprint: p.Fingerprint})
			}
		}
		for _, limit := range []int{1, 2, 7, 20, 21, 1000} {
			if got := all(from, to, limit); !slices.Equal(got, want) {
				t.Fatalf("from %q to %q, %d at a time: %d marks, want %d", test.from, test.to, limit, len(got), len(want))
			}
		}
	}
	if _, _, err := f.x.Marks(f.ctx, f.shard.ID, s.Number, nil, nil, 0); err == nil {
		t.Fatal("no error of a limit of 0")
	}
	if marks, _, err := f.x.Marks(f.ctx, f.shard.ID, 99, nil, nil, 10); err != nil || len(marks) != 2 {
		t.Fatalf("%d marks now, %v; want those of the root and z", len(marks), err)
	}
}

func testManyPages(t *testing.T, fresh func(testing.TB) Database) {
	total := 8_000
	if testtarget.Runs(testtarget.Often) {
		total = 40_000
	}
	f := newFixture(t, fresh)
	s := f.manyPages(total)
	seen := map[backup.DirectoryID]bool{}
	var from []byte
	for calls := 1; ; calls++ {
		marks, next, err := f.x.Marks(f.ctx, f.shard.ID, s.Number, from, nil, 7001)
		f.must(err)
		for _, m := range marks {
			seen[m.Directory] = true
		}
		if next == nil {
			break
		}
		if len(marks) != 7001 || calls > 15 {
			t.Fatalf("%d marks in call %d", len(marks), calls)
		}
		from = next
	}
	if len(seen) != total {
		t.Fatalf("marks of %d directories, want %d", len(seen), total)
	}
	var last []byte
	count := 0
	for p, err := range f.x.Pages(f.ctx, s.ID, "d001") {
		f.must(err)
		key := backup.PathKey(p.Path)
		if bytes.Compare(key, last) <= 0 {
			t.Fatalf("%q after %q", key, last)
		}
		last = key
		count++
	}
	if want := (total + 96 - 1) / 97; count != want {
		t.Fatalf("%d pages in the subtree, want %d", count, want)
	}
}
