package pack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/seal"
)

var (
	testRepository = backup.RepositoryID([]byte("the repository's"))
	testID         = backup.PackID([]byte("sixteen byte id!"))
	testKey        = [32]byte([]byte("the dedup key has 32 bytes, too."))
)

func TestPackHoldsWhatWasAdded(t *testing.T) {
	keys := newKeys(t)
	for _, name := range []string{"zstd-1", "zstd-2", "zstd-3", "zstd-4", "s2", "none"} {
		t.Run(name, func(t *testing.T) {
			compressor := newCompressor(t, name)
			if compressor.Name() != name {
				t.Errorf("Name: %q", compressor.Name())
			}
			w := keys.writer(t, KindData)
			var want [][]byte
			for i, chunks := range [][][]byte{
				{text(3000, 1), text(10, 2), text(70_000, 3)},
				{random(40_000, 1)},
				{[]byte("x")},
				{text(1<<20, 4)},
				{make([]byte, 1<<20), random(1<<20, 2)},
			} {
				f := frame(compressor, chunks...)
				if n, err := w.Add(f); err != nil || n != uint32(i) {
					t.Fatalf("Add: frame %d, %v", n, err)
				}
				want = append(want, slices.Concat(chunks...))
			}
			size := w.Size()
			data := finish(t, w)
			if len(data) > size || len(data) < size-2 {
				t.Errorf("Size was %d, the object has %d bytes", size, len(data))
			}
			r := keys.open(t, data)
			if r.Kind() != KindData || len(r.Frames()) != len(want) || len(r.Chunks()) != 8 || w.Chunks() != 8 {
				t.Errorf("%s pack of %d frames, %d chunks", r.Kind(), len(r.Frames()), len(r.Chunks()))
			}
			for i, f := range r.Frames() {
				raw, err := r.DecodeFrame([]byte("dst"), uint32(i), data[f.Offset:][:f.SealedLength], chunk.NewHasher(testKey))
				if err != nil {
					t.Fatal(err)
				}
				if string(raw[:3]) != "dst" || !bytes.Equal(raw[3:], want[i]) {
					t.Errorf("frame %d (%s) is not what was added", i, f.Codec)
				}
			}
		})
	}
}

func TestChunkPlaces(t *testing.T) {
	keys := newKeys(t)
	w := keys.writer(t, KindData)
	none := newCompressor(t, "none")
	add(t, w, frame(none, []byte("hello"), []byte(", world")))
	add(t, w, frame(none, []byte("bye")))
	r := keys.open(t, finish(t, w))
	h := chunk.NewHasher(testKey)
	want := []ChunkInfo{
		{h.Sum([]byte("hello")), 0, 0, 5},
		{h.Sum([]byte(", world")), 0, 5, 7},
		{h.Sum([]byte("bye")), 1, 0, 3},
	}
	if !slices.Equal(r.Chunks(), want) {
		t.Errorf("Chunks: %v, want %v", r.Chunks(), want)
	}
	if got := r.Frames()[1].Chunks; !slices.Equal(got, want[2:]) {
		t.Errorf("Chunks of frame 1: %v", got)
	}
}

func TestSegmentNeedsNoChunks(t *testing.T) {
	keys := newKeys(t)
	w := keys.writer(t, KindSegment)
	add(t, w, Frame{RawLength: 4, Body: []byte("rows")})
	size := w.Size()
	data := keys.finishSigned(t, w)
	if len(data) > size || len(data) < size-2 {
		t.Errorf("Size was %d, the object has %d bytes", size, len(data))
	}
	r, err := keys.openSigned(data, KindSegment)
	if err != nil {
		t.Fatal(err)
	}
	f := r.Frames()[0]
	raw, err := r.DecodeFrame(nil, 0, data[f.Offset:][:f.SealedLength], nil)
	if err != nil || string(raw) != "rows" || r.Kind() != KindSegment || len(r.Chunks()) != 0 {
		t.Errorf("DecodeFrame: %q, %v; %s pack", raw, err, r.Kind())
	}
}

