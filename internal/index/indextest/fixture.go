package indextest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// A Database is an empty place for an index. It exists as long as its test.
type Database struct {
	// Open opens the index. Each call opens it as another process would.
	Open func() index.Index
	// SQL is the underlying database. UUIDs reports that it has a type for 16 bytes.
	SQL   *sql.DB
	UUIDs bool
}

// A fixture is a migrated index with one shard.
type fixture struct {
	testing.TB
	ctx   context.Context
	x     index.Index
	db    Database
	shard backup.Shard
	now   time.Time
}

func newFixture(t testing.TB, fresh func(testing.TB) Database) *fixture {
	t.Helper()
	db := fresh(t)
	f := &fixture{TB: t, ctx: t.Context(), x: db.Open(), db: db, now: time.Date(2026, 3, 1, 2, 3, 4, 5000, time.UTC)}
	if _, _, err := f.x.Migrate(f.ctx); err != nil {
		t.Fatal(err)
	}
	f.shard = f.newShard("filer", "home")
	return f
}

func (f *fixture) newShard(filerName, name string) backup.Shard {
	f.Helper()
	filer, err := f.x.EnsureFiler(f.ctx, filerName)
	f.must(err)
	filer.Limits = backup.Limits{WalkTasks: 10_000, ReadBatches: 10_000}
	f.must(f.x.SetFiler(f.ctx, filer))
	shard, err := f.x.EnsureShard(f.ctx, filer.ID, name, "posix:///srv/"+name)
	f.must(err)
	return shard
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) wants(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("error %v, want %v", err, want)
	}
}

// begin begins a snapshot of the fixture's shard.
func (f *fixture) begin() backup.Snapshot {
	f.Helper()
	s, err := f.x.BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, f.now)
	f.must(err)
	return s
}

func (f *fixture) snapshot(id backup.SnapshotID) backup.Snapshot {
	f.Helper()
	s, err := f.x.Snapshot(f.ctx, id)
	f.must(err)
	return s
}

// claimTasks claims all open tasks of a snapshot.
func (f *fixture) claimTasks(s backup.Snapshot) []backup.WalkTask {
	f.Helper()
	tasks, err := f.x.ClaimTasks(f.ctx, f.claim(s))
	f.must(err)
	return tasks
}

func (f *fixture) claimTask(s backup.Snapshot) backup.WalkTask {
	f.Helper()
	tasks := f.claimTasks(s)
	if len(tasks) != 1 {
		f.Fatalf("claimed %d tasks, want 1", len(tasks))
	}
	return tasks[0]
}

func (f *fixture) claimBatches(s backup.Snapshot) []backup.ReadBatch {
	f.Helper()
	batches, err := f.x.ClaimBatches(f.ctx, f.claim(s))
	f.must(err)
	return batches
}

func (f *fixture) claimBatch(s backup.Snapshot) backup.ReadBatch {
	f.Helper()
	batches := f.claimBatches(s)
	if len(batches) != 1 {
		f.Fatalf("claimed %d batches, want 1", len(batches))
	}
	return batches[0]
}

func (f *fixture) claim(s backup.Snapshot) index.Claim {
	return index.Claim{Snapshots: []backup.SnapshotID{s.ID}, Lease: time.Minute, Limit: 1000, Now: f.now}
}

// apply applies results in one call.
func (f *fixture) apply(results ...index.Result) []index.Outcome {
	f.Helper()
	outcomes, err := f.x.Apply(f.ctx, results)
	f.must(err)
	if len(outcomes) != len(results) {
		f.Fatalf("%d outcomes of %d results", len(outcomes), len(results))
	}
	return outcomes
}

// accept applies results, all of which must be accepted.
func (f *fixture) accept(results ...index.Result) []index.Outcome {
	f.Helper()
	outcomes := f.apply(results...)
	for i, o := range outcomes {
		if o.Err != nil || o.Late {
			f.Fatalf("result %d: %+v, want it accepted", i, o)
		}
	}
	return outcomes
}

