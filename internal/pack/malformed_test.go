package pack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"runtime"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
)

// smallPack has two frames, of two chunks and of one, all compressed. The frames have the same
// sealed length.
func smallPack(t testing.TB, k keys) []byte {
	w := k.writer(t, KindData)
	c := newCompressor(t, "zstd-1")
	add(t, w, frame(c, bytes.Repeat([]byte("a"), 100), bytes.Repeat([]byte("a"), 50)))
	add(t, w, frame(c, bytes.Repeat([]byte("b"), 150)))
	return finish(t, w)
}

// readAll opens a pack in both ways and decodes all of its frames.
func readAll(data []byte, k keys) error {
	_, err := Open(context.Background(), &object{data: data}, Place{Object: "packs/x"}, testRepository, testID, k.opener)
	if err != nil {
		return err
	}
	r, err := OpenBytes(data, testRepository, testID, k.opener)
	if err != nil {
		return err
	}
	for i, f := range r.Frames() {
		if f.Removed {
			continue
		}
		if _, err := r.DecodeFrame(nil, uint32(i), data[f.Offset:][:f.SealedLength], chunk.NewHasher(testKey)); err != nil {
			return err
		}
	}
	return nil
}

func TestTruncatedAnywhere(t *testing.T) {
	k := newKeys(t)
	data := smallPack(t, k)
	for n := range data {
		if err := readAll(data[:n], k); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("truncated to %d of %d bytes: %v, want ErrCorrupt", n, len(data), err)
		}
	}
	if err := readAll(append(bytes.Clone(data), 0), k); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a byte more: %v, want ErrCorrupt", err)
	}
	if err := readAll(data, k); err != nil {
		t.Errorf("undamaged: %v", err)
	}
}

func TestChangedAnywhere(t *testing.T) {
	k := newKeys(t)
	data := smallPack(t, k)
	for i := range data {
		for _, bit := range []byte{0x01, 0x80} {
			damaged := bytes.Clone(data)
			damaged[i] ^= bit
			if err := readAll(damaged, k); !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("byte %d of %d ^ %#x: %v, want ErrCorrupt", i, len(data), bit, err)
			}
		}
	}
}

