package indextest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// testPurgeRefused tests each state that keeps a purge from beginning.
func testPurgeRefused(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	has := tree{purgedName: 1, "dir/kept": 1}
	p := index.Purge{ID: backup.NewPackID(), Shard: f.shard.ID, Path: purgedName, By: "operator", Reason: "request 1"}
	refused := func(want error) {
		t.Helper()
		_, err := f.x.BeginPurge(f.ctx, p, false)
		f.wants(err, want)
		f.wantRows("purges", 0)
		f.wantRows("amendments", 0)
	}
	refused(backup.ErrNotFound)
	first := f.commitTree(has, nil)
	second := f.commitTree(has, has)
	for _, path := range []string{"dir/nothing", "dir/file-05-secre", "dir/file-05-secret/below", "file-05-secret"} {
		p.Path = path
		refused(backup.ErrNotFound)
	}
	for _, path := range []string{"", "/dir", "dir/", "../dir"} {
		p.Path = path
		refused(backup.ErrInvalid)
	}
	p.Path, p.Since = purgedName, f.now.Add(24*time.Hour)
	refused(backup.ErrNotFound)
	p.Since = time.Time{}

	one, err := f.x.AddHold(f.ctx, index.Hold{Snapshot: first.ID, By: "judge", Reason: "case 7"})
	f.must(err)
	refused(index.ErrKept)
	f.must(f.x.RemoveHold(f.ctx, one.ID, "judge", ""))
	all, err := f.x.AddHold(f.ctx, index.Hold{Shard: f.shard.ID, By: "judge", Reason: "case 7"})
	f.must(err)
	refused(index.ErrKept)
	f.must(f.x.RemoveHold(f.ctx, all.ID, "judge", ""))
	for _, path := range []string{purgedName, "dir"} {
		h, err := f.x.AddHold(f.ctx, index.Hold{Shard: f.shard.ID, Path: path, By: "judge", Reason: "case 8"})
		f.must(err)
		refused(index.ErrKept)
		f.must(f.x.RemoveHold(f.ctx, h.ID, "judge", ""))
	}

	reading := backup.NewPackID()
	f.must(f.x.BeginReading(f.ctx, reading, second.ID, time.Hour))
	refused(backup.ErrRunning)
	f.must(f.x.EndReading(f.ctx, reading))

	running := f.begin()
	refused(backup.ErrRunning)
	// A shard that does not have the path does not keep others from being purged.
	other := p
	other.ID, other.Path = backup.NewPackID(), "dir/nowhere"
	_, err = f.x.BeginPurge(f.ctx, other, true)
	f.wants(err, backup.ErrNotFound)
	f.fail(running.ID, "no reason")
	refused(backup.ErrRunning) // the store has no record of it
	f.must(f.x.Recorded(f.ctx, running.ID))
	// A hold on another path keeps nothing of this one.
	_, err = f.x.AddHold(f.ctx, index.Hold{Shard: f.shard.ID, Path: "dir/kept", By: "judge", Reason: "case 9"})
	f.must(err)
	_, err = f.x.BeginPurge(f.ctx, p, false)
	f.must(err)
}

// Recorded errors of the path go, too, also from a snapshot that has failed, whose record is stale
// then.
func testPurgeProblems(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	has := tree{purgedName + "/below": 1, "dir/kept": 1}
	first := f.commitTree(has, nil)
	failed := f.walk(func(r *backup.SliceWalked) {
		r.Pages = []backup.PageVersion{pageOf(purgedName, "interrupted")}
		r.Problems = []backup.Problem{{Path: purgedName + "/below", Op: "open", Err: "permission denied"}, {Path: "dir/kept", Op: "open", Err: "no"}}
		r.Counts.Errors = 2
	})
	f.fail(failed.ID, "no reason")
	f.must(f.x.Recorded(f.ctx, failed.ID))
	f.wantRows("interrupted_pages", 1)
	did, err := f.x.BeginPurge(f.ctx, index.Purge{ID: backup.NewPackID(), Shard: f.shard.ID, Path: purgedName, By: "operator", Reason: "request 1"}, false)
	f.must(err)
	if did.Problems != 1 || len(did.Snapshots) != 1 || did.Snapshots[0].ID != first.ID {
		t.Fatalf("removed %+v", did)
	}
	f.wantRows("interrupted_pages", 0)
	f.wantRows("problems", 1)
	if s := f.snapshot(failed.ID); s.Counts.Errors != 1 {
		t.Fatalf("%d errors", s.Counts.Errors)
	}
	journals, err := f.x.Journals(f.ctx, f.shard.ID)
	f.must(err)
	if len(journals) != 2 || !journals[0].Stale || !journals[1].Stale {
		t.Fatalf("journals: %+v", journals)
	}
}

