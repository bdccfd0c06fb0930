package chunk

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"

	"github.com/bctl/bctl/internal/backup"
)

var update = flag.Bool("update", false, "write golden files")

var testKey = [32]byte([]byte("whats the Elvish word for friend"))

// The vectors of the BLAKE3 specification: its key, and bytes 0, 1 … 250, 0, 1 …
func TestSumIsKeyedBLAKE3(t *testing.T) {
	vectors := []struct {
		bytes int
		hash  string
	}{
		{0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"},
		{1, "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b"},
		{1024, "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4"},
		{102400, "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7"},
	}
	h := NewHasher(testKey)
	for _, v := range vectors {
		p := make([]byte, v.bytes)
		for i := range p {
			p[i] = byte(i % 251)
		}
		if got := h.Sum(p); hex.EncodeToString(got[:]) != v.hash {
			t.Errorf("%d bytes: %x, want %s", v.bytes, got, v.hash)
		}
	}
}

func TestSumDoesNotAllocate(t *testing.T) {
	h := NewHasher(testKey)
	for _, size := range []int{1, 4 << 10, 1 << 20} {
		p := make([]byte, size)
		if n := testing.AllocsPerRun(10, func() { h.Sum(p) }); n != 0 {
			t.Errorf("%d bytes: %v allocations", size, n)
		}
	}
}

func TestUnknownCutter(t *testing.T) {
	if _, err := NewCutter("fastcdc", testKey); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("NewCutter: %v, want ErrInvalid", err)
	}
}

// Boundaries are format: data that is in a repository must be cut as it was.
func TestGoldenBoundaries(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "# ends of chunks; %s, key %q\n", DefaultCutter, testKey[:])
	for _, in := range inputs() {
		fmt.Fprintf(&b, "%s:", in.name)
		end := 0
		for _, n := range cutAll(t, newCutter(t, testKey), in.data) {
			end += n
			fmt.Fprintf(&b, " %d", end)
		}
		b.WriteByte('\n')
	}
	path := filepath.Join("testdata", "boundaries-"+DefaultCutter+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestChunksAreWithinLimits(t *testing.T) {
	for _, in := range inputs() {
		lengths := cutAll(t, newCutter(t, testKey), in.data)
		for i, n := range lengths {
			if n > MaxBytes || n < 256<<10 && i != len(lengths)-1 {
				t.Errorf("%s: chunk %d of %d has %d bytes", in.name, i, len(lengths), n)
			}
		}
	}
}

// After an insertion, all chunks but the first few are known. A chunker exists for this.
func TestInsertedByteChangesFirstChunksOnly(t *testing.T) {
	data := random(16<<20, 1)
	before := hashes(t, data)
	after := hashes(t, slices.Concat([]byte{'x'}, data))
	known := 0
	for h := range after {
		if before[h] {
			known++
		}
	}
	if known < len(after)-2 || known < 5 {
		t.Errorf("%d of %d chunks are known after a byte was inserted", known, len(after))
	}
}

func TestBoundariesDependOnKey(t *testing.T) {
	data := random(6<<20, 2)
	one := cutAll(t, newCutter(t, testKey), data)
	other := cutAll(t, newCutter(t, [32]byte{1}), data)
	if one[0] == other[0] || one[1] == other[1] {
		t.Errorf("boundaries under two keys: %v and %v", one, other)
	}
}

// Cut asks for more data rather than guess, so that the boundaries do not
// depend on how the caller reads.
func TestBoundariesDoNotDependOnReads(t *testing.T) {
	data := random(8<<20, 3)
	want := cutAll(t, newCutter(t, testKey), data)
	c := newCutter(t, testKey)
	var got []int
	for start, end := 0, 0; start < len(data); {
		n := c.Cut(data[start:end:end], end == len(data))
		if n == 0 {
			if end-start >= MaxBytes {
				t.Fatalf("Cut wants more than %d bytes", end-start)
			}
			end = min(end+300_000, len(data))
			continue
		}
		got = append(got, n)
		start += n
	}
	if !slices.Equal(got, want) {
		t.Errorf("lengths %v in small reads, %v in large ones", got, want)
	}
}

func TestCutTail(t *testing.T) {
	c := newCutter(t, testKey)
	for _, n := range []int{0, 1, 1000, 256 << 10} {
		data := random(n, 4)
		if got := c.Cut(data, true); got != n {
			t.Errorf("Cut of the last %d bytes: %d", n, got)
		}
		if got := c.Cut(data, false); got != 0 {
			t.Errorf("Cut of %d bytes with more to come: %d", n, got)
		}
	}
}

// The algorithm is the library's: what it finds in a stream is what we find in place.
func TestSameAsLibrary(t *testing.T) {
	data := random(12<<20, 5)
	c := newCutter(t, testKey)
	options := c.options
	stream, err := chunkers.NewChunker(c.algorithm, bytes.NewReader(data), &options)
	if err != nil {
		t.Fatal(err)
	}
	var want []int
	for {
		chunk, err := stream.Next()
		if len(chunk) > 0 {
			want = append(want, len(chunk))
		}
		if err == io.EOF {
			break
		}
	}
	if got := cutAll(t, c, data); !slices.Equal(got, want) {
		t.Errorf("lengths %v, the library's are %v", got, want)
	}
}

// Cut lends the library the caller's own storage; it must come back as it was,
// also the part behind the data.
func TestCutLeavesDataAlone(t *testing.T) {
	storage := random(6<<20, 6)
	before := bytes.Clone(storage)
	c := newCutter(t, testKey)
	for _, n := range []int{300 << 10, 2 << 20, 6 << 20} {
		c.Cut(storage[:n], false)
		c.Cut(storage[:n], true)
	}
	if !bytes.Equal(storage, before) {
		t.Error("Cut has changed the data")
	}
}

// Any data is cut to its end, each chunk within the limits.
func FuzzCut(f *testing.F) {
	f.Add([]byte("seed"), uint32(3<<20), true)
	f.Add([]byte{0}, uint32(9<<20), false)
	c := newCutter(f, testKey)
	f.Fuzz(func(t *testing.T, pattern []byte, size uint32, clip bool) {
		data := repeat(pattern, int(size%(10<<20)))
		for len(data) > 0 {
			window := data
			if clip {
				window = data[:min(len(data), MaxBytes):min(len(data), MaxBytes)]
			}
			n := c.Cut(window, len(window) == len(data))
			if n <= 0 || n > len(window) || n > MaxBytes {
				t.Fatalf("Cut of %d bytes: %d", len(window), n)
			}
			data = data[n:]
		}
	})
}

func BenchmarkSum(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			h, p := NewHasher(testKey), random(size, 1)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				h.Sum(p)
			}
		})
	}
}

