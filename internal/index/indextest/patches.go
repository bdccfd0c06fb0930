package indextest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// pageOfFiles returns a page of 100 files as a reader sends it, with compressed columns. The files
// changed have other chunks and sizes than the version before.
func pageOfFiles(path string, version int, changed ...int) backup.PageVersion {
	page := backup.Page{Self: &backup.Entry{Kind: backup.Directory, Inode: inodeOf(path)}}
	for i := range 100 {
		state := 0
		if slices.Contains(changed, i) {
			state = version
		}
		sum := blake3.Sum256(fmt.Append(nil, path, i, state))
		page.Entries = append(page.Entries, backup.Entry{Name: fmt.Sprintf("file %03d", i), Kind: backup.File, Size: int64(sum[0]), Mtime: backup.Time{Nsec: binary.LittleEndian.Uint32(sum[:]) % 1e9}})
		e := &page.Entries[i]
		e.Content.Refs = []backup.Ref{{Chunk: backup.ChunkID(sum[:16]), Length: e.Size, Span: e.Size}}
	}
	data, err := listing.Encode(nil, &page)
	if err != nil {
		panic(err) // a mistake in a test of this package
	}
	return backup.PageVersion{Path: path, Fingerprint: backup.Fingerprint{byte(version)}, Inode: inodeOf(path), Listing: data}
}

// wantPage checks that a snapshot has a page with the same entries.
func (f *fixture) wantPage(s backup.Snapshot, want backup.PageVersion) {
	f.Helper()
	plain, err := listing.Plain(want.Listing)
	f.must(err)
	for p, err := range f.x.Subtree(f.ctx, s.Shard.ID, s.Number, want.Path) {
		f.must(err)
		got, err := listing.Plain(p.Listing)
		if err != nil || !bytes.Equal(got, plain) || p.Digest != listing.Digest(&p) || p.Fingerprint != want.Fingerprint {
			f.Fatalf("snapshot %d has another page %q: %v", s.Number, want.Path, err)
		}
		listings, err := f.x.Listings(f.ctx, s.Shard.ID, s.Number, []backup.PageName{{Path: want.Path}})
		f.must(err)
		if !bytes.Equal(listings[0], p.Listing) {
			f.Fatalf("snapshot %d lists another page %q", s.Number, want.Path)
		}
		return
	}
	f.Fatalf("snapshot %d has no page %q", s.Number, want.Path)
}

const patches = "pages WHERE base IS NOT NULL"

// storedBytes is the length of all stored listings.
func (f *fixture) storedBytes() (n int) {
	f.Helper()
	f.must(f.db.SQL.QueryRowContext(f.ctx, "SELECT sum(length(listing)) FROM pages").Scan(&n))
	return n
}

// A version of a page takes as many bytes as has changed, and a whole one follows when the patches
// have become large. All of them can be read, and a segment gets what each of them replaces.
func testPatches(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := pageOfFiles("d", 1)
	snapshots, versions := []backup.Snapshot{f.commitPages(first)}, []backup.PageVersion{first}
	whole := f.storedBytes()
	for n := 2; n <= 20; n++ {
		var changed []int
		for i := range n {
			changed = append(changed, i*5)
		}
		before := f.storedBytes()
		version := pageOfFiles("d", n, changed[max(0, len(changed)-3):]...)
		s := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{version} })
		changes := f.changes(s)
		old, err := listing.Plain(versions[len(versions)-1].Listing)
		f.must(err)
		if len(changes) != 2 || !changes[1].Ended || !listing.IsPlain(changes[0].Listing) {
			t.Fatalf("snapshot %d: %d changes", n, len(changes))
		}
		if replaced, err := listing.Plain(changes[0].Replaces); err != nil || !bytes.Equal(replaced, old) {
			t.Fatalf("snapshot %d replaces another listing: %v", n, err)
		}
		f.commit(s)
		if grown := f.storedBytes() - before; n == 2 && grown > whole/5 || grown > whole*11/10 {
			t.Fatalf("version %d takes %d bytes, the first one %d", n, grown, whole)
		}
		snapshots, versions = append(snapshots, s), append(versions, version)
	}
	for i := range snapshots {
		f.wantPage(snapshots[i], versions[i])
	}
	f.wantRows(patches, 19)
	if all := f.storedBytes(); all > 6*whole {
		t.Errorf("20 versions take %d bytes, the first one %d", all, whole)
	}

	// The same page again is no version, whether its columns are compressed or not.
	last := versions[len(versions)-1]
	plain := last
	var err error
	plain.Listing, err = listing.Plain(last.Listing)
	f.must(err)
	for _, p := range []backup.PageVersion{last, plain} {
		s := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{p} })
		if changes := f.changes(s); len(changes) != 0 {
			t.Fatalf("%d changes", len(changes))
		}
		f.commit(s)
	}
	// Another fingerprint is one.
	last.Fingerprint = backup.Fingerprint{}
	f.wantPage(f.commitPages(last), last)
	f.wantRows("pages", 21)
}