// Packs that are sealed anew replace others in one transaction: their places remain when the old
// ones are dropped.
func testMoveNew(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, _ := f.batchesOf("a", "b")
	one, other := packOf(s, 1, 2, 3, 4), packOf(s, 4, 5)
	f.accept(index.Result{Pack: one})
	f.accept(index.Result{Pack: other})
	term := f.lead("pruner", "first", time.Minute, true)
	object := backup.NewPackID()
	plan, err := f.x.Plan(f.ctx, term, s.ID, object)
	f.must(err)
	rows := f.packRows(one)
	fresh2 := index.NewPack{Pack: backup.NewPackID(), Sealed: backup.NewPackID(), Bytes: 300, FrameBytes: []uint32{70, 80}, Chunks: []backup.ChunkPlace{
		{ID: chunkID(4), Frame: 1, Offset: 0, Length: 104}, {ID: chunkID(1), Frame: 0, Offset: 0, Length: 101}, {ID: chunkID(4), Frame: 1, Offset: 0, Length: 104},
	}}
	move := index.Move{Plan: plan, Dead: rows, New: []index.NewPack{fresh2}}
	f.wants(f.x.Move(f.ctx, term, move), backup.ErrInvalid) // it is not condemned
	f.must(f.x.Condemn(f.ctx, term, rows))
	f.must(f.x.Move(f.ctx, term, move))
	for digit := range 256 {
		f.must(f.x.DropPlaces(f.ctx, rows, byte(digit)))
	}
	found := f.locate(1, 2, 3, 4, 5)
	want := index.PackPlace{Pack: fresh2.Pack, Sealed: fresh2.Sealed, Snapshot: s.ID, Object: object, Bytes: 300}
	if l := found[0]; l.PackPlace != want || l.Frame != 0 || l.Length != 101 {
		t.Fatalf("chunk 1 is at %+v", l)
	}
	for _, n := range []int{1, 2} {
		if found[n] != (index.Location{}) {
			t.Fatalf("chunk %d is at %+v", n+1, found[n])
		}
	}
	if found[3] == (index.Location{}) || found[4].Pack != other.Pack {
		t.Fatalf("chunks 4 and 5 are at %+v", found[3:])
	}
	copies, err := f.x.LocateCopies(f.ctx, []backup.ChunkID{chunkID(4)})
	f.must(err)
	if len(copies[0]) != 2 {
		t.Fatalf("chunk 4 has %d places", len(copies[0]))
	}
}

// The versions of a page are patches of others again after a purge, and none of what has the name.
func testPurgePatches(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	var snapshots []backup.Snapshot
	var versions []backup.PageVersion
	for n := range 6 {
		page := pageOfFiles("d", n+1, n*3)
		pages := []backup.PageVersion{page}
		if n == 0 {
			pages = append([]backup.PageVersion{directoryPage("", "d")}, pages...)
		}
		s := f.commitRecorded(pages...)
		snapshots, versions = append(snapshots, s), append(versions, page)
	}
	f.wantRows(patches, 5)
	before := f.storedBytes()
	for _, p := range []struct {
		path string
		from int
	}{{"d/file 050", 3}, {"d/file 060", 0}} {
		purge := index.Purge{ID: backup.NewPackID(), Shard: f.shard.ID, Path: p.path, By: "operator", Reason: "request 1"}
		if p.from > 0 {
			// All snapshots of this suite start at the same time: that of the first is set back.
			for i, s := range snapshots {
				f.exec(f.at("UPDATE snapshots SET started = $1 WHERE id = $2"), f.now.Add(time.Duration(i)*time.Hour), s.ID.String())
			}
			purge.Since = f.now.Add(time.Duration(p.from) * time.Hour)
		}
		_, err := f.x.BeginPurge(f.ctx, purge, false)
		f.must(err)
		f.must(f.x.EndPurge(f.ctx, purge.ID, "done"))
		name := strings.TrimPrefix(p.path, "d/")
		for i := range versions {
			if i >= p.from {
				versions[i] = withoutEntry(versions[i], name)
			}
			f.wantPage(snapshots[i], versions[i])
		}
	}
	f.wantNothingOf("file 060")
	var n int
	f.must(f.db.SQL.QueryRowContext(f.ctx, "SELECT count(*) FROM "+patches).Scan(&n))
	if n < 4 || f.storedBytes() > before+before/4 {
		t.Fatalf("%d patches, %d bytes; %d before", n, f.storedBytes(), before)
	}
	// The next version is a patch, too.
	next := pageOfFiles("d", 7, 99)
	f.wantPage(f.commitPages(next), next)
}

// at returns a statement whose parameter 2 is an id.
func (f *fixture) at(statement string) string {
	if f.db.UUIDs {
		return strings.Replace(statement, "$2", "$2::uuid", 1)
	}
	return strings.Replace(statement, "id = $2", "replace(id, '-', '') = $2", 1)
}

// directoryPage returns the page of a directory with one subdirectory.
func directoryPage(path, name string) backup.PageVersion {
	data, err := listing.Encode(nil, &backup.Page{Path: path, Self: &backup.Entry{Kind: backup.Directory}, Entries: []backup.Entry{{Name: name, Kind: backup.Directory}}})
	if err != nil {
		panic(err) // a mistake in a test of this package
	}
	return backup.PageVersion{Path: path, Fingerprint: backup.Fingerprint{9}, Inode: 1, Listing: data}
}

// withoutEntry returns a page as a purge leaves it.
func withoutEntry(v backup.PageVersion, name string) backup.PageVersion {
	page, err := listing.Decode(v.Listing)
	if err != nil {
		panic(err) // a mistake in a test of this package
	}
	page.Entries = slices.DeleteFunc(page.Entries, func(e backup.Entry) bool { return e.Name == name })
	if v.Listing, err = listing.Encode(nil, &page); err != nil {
		panic(err)
	}
	v.Fingerprint = backup.Fingerprint{}
	return v
}