// walk begins a snapshot and settles its root task with one result.
func (f *fixture) walk(fill func(*backup.SliceWalked)) backup.Snapshot {
	f.Helper()
	s := f.begin()
	result := SliceOf(f.claimTask(s))
	fill(result)
	f.accept(index.Result{Slice: result})
	return s
}

// commit commits a snapshot as a committer does: it computes the set of its pages from that of its
// base and its changes, and checks that it is the sum of all of its pages.
func (f *fixture) commit(s backup.Snapshot) {
	f.Helper()
	var set, sum backup.PageSet
	if s.BaseID != (backup.SnapshotID{}) {
		set = f.snapshot(s.BaseID).Pages
	}
	f.addChanges(&set, f.x.Changes(f.ctx, s.ID))
	f.addChanges(&sum, f.x.AllPages(f.ctx, s.ID))
	if set != sum {
		f.Fatalf("snapshot %d on %d: by its changes it is %+v, by its pages %+v", s.Number, s.Base, set, sum)
	}
	f.must(f.x.Commit(f.ctx, s.ID, backup.Segment{Attempt: backup.NewPackID(), Parts: 1, Bytes: 100}, set, f.now.Add(time.Hour)))
}

func (f *fixture) addChanges(set *backup.PageSet, changes iter.Seq2[index.Change, error]) {
	f.Helper()
	for c, err := range changes {
		f.must(err)
		if c.Ended {
			set.Remove(c.Digest)
			continue
		}
		set.Add(c.Digest)
		if c.Digest != listing.Digest(&c.PageVersion) {
			f.Fatalf("page %d of %q has the digest of another", c.Key, c.Path)
		}
	}
}

func (f *fixture) fail(id backup.SnapshotID, reason string) {
	f.Helper()
	f.must(f.x.Fail(f.ctx, id, reason, f.now.Add(time.Minute)))
}

// commitPages makes a committed snapshot in which these pages are new.
func (f *fixture) commitPages(pages ...backup.PageVersion) backup.Snapshot {
	f.Helper()
	s := f.walk(func(r *backup.SliceWalked) { r.Pages = pages })
	f.commit(s)
	return s
}

// pages returns all pages of a committed snapshot at path and below.
func (f *fixture) pages(s backup.Snapshot, path string) []backup.PageVersion {
	f.Helper()
	var pages []backup.PageVersion
	for p, err := range f.x.Pages(f.ctx, s.ID, path) {
		f.must(err)
		pages = append(pages, p)
	}
	return pages
}

func (f *fixture) changes(s backup.Snapshot) []index.Change {
	f.Helper()
	var changes []index.Change
	for c, err := range f.x.Changes(f.ctx, s.ID) {
		f.must(err)
		changes = append(changes, c)
	}
	return changes
}

// wantRows counts the rows of a table, or of "table WHERE …".
func (f *fixture) wantRows(table string, want int) {
	f.Helper()
	var got int
	f.must(f.db.SQL.QueryRowContext(f.ctx, "SELECT count(*) FROM "+table).Scan(&got))
	if got != want {
		f.Fatalf("%d rows in %s, want %d", got, table, want)
	}
}

// exec runs a statement for which the index has no method.
func (f *fixture) exec(query string, args ...any) {
	f.Helper()
	_, err := f.db.SQL.ExecContext(f.ctx, query, args...)
	f.must(err)
}

// SliceOf returns an empty result of a task.
func SliceOf(t backup.WalkTask) *backup.SliceWalked {
	return &backup.SliceWalked{Snapshot: t.Job.Snapshot, Task: t.ID, Attempt: t.Attempt, Last: true}
}

// storedOf returns a result of a batch.
func storedOf(b backup.ReadBatch, packs ...backup.PackID) *backup.BatchStored {
	return &backup.BatchStored{Snapshot: b.Job.Snapshot, Batch: b.ID, Attempt: b.Attempt, Pages: b.Pages, ReliesOn: packs}
}

