package indextest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Bench runs the benchmarks of an index's most frequent operations.
func Bench(b *testing.B, fresh func(testing.TB) Database) {
	b.Run("ApplyPack", func(b *testing.B) { benchApplyPack(b, fresh) })
	b.Run("ApplyBatch", func(b *testing.B) { benchApplyBatch(b, fresh) })
	b.Run("Locate", func(b *testing.B) { benchLocate(b, fresh) })
	b.Run("Marks", func(b *testing.B) { benchMarks(b, fresh) })
}

// randomPack returns a pack of new chunks.
func randomPack(s backup.Snapshot, random *rand.ChaCha8, chunks int) *backup.PackStored {
	p := &backup.PackStored{
		Snapshot: s.ID, Pack: backup.NewPackID(), Chunks: make([]backup.ChunkPlace, chunks), FrameBytes: make([]uint32, (chunks+99)/100),
	}
	for i := range p.Chunks {
		c := &p.Chunks[i]
		random.Read(c.ID[:])
		c.Frame, c.Offset, c.Length = uint32(i/100), uint32(i%100*5000), 5000
	}
	return p
}

// benchApplyPack stores packs of 8,000 new chunks.
func benchApplyPack(b *testing.B, fresh func(testing.TB) Database) {
	const chunks = 8000
	f := newFixture(b, fresh)
	s, random := f.begin(), rand.NewChaCha8([32]byte{})
	for b.Loop() {
		b.StopTimer()
		p := randomPack(s, random, chunks)
		b.StartTimer()
		f.accept(index.Result{Pack: p})
	}
	b.ReportMetric(float64(b.N*chunks)/b.Elapsed().Seconds(), "chunks/s")
}

// benchApplyBatch settles batches of 40 new pages of 4 KiB that rely on two packs.
func benchApplyBatch(b *testing.B, fresh func(testing.TB) Database) {
	const pages, batches = 40, 100
	f := newFixture(b, fresh)
	first, second := randomPack(backup.Snapshot{}, rand.NewChaCha8([32]byte{}), 1), randomPack(backup.Snapshot{}, rand.NewChaCha8([32]byte{1}), 1)
	listing := make([]byte, 4096)
	rand.NewChaCha8([32]byte{2}).Read(listing)
	s := f.begin()
	task := f.claimTask(s)
	first.Snapshot, second.Snapshot = s.ID, s.ID
	f.accept(index.Result{Pack: first}, index.Result{Pack: second})
	var open []backup.ReadBatch
	directory := 0
	for b.Loop() {
		if len(open) == 0 {
			b.StopTimer()
			r := SliceOf(task)
			r.Children = children([][]string{{"next"}})
			for range batches {
				var batch []backup.PageVersion
				for range pages {
					directory++
					batch = append(batch, pageOf(fmt.Sprintf("some/path/of/usual/length/%09d", directory), string(listing)))
				}
				r.Batches = append(r.Batches, backup.PagesToRead{Pages: batch})
			}
			f.accept(index.Result{Slice: r})
			task, open = f.claimTask(s), f.claimBatches(s)
			b.StartTimer()
		}
		f.accept(index.Result{Batch: storedOf(open[0], first.Pack, second.Pack)})
		open = open[1:]
	}
	b.ReportMetric(float64(b.N*pages)/b.Elapsed().Seconds(), "pages/s")
}

// benchLocate looks up 5,000 of 400,000 chunks, and as many that do not exist.
func benchLocate(b *testing.B, fresh func(testing.TB) Database) {
	const ids = 5000
	f := newFixture(b, fresh)
	s, random := f.begin(), rand.NewChaCha8([32]byte{})
	var stored []backup.ChunkID
	for range 50 {
		p := randomPack(s, random, 8000)
		f.accept(index.Result{Pack: p})
		for i := range p.Chunks {
			stored = append(stored, p.Chunks[i].ID)
		}
	}
	wanted := make([]backup.ChunkID, ids)
	n := uint64(0)
	for b.Loop() {
		for i := range wanted {
			n++
			if i%2 == 0 {
				wanted[i] = stored[n*7919%uint64(len(stored))]
			} else {
				binary.BigEndian.PutUint64(wanted[i][:], n*0x9E3779B97F4A7C15)
			}
		}
		locations, err := f.x.Locate(f.ctx, wanted)
		if err != nil || locations[0] == (index.Location{}) || locations[1] != (index.Location{}) {
			b.Fatal(locations[:2], err)
		}
	}
	b.ReportMetric(float64(b.N*ids)/b.Elapsed().Seconds(), "ids/s")
}

// benchMarks reads 10,000 of 100,000 marks, as a walker of an unchanged tree does.
func benchMarks(b *testing.B, fresh func(testing.TB) Database) {
	const limit, total = 10_000, 100_000
	f := newFixture(b, fresh)
	s := f.manyPages(total)
	var from []byte
	for b.Loop() {
		marks, next, err := f.x.Marks(f.ctx, f.shard.ID, s.Number, from, nil, limit)
		if err != nil || len(marks) != limit {
			b.Fatal(len(marks), err)
		}
		from = next
	}
	b.ReportMetric(float64(b.N*limit)/b.Elapsed().Seconds(), "marks/s")
}

// manyPages makes a committed snapshot of total pages with listings of 400 bytes.
func (f *fixture) manyPages(total int) backup.Snapshot {
	f.Helper()
	s := f.begin()
	task := f.claimTask(s)
	listing := make([]byte, 400)
	for n := 0; n < total; {
		r := SliceOf(task)
		for range min(5000, total-n) {
			rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(listing[:100])
			r.Pages = append(r.Pages, pageOf(fmt.Sprintf("d%03d/of/usual/length/%06d", n%97, n), string(listing)))
			n++
		}
		if n < total {
			r.Children = children([][]string{{"next"}})
		}
		f.accept(index.Result{Slice: r})
		if n < total {
			task = f.claimTask(s)
		}
	}
	f.commit(s)
	return s
}