func BenchmarkCut(b *testing.B) {
	c, data := newCutter(b, testKey), random(64<<20, 1)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		cutAll(b, c, data)
	}
}

type input struct {
	name string
	data []byte
}

func inputs() []input {
	return []input{
		{"random", random(16<<20, 7)},
		{"zeros", make([]byte, 9<<20)},
		{"lines", repeat([]byte("one line of a log that repeats\n"), 6<<20)},
		{"just above one chunk", random(WholeFileBytes+1, 8)},
	}
}

func newCutter(t testing.TB, key [32]byte) *Cutter {
	t.Helper()
	c, err := NewCutter(DefaultCutter, key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func cutAll(t testing.TB, c *Cutter, data []byte) (lengths []int) {
	t.Helper()
	for len(data) > 0 {
		n := c.Cut(data, true)
		if n <= 0 || n > len(data) {
			t.Fatalf("Cut of %d bytes: %d", len(data), n)
		}
		lengths = append(lengths, n)
		data = data[n:]
	}
	return lengths
}

func hashes(t testing.TB, data []byte) map[backup.ChunkHash]bool {
	t.Helper()
	h, found := NewHasher(testKey), make(map[backup.ChunkHash]bool)
	for _, n := range cutAll(t, newCutter(t, testKey), data) {
		found[h.Sum(data[:n])] = true
		data = data[n:]
	}
	return found
}

func random(n int, seed byte) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func repeat(pattern []byte, n int) []byte {
	if len(pattern) == 0 {
		return make([]byte, n)
	}
	return bytes.Repeat(pattern, n/len(pattern)+1)[:n]
}