// A patch needs a whole version from before its snapshot. A page that changes in all its entries,
// that was removed in between, or that is too large, is stored whole.
func testPatchesOfNothing(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	large := backup.PageVersion{Path: "large", Listing: append([]byte{1, 0}, make([]byte, listing.MaxPatchedBytes)...)}
	f.commitPages(pageOfFiles("d", 1), pageOfFiles("e", 1), large)
	every := make([]int, 100)
	for i := range every {
		every[i] = i
	}
	large.Listing = slices.Clone(large.Listing)
	large.Listing[100] = 1
	s := f.walk(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{pageOfFiles("d", 2, every...), pageOfFiles("e", 2, 1), large}
		r.Removed = []string{"e"}
	})
	f.commit(s)
	f.wantRows(patches, 0)
	f.wantPage(s, pageOfFiles("d", 2, every...))
	f.wantPage(s, pageOfFiles("e", 2, 1))
	f.wantPage(s, large)

	// A page that a snapshot puts twice, the first time whole.
	s = f.begin()
	r := SliceOf(f.claimTask(s))
	r.Pages = []backup.PageVersion{pageOfFiles("new", 1)}
	r.Batches = reads([][]backup.PageVersion{{pageOfFiles("new", 2, 2)}, {pageOfFiles("d", 3, every[1:]...)}})
	f.accept(index.Result{Slice: r})
	for _, b := range f.claimBatches(s) {
		f.accept(index.Result{Batch: storedOf(b)})
	}
	f.commit(s)
	f.wantPage(s, pageOfFiles("new", 2, 2))
	f.wantPage(s, pageOfFiles("d", 3, every[1:]...))
	f.wantRows("pages WHERE base >= first_snapshot", 0)
}

// A base stays while a needed version is a patch of it, in any order in which snapshots are
// forgotten.
func testPatchesNeedTheirBases(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	var snapshots []backup.Snapshot
	version := func(n int) backup.PageVersion { return pageOfFiles("d", n, n) }
	for n := range 5 {
		snapshots = append(snapshots, f.commitRecorded(version(n)))
	}
	f.wantRows("pages WHERE base = 1", 4)
	dropped := func(want int64) {
		t.Helper()
		n, err := f.x.DropVersions(f.ctx, f.shard.ID)
		f.must(err)
		if n != want {
			t.Fatalf("%d versions dropped, want %d", n, want)
		}
	}
	f.must(f.forget(snapshots[0]))
	dropped(0)
	f.wantRows("pages", 5)
	for i, s := range snapshots[1:] {
		f.wantPage(s, version(i+1))
	}
	f.must(f.forget(snapshots[2]))
	dropped(1)
	f.must(f.forget(snapshots[1]))
	dropped(1)
	f.wantRows("pages", 3) // the base, and two patches of it
	f.wantPage(snapshots[3], version(3))

	// A base that no snapshot needs does not keep its chunks.
	var listings int
	for data, err := range f.x.References(f.ctx, f.shard.ID, 0, []backup.SnapshotNumber{snapshots[3].Number, snapshots[4].Number}) {
		f.must(err)
		chunks, err := listing.ReadChunks(data)
		if err != nil || len(chunks.Other) != 100 {
			t.Fatalf("%d chunks, %v", len(chunks.Other), err)
		}
		listings++
	}
	if listings != 2 {
		t.Fatalf("references of %d versions, want 2", listings)
	}

	// A page that is removed takes its base along.
	s := f.walk(func(r *backup.SliceWalked) { r.Removed = []string{"d"} })
	f.commit(s)
	f.must(f.x.Recorded(f.ctx, s.ID))
	f.must(f.forget(snapshots[3]))
	f.must(f.forget(snapshots[4]))
	dropped(3)
	f.wantRows("pages", 0)
}