func TestAddRefusesFramesThatCannotBeRead(t *testing.T) {
	h := backup.ChunkHash{1}
	good := Frame{RawLength: 3, Body: []byte("abc"), Chunks: []Chunk{{h, 0, 1}, {h, 1, 2}}}
	tests := []struct {
		name string
		edit func(*Frame)
	}{
		{"empty", func(f *Frame) { *f = Frame{} }},
		{"negative length", func(f *Frame) { f.RawLength = -1 }},
		{"empty body", func(f *Frame) { f.Body, f.Codec = nil, CodecZstd }},
		{"body longer than its plaintext", func(f *Frame) { f.Body, f.Codec = []byte("abcd"), CodecZstd }},
		{"raw body of another length", func(f *Frame) { f.Body = []byte("ab") }},
		{"unknown codec", func(f *Frame) { f.Codec = 3 }},
		{"no chunks", func(f *Frame) { f.Chunks = nil }},
		{"empty chunk", func(f *Frame) { f.Chunks = []Chunk{{h, 0, 3}, {h, 3, 0}} }},
		{"gap", func(f *Frame) { f.Chunks = []Chunk{{h, 0, 1}, {h, 2, 1}} }},
		{"overlap", func(f *Frame) { f.Chunks = []Chunk{{h, 0, 2}, {h, 1, 2}} }},
		{"chunks too short", func(f *Frame) { f.Chunks = f.Chunks[:1] }},
		{"chunks too long", func(f *Frame) { f.Chunks = []Chunk{{h, 0, 4}} }},
		{"chunk lengths that overflow", func(f *Frame) { f.Chunks = []Chunk{{h, 0, 1<<32 - 1}, {h, 1<<32 - 1, 4}} }},
		{"too large", func(f *Frame) {
			f.RawLength, f.Body = MaxFrameRawBytes+1, make([]byte, MaxFrameRawBytes+1)
			f.Chunks = []Chunk{{h, 0, MaxFrameRawBytes + 1}}
		}},
		{"too many chunks", func(f *Frame) {
			f.RawLength, f.Body, f.Chunks = MaxChunks+1, make([]byte, MaxChunks+1), make([]Chunk, MaxChunks+1)
			for i := range f.Chunks {
				f.Chunks[i] = Chunk{h, uint32(i), 1}
			}
		}},
	}
	w := newKeys(t).writer(t, KindData)
	for _, tt := range tests {
		f := good
		tt.edit(&f)
		if _, err := w.Add(f); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", tt.name, err)
		}
	}
	if _, err := w.Finish(); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("Finish of an empty pack: %v, want ErrInvalid", err)
	}
	add(t, w, good)
	finish(t, w)
	if _, err := w.Add(good); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("Add after Finish: %v, want ErrInvalid", err)
	}
	if _, err := w.Finish(); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("second Finish: %v, want ErrInvalid", err)
	}
}

// A pack reports that it is full before it exceeds a limit, and its content can be read.
func TestFullPack(t *testing.T) {
	keys := newKeys(t)
	tiny := Frame{RawLength: 1, Body: []byte("x"), Chunks: []Chunk{{Length: 1}}}
	large := Frame{RawLength: MaxFrameRawBytes, Body: make([]byte, MaxFrameRawBytes), Chunks: []Chunk{{Length: MaxFrameRawBytes}}}
	// Eight MiB of zeros in a few bytes: the sum of the plaintexts fills the pack.
	zeros := frame(newCompressor(t, "zstd-1"), make([]byte, MaxFrameRawBytes))
	many := Frame{RawLength: MaxChunks, Body: make([]byte, MaxChunks), Chunks: make([]Chunk, MaxChunks)}
	for i := range many.Chunks {
		many.Chunks[i] = Chunk{Offset: uint32(i), Length: 1}
	}
	for _, tt := range []struct {
		name   string
		frame  Frame
		frames int
	}{
		{"frames", tiny, MaxFrames},
		{"bytes", large, 5},
		{"plaintext", zeros, MaxRawBytes / MaxFrameRawBytes},
		{"chunks", many, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := keys.writer(t, KindData)
			for i := range tt.frames {
				if !w.Fits(tt.frame) {
					t.Fatalf("full after %d frames", i)
				}
				add(t, w, tt.frame)
			}
			if w.Fits(tt.frame) {
				t.Error("Fits says that one more goes in")
			}
			if _, err := w.Add(tt.frame); !errors.Is(err, ErrFull) {
				t.Errorf("Add: %v, want ErrFull", err)
			}
			data := finish(t, w)
			if len(data) > MaxBytes {
				t.Errorf("the object has %d bytes", len(data))
			}
			if r := keys.open(t, data); len(r.Frames()) != tt.frames {
				t.Errorf("%d frames", len(r.Frames()))
			}
		})
	}
}