// Packs as an attacker with write access to the store but without an identity could make them: the
// checksums are right, and only the AEAD detects them.
func TestForgedOutside(t *testing.T) {
	k := newKeys(t)
	data, other := smallPack(t, k), smallPack(t, k)
	r := k.open(t, data)
	one, two := r.Frames()[0], r.Frames()[1]
	if one.SealedLength != two.SealedLength {
		t.Fatal("the frames must have one length")
	}
	tests := []struct {
		name  string
		forge func(p []byte) []byte
		want  error
	}{
		{"frames exchanged", func(p []byte) []byte {
			copy(p[one.Offset:], data[two.Offset:][:two.SealedLength])
			copy(p[two.Offset:], data[one.Offset:][:one.SealedLength])
			return p
		}, backup.ErrCorrupt},
		{"frame of another pack", func(p []byte) []byte {
			copy(p[one.Offset:], other[one.Offset:][:one.SealedLength])
			return p
		}, backup.ErrCorrupt},
		{"table of another pack", func(p []byte) []byte {
			copy(p[two.Offset+two.SealedLength:], other[two.Offset+two.SealedLength:])
			return p
		}, backup.ErrCorrupt},
		{"header of another pack with the same id", func(p []byte) []byte {
			copy(p, other[:one.Offset])
			return p
		}, backup.ErrCorrupt},
		{"another repository", func(p []byte) []byte { p[12] ^= 1; return sumHeader(p, one.Offset) }, backup.ErrCorrupt},
		{"another pack id", func(p []byte) []byte { p[28] ^= 1; return sumHeader(p, one.Offset) }, backup.ErrCorrupt},
		{"another kind", func(p []byte) []byte { p[9] = byte(KindSegment); return sumHeader(p, one.Offset) }, backup.ErrCorrupt},
		{"unknown kind", func(p []byte) []byte { p[9] = byte(KindIndex) + 1; return sumHeader(p, one.Offset) }, backup.ErrCorrupt},
		{"another version in the header", func(p []byte) []byte { p[8] = 2; return sumHeader(p, one.Offset) }, backup.ErrCorrupt},
		{"shorter wrapped key", func(p []byte) []byte { p[10]--; return sumHeader(p, one.Offset) }, backup.ErrCorrupt},
		{"longer wrapped key", func(p []byte) []byte { p[11] = 0xff; return sumHeader(p, one.Offset) }, backup.ErrCorrupt},
		{"a later version", func(p []byte) []byte { p[len(p)-5] = 2; return sumTrailer(p) }, backup.ErrInvalid},
		{"a bitmap that the table lends a byte", editTrailer2(12, -1, 16, +1), backup.ErrCorrupt},
		{"a bitmap of the table's bytes", editTrailer2(12, -40, 16, +40), backup.ErrCorrupt},
		{"a bitmap of 2^32-1", setTrailer(16, 4, 1<<32-1), backup.ErrCorrupt},
		{"a signature that the table lends 64 bytes", editTrailer2(12, -64, 20, +64), backup.ErrCorrupt},
		{"a signature of a byte", editTrailer2(12, -1, 20, +1), backup.ErrCorrupt},
		{"a signature of 2^32-1", setTrailer(20, 4, 1<<32-1), backup.ErrCorrupt},
		{"a bitmap that says all frames", withBitmap(0b11), backup.ErrCorrupt},
		{"a bitmap that says none", withBitmap(0), backup.ErrCorrupt},
		{"a bitmap that says one", withBitmap(0b01), backup.ErrCorrupt},
		{"a bitmap of a third frame", withBitmap(0b101), backup.ErrCorrupt},
		{"a bitmap too long", withBitmap(0b01, 0), backup.ErrCorrupt},
		{"the pack twice", func(p []byte) []byte { return append(p, p...) }, backup.ErrCorrupt},
		{"object one longer", editTrailer(0, 8, +1), backup.ErrCorrupt},
		{"object one shorter", editTrailer(0, 8, -1), backup.ErrCorrupt},
		{"object of no length", setTrailer(0, 8, 0), backup.ErrCorrupt},
		{"object as long as a trailer", setTrailer(0, 8, trailerBytes), backup.ErrCorrupt},
		{"object too large", setTrailer(0, 8, MaxBytes+1), backup.ErrCorrupt},
		{"object of 2^64-1", setTrailer(0, 8, 1<<64-1), backup.ErrCorrupt},
		{"header one longer", editTrailer(8, 4, +1), backup.ErrCorrupt},
		{"header one shorter", editTrailer(8, 4, -1), backup.ErrCorrupt},
		{"no header", setTrailer(8, 4, 0), backup.ErrCorrupt},
		{"header of 2^32-1", setTrailer(8, 4, 1<<32-1), backup.ErrCorrupt},
		{"table one longer", editTrailer(12, 4, +1), backup.ErrCorrupt},
		{"table one shorter", editTrailer(12, 4, -1), backup.ErrCorrupt},
		{"no table", setTrailer(12, 4, 0), backup.ErrCorrupt},
		{"table of nothing but its tag", setTrailer(12, 4, 16), backup.ErrCorrupt},
		{"table of 2^32-1", setTrailer(12, 4, 1<<32-1), backup.ErrCorrupt},
	}
	for _, tt := range tests {
		forged := tt.forge(bytes.Clone(data))
		if bytes.Equal(forged, data) {
			t.Fatalf("%s: nothing was forged", tt.name)
		}
		var err error
		if n := allocated(func() { err = readAll(forged, k) }); n > lyingBytes {
			t.Errorf("%s: %d bytes were allocated for a pack of %d", tt.name, n, len(forged))
		}
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// lyingBytes is the maximum that may be allocated for a small pack that claims any lengths.
const lyingBytes = 1 << 20

// allocated returns the number of bytes that do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestWrongIDAndKey(t *testing.T) {
	k := newKeys(t)
	data := smallPack(t, k)
	if _, err := OpenBytes(data, backup.RepositoryID{1}, testID, k.opener); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("in another repository: %v, want ErrCorrupt", err)
	}
	if _, err := OpenBytes(data, testRepository, backup.PackID{1}, k.opener); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("under another id: %v, want ErrCorrupt", err)
	}
	if _, err := OpenBytes(data, testRepository, testID, newKeys(t).opener); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("with another identity: %v, want ErrWrongKey", err)
	}
}

