//go:build linux

package posix_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Ranges that were never written are holes, even if as many blocks are allocated as the file's size
// requires: behind its end, or in the hole.
func TestHolesThatHaveBlocks(t *testing.T) {
	const size = 10 << 20
	for what, test := range map[string]struct {
		make func(f *os.File) error
		data int64 // bytes at the beginning, as NextExtent reports them
	}{
		"blocks behind the end": {func(f *os.File) error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, size, size) }, 0},
		"data, and blocks behind the end": {func(f *os.File) error {
			_, err := f.WriteAt(make([]byte, 1<<20), 0)
			return errors.Join(err, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, size, size))
		}, 1 << 20},
		"data": {func(f *os.File) error { _, err := f.WriteAt(make([]byte, size), 0); return err }, size},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			f, err := os.Create(filepath.Join(dir, "file"))
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(f.Truncate(size), test.make(f), f.Sync(), f.Close())
			if errors.Is(err, unix.EOPNOTSUPP) {
				t.Skip("the file system cannot allocate space")
			}
			if err != nil {
				t.Fatal(err)
			}
			d, err := openTree(t, dir).OpenDirectory(context.Background(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			file, err := d.OpenFile(context.Background(), "file")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			var data int64
			for offset := int64(0); ; {
				start, length, err := file.NextExtent(offset, size)
				if err != nil {
					t.Fatal(err)
				}
				if length == 0 {
					break
				}
				data += length
				offset = start + length
			}
			if data != test.data {
				t.Errorf("%d bytes of data, want %d", data, test.data)
			}
		})
	}
}
