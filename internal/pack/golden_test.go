package pack

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/testenv/golden"
)

var update = flag.Bool("update", false, "write golden files")

// A hundred times 'a' as a zstd frame, written by hand so that it does not change with the library.
var hundredAs = []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 100, 0x23, 0x03, 0x00, 'a'}

// goldenPacks are the golden files: the plaintexts of the chunks, per frame.
var goldenPacks = []struct {
	name   string
	kind   Kind
	codec  string
	frames [][]string
}{
	{"small.pack", KindData, "", [][]string{{"hello", ", world"}, {strings.Repeat("a", 60), strings.Repeat("a", 40)}}},
	{"zstd.pack", KindData, "zstd-2", [][]string{{string(text(9000, 1)), string(text(50, 2))}, {string(random(500, 1))}}},
	{"s2.pack", KindData, "s2", [][]string{{string(text(9000, 1)), string(text(50, 2))}, {string(random(500, 1))}}},
	{"segment.pack", KindSegment, "", [][]string{{"rows of an index segment"}}},
	{"index.pack", KindIndex, "", [][]string{{"a page of a database"}, {"and another"}}},
}

// goldenFrame makes a frame of a golden pack, with the codec or, without one, by hand.
func goldenFrame(t *testing.T, kind Kind, codec string, plaintexts []string) Frame {
	var chunks [][]byte
	for _, p := range plaintexts {
		chunks = append(chunks, []byte(p))
	}
	if codec != "" {
		return frame(newCompressor(t, codec), chunks...)
	}
	f := frame(newCompressor(t, "none"), chunks...)
	if f.RawLength == 100 {
		f.Codec, f.Body = CodecZstd, hundredAs
	}
	if kind.signed() {
		f.Chunks = nil
	}
	return f
}

