package pack

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
)

func TestCompressedBodyGivesPlaintext(t *testing.T) {
	for _, name := range []string{"zstd-1", "zstd-2", "zstd-3", "zstd-4", "s2"} {
		c := newCompressor(t, name)
		sizes := []int{2000, 10_000, FrameTargetBytes}
		if name == "zstd-1" || name == "s2" { // the others take long
			sizes = append(sizes, chunk.MaxBytes, MaxFrameRawBytes)
		}
		for _, size := range sizes {
			raw := text(size, 1)
			body, codec := c.Compress(nil, raw)
			if codec == CodecNone || len(body) > size*4/5 {
				t.Errorf("%s: %d bytes became %d (%s)", name, size, len(body), codec)
			}
			got, err := decompress([]byte("dst"), body, codec, size)
			if err != nil || !bytes.Equal(got, slices.Concat([]byte("dst"), raw)) {
				t.Errorf("%s: %d bytes do not come back: %v", name, size, err)
			}
		}
	}
}

// Data that does not shrink by 3% is stored uncompressed, and not copied.
func TestIncompressibleIsNotCopied(t *testing.T) {
	saltOnly := random(100_000, 1) // a hundredth of it compresses
	copy(saltOnly[50_000:], bytes.Repeat([]byte{0}, 1000))
	for _, name := range []string{"zstd-1", "zstd-2", "zstd-3", "zstd-4", "s2", "none"} {
		c := newCompressor(t, name)
		for _, raw := range [][]byte{{1}, random(3000, 1), random(1<<20, 2), saltOnly} {
			body, codec := c.Compress(make([]byte, 0, 1<<10), raw)
			if codec != CodecNone || &body[0] != &raw[0] || len(body) != len(raw) {
				t.Errorf("%s: %d random bytes became %d (%s)", name, len(raw), len(body), codec)
			}
		}
	}
}

func TestCompressUsesStorage(t *testing.T) {
	for _, name := range []string{"zstd-1", "zstd-3", "s2"} {
		c, raw := newCompressor(t, name), text(FrameTargetBytes, 1)
		dst := make([]byte, 10, FrameTargetBytes*2)
		body, _ := c.Compress(dst, raw)
		if &body[0] != &dst[0] {
			t.Errorf("%s: the body is not in dst's storage", name)
		}
		if n := testing.AllocsPerRun(5, func() { c.Compress(dst, raw) }); n > 0 {
			t.Errorf("%s: %v allocations with enough storage", name, n)
		}
	}
}

func TestUnknownCompressor(t *testing.T) {
	for _, name := range []string{"", "zstd", "zstd-0", "zstd-5", "gzip"} {
		if _, err := NewCompressor(name); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("NewCompressor(%q): %v, want ErrInvalid", name, err)
		}
	}
}

