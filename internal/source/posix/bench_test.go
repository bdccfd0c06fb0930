//go:build linux

package posix_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
)

// The tree of the benchmarks: 20,000 files of 1 KiB in 200 directories, or the directory in
// BCTL_BENCH_TREE if that is set.
const (
	benchDirectories = 200
	benchFiles       = 100 // per directory
)

func benchTree(b *testing.B) string {
	if dir := os.Getenv("BCTL_BENCH_TREE"); dir != "" {
		return dir
	}
	root := b.TempDir()
	content := make([]byte, 1<<10)
	for i := range benchDirectories {
		dir := filepath.Join(root, fmt.Sprintf("directory%03d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range benchFiles {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%05d.txt", j)), content, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	return root
}

func openTree(tb testing.TB, dir string) source.Tree {
	tree, err := posix.New(posix.Options{}).Open(context.Background(), posix.URL(dir))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { tree.Close() })
	return tree
}

// walkAll reads every directory once, depth first, and calls visit for each.
func walkAll(tb testing.TB, tree source.Tree, visit func(path string, d source.Directory, entries []backup.Entry)) (entries, stats int) {
	ctx := context.Background()
	var batch []backup.Entry
	for todo := []string{""}; len(todo) > 0; {
		path := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		d, err := tree.OpenDirectory(ctx, path)
		if err != nil {
			tb.Fatal(err)
		}
		stats++
		for {
			var n int
			batch, n, err = d.Read(ctx, batch[:0], func(name, op string, err error) { tb.Error(op, name, err) })
			if err == io.EOF {
				break
			}
			if err != nil {
				tb.Fatal(err)
			}
			stats += n
			entries += len(batch)
			for i := range batch {
				if batch[i].Kind == backup.Directory {
					todo = append(todo, backup.Join(path, batch[i].Name))
				}
			}
			if visit != nil {
				visit(path, d, batch)
			}
		}
		d.Close()
	}
	return entries, stats
}

// One operation is one entry, including a share of opening, listing and closing its directory. The
// allocations are the names and the state of one directory.
func BenchmarkRead(b *testing.B) {
	tree := openTree(b, benchTree(b))
	entries, _ := walkAll(b, tree, nil) // warm
	b.ReportAllocs()
	b.ResetTimer()
	done := 0
	for done < b.N {
		walkAll(b, tree, nil)
		done += entries
	}
	b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "entries/s")
}

// One operation is one file of 1 KiB: openat, statx, preadv2, statx, close.
func BenchmarkOpenReadClose(b *testing.B) {
	tree := openTree(b, benchTree(b))
	ctx := context.Background()
	buf := make([]byte, 64<<10)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		walkAll(b, tree, func(_ string, d source.Directory, entries []backup.Entry) {
			for i := range entries {
				if entries[i].Kind != backup.File || done >= b.N {
					continue
				}
				if err := readFile(ctx, d, entries[i].Name, buf); err != nil {
					b.Fatal(err)
				}
				done++
			}
		})
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "files/s")
}

func readFile(ctx context.Context, d source.Directory, name string, buf []byte) error {
	f, err := d.OpenFile(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	for offset := int64(0); offset < before.Size; {
		start, length, err := f.NextExtent(offset, before.Size)
		if err != nil || length == 0 {
			return err
		}
		n, err := f.ReadAt(buf[:min(length, int64(len(buf)))], start)
		if err != nil && err != io.EOF {
			return err
		}
		if offset = start + int64(n); n == 0 {
			break
		}
	}
	_, err = f.Stat()
	return err
}
