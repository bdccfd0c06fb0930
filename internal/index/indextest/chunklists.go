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

// chunkList returns the list chunk with this number and these chunks.
func chunkList(list int, chunks ...int) backup.ChunkList {
	return backup.ChunkList{List: chunkID(list), Chunks: chunkIDs(chunks)}
}

func nestedList(list int, lists ...int) backup.ChunkList {
	l := chunkList(list, lists...)
	l.Nested = true
	return l
}

// withLists returns a result of a batch, with one file for each of these lists.
func withLists(b backup.ReadBatch, lists ...int) index.Result {
	r := storedOf(b)
	r.Pages = slices.Clone(r.Pages)
	r.Pages[0].Listing = listingOf("read", chunkIDs(lists)...)
	return index.Result{Batch: r}
}

// A batch is refused while the content of its list chunks is unknown. The refusal changes nothing,
// and the batch may be delivered again.
func testChunkLists(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b", "c", "d")
	before := f.snapshot(s.ID)
	first := withLists(batches[0], 101, 102)
	f.wants(f.apply(first)[0].Err, index.ErrListUnknown)
	f.accept(listsStored(s, chunkList(101, 1, 2)))
	f.wants(f.apply(first)[0].Err, index.ErrListUnknown) // one of two lists is known
	if after := f.snapshot(s.ID); after.BatchesSettled != before.BatchesSettled {
		t.Fatalf("snapshot %+v, want no batch settled", after)
	}
	f.wantLeased(f.now, 0, 4) // still leased to its reader
	f.accept(listsStored(s, chunkList(102, 3, 1, 2)))
	f.accept(first)

	// In one call, before its lists and after them. An unrelated batch is not affected.
	o := f.apply(withLists(batches[1], 103, 103, 101), withLists(batches[2], 999), listsStored(s, chunkList(103)), withLists(batches[3], 104), listsStored(s, chunkList(104, 4)))
	f.wants(o[1].Err, index.ErrListUnknown)
	for _, i := range []int{0, 2, 3, 4} {
		f.must(o[i].Err)
	}

	// A known list does not change: its id is the hash of its content.
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

	// For a snapshot that has ended, or never existed, the result is late.
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

// literal returns a chunk's id as a constant in the database's SQL.
func (f *fixture) literal(id backup.ChunkID) string {
	if f.db.UUIDs {
		return "'" + uuid.UUID(id).String() + "'"
	}
	return "x'" + id.String() + "'"
}

// If a list of lists is known, the lists that it refers to are known: otherwise it is refused, in
// any order of messages.
func testNestedLists(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, batches := f.batchesOf("a", "b", "c")
	top := listsStored(s, nestedList(201, 202, 203))
	f.wants(f.apply(top)[0].Err, index.ErrListUnknown)
	f.accept(listsStored(s, chunkList(202, 1)))
	f.wants(f.apply(top)[0].Err, index.ErrListUnknown)
	f.wants(f.apply(withLists(batches[0], 201))[0].Err, index.ErrListUnknown)
	f.wantRows("chunk_lists", 1)
	// Of one call, later lists are not known yet, and earlier ones are.
	below := listsStored(s, chunkList(203, 2))
	o := f.apply(top, below)
	f.wants(o[0].Err, index.ErrListUnknown)
	f.must(o[1].Err)
	f.accept(top)
	f.accept(withLists(batches[0], 201))
	f.accept(listsStored(s, chunkList(212, 1)), listsStored(s, nestedList(211, 212)), withLists(batches[1], 211))
	f.wantRows("chunk_lists", 5)

	// One message may contain all lists of a file, in any order: three levels here.
	f.accept(listsStored(s, nestedList(221, 222, 223), nestedList(222, 224), chunkList(224, 1), nestedList(223, 224)), withLists(batches[2], 221))
	f.wantRows("chunk_lists", 9)
	// A refused message affects no other, and leaves nothing.
	o = f.apply(listsStored(s, chunkList(231, 1), nestedList(232, 233)), listsStored(s, chunkList(234, 1)))
	f.wants(o[0].Err, index.ErrListUnknown)
	f.must(o[1].Err)
	f.wantRows("chunk_lists", 10)
}
