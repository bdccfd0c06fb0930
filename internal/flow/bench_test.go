package flow

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// benchPages returns pages with listings of 100 files.
func benchPages(n int) (pages []backup.PageVersion) {
	random := rand.NewChaCha8([32]byte{1})
	for i := range n {
		listing := make([]byte, 3400)
		_, _ = random.Read(listing)
		pages = append(pages, backup.PageVersion{
			Path: fmt.Sprintf("some/path/of/usual/length/%06d", i), Inode: uint64(i), Fingerprint: backup.Fingerprint{byte(i)}, Listing: listing,
		})
	}
	return pages
}

// benchWire measures encoding and decoding of a message; the cost depends on its size.
func benchWire[T any](b *testing.B, m *T, encode func(*T) ([]byte, error), decode func([]byte) (*T, error)) {
	data, err := encode(m)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := encode(m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := decode(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkWire encodes and decodes messages of their usual sizes.
func BenchmarkWire(b *testing.B) {
	job := backup.Job{Snapshot: backup.NewSnapshotID(), Filer: 1, Shard: 2, Number: 2, Base: 1, Source: "posix:///srv/export", Site: backup.DefaultSite}
	b.Run("WalkTask", func(b *testing.B) {
		benchWire(b, &backup.WalkTask{Job: job, ID: 7, Attempt: 1, Directories: []string{"some/path", "some/other/path"}}, encodeWalkTask, decodeWalkTask)
	})
	b.Run("SliceWalked", func(b *testing.B) {
		benchWire(b, &backup.SliceWalked{Snapshot: job.Snapshot, Task: 7, Attempt: 1, Last: true, Run: 9, Pages: benchPages(100)}, encodeSliceWalked, decodeSliceWalked)
	})
	b.Run("ReadBatch", func(b *testing.B) {
		benchWire(b, &backup.ReadBatch{Job: job, ID: 8, Attempt: 1, PagesToRead: backup.PagesToRead{Pages: benchPages(40)}}, encodeReadBatch, decodeReadBatch)
	})
	b.Run("PackStored", func(b *testing.B) {
		m := &backup.PackStored{Snapshot: job.Snapshot, Pack: backup.NewPackID(), StoredBytes: 32 << 20, Chunks: make([]backup.ChunkPlace, 8000), FrameBytes: make([]uint32, 80)}
		random := rand.NewChaCha8([32]byte{2})
		for i := range m.Chunks {
			c := &m.Chunks[i]
			_, _ = random.Read(c.ID[:])
			c.Frame, c.Offset, c.Length = uint32(i/100), uint32(i%100*4000), 4000
		}
		benchWire(b, m, encodePackStored, decodePackStored)
	})
	b.Run("BatchStored", func(b *testing.B) {
		m := &backup.BatchStored{Snapshot: job.Snapshot, Batch: 8, Attempt: 1, Pages: benchPages(40), ReliesOn: []backup.PackID{backup.NewPackID(), backup.NewPackID()}}
		benchWire(b, m, encodeBatchStored, decodeBatchStored)
	})
}