func TestOpenRequests(t *testing.T) {
	keys := newKeys(t)
	none := newCompressor(t, "none")
	small := keys.writer(t, KindData)
	add(t, small, frame(none, []byte("hello")))
	middle := keys.writer(t, KindData)
	add(t, middle, frame(none, random(1<<20, 1)))
	manyChunks := keys.writer(t, KindData)
	for i := range 100 {
		add(t, manyChunks, frame(none, split(random(8000, byte(i)), 100)...))
	}
	for _, tt := range []struct {
		name     string
		data     []byte
		requests int
	}{
		{"small: tail, size, all", finish(t, small), 3},
		{"middle: tail, header", finish(t, middle), 2},
		{"many chunks: tail, header, table", finish(t, manyChunks), 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &object{data: tt.data}
			r, err := Open(context.Background(), o, Place{Object: "packs/x"}, testRepository, testID, keys.opener)
			if err != nil {
				t.Fatal(err)
			}
			if want := keys.open(t, tt.data); !slices.Equal(r.Chunks(), want.Chunks()) {
				t.Error("Open and OpenBytes differ")
			}
			if len(o.requests) != tt.requests {
				t.Errorf("requests %v, want %d", o.requests, tt.requests)
			}
		})
	}
}

func TestOpenPassesStoreErrorsOn(t *testing.T) {
	keys := newKeys(t)
	for _, want := range []error{backup.ErrNotFound, backup.ErrUnavailable} {
		o := &object{err: fmt.Errorf("object packs/x: %w", want)}
		if _, err := Open(context.Background(), o, Place{Object: "packs/x"}, testRepository, testID, keys.opener); !errors.Is(err, want) {
			t.Errorf("Open: %v, want %v", err, want)
		}
	}
}

func TestDecodeFrameRefusesWrongBytes(t *testing.T) {
	keys := newKeys(t)
	w := keys.writer(t, KindData)
	c := newCompressor(t, "zstd-1")
	add(t, w, frame(c, text(5000, 1)))
	add(t, w, frame(c, text(5000, 1)))
	f := frame(c, text(5000, 3))
	f.Chunks[0].Hash[31] ^= 1
	add(t, w, f)
	data := finish(t, w)
	r := keys.open(t, data)
	sealed := func(n int) []byte { f := r.Frames()[n]; return data[f.Offset:][:f.SealedLength] }
	flipped := bytes.Clone(sealed(0))
	flipped[100] ^= 1
	tests := []struct {
		name   string
		n      uint32
		sealed []byte
		want   error
	}{
		{"no such frame", 3, sealed(0), backup.ErrInvalid},
		{"no such frame by far", 1<<32 - 1, sealed(0), backup.ErrInvalid},
		{"too short", 0, sealed(0)[1:], backup.ErrCorrupt},
		{"nothing", 0, nil, backup.ErrCorrupt},
		{"changed", 0, flipped, backup.ErrCorrupt},
		{"another frame of the same plaintext", 0, sealed(1), backup.ErrCorrupt},
		{"another hash", 2, sealed(2), backup.ErrCorrupt},
	}
	for _, tt := range tests {
		raw, err := r.DecodeFrame(nil, tt.n, tt.sealed, chunk.NewHasher(testKey))
		if !errors.Is(err, tt.want) || raw != nil {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), testID.String()) {
			t.Errorf("%s: the error does not name the pack: %v", tt.name, err)
		}
	}
	if _, err := r.DecodeFrame(nil, 2, sealed(2), nil); err != nil {
		t.Errorf("without a Hasher, no hash is checked: %v", err)
	}
	if _, err := r.DecodeFrame(nil, 0, sealed(0), chunk.NewHasher([32]byte{})); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("under another dedup key: %v, want ErrCorrupt", err)
	}
}

func TestReaderIsSafeForConcurrentUse(t *testing.T) {
	keys := newKeys(t)
	w := keys.writer(t, KindData)
	c := newCompressor(t, "zstd-2")
	for i := range 8 {
		add(t, w, frame(c, text(20_000, byte(i))))
	}
	data := finish(t, w)
	r := keys.open(t, data)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			h := chunk.NewHasher(testKey)
			var buf []byte
			for i := range r.Frames() {
				n := (i + worker) % len(r.Frames())
				f := r.Frames()[n]
				raw, err := r.DecodeFrame(buf[:0], uint32(n), data[f.Offset:][:f.SealedLength], h)
				if err != nil || !bytes.Equal(raw, text(20_000, byte(n))) {
					t.Errorf("frame %d: %v", n, err)
					return
				}
				buf = raw
			}
		})
	}
	wg.Wait()
}