// Recipients are public: anyone who can write to the store can make a pack with any table. Its
// claims are checked before they are used.
func TestForgedTable(t *testing.T) {
	k := newKeys(t)
	row := func(codec, sealed, raw, chunks uint64) []byte {
		b := []byte{byte(codec)}
		for _, v := range []uint64{sealed, raw, chunks} {
			b = binary.AppendUvarint(b, v)
		}
		return b
	}
	chunkRow := func(lengths ...uint64) (b []byte) {
		for _, n := range lengths {
			b = binary.AppendUvarint(append(b, make([]byte, 32)...), n)
		}
		return b
	}
	// The pack's one frame has a body of 10 bytes; 26 is its sealed length.
	tests := []struct {
		name   string
		frames uint64
		rows   []byte
		chunks []byte
	}{
		{"valid", 1, row(0, 26, 10, 1), chunkRow(10)},
		{"no frames", 0, nil, nil},
		{"no frames, but rows", 0, row(0, 26, 10, 1), chunkRow(10)},
		{"fewer rows than frames", 2, row(0, 26, 10, 1), chunkRow(10)},
		{"more rows than frames", 1, slices.Concat(row(0, 26, 10, 1), row(0, 26, 10, 1)), chunkRow(10, 10)},
		{"too many frames", MaxFrames + 1, bytes.Repeat(row(0, 17, 1, 1), 1000), chunkRow(10)},
		{"a huge number of frames", 1 << 62, row(0, 26, 10, 1), chunkRow(10)},
		{"frames for which there are no bytes", MaxFrames, row(0, 26, 10, 1), chunkRow(10)},
		{"frames that reach into the table", 1, row(0, 27, 11, 1), chunkRow(11)},
		{"frames that end early", 1, row(0, 25, 9, 1), chunkRow(9)},
		{"sealed length below the tag", 2, slices.Concat(row(0, 15, 10, 1), row(0, 11, 10, 1)), chunkRow(10, 10)},
		{"sealed length of an empty body", 2, slices.Concat(row(1, 16, 10, 1), row(0, 10, 10, 1)), chunkRow(10, 10)},
		{"sealed length of 2^64-1", 1, row(0, 1<<64-1, 10, 1), chunkRow(10)},
		{"raw length 0", 1, row(1, 26, 0, 1), chunkRow(1)},
		{"raw length below the body's", 1, row(1, 26, 9, 1), chunkRow(9)},
		{"raw length above the limit", 1, row(1, 26, MaxFrameRawBytes+1, 1), chunkRow(MaxFrameRawBytes + 1)},
		{"uncompressed frame of another length", 1, row(0, 26, 11, 1), chunkRow(11)},
		{"unknown codec", 1, row(3, 26, 10, 1), chunkRow(10)},
		{"no chunks", 1, row(0, 26, 10, 0), nil},
		{"more chunks than bytes", 1, row(0, 26, 10, 11), chunkRow(slices.Repeat([]uint64{1}, 11)...)},
		{"more chunks than rows", 1, row(0, 26, 10, 2), chunkRow(5)},
		{"too many chunks", 1, row(1, 26, 1<<20, MaxChunks+1), chunkRow(slices.Repeat([]uint64{1}, 100)...)},
		{"a huge number of chunks", 1, row(0, 26, 10, 1<<63), chunkRow(10)},
		{"empty chunk", 1, row(0, 26, 10, 2), chunkRow(10, 0)},
		{"chunks too short", 1, row(0, 26, 10, 2), chunkRow(4, 5)},
		{"chunks too long", 1, row(0, 26, 10, 2), chunkRow(4, 7)},
		{"chunk of 2^64-1", 1, row(0, 26, 10, 2), chunkRow(1<<64-1, 11)},
		{"bytes behind the chunks", 1, row(0, 26, 10, 1), append(chunkRow(10), 0)},
		{"half a hash", 1, row(0, 26, 10, 1), chunkRow(10)[:16]},
		{"no length", 1, row(0, 26, 10, 1), chunkRow(10)[:32]},
		{"a number without an end", 1, append(row(0, 26, 10, 1)[:1], bytes.Repeat([]byte{0xff}, 40)...), nil},
	}
	for _, tt := range tests {
		w := k.writer(t, KindData)
		add(t, w, Frame{RawLength: 10, Body: make([]byte, 10), Chunks: []Chunk{{Length: 10}}})
		plaintext := binary.AppendUvarint(nil, tt.frames)
		data := finishTable(w, slices.Concat(plaintext, tt.rows, tt.chunks), nil)
		var want error // nil for "valid", which shows that the others fail for the intended reasons
		if tt.name != "valid" {
			want = backup.ErrCorrupt
		}
		var err error
		if n := allocated(func() { _, err = OpenBytes(data, testRepository, testID, k.opener) }); n > lyingBytes {
			t.Errorf("%s: %d bytes were allocated for a pack of %d", tt.name, n, len(data))
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", tt.name, err, want)
		}
	}
}