// A damaged base makes its patches damaged, and nothing else. The next version of the page does not
// rely on what cannot be read, and no segment has a patch of a damaged version.
func testPatchesOfDamagedPages(t *testing.T, fresh func(testing.TB) Database) {
	for name, damage := range map[string]string{
		"cut off": "substr(listing, 1, 100)",
		"changed": "(SELECT listing FROM pages WHERE first_snapshot = 1 AND path_key = $2)",
		"deleted": "",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, fresh)
			f.commitPages(pageOfFiles("d", 1), pageOfFiles("e", 1))
			second := f.commitPages(pageOfFiles("d", 2, 2), pageOfFiles("e", 2, 2))
			const where = " WHERE first_snapshot = 1 AND path_key = $1"
			switch name {
			case "deleted":
				f.exec("DELETE FROM pages"+where, backup.PathKey("d"))
			case "changed":
				f.exec("UPDATE pages SET listing = "+damage+where, backup.PathKey("d"), backup.PathKey("e"))
			default:
				f.exec("UPDATE pages SET listing = "+damage+where, backup.PathKey("d"))
			}
			f.wantPage(second, pageOfFiles("e", 2, 2))
			pages := f.pages(second, "d")
			if len(pages) != 1 || pages[0].Digest == listing.Digest(&pages[0]) {
				t.Fatalf("%d pages, and they are not damaged", len(pages))
			}
			third := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOfFiles("d", 3, 3)} })
			for _, c := range f.changes(third) {
				if c.Replaces != nil {
					t.Error("a change names a damaged page as what it replaces")
				}
			}
			f.commit(third)
			f.wantPage(third, pageOfFiles("d", 3, 3))
		})
	}
}

// The patches that a failed snapshot has left are found, and keep their base.
func testPatchesOfInterruptedPages(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	first := f.commitRecorded(pageOfFiles("d", 1))
	second := f.commitRecorded(pageOfFiles("d", 2, 2))
	failed := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOfFiles("d", 3, 3)} })
	f.fail(failed.ID, "")
	f.wantRows("interrupted_pages WHERE base = 1", 1)
	f.must(f.forget(first))
	_, err := f.x.DropVersions(f.ctx, f.shard.ID)
	f.must(err)
	want, err := listing.Plain(pageOfFiles("d", 3, 3).Listing)
	f.must(err)
	listings, err := f.x.InterruptedListings(f.ctx, f.shard.ID, []backup.PageName{{Path: "d"}})
	if err != nil || !bytes.Equal(listings[0], want) {
		t.Fatalf("another listing of %d bytes, %v", len(listings[0]), err)
	}
	found := false
	for data, err := range f.x.References(f.ctx, f.shard.ID, 0, nil) {
		f.must(err)
		found = found || bytes.Equal(data, want)
	}
	if !found {
		t.Error("an interrupted page has no references")
	}
	f.wantPage(second, pageOfFiles("d", 2, 2))
	last := f.commitRecorded(pageOfFiles("d", 4, 4))
	f.wantPage(last, pageOfFiles("d", 4, 4))
	f.wantRows("interrupted_pages", 0)
}

// While services run that cannot read patches, none is written.
func testPatchesBesideOldServices(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.exec("UPDATE schema_versions SET oldest = 2 WHERE oldest >= 11")
	f.commitPages(pageOfFiles("d", 1))
	second := f.commitPages(pageOfFiles("d", 2, 2))
	f.wantRows(patches, 0)
	for _, p := range f.pages(second, "d") {
		if !bytes.Equal(p.Listing, pageOfFiles("d", 2, 2).Listing) {
			t.Error("the listing is not stored as it is")
		}
	}
	f.must(f.x.RequireNewest(f.ctx))
	third := f.commitPages(pageOfFiles("d", 3, 2))
	f.wantRows(patches, 1)
	f.wantPage(third, pageOfFiles("d", 3, 2))
}