// One pack's storage is reused for the next.
func TestWriterReusesStorage(t *testing.T) {
	keys := newKeys(t)
	f := frame(newCompressor(t, "none"), random(100_000, 1))
	buf := make([]byte, 0, 300_000)
	for range 3 {
		w, err := NewWriter(KindData, testRepository, testID, keys.sealer, buf)
		if err != nil {
			t.Fatal(err)
		}
		add(t, w, f)
		data := finish(t, w)
		if &data[0] != &buf[:1][0] {
			t.Error("the object is not in the storage that was given")
		}
		buf = data[:0]
	}
}

// keys are the two halves of a repository's key.
type keys struct {
	sealer  *seal.Sealer
	opener  *seal.Opener
	signing seal.SigningKey
}

func newKeys(t testing.TB) keys {
	t.Helper()
	identity, recipient, err := seal.GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := seal.NewSealer([]string{recipient})
	if err != nil {
		t.Fatal(err)
	}
	opener, err := seal.NewOpener([]byte(identity))
	if err != nil {
		t.Fatal(err)
	}
	return keys{sealer, opener, seal.NewSigningKey()}
}

func (k keys) writer(t testing.TB, kind Kind) *Writer {
	t.Helper()
	w, err := NewWriter(kind, testRepository, testID, k.sealer, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (k keys) open(t testing.TB, data []byte) *Reader {
	t.Helper()
	r, err := OpenBytes(data, testRepository, testID, k.opener)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newCompressor(t testing.TB, name string) *Compressor {
	t.Helper()
	c, err := NewCompressor(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func frame(c *Compressor, chunks ...[]byte) Frame {
	raw := slices.Concat(chunks...)
	body, codec := c.Compress(nil, raw)
	f := Frame{Codec: codec, RawLength: len(raw), Body: body}
	h, offset := chunk.NewHasher(testKey), 0
	for _, p := range chunks {
		f.Chunks = append(f.Chunks, Chunk{Hash: h.Sum(p), Offset: uint32(offset), Length: uint32(len(p))})
		offset += len(p)
	}
	return f
}

func add(t testing.TB, w *Writer, f Frame) {
	t.Helper()
	if _, err := w.Add(f); err != nil {
		t.Fatal(err)
	}
}

func finish(t testing.TB, w *Writer) []byte {
	t.Helper()
	data, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// testName is the name of the object that holds signed packs.
const testName = "segments/some/where"

// finishSigned is finish for the kinds that are signed.
func (k keys) finishSigned(t testing.TB, w *Writer) []byte {
	t.Helper()
	data, err := w.FinishSigned(k.signing, testName)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (k keys) openSigned(data []byte, kind Kind) (*Reader, error) {
	return OpenSigned(data, kind, testName, testRepository, testID, k.signing.Signer(), k.opener)
}

// An object is a store with one object that fulfils store.Store's contract.
type object struct {
	data     []byte
	err      error
	requests []string
}

func (o *object) Stat(context.Context, string) (int64, error) {
	o.requests = append(o.requests, "stat")
	return int64(len(o.data)), o.err
}

func (o *object) GetRange(_ context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	o.requests = append(o.requests, fmt.Sprintf("%d+%d", offset, length))
	size := int64(len(o.data))
	if o.err != nil {
		return nil, o.err
	}
	if offset < 0 {
		offset += size
	}
	if offset < 0 || offset+length > size {
		return nil, fmt.Errorf("%s has %d bytes: %w", name, size, backup.ErrCorrupt)
	}
	return append(dst, o.data[offset:offset+length]...), nil
}

func random(n int, seed byte) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

// text resembles a program and compresses to about half its length.
func text(n int, seed byte) []byte {
	words := strings.Fields("func return if err != nil { } for range the of a in := == backup context string int64 bytes chunk frame pack 0 1 2 len append package import")
	r := rand.New(rand.NewChaCha8([32]byte{seed, 1}))
	p := make([]byte, 0, n+16)
	for len(p) < n {
		p = append(p, words[r.IntN(len(words))]...)
		p = append(p, " \n\t_"[r.IntN(4)], byte('a'+r.IntN(26)))
	}
	return p[:n]
}

func split(p []byte, size int) (parts [][]byte) {
	for part := range slices.Chunk(p, size) {
		parts = append(parts, part)
	}
	return parts
}