// finishTable is Finish with another table, a bitmap, and a signature of zeros.
func finishTable(w *Writer, plaintext, present []byte) []byte {
	offset := len(w.buf)
	setAAD(&w.aad, w.buf, sectionTable, 0)
	w.buf = w.key.Seal(w.buf, plaintext, tableCounter, w.aad[:])
	tableBytes := len(w.buf) - offset
	w.buf = append(w.buf, present...)
	signature := make([]byte, signatureBytes(w.kind))
	w.buf = append(w.buf, signature...)
	return appendTrailer(w.buf, trailer{
		packBytes: int64(len(w.buf) + trailerBytes), headerBytes: int64(w.headerBytes), tableBytes: int64(tableBytes),
		bitmapBytes: int64(len(present)), signatureBytes: int64(len(signature)),
	})
}

// The sum of the plaintexts is bounded, even if the length that each frame claims is allowed.
func TestTableOfTooMuchPlaintext(t *testing.T) {
	k := newKeys(t)
	w := k.writer(t, KindData)
	f := frame(newCompressor(t, "zstd-1"), make([]byte, MaxFrameRawBytes))
	for range MaxRawBytes/MaxFrameRawBytes + 1 {
		w.rawBytes = 0 // otherwise Add would refuse it
		add(t, w, f)
	}
	if _, err := OpenBytes(finish(t, w), testRepository, testID, k.opener); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("OpenBytes: %v, want ErrCorrupt", err)
	}
}