func writeGolden(t *testing.T, i int, keys keys) []byte {
	cryptotest.SetGlobalRandom(t, uint64(i))
	g := goldenPacks[i]
	w, err := NewWriter(g.kind, testRepository, testID, keys.sealer, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, plaintexts := range g.frames {
		add(t, w, goldenFrame(t, g.kind, g.codec, plaintexts))
	}
	if g.kind.signed() {
		return keys.finishSigned(t, w)
	}
	return finish(t, w)
}

// thinnedFrame is the frame that was removed from thinned.pack, which otherwise equals small.pack.
const thinnedFrame = 0

// goldenThinned returns thinned.pack. goldenRow returns row.object: three packs one after another,
// the second of them thinned.
func goldenThinned(t testing.TB) []byte {
	small := golden.Read(t, "small.pack")
	data, err := Thin(nil, small, frameBytes(goldenKeys(t).open(t, small)), func(frame int) bool { return frame != thinnedFrame })
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func goldenRow(t testing.TB) []byte {
	return slices.Concat(golden.Read(t, "zstd.pack"), goldenThinned(t), golden.Read(t, "s2.pack"))
}

// frameBytes returns the lengths that Writer.FrameBytes returned.
func frameBytes(r *Reader) (lengths []uint32) {
	for _, f := range r.Frames() {
		lengths = append(lengths, uint32(f.SealedLength))
	}
	return lengths
}

func TestWriteGolden(t *testing.T) {
	if !*update {
		t.Skip("only with -update")
	}
	path := filepath.Join(golden.Dir, "identity.txt")
	if _, err := os.Stat(path); err != nil {
		committer := seal.CommitterKey{Repository: testRepository, Signing: seal.NewSigningKey()}
		text, err := committer.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(golden.Dir, "committer.key"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		identity, recipient, err := seal.GenerateIdentity()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("# public key: "+recipient+"\n"+identity+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, g := range goldenPacks {
		t.Run(g.name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(golden.Dir, g.name), writeGolden(t, i, goldenKeys(t)), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
	for name, data := range map[string][]byte{"thinned.pack": goldenThinned(t), "row.object": goldenRow(t)} {
		if err := os.WriteFile(filepath.Join(golden.Dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadGolden(t *testing.T) {
	keys := goldenKeys(t)
	for _, g := range goldenPacks {
		data := golden.Read(t, g.name)
		r := keys.open(t, data)
		if g.kind.signed() {
			var err error
			if r, err = keys.openSigned(data, g.kind); err != nil {
				t.Fatal(err)
			}
		}
		if r.Kind() != g.kind || len(r.Frames()) != len(g.frames) {
			t.Errorf("%s: %s pack of %d frames", g.name, r.Kind(), len(r.Frames()))
		}
		for i, f := range r.Frames() {
			raw, err := r.DecodeFrame(nil, uint32(i), data[f.Offset:][:f.SealedLength], chunk.NewHasher(testKey))
			if err != nil || string(raw) != strings.Join(g.frames[i], "") {
				t.Errorf("%s, frame %d: %q, %v", g.name, i, raw, err)
			}
			for j, c := range f.Chunks {
				if got := raw[c.Offset:][:c.Length]; string(got) != g.frames[i][j] {
					t.Errorf("%s, frame %d, chunk %d: %q", g.name, i, j, got)
				}
			}
		}
	}
}

// A thinned pack has its remaining frames unchanged, and its table lists all frames.
func TestReadGoldenThinned(t *testing.T) {
	keys, small := goldenKeys(t), goldenPacks[0]
	data := golden.Read(t, "thinned.pack")
	readThinned(t, keys.open(t, data), data, small.frames)
	if !bytes.Equal(data, goldenThinned(t)) {
		t.Error("Thin gives other bytes than the golden file has")
	}
}

func readThinned(t *testing.T, r *Reader, data []byte, frames [][]string) {
	t.Helper()
	if len(r.Frames()) != len(frames) {
		t.Fatalf("%d frames", len(r.Frames()))
	}
	for i, f := range r.Frames() {
		if f.Removed != (i == thinnedFrame) || len(f.Chunks) != len(frames[i]) {
			t.Errorf("frame %d: removed %v, %d chunks", i, f.Removed, len(f.Chunks))
		}
		if f.Removed {
			if _, err := r.DecodeFrame(nil, uint32(i), nil, nil); !errors.Is(err, backup.ErrNotFound) {
				t.Errorf("frame %d, which was removed: %v", i, err)
			}
			continue
		}
		raw, err := r.DecodeFrame(nil, uint32(i), data[f.Offset:][:f.SealedLength], chunk.NewHasher(testKey))
		if err != nil || string(raw) != strings.Join(frames[i], "") {
			t.Errorf("frame %d: %q, %v", i, raw, err)
		}
	}
}

// Consecutive packs in one object are read as if each were an object.
func TestReadGoldenRow(t *testing.T) {
	keys, data := goldenKeys(t), golden.Read(t, "row.object")
	if !bytes.Equal(data, goldenRow(t)) {
		t.Error("row.object is not the three packs that it is made of")
	}
	ranger := &object{data: data}
	offset := 0
	for _, name := range []string{"zstd.pack", "thinned.pack", "s2.pack"} {
		length := len(golden.Read(t, name))
		r, err := Open(context.Background(), ranger, Place{"packs/x", int64(offset), int64(length)}, testRepository, testID, keys.opener)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		whole := keys.open(t, golden.Read(t, name))
		if !reflect.DeepEqual(r.Frames(), whole.Frames()) {
			t.Errorf("%s: %+v in a row, %+v alone", name, r.Frames(), whole.Frames())
		}
		if name == "thinned.pack" {
			readThinned(t, r, data[offset:][:length], goldenPacks[0].frames)
		}
		offset += length
	}
}

// Except for key material, the same frames give the same bytes. (The codecs' output changes with
// their libraries, so only packs made without a codec are compared.)
func TestWriterIsDeterministic(t *testing.T) {
	for i, g := range goldenPacks {
		if g.codec != "" {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			if got := writeGolden(t, i, goldenKeys(t)); !bytes.Equal(got, golden.Read(t, g.name)) {
				t.Errorf("the pack has other bytes than its golden file:\n%s", hex.Dump(got))
			}
		})
	}
}

// The annotated dump in the format's documentation is that of small.pack.
func TestDumpInDocumentation(t *testing.T) {
	const page, begin, end = "../../docs/formats/pack.md", "<!-- begin dump -->\n", "<!-- end dump -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no dump", page)
	}
	dump := "```text\n" + dumpPack(t, golden.Read(t, "small.pack"), goldenKeys(t)) + "```\n"
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+dump+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if dump != old {
		t.Errorf("%s has another dump; -update writes this one:\n%s", page, dump)
	}
}

// dumpPack describes a pack's bytes, field by field, and the decrypted table.
func dumpPack(t *testing.T, data []byte, keys keys) string {
	tr, err := parseTrailer(data)
	if err != nil {
		t.Fatal(err)
	}
	r := keys.open(t, data)
	d := dumper{data: data}
	d.field(8, "magic")
	d.field(1, "version")
	d.field(1, "kind: "+r.Kind().String())
	d.field(2, "length of the wrapped key")
	d.field(16, "repository id")
	d.field(16, "pack id")
	d.field(int(tr.headerBytes)-headerFixedBytes-crcBytes, "wrapped key: an age file")
	d.field(crcBytes, "CRC-32C of the header")
	for i, f := range r.Frames() {
		d.field(int(f.SealedLength)-seal.OverheadBytes, fmt.Sprintf("frame %d: %s, sealed", i, f.Codec))
		d.field(seal.OverheadBytes, "tag")
	}
	d.field(int(tr.tableBytes)-seal.OverheadBytes, "table, sealed")
	d.field(seal.OverheadBytes, "tag")
	d.field(8, "length of the pack")
	d.field(4, "length of the header")
	d.field(4, "length of the sealed table")
	d.field(4, "length of the bitmap: none")
	d.field(4, "length of the signature: none")
	d.field(7, "magic")
	d.field(1, "version")
	d.field(4, "CRC-32C of the trailer")
	if d.offset != len(data) {
		t.Fatalf("the dump ends at %d of %d bytes", d.offset, len(data))
	}

	var aad [aadBytes]byte
	setAAD(&aad, r.header.fixed[:], sectionTable, 0)
	plaintext, err := r.key.Open(nil, data[tr.tableOffset():][:tr.tableBytes], tableCounter, aad[:])
	if err != nil {
		t.Fatal(err)
	}
	d.out.WriteString("\nThe table's plaintext:\n\n")
	d.data, d.offset = plaintext, 0
	d.field(1, "number of frames")
	for i := range r.Frames() {
		d.field(1, fmt.Sprintf("frame %d: codec", i))
		d.field(1, "sealed length")
		d.field(1, "raw length")
		d.field(1, "number of chunks")
	}
	for _, f := range r.Frames() {
		for i, c := range f.Chunks {
			d.field(32, fmt.Sprintf("frame %d, chunk %d: hash", c.Frame, i))
			d.field(1, "length")
		}
	}
	if d.offset != len(plaintext) {
		t.Fatalf("the dump ends at %d of %d bytes of the table", d.offset, len(plaintext))
	}
	return d.out.String()
}

type dumper struct {
	out    strings.Builder
	data   []byte
	offset int
}

func (d *dumper) field(n int, note string) {
	for line := range slices.Chunk(d.data[d.offset:][:n], 16) {
		fmt.Fprintf(&d.out, "%s\n", strings.TrimRight(fmt.Sprintf("%04x  %-47s  %s", d.offset, fmt.Sprintf("% x", line), note), " "))
		d.offset += len(line)
		note = ""
	}
}

// FuzzOpen reads changed packs, and changed packs with correct checksums.
func FuzzOpen(f *testing.F) {
	for _, g := range goldenPacks {
		f.Add(golden.Read(f, g.name), false)
	}
	f.Add(golden.Read(f, "thinned.pack"), true)
	f.Add(golden.Read(f, "row.object"), true)
	keys := goldenKeys(f)
	f.Fuzz(func(t *testing.T, data []byte, sum bool) {
		data = bytes.Clone(data)
		if sum && len(data) >= trailerBytes {
			sumTrailer(data)
			if tr, err := parseTrailer(data); err == nil && tr.packBytes == int64(len(data)) {
				sumHeader(data, tr.headerBytes)
			}
		}
		r, err := OpenBytes(data, testRepository, testID, keys.opener)
		if err != nil {
			return
		}
		decodeAll(t, r, data)
	})
}

// FuzzThin thins any bytes with any lengths: the result of thinning a readable pack must be
// readable.
func FuzzThin(f *testing.F) {
	keys := goldenKeys(f)
	small := golden.Read(f, "small.pack")
	lengths := frameBytes(keys.open(f, small))
	f.Add(small, lengths[0], lengths[1], uint8(1))
	f.Add(golden.Read(f, "thinned.pack"), lengths[0], lengths[1], uint8(2))
	f.Add(golden.Read(f, "segment.pack"), uint32(40), uint32(0), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, one, two uint32, kept uint8) {
		thin, err := Thin(nil, data, []uint32{one, two}, func(frame int) bool { return kept&(1<<frame) != 0 })
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if len(thin) > len(data)+1 {
			t.Errorf("a pack of %d bytes has %d once it is thinned", len(data), len(thin))
		}
		r, err := OpenBytes(data, testRepository, testID, keys.opener)
		if err != nil || !slices.Equal(frameBytes(r), []uint32{one, two}) {
			return
		}
		s, err := OpenBytes(thin, testRepository, testID, keys.opener)
		if err != nil {
			t.Fatalf("a pack that was thinned: %v", err)
		}
		decodeAll(t, s, thin)
	})
}

// FuzzTable reads tables that authenticate, as a forger who knows the recipients could write them.
func FuzzTable(f *testing.F) {
	keys := newKeys(f)
	for _, g := range goldenPacks[:1] {
		w := keys.writer(f, g.kind)
		add(f, w, Frame{RawLength: 10, Body: make([]byte, 10), Chunks: []Chunk{{Length: 10}}})
		f.Add(w.table.appendTo(nil), []byte("0123456789"), []byte{}, false)
		f.Add(w.table.appendTo(nil), []byte("0123456789"), []byte{0}, false)
		f.Add([]byte{1, 1, 26, 100, 0}, hundredAs, []byte{}, true)
		f.Add([]byte{1, 2, 26, 10, 0}, []byte("\x0a\x24abcdefgh"), []byte{}, true)
	}
	f.Fuzz(func(t *testing.T, table, body, present []byte, segment bool) {
		kind := KindData
		if segment {
			kind = KindSegment
		}
		w := keys.writer(t, kind)
		setAAD(&w.aad, w.buf, sectionFrame, 0)
		w.buf = w.key.Seal(w.buf, body, 0, w.aad[:])
		data := finishTable(w, table, present)
		r, err := OpenBytes(data, testRepository, testID, keys.opener)
		if err != nil {
			return
		}
		decodeAll(t, r, data)
	})
}

// decodeAll decodes every frame. Frames that decode must agree with the table.
func decodeAll(t *testing.T, r *Reader, data []byte) {
	for i, f := range r.Frames() {
		if f.Removed {
			continue
		}
		raw, err := r.DecodeFrame(nil, uint32(i), data[f.Offset:][:f.SealedLength], nil)
		if err != nil {
			continue
		}
		end := uint32(0)
		for _, c := range f.Chunks {
			if c.Frame != uint32(i) || c.Offset != end || c.Length == 0 {
				t.Errorf("chunk %+v of frame %d, the one before ends at %d", c, i, end)
			}
			end += c.Length
		}
		if len(raw) != f.RawLength || len(f.Chunks) > 0 && int(end) != len(raw) {
			t.Errorf("frame of %d bytes, the table says %d, its chunks end at %d", len(raw), f.RawLength, end)
		}
	}
}

func goldenKeys(t testing.TB) keys {
	t.Helper()
	file := golden.Read(t, "identity.txt")
	opener, err := seal.NewOpener(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(file), "# public key: ")
	recipient, _, _ := strings.Cut(rest, "\n")
	sealer, err := seal.NewSealer([]string{recipient})
	if err != nil {
		t.Fatal(err)
	}
	committer, err := seal.ParseCommitterKey(golden.Read(t, "committer.key"))
	if err != nil {
		t.Fatal(err)
	}
	return keys{sealer, opener, committer.Signing}
}
