package read

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/source/treetest"
)

// random returns content that does not compress, the same for the same seed.
func random(seed uint64, n int) string {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return string(b)
}

// text returns content that compresses, and in which no two chunks are the same.
func text(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of a file that is not very interesting\n", i)
	}
	return b.String()[:n]
}

func TestEveryFileComesBack(t *testing.T) {
	const whole = chunk.WholeFileBytes
	f := newFixture(t, treetest.Tree{
		"empty":                treetest.File(""),
		"small":                treetest.File("hello"),
		"small.again":          treetest.File("hello"),
		"one chunk":            treetest.File(random(1, whole)),
		"one byte more":        treetest.File(random(2, whole+1)),
		"one byte less":        treetest.File(random(3, whole-1)),
		"incompressible 20MiB": treetest.File(random(4, 20<<20)),
		"compressible 20MiB":   treetest.File(text(20 << 20)),
		"link":                 treetest.HardLink("small"),
		"hole":                 treetest.Sparse(3 << 20),
		"sparse": treetest.Sparse(9<<20+17, treetest.Extent{Offset: 3 << 12, Data: random(5, 5000)},
			treetest.Extent{Offset: 5<<20 + 4096, Data: random(6, 1<<20+3)}),
		"small sparse": treetest.Sparse(100_000, treetest.Extent{Offset: 40_960, Data: "x"}),
		"fifo":         treetest.FIFO(),
		"symlink":      treetest.Symlink("small"),
		"sub":          treetest.Dir(),
		"sub/file":     treetest.File(random(7, 100_000)),
	})
	f.read(f.batchOf("", "sub"))
	f.commit()
	f.wantTree()

	all := f.entries()
	if e := all["one chunk"]; e.Content.Depth != 0 || len(e.Content.Refs) != 1 {
		t.Errorf("a file of 1 MiB has %d refs of depth %d", len(e.Content.Refs), e.Content.Depth)
	}
	if e := all["compressible 20MiB"]; e.Content.Depth != 1 {
		t.Errorf("a file of 20 MiB has refs of depth %d, want a list", e.Content.Depth)
	}
	if e := all["hole"]; len(e.Content.Refs) != 0 || e.Size != 3<<20 {
		t.Errorf("a hole has %d refs and %d bytes", len(e.Content.Refs), e.Size)
	}
	if e := all["sparse"]; e.Content.Depth == 0 && e.Content.Refs[0].Hole != 3<<12 {
		t.Errorf("the first hole has %d bytes", e.Content.Refs[0].Hole)
	}
}

// The list chunks of a long file are stored while the data after them waits in the same buffer.
func TestListsOfLists(t *testing.T) {
	defer func(n int) { listRefs = n }(listRefs)
	listRefs = 3
	tree := treetest.Tree{
		"solid":      treetest.File(random(1, 24<<20)),
		"one extent": treetest.File(text(13 << 20)),
		"extents":    treetest.Sparse(2<<20, extents(40, 3*4096)...),
		"trailing":   treetest.Sparse(30<<20, extents(3, 4096)...),
	}
	f := newFixture(t, tree)
	f.read(f.batchOf(""))
	f.commit()
	f.wantTree()
	if e := f.entries()["extents"]; e.Content.Depth < 2 {
		t.Errorf("40 extents in lists of 3 have depth %d", e.Content.Depth)
	}
}

// extents returns n runs of data of one block, at intervals of every bytes.
func extents(n int, every int64) (list []treetest.Extent) {
	for i := range n {
		list = append(list, treetest.Extent{Offset: int64(i)*every + 4096, Data: random(uint64(i), 4096)})
	}
	return list
}

func TestXattrs(t *testing.T) {
	tree := treetest.Tree{"plain": treetest.File("x")}
	for i := range 40 { // more than a batch's listings have room for
		tree[fmt.Sprintf("%02d", i)] = treetest.File("y").WithXattr("user.long", random(uint64(i), 2000))
	}
	f := newFixture(t, tree)
	f.read(f.batchOf(""))
	f.commit()
	inline, apart := 0, 0
	for path, e := range f.entries() {
		xattrs := e.Xattrs
		if e.XattrChunk.Length > 0 {
			apart++
			xattrs = must(listing.DecodeXattrs(f.chunk(e.XattrChunk.Chunk)))(t)
		}
		inline += len(e.Xattrs)
		if path == "plain" {
			if len(xattrs) != 0 {
				t.Errorf("%s has %v", path, xattrs)
			}
			continue
		}
		var n uint64
		_, _ = fmt.Sscanf(path, "%d", &n)
		if len(xattrs) != 1 || xattrs[0].Name != "user.long" || string(xattrs[0].Value) != random(n, 2000) {
			t.Errorf("%s has %d xattrs, which are not its own", path, len(xattrs))
		}
	}
	if inline == 0 || apart == 0 {
		t.Errorf("%d in the listing, %d in chunks", inline, apart)
	}
}

