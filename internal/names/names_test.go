package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// decodeAll returns the pages of all blocks, those of one page together.
func decodeAll(t testing.TB, shard backup.ShardID, blocks [][]byte) (pages []Page) {
	t.Helper()
	for _, block := range blocks {
		decoded, err := Decode(shard, block)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range decoded {
			if n := len(pages) - 1; n >= 0 && string(pages[n].PathKey) == string(p.PathKey) && pages[n].Key == p.Key {
				pages[n].Names = append(pages[n].Names, p.Names...)
				continue
			}
			pages = append(pages, p)
		}
	}
	return pages
}

func TestNamesComeBack(t *testing.T) {
	long := make([]string, 4000) // more than one block
	for i := range long {
		long[i] = fmt.Sprintf("%04d%s", i, strings.Repeat("x", 1000))
	}
	want := []Page{
		{backup.PathKey(""), 0, []string{"a", "a\nb", "ab", "\xff"}},
		{backup.PathKey("usr"), 0, []string{"bin"}},
		{backup.PathKey("usr/bin"), 1 << 60, long},
		{backup.PathKey("var"), 7, []string{"log", "tmp"}},
	}
	w := Writer{Shard: 3}
	for i := range want {
		w.Add(&want[i])
	}
	w.Flush()
	if w.Names != 4007 || len(w.Blocks) < 2 {
		t.Errorf("%d names in %d blocks", w.Names, len(w.Blocks))
	}
	if got := decodeAll(t, 3, w.Blocks); !reflect.DeepEqual(got, want) {
		t.Errorf("the names are others")
	}
}

func TestDamageIsNoticed(t *testing.T) {
	w := Writer{Shard: 3}
	w.Add(&Page{Names: []string{"a", "b"}})
	w.Flush()
	if _, err := Decode(4, w.Blocks[0]); err == nil {
		t.Error("a block of another shard is accepted")
	}
	for i := range w.Blocks[0] {
		block := slices.Clone(w.Blocks[0])
		block[i] ^= 1
		if _, err := Decode(3, block); err == nil {
			t.Errorf("a block whose byte %d has changed is accepted", i)
		}
		if _, err := Decode(3, w.Blocks[0][:i]); err == nil {
			t.Errorf("the first %d bytes of a block are accepted", i)
		}
	}
}

// The limit of the index: at most four bytes for each entry. Names like those of photographs, logs
// and programs take less.
func TestNamesAreSmall(t *testing.T) {
	w := Writer{Shard: 1}
	for dir := range 200 {
		p := Page{PathKey: backup.PathKey(fmt.Sprintf("home/user%02d/project-%03d/src", dir%40, dir))}
		for i := range 50 {
			p.Names = append(p.Names, fmt.Sprintf("%s_%04d.%s", []string{"IMG", "report", "server"}[dir%3], 7*dir+3*i, []string{"jpg", "go", "log.gz"}[i%3]))
		}
		slices.Sort(p.Names)
		w.Add(&p)
	}
	w.Flush()
	total := 0
	for _, b := range w.Blocks {
		total += len(b)
	}
	if per := float64(total) / float64(w.Names); per > 4 {
		t.Errorf("%.2f bytes for each name", per)
	}
}

// A block that says that it has more than it can have is refused before memory is taken for that.
func TestHostileCounts(t *testing.T) {
	block := func(head, shared []byte) (raw []byte) {
		for _, part := range [][]byte{head, shared, nil, nil} {
			raw = append(binary.AppendUvarint(raw, uint64(len(part))), part...)
		}
		return raw
	}
	const many = 6 << 20
	pages := append(binary.AppendUvarint(nil, many), make([]byte, many)...)
	names := binary.AppendUvarint([]byte{1, 0, 0, 5}, many)
	for what, raw := range map[string][]byte{"pages": block(pages, nil), "names": block(names, make([]byte, many))} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := parse(raw)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, backup.ErrCorrupt) || n > 1<<20 {
			t.Errorf("%s: %v, with %d bytes", what, err, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	w := Writer{Shard: 1}
	w.Add(&Page{PathKey: backup.PathKey("usr"), Key: 5, Names: []string{"a", "ab"}})
	w.Flush()
	raw, err := decoder().DecodeAll(w.Blocks[0][sumBytes:], nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		pages, err := parse(raw)
		if err != nil {
			return
		}
		w := Writer{Shard: 1}
		for i := range pages {
			w.Add(&pages[i])
		}
		w.Flush()
		decodeAll(t, 1, w.Blocks)
	})
}

func BenchmarkDecode(b *testing.B) {
	w := Writer{Shard: 1}
	for dir := range 20 {
		p := Page{PathKey: backup.PathKey(fmt.Sprintf("home/user%02d", dir))}
		for i := range 1000 {
			p.Names = append(p.Names, fmt.Sprintf("IMG_%04d.jpg", i))
		}
		w.Add(&p)
	}
	w.Flush()
	b.ResetTimer()
	for b.Loop() {
		for _, block := range w.Blocks {
			if _, err := Decode(1, block); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(w.Names), "ns/name")
}
