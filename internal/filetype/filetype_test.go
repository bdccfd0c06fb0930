package filetype

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/bctl/bctl/internal/backup"
)

func random(seed uint64, n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(data)
	return data
}

// ageHead is how an age file begins: its header is text of 200 bytes.
const ageHead = "age-encryption.org/v1\n-> X25519 TEiF0ypqr+bpvcqXNyCVJpL7OuwPdVwPL7KQEbFDOCc\n" +
	"EmECAEcKN+n/Vs9SbWiV+Hu0r+E8R77DdWYyd83nw7U\n--- Vn+54jqiiUCE+WZcEVY3f1sqHjlu/z1LCQ/T7Xm7qI0\n"

func TestClassify(t *testing.T) {
	text := []byte(strings.Repeat("The quick brown fox jumps over the lazy dog. Ångström!\r\n", 40))
	squeeze := func(to func(io.Writer) io.WriteCloser) []byte {
		var b bytes.Buffer
		w := to(&b)
		_, err := w.Write(append(bytes.Clone(text), random(1, 4000)...))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	numbers := make([]byte, 2000)
	for i := range numbers {
		numbers[i] = byte(i / 8 * (i % 8) >> 3)
	}
	for name, c := range map[string]struct {
		head []byte
		want backup.Class
	}{
		"empty":            {nil, backup.Plain},
		"text":             {text, backup.Typed},
		"cut in a rune":    {[]byte(strings.Repeat("a", textBytes-1) + "é"), backup.Typed},
		"a short text":     {[]byte("x"), backup.Typed},
		"gzip":             {squeeze(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }), backup.Typed},
		"a loose object":   {squeeze(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }), backup.Typed},
		"zstd":             {squeeze(func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }), backup.Typed},
		"JPEG":             {append([]byte("\xff\xd8\xff\xe0\x00\x10JFIF"), random(2, 2000)...), backup.Typed},
		"HEIC":             {append([]byte("\x00\x00\x00\x18ftypheic"), random(3, 2000)...), backup.Typed},
		"zeros":            {make([]byte, 2000), backup.Plain},
		"numbers":          {numbers, backup.Plain},
		"random":           {random(4, 2000), backup.Opaque},
		"short and random": {random(5, randomBytes), backup.Opaque},
		"too short":        {random(6, randomBytes-1), backup.Plain},
		"openssl":          {append([]byte("Salted__"), random(7, 2000)...), backup.Opaque},
		"age":              {[]byte(ageHead), backup.Opaque},
		"age in text":      {[]byte("-----BEGIN AGE ENCRYPTED FILE-----\n" + ageHead), backup.Opaque},
		"OpenPGP in text":  {[]byte("-----BEGIN PGP MESSAGE-----\n\n" + ageHead), backup.Opaque},
		"LUKS":             {append([]byte("LUKS\xba\xbe\x00\x01"), make([]byte, 2000)...), backup.Opaque},
		"one byte":         {[]byte{0xfe}, backup.Plain},
		"equal bytes":      {bytes.Repeat([]byte{0xfe}, 2000), backup.Plain},
		"a late text":      {append(random(12, randomBytes/2), text...), backup.Plain},
		"a run of zeros":   {append(append(random(13, 100), make([]byte, zeroRun)...), random(14, 2000)...), backup.Plain},
		"a note before":    {append([]byte("LOCKED BY EVIL\x00\x01"), random(9, 2000)...), backup.Opaque},
	} {
		if got := Classify(c.head); got != c.want {
			t.Errorf("%s: class %d, want %d", name, got, c.want)
		}
	}
}

// Of encrypted files, nearly all are opaque, from the least length on.
func TestRandomFilesAreOpaque(t *testing.T) {
	const files = 20_000
	for _, n := range []int{randomBytes, 300, 500, HeadBytes, 4000} {
		other := 0
		for seed := range uint64(files) {
			if Classify(random(seed, n)) != backup.Opaque {
				other++
			}
		}
		if other > files/200 {
			t.Errorf("%d of %d random files of %d bytes are not opaque", other, files, n)
		}
	}
}

// The files of this repository, and of its clone, are not opaque.
func TestFilesOfTheRepositoryAreNotOpaque(t *testing.T) {
	files, opaque := 0, []string{}
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(path, "testdata") {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		head := make([]byte, HeadBytes)
		n, err := io.ReadFull(f, head)
		if n > 0 && Classify(head[:n]) == backup.Opaque {
			opaque = append(opaque, path)
		}
		files++
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		return err
	})
	if err != nil || files < 500 || len(opaque) > 0 {
		t.Errorf("%d files, opaque: %q, %v", files, opaque, err)
	}
}

func FuzzClassify(f *testing.F) {
	f.Add([]byte("text"))
	f.Add(random(1, 300))
	f.Fuzz(func(t *testing.T, head []byte) {
		if c := Classify(head); c < backup.Typed || c > backup.Opaque {
			t.Errorf("class %d", c)
		}
	})
}

func BenchmarkClassify(b *testing.B) {
	for name, head := range map[string][]byte{
		"text": []byte(strings.Repeat("package main // and more\n", 50)), "gzip": append([]byte("\x1f\x8b\x08"), random(1, 1020)...),
		"plain": make([]byte, 1024), "random": random(2, 1024),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Classify(head)
			}
		})
	}
}