// More tiny files than a pack may have chunks.
func TestPacksFullOfTinyFiles(t *testing.T) {
	const directories, files = 9, 2000
	f := newFixture(t, nil)
	var batches [][]backup.PageVersion
	var messages []*backup.ReadBatch
	f.begin()
	for d := range directories {
		if err := os.Mkdir(filepath.Join(f.dir, fmt.Sprint(d)), 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range files {
			if err := os.WriteFile(filepath.Join(f.dir, fmt.Sprint(d), fmt.Sprint(i)), fmt.Append(nil, d, "/", i), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		batches = append(batches, f.pagesOf(fmt.Sprint(d)))
	}
	f.announce(batches...)
	for range batches {
		messages = append(messages, f.claim())
	}
	f.reader.packer.join(f.snap.ID) // so that nothing is flushed before all batches are read
	for _, err := range f.readAll(messages, func() { f.reader.packer.leave(f.snap.ID) }) {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.commit()
	if puts := f.store.putsSoFar(); puts != 2 {
		t.Errorf("%d packs for %d chunks", puts, directories*files)
	}
	all := f.entries()
	if len(all) != directories*files {
		t.Fatalf("%d entries", len(all))
	}
	for i := range files {
		if i%499 != 0 {
			continue
		}
		e := all[fmt.Sprint(i%directories, "/", i)]
		if got := string(f.content(&e)); got != fmt.Sprint(i%directories, "/", i) {
			t.Errorf("file %d has content %q", i, got)
		}
	}
}

func TestWhatIsStoredIsNotStoredAgain(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File("content"), "b": treetest.File(random(1, 3<<20)), "c": treetest.File(text(2 << 20))})
	f.read(f.batchOf(""))
	f.commit()
	before := f.store.putsSoFar()
	f.reader = f.newReader(Options{}) // remembers nothing
	f.read(f.batchOf(""))
	f.commit()
	if puts := f.store.putsSoFar() - before; puts != 0 {
		t.Errorf("%d packs for content that is stored already", puts)
	}
	f.wantTree()
	if c := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t).Counts; c.NewBytes != 0 || c.StoredBytes != 0 || c.ReadBytes == 0 {
		t.Errorf("counts %+v", c)
	}
}

// addTo adds a frame with one chunk of frameBytes bytes to the snapshot's pack.
func (p *packer) addTo(f *fixture, snapshot backup.SnapshotID, n, frameBytes int) {
	f.Helper()
	data := make([]byte, frameBytes)
	binary.LittleEndian.PutUint64(data, uint64(n))
	frame := pack.Frame{RawLength: len(data), Body: data, Chunks: []pack.Chunk{{
		Hash: chunk.NewHasher(f.key.Dedup).Sum(data), Length: uint32(len(data)),
	}}}
	if _, _, err := p.add(f.ctx, snapshot, frame); err != nil {
		f.Fatal(err)
	}
}

// However many snapshots are read at a time, their packs share one bound. The small work of each is
// in few packs, and not in one per piece: the fullest pack is uploaded first.
func TestManySnapshotsShareThePacks(t *testing.T) {
	const snapshots, frames, frameBytes = 24, 20, 512 << 10
	packsStayOpen(t)
	f := newFixture(t, nil)
	s := f.newReader(Options{Linger: time.Millisecond})
	var mu sync.Mutex
	var packs, storedBytes int64
	s.sendPack = func(_ context.Context, m *backup.PackStored) error {
		mu.Lock()
		defer mu.Unlock()
		packs, storedBytes = packs+1, storedBytes+m.StoredBytes
		return nil
	}
	ids := make([]backup.SnapshotID, snapshots)
	for i := range ids {
		ids[i] = backup.NewSnapshotID()
		s.packer.join(ids[i]) // so that nothing is flushed because all batches are idle
	}
	for n := range snapshots * frames {
		s.packer.addTo(f, ids[n%snapshots], n, frameBytes)
		if held := s.packer.heldBytes(t); held > maxOpenBytes {
			t.Fatalf("packs that are being filled hold %d bytes", held)
		}
	}
	for _, id := range ids {
		s.packer.leave(id)
	}
	f.until(func() bool { mu.Lock(); defer mu.Unlock(); return storedBytes >= snapshots*frames*frameBytes })
	if mean := storedBytes / packs; mean < frames*frameBytes/3 {
		t.Errorf("%d packs of %d bytes in the mean, for %d snapshots of %d bytes each", packs, mean, snapshots, frames*frameBytes)
	}
}

// heldBytes returns the size of the open packs, which must equal the packer's count.
func (p *packer) heldBytes(t *testing.T) (held int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, open := range p.open {
		held += open.writer.Size()
	}
	if held != p.held {
		t.Fatalf("open packs hold %d bytes; the packer counts %d", held, p.held)
	}
	return held
}
