package listing

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// realisticPage resembles a file system written in one pass: names with a counter, inodes in the
// order of creation, slightly different times, and one chunk per file.
func realisticPage(n int) *backup.Page {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	now := backup.Time{Sec: 1_780_000_000}
	p := &backup.Page{Self: &backup.Entry{Kind: backup.Directory, Mode: 0o755, UID: 1000, GID: 1000, Nlink: 2, Inode: 1_310_720, Mtime: now, Ctime: now, Btime: now}}
	nsec := int64(0)
	for i := range n {
		nsec += r.Int64N(200_000)
		created := backup.Time{Sec: now.Sec + nsec/1e9, Nsec: uint32(nsec % 1e9)}
		size := 1 + int64(r.ExpFloat64()*4000)
		extension := ".txt"
		if r.IntN(10) < 3 {
			extension = ".bin"
		}
		e := backup.Entry{
			Name: fmt.Sprintf("f%07d%s", 17+i*103, extension), Kind: backup.File, Mode: 0o644, UID: 1000, GID: 1000, Nlink: 1,
			Inode: 1_310_721 + uint64(i), Size: size, Ctime: created, Btime: created,
			Mtime:   backup.Time{Sec: 1_700_000_000 + int64(i), Nsec: uint32(i%1000) * 1e6},
			Content: backup.Content{Refs: []backup.Ref{{Length: size, Span: size}}},
		}
		e.Ctime.Nsec = min(e.Ctime.Nsec+uint32(r.IntN(90_000)), maxNsec)
		for k := range e.Content.Refs[0].Chunk {
			e.Content.Refs[0].Chunk[k] = byte(r.Uint32())
		}
		p.Entries = append(p.Entries, e)
	}
	return p
}

// perEntry runs f for pages of 100 and 1,300 entries and reports the processor time per entry,
// which other load on the machine does not affect.
func perEntry(b *testing.B, setUp func(b *testing.B, p *backup.Page) (f func())) {
	for _, n := range []int{100, 1300} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			f := setUp(b, realisticPage(n))
			b.ReportAllocs()
			start := processorNanos(b)
			for b.Loop() {
				f()
			}
			b.ReportMetric((processorNanos(b)-start)/float64(b.N)/float64(n), "cpu-ns/entry")
		})
	}
}

func processorNanos(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkSort(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() {
		work := make([]backup.Entry, len(p.Entries))
		rand.Shuffle(len(work), func(i, j int) { p.Entries[i], p.Entries[j] = p.Entries[j], p.Entries[i] })
		return func() { copy(work, p.Entries); Sort(work) }
	})
}

func BenchmarkSortSorted(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() { return func() { Sort(p.Entries) } })
}

func BenchmarkFingerprint(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() {
		f := NewFingerprinter()
		return func() { f.Of(0, p.Self, p.Entries, 0) }
	})
}

func BenchmarkCut(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() { return func() { Cut(p.Entries, false) } })
}

func BenchmarkEncode(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() {
		var c Encoder
		dst, err := c.Encode(nil, p)
		if err != nil {
			b.Fatal(err)
		}
		return func() { dst, _ = c.Encode(dst[:0], p) }
	})
}

// The bytes that the index stores per file. 16 of them are the id of its chunk.
func TestBytesPerEntry(t *testing.T) {
	for n, budget := range map[int]float64{100: 34, 1300: 30} {
		data, err := Encode(nil, realisticPage(n))
		if err != nil {
			t.Fatal(err)
		}
		got := float64(len(data)) / float64(n)
		t.Logf("%d entries: %.1f bytes each", n, got)
		if got > budget {
			t.Errorf("%d entries: %.1f bytes each, more than %.0f", n, got, budget)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() {
		data, err := Encode(nil, p)
		if err != nil {
			b.Fatal(err)
		}
		return func() { _, _ = Decode(data) }
	})
}

func BenchmarkDecoder(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() {
		plain := plainOf(b, p)
		var d Decoder
		return func() { _, _ = d.Decode(plain) }
	})
}

func BenchmarkTakeOver(b *testing.B) {
	perEntry(b, func(b *testing.B, p *backup.Page) func() {
		now := make([]backup.Entry, len(p.Entries))
		return func() { copy(now, p.Entries); TakeOver(0, false, now, p.Entries, nil, nil) }
	})
}