// pageOf returns page 0 of a directory, with some content.
func pageOf(path, content string) backup.PageVersion {
	sum := blake3.Sum256([]byte(path + "\x00" + content))
	return backup.PageVersion{Path: path, Fingerprint: backup.Fingerprint(sum[:16]), Inode: inodeOf(path), Listing: listingOf(content)}
}

// listingOf returns a listing with some content, and one file for each of the lists. The listing is
// plain and has files that never change, so that a version is stored as a patch of an earlier one,
// and comes back as it was put.
func listingOf(content string, lists ...backup.ChunkID) []byte {
	page := backup.Page{Entries: []backup.Entry{{Name: "content", Kind: backup.File, Xattrs: []backup.Xattr{{Name: "user.content", Value: []byte(content)}}}}}
	for i, id := range lists {
		page.Entries = append(page.Entries, backup.Entry{
			Name: fmt.Sprintf("file %d", i), Kind: backup.File, Size: 100,
			Content: backup.Content{Depth: 1, Refs: []backup.Ref{{Chunk: id, Length: 20, Span: 100}}},
		})
	}
	for i := range 20 {
		page.Entries = append(page.Entries, backup.Entry{Name: fmt.Sprintf("same %02d", i), Kind: backup.File, Inode: inodeOf(fmt.Sprint(i)), Size: int64(i * i * i)})
	}
	data, err := listing.Encode(nil, &page)
	if err == nil {
		data, err = listing.Plain(data)
	}
	if err != nil {
		panic(err) // a mistake in a test of this package
	}
	return data
}

// contentOf returns the content that listingOf was given.
func contentOf(data []byte) string {
	page, err := listing.Decode(data)
	if err != nil || len(page.Entries) == 0 || len(page.Entries[0].Xattrs) != 1 {
		return fmt.Sprintf("no listing of this suite: %v", err)
	}
	return string(page.Entries[0].Xattrs[0].Value)
}

// inodeOf returns a fixed inode for a path, too large for a signed number.
func inodeOf(path string) uint64 {
	sum := blake3.Sum256([]byte(path))
	return 1<<63 | uint64(sum[0])<<16 | uint64(sum[1])<<8 | uint64(sum[2])
}

func chunkID(n int) backup.ChunkID {
	sum := blake3.Sum256(fmt.Appendf(nil, "chunk %d", n))
	return backup.ChunkID(sum[:16])
}

// packOf returns a pack with the chunks of these numbers.
func packOf(s backup.Snapshot, chunks ...int) *backup.PackStored {
	p := &backup.PackStored{Snapshot: s.ID, Pack: backup.NewPackID(), StoredBytes: int64(100 * len(chunks))}
	for i, n := range chunks {
		if i%2 == 0 {
			p.FrameBytes = append(p.FrameBytes, 190)
		}
		p.Chunks = append(p.Chunks, backup.ChunkPlace{ID: chunkID(n), Frame: uint32(i / 2), Offset: uint32(i % 2 * 100), Length: uint32(100 + n)})
	}
	return p
}

// paths returns the paths of pages, in their order.
func paths(pages []backup.PageVersion) []string {
	list := make([]string, len(pages))
	for i, p := range pages {
		list[i] = p.Path
	}
	return list
}

func (f *fixture) wantPaths(got []backup.PageVersion, want ...string) {
	f.Helper()
	if !slices.Equal(paths(got), want) {
		f.Fatalf("pages of %q, want %q", paths(got), want)
	}
}

func children(lists [][]string) []backup.Child {
	all := make([]backup.Child, len(lists))
	for i, directories := range lists {
		all[i].Directories = directories
	}
	return all
}

func reads(lists [][]backup.PageVersion) []backup.PagesToRead {
	all := make([]backup.PagesToRead, len(lists))
	for i, pages := range lists {
		all[i].Pages = pages
	}
	return all
}