// Add copies the sealed bytes into the pack and allocates almost nothing else.
func TestAddHardlyAllocates(t *testing.T) {
	keys := newKeys(t)
	f := frame(newCompressor(t, "none"), split(random(64<<10, 1), 4<<10)...)
	w, err := NewWriter(KindData, testRepository, testID, keys.sealer, make([]byte, 0, MaxBytes))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(200, func() { add(t, w, f) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCompress(b *testing.B) {
	mixed := make([]byte, 0, FrameTargetBytes) // files of 4 KB, every third one random
	for i := 0; len(mixed) < FrameTargetBytes; i++ {
		if i%3 == 0 {
			mixed = append(mixed, random(4096, byte(i))...)
		} else {
			mixed = append(mixed, text(4096, byte(i))...)
		}
	}
	for _, in := range []struct {
		name string
		raw  []byte
	}{{"text", text(FrameTargetBytes, 1)}, {"random", random(FrameTargetBytes, 1)}, {"mixed", mixed}} {
		for _, name := range []string{"zstd-1", "zstd-2", "zstd-3", "s2"} {
			b.Run(in.name+"/"+name, func(b *testing.B) {
				c, dst := newCompressor(b, name), make([]byte, 0, 2*FrameTargetBytes)
				b.SetBytes(FrameTargetBytes)
				b.ReportAllocs()
				var body []byte
				for b.Loop() {
					body, _ = c.Compress(dst, in.raw)
				}
				b.ReportMetric(float64(len(body))/float64(len(in.raw)), "ratio")
			})
		}
	}
}

// A frame of 128 files of 4 KiB: the cost of a pack in addition to hashing and compressing.
func BenchmarkAdd(b *testing.B) {
	keys := newKeys(b)
	f := frame(newCompressor(b, "none"), split(random(FrameTargetBytes, 1), 4<<10)...)
	buf := make([]byte, 0, MaxBytes)
	w := keys.writer(b, KindData)
	b.SetBytes(FrameTargetBytes)
	b.ReportAllocs()
	for b.Loop() {
		if w.Size() >= TargetBytes || len(w.buf) < 1000 {
			var err error
			if w, err = NewWriter(KindData, testRepository, testID, keys.sealer, buf); err != nil {
				b.Fatal(err)
			}
		}
		add(b, w, f)
	}
}

func BenchmarkDecodeFrame(b *testing.B) {
	for _, name := range []string{"none", "zstd-1", "zstd-2", "s2"} {
		b.Run(name, func(b *testing.B) {
			keys := newKeys(b)
			w := keys.writer(b, KindData)
			add(b, w, frame(newCompressor(b, name), split(text(FrameTargetBytes, 1), 4<<10)...))
			data := finish(b, w)
			r, h := keys.open(b, data), chunk.NewHasher(testKey)
			f := r.Frames()[0]
			dst := make([]byte, 0, FrameTargetBytes+decodeSlackBytes)
			b.SetBytes(FrameTargetBytes)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.DecodeFrame(dst, 0, data[f.Offset:][:f.SealedLength], h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpenBytes(b *testing.B) {
	for _, chunks := range []int{32, 8192} {
		b.Run(fmt.Sprintf("%dchunks", chunks), func(b *testing.B) {
			keys := newKeys(b)
			w := keys.writer(b, KindData)
			for range 32 {
				add(b, w, frame(newCompressor(b, "none"), split(random(chunks/32*16, 1), 16)...))
			}
			data := finish(b, w)
			b.ReportAllocs()
			for b.Loop() {
				keys.open(b, data)
			}
		})
	}
}

// Data that hardly compresses is dense, and other data is not. This holds for every kind of source.
func TestDense(t *testing.T) {
	random := make([]byte, 1<<20)
	if _, err := rand.NewChaCha8([32]byte{7}).Read(random); err != nil {
		t.Fatal(err)
	}
	sevenBits := bytes.Clone(random)
	for i := range sevenBits {
		sevenBits[i] &= 0x7f
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	code = code[len(code)/4:][:1<<20]
	var compressed bytes.Buffer
	gz := gzip.NewWriter(&compressed)
	if _, err := gz.Write(code); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		data []byte
		want bool
	}{
		{"random", random, true},
		{"compressed", compressed.Bytes(), true},
		{"seven bits of eight", sevenBits, false},
		{"base64", []byte(base64.StdEncoding.EncodeToString(random)), false},
		{"text", []byte(strings.Repeat("what a piece of work is a man, how noble in reason; ", 20_000)), false},
		{"zeros", make([]byte, 1<<20), false},
		{"program", code, false},
	} {
		for _, size := range []int{512, 1000, 4 << 10, 64 << 10} {
			wrong, chunks := 0, 0
			for chunk := range slices.Chunk(test.data, size) {
				if len(chunk) < size {
					break
				}
				chunks++
				if Dense(chunk) != test.want {
					wrong++
				}
			}
			if wrong > chunks/10 { // programs contain tables, and compressed data has headers
				t.Errorf("%s: %d of %d chunks of %d bytes are taken for the other kind", test.name, wrong, chunks, size)
			}
		}
	}
	if Dense(random[:511]) {
		t.Error("511 bytes are too few to tell")
	}
}