// A body that does not decompress to the length in the table is refused, and costs no more memory
// than that length.
func TestForgedBody(t *testing.T) {
	k := newKeys(t)
	plaintext := text(5000, 1)
	zstd, _ := newCompressor(t, "zstd-1").Compress(nil, plaintext)
	s2, _ := newCompressor(t, "s2").Compress(nil, plaintext)
	bomb, _ := newCompressor(t, "zstd-1").Compress(nil, make([]byte, MaxFrameRawBytes))
	// A frame header that declares a content of 2^60 bytes, and an equally large window.
	huge := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 3, 0, 0, 'a'}
	// A frame that does not declare its length: 20 blocks of 128 KiB.
	undeclared := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58}
	for i := range 20 {
		last := byte(i / 19)
		undeclared = append(undeclared, 2|last, 0, 0x10, 'a')
	}
	if _, err := decompress(nil, undeclared, CodecZstd, 20<<17); err != nil {
		t.Fatalf("a frame that does not declare its length is valid: %v", err)
	}
	tests := []struct {
		name  string
		codec Codec
		body  []byte
		raw   int
	}{
		{"zstd, longer", CodecZstd, zstd, 4999},
		{"zstd, shorter", CodecZstd, zstd, 5001},
		{"zstd, bomb", CodecZstd, bomb, 5000},
		{"zstd, declares too much", CodecZstd, huge, 5000},
		{"zstd, undeclared length", CodecZstd, undeclared, 5000},
		{"zstd, no frame", CodecZstd, []byte("garbage"), 5000},
		{"zstd, cut short", CodecZstd, zstd[:len(zstd)-1], 5000},
		{"zstd, as s2", CodecS2, zstd, 5000},
		{"s2, longer", CodecS2, s2, 4999},
		{"s2, shorter", CodecS2, s2, 5001},
		{"s2, declares too much", CodecS2, binary.AppendUvarint(nil, 1<<32-1), 5000},
		{"s2, cut short", CodecS2, s2[:len(s2)-1], 5000},
		{"s2, as zstd", CodecZstd, s2, 5000},
	}
	for _, tt := range tests {
		w := k.writer(t, KindSegment)
		add(t, w, Frame{Codec: tt.codec, RawLength: tt.raw, Body: tt.body})
		data := k.finishSigned(t, w)
		r := k.open(t, data)
		f := r.Frames()[0]
		var err error
		n := allocated(func() { _, err = r.DecodeFrame(nil, 0, data[f.Offset:][:f.SealedLength], nil) })
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", tt.name, err)
		}
		if n > 4<<20 {
			t.Errorf("%s: %d bytes were allocated for a frame of %d", tt.name, n, tt.raw)
		}
	}
}

// sumHeader corrects the header's checksum.
func sumHeader(p []byte, headerBytes int64) []byte {
	body := p[:headerBytes-crcBytes]
	binary.LittleEndian.PutUint32(p[len(body):], crc32.Checksum(body, castagnoli))
	return p
}

// sumTrailer corrects the trailer's checksum.
func sumTrailer(p []byte) []byte {
	b := p[len(p)-trailerBytes:]
	binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
	return p
}

func setTrailer(offset, width int, value uint64) func([]byte) []byte {
	return func(p []byte) []byte {
		field := binary.LittleEndian.AppendUint64(nil, value)
		copy(p[len(p)-trailerBytes+offset:], field[:width])
		return sumTrailer(p)
	}
}

// editTrailer2 moves a boundary: one section gains the bytes that another loses.
func editTrailer2(one int, delta int64, other int, deltaOther int64) func([]byte) []byte {
	return func(p []byte) []byte { return editTrailer(other, 4, deltaOther)(editTrailer(one, 4, delta)(p)) }
}

// withBitmap adds a bitmap to a pack.
func withBitmap(b ...byte) func([]byte) []byte {
	return func(p []byte) []byte {
		p = slices.Insert(p, len(p)-trailerBytes, b...)
		return editTrailer(16, 4, int64(len(b)))(editTrailer(0, 8, int64(len(b)))(p))
	}
}

func editTrailer(offset, width int, delta int64) func([]byte) []byte {
	return func(p []byte) []byte {
		field := make([]byte, 8)
		copy(field, p[len(p)-trailerBytes+offset:][:width])
		return setTrailer(offset, width, binary.LittleEndian.Uint64(field)+uint64(delta))(p)
	}
}
