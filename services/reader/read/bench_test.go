package read

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/source/treetest"
)

const (
	benchDirectories = 10
	benchFilesEach   = 100
	benchFileBytes   = 1 << 10
)

// An operation is a batch of 1,000 files of 1 KiB: opened, read, hashed, looked up in the index
// and, if they are new, compressed, sealed and put into the store; then the batch is settled.
func BenchmarkReadBatch(b *testing.B) {
	for _, changes := range []bool{true, false} {
		b.Run(map[bool]string{true: "new", false: "stored"}[changes], func(b *testing.B) { benchReadBatch(b, changes) })
	}
}

func benchReadBatch(b *testing.B, changes bool) {
	tree, paths := treetest.Tree{}, []string{}
	for d := range benchDirectories {
		paths = append(paths, fmt.Sprintf("directory-%02d", d))
		for i := range benchFilesEach {
			tree[fmt.Sprintf("%s/file-%03d.txt", paths[d], i)] = treetest.File(text(benchFileBytes))
		}
	}
	f := newFixture(b, tree)
	turn := uint64(0)
	// next makes all contents new, and a batch of them.
	next := func() {
		if turn++; changes || turn == 1 {
			content := []byte(text(benchFileBytes))
			for i, path := range paths {
				for j := range benchFilesEach {
					binary.BigEndian.PutUint64(content, turn)
					binary.BigEndian.PutUint64(content[8:], uint64(i*benchFilesEach+j))
					if err := os.WriteFile(filepath.Join(f.dir, path, fmt.Sprintf("file-%03d.txt", j)), content, 0o644); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
	}
	next()
	f.read(f.batchOf(paths...))
	f.commit()
	b.ReportAllocs()
	b.SetBytes(benchDirectories * benchFilesEach * benchFileBytes)
	for b.Loop() {
		b.StopTimer()
		next()
		batch := f.batchOf(paths...)
		b.StartTimer()
		f.read(batch)
		b.StopTimer()
		f.commit()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N*benchDirectories*benchFilesEach)/b.Elapsed().Seconds(), "files/s")
}
