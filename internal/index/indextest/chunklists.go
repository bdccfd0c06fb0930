package indextest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func listsStored(s backup.Snapshot, lists ...backup.ChunkList) index.Result {
	return index.Result{Lists: &backup.ListsStored{Snapshot: s.ID, Lists: lists}}
}

// chunkList is the list chunk of this number, with these chunks.
func chunkList(list int, chunks ...int) backup.ChunkList {
	return backup.ChunkList{List: chunkID(list), Chunks: chunkIDs(chunks)}
}

func nestedList(list int, lists ...int) backup.ChunkList {
	l := chunkList(list, lists...)
	l.Nested = true
	return l
}

// withLists is a result of a batch, with a file in each of these lists.
func withLists(b backup.ReadBatch, lists ...int) index.Result {
	r := storedOf(b)
	r.Pages = slices.Clone(r.Pages)
	r.Pages[0].Listing = listingOf("read", chunkIDs(lists)...)
	return index.Result{Batch: r}
}

// A batch is refused as long as it is not known what its list chunks refer to,
// which changes nothing; and it may be delivered again.
func testChunkLists(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b", "c", "d")
	before := f.snapshot(s.ID)
	first := withLists(batches[0], 101, 102)
	f.wants(f.apply(first)[0].Err, index.ErrListUnknown)
	f.accept(listsStored(s, chunkList(101, 1, 2)))
	f.wants(f.apply(first)[0].Err, index.ErrListUnknown) // knows one of two
	if after := f.snapshot(s.ID); after.BatchesSettled != before.BatchesSettled {
		t.Fatalf("snapshot %+v, want no batch settled", after)
	}
	f.wantLeased(f.now, 0, 4) // still its reader's
	f.accept(listsStored(s, chunkList(102, 3, 1, 2)))
	f.accept(first)

	// In one call, before its lists and after them; another is not concerned.
	o := f.apply(withLists(batches[1], 103, 103, 101), withLists(batches[2], 999), listsStored(s, chunkList(103)), withLists(batches[3], 104), listsStored(s, chunkList(104, 4)))
	f.wants(o[1].Err, index.ErrListUnknown)
	for _, i := range []int{0, 2, 3, 4} {
		f.must(o[i].Err)
	}

	// What is known stays as it is: a list is named by the hash of what it says.
	f.accept(listsStored(s), listsStored(s, chunkList(102, 7), chunkList(102, 8)), listsStored(s, chunkList(102, 9)))
	f.wantRows("chunk_lists", 4)
	var nested bool
	var chunks []byte
	f.must(f.db.SQL.QueryRowContext(f.ctx, "SELECT nested, chunks FROM chunk_lists WHERE list = "+f.literal(chunkID(102))).Scan(&nested, &chunks))
	var want []byte
	for _, id := range chunkIDs([]int{3, 1, 2}) {
		want = append(want, id[:]...)
	}
	if nested || !bytes.Equal(chunks, want) {
		t.Fatalf("list of %x, nested: %t; want %x", chunks, nested, want)
	}

	// For a snapshot that has ended, or never was, it comes too late.
	f.fail(s.ID, "")
	stranger := s
	stranger.ID = backup.NewSnapshotID()
	for _, late := range f.apply(listsStored(s, chunkList(105)), listsStored(stranger, chunkList(105)), listsStored(stranger, nestedList(106, 107))) {
		if late != (index.Outcome{Late: true}) {
			t.Fatalf("%+v, want it late", late)
		}
	}
	f.wantRows("chunk_lists", 4)
}

// literal is a chunk's id as a constant of the database's SQL.
func (f *fixture) literal(id backup.ChunkID) string {
	if f.db.UUIDs {
		return "'" + uuid.UUID(id).String() + "'"
	}
	return "x'" + id.String() + "'"
}

// Whoever knows a list of lists knows these too: it is refused before, in
// whatever order the messages come.
func testNestedLists(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b", "c")
	top := listsStored(s, nestedList(201, 202, 203))
	f.wants(f.apply(top)[0].Err, index.ErrListUnknown)
	f.accept(listsStored(s, chunkList(202, 1)))
	f.wants(f.apply(top)[0].Err, index.ErrListUnknown)
	f.wants(f.apply(withLists(batches[0], 201))[0].Err, index.ErrListUnknown)
	f.wantRows("chunk_lists", 1)
	// Of one call, those that come later are not known yet, and those that come before are.
	below := listsStored(s, chunkList(203, 2))
	o := f.apply(top, below)
	f.wants(o[0].Err, index.ErrListUnknown)
	f.must(o[1].Err)
	f.accept(top)
	f.accept(withLists(batches[0], 201))
	f.accept(listsStored(s, chunkList(212, 1)), listsStored(s, nestedList(211, 212)), withLists(batches[1], 211))
	f.wantRows("chunk_lists", 5)

	// One message may say all of a file, in any order: three levels here.
	f.accept(listsStored(s, nestedList(221, 222, 223), nestedList(222, 224), chunkList(224, 1), nestedList(223, 224)), withLists(batches[2], 221))
	f.wantRows("chunk_lists", 9)
	// One that is refused disturbs no other, and leaves nothing of itself.
	o = f.apply(listsStored(s, chunkList(231, 1), nestedList(232, 233)), listsStored(s, chunkList(234, 1)))
	f.wants(o[0].Err, index.ErrListUnknown)
	f.must(o[1].Err)
	f.wantRows("chunk_lists", 10)
}
