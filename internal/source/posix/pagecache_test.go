//go:build linux

package posix_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

const pageBytes = 4096

// Exactly the pages that were resident before a file is read are resident afterwards, with each of
// the methods.
func TestPageCacheIsLeftAsItWas(t *testing.T) {
	for name, prepare := range map[string]func(source.Tree){
		"dontcache": func(source.Tree) {},
		"cachestat": posix.DisableDontcache,
		"mincore":   func(tree source.Tree) { posix.DisableDontcache(tree); posix.DisableCachestat(tree) },
	} {
		for _, sizeBytes := range []int{1000, 100_000, 20<<20 + 777, 100 << 20} {
			for _, pattern := range []string{"cold", "hot", "partly"} {
				// More than one window.
				if sizeBytes > 50<<20 && (!testtarget.Runs(testtarget.Long) || pattern != "partly") {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%s", name, sizeBytes, pattern), func(t *testing.T) {
					var changed string
					for range 3 { // other processes of the machine evict pages, too
						if changed = readAndCompare(t, prepare, sizeBytes, pattern); changed == "" {
							return
						}
					}
					t.Error(changed)
				})
			}
		}
	}
}

// readAndCompare returns how reading a file has changed which of its pages are resident.
func readAndCompare(t *testing.T, prepare func(source.Tree), sizeBytes int, pattern string) (changed string) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	heat(t, path, sizeBytes, pattern)
	before := residency(t, path, sizeBytes)

	tree := openTree(t, dir)
	prepare(tree)
	d, err := tree.OpenDirectory(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.OpenFile(context.Background(), "file")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.Copy(io.Discard, &chunked{source: f})
	if err != nil || got != int64(sizeBytes) {
		t.Fatalf("%d bytes, error %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	after := residency(t, path, sizeBytes)
	lost, left := 0, 0
	for i := range before {
		if before[i] && !after[i] {
			lost++
		}
		if !before[i] && after[i] {
			left++
		}
	}
	if lost == 0 && left == 0 {
		return ""
	}
	return fmt.Sprintf("of %d pages %d that were resident are gone, %d that were not are left", len(before), lost, left)
}

// chunked reads in pieces of 1 MiB, as the reader of large files does.
type chunked struct {
	source source.File
	offset int64
}

func (c *chunked) Read(p []byte) (int, error) { panic("WriteTo is used") }

func (c *chunked) WriteTo(w io.Writer) (total int64, err error) {
	buf := make([]byte, 1<<20)
	for {
		n, err := c.source.ReadAt(buf, c.offset)
		c.offset += int64(n)
		if err == io.EOF {
			return c.offset, nil
		}
		if err != nil {
			return c.offset, err
		}
	}
}

// heat creates a file of which nothing, everything or some runs are resident.
func heat(t *testing.T, path string, sizeBytes int, pattern string) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, sizeBytes)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) // no readahead while heating
	switch pattern {
	case "hot":
		f.ReadAt(make([]byte, sizeBytes), 0)
	case "partly":
		for offset := 3 * pageBytes; offset < sizeBytes; offset += 301 * pageBytes {
			f.ReadAt(make([]byte, min(17*pageBytes, sizeBytes-offset)), int64(offset))
		}
	}
}

// residency queries which pages of a file are resident.
func residency(t *testing.T, path string, sizeBytes int) []bool {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, sizeBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	vector := make([]byte, (sizeBytes+pageBytes-1)/pageBytes)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), uintptr(sizeBytes), uintptr(unsafe.Pointer(&vector[0]))); errno != 0 {
		t.Fatal(errno)
	}
	resident := make([]bool, len(vector))
	for i, v := range vector {
		resident[i] = v&1 != 0
	}
	return resident
}
