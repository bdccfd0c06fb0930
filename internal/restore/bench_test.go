package restore

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// One operation restores 2,000 files of 4 KiB in 20 directories to a new target or, with again, to
// a target that has them. With large, it restores one file of 32 MiB.
func BenchmarkRestore(b *testing.B) {
	const directories, filesEach, fileBytes, largeBytes = 20, 100, 4 << 10, 32 << 20
	random := rand.NewChaCha8([32]byte{1})
	content := func(n int) string {
		data := make([]byte, n)
		_, _ = random.Read(data)
		return string(data)
	}
	small := func(b *testing.B) *fixture {
		f := newFixture(b)
		var names []backup.Entry
		for d := range directories {
			name := fmt.Sprintf("directory-%02d", d)
			names = append(names, subdirectory(name))
			var files []backup.Entry
			for i := range filesEach {
				files = append(files, f.file(fmt.Sprintf("file-%03d", i), content(fileBytes)))
			}
			f.directory(name, files...)
		}
		f.directory("", names...)
		return f
	}
	b.Run("small", func(b *testing.B) { benchRestore(b, small(b), directories*filesEach, directories*filesEach*fileBytes) })
	b.Run("again", func(b *testing.B) {
		f, target := small(b), b.TempDir()
		f.restore(Options{Target: target})
		b.ReportAllocs()
		for b.Loop() {
			if sum, _ := f.restore(Options{Target: target}); sum.Kept != directories*filesEach {
				b.Fatalf("%+v", sum)
			}
		}
	})
	b.Run("large", func(b *testing.B) {
		f := newFixture(b)
		var refs []backup.Ref
		for range largeBytes >> 20 {
			refs = append(refs, f.chunk([]byte(content(1<<20)), 0))
		}
		e := entry("large", backup.File)
		e.Size, e.Content = largeBytes, f.list(1, refs...)
		f.directory("", e)
		benchRestore(b, f, 1, largeBytes)
	})
}

func benchRestore(b *testing.B, f *fixture, files, bytes int64) {
	b.ReportAllocs()
	b.SetBytes(bytes)
	at := b.TempDir()
	n := 0
	for b.Loop() {
		n++
		sum, _ := f.restore(Options{Target: filepath.Join(at, fmt.Sprint(n))})
		if sum.Files != files {
			b.Fatalf("%+v", sum)
		}
	}
	b.ReportMetric(float64(int64(b.N)*files)/b.Elapsed().Seconds(), "files/s")
}
