package sqliteindex

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

// A copy has zeros instead of what the free pages have been, and is otherwise the file. If the list
// of free pages is wrong, the copy is the file.
func TestCopyHasNoFreePages(t *testing.T) {
	x := newIndex(t)
	fill := func(first backup.SnapshotNumber, n int) {
		versions := make([]entindex.Version, n)
		for i := range versions {
			v := entindex.Version{First: first, Last: first}
			v.Shard, v.PathKey, v.Inode, v.Listing = 1, []byte("path"), uint64(i), bytes.Repeat([]byte{byte(i), 1}, 2500)
			binary.BigEndian.PutUint32(v.Directory[:], uint32(i))
			versions[i] = v
		}
		update(t, x, func(ctx context.Context, tx *entindex.Tx) error { return tx.Hot.PutVersions(ctx, versions) })
	}
	fill(1, 6000) // more free pages than one trunk page lists
	fill(2, 100)
	update(t, x, func(ctx context.Context, tx *entindex.Tx) error {
		_, err := tx.Hot.(entindex.ManyDropper).KeepVersions(ctx, 1, entindex.Needed{2})
		return err
	})
	rows := rowsOfPages(t, x)
	copied := copyOf(t, x)
	file, err := os.ReadFile(x.backend.path)
	if err != nil || len(rows) != 100 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	free, err := readFreePages(bytes.NewReader(file), int64(len(file)))
	if err != nil || len(free.is) != len(file)/8192 {
		t.Fatalf("%d pages, %v", len(free.is), err)
	}
	empty := 0
	for page, is := range free.is {
		part, was := copied[page*8192:(page+1)*8192], file[page*8192:(page+1)*8192]
		if is {
			was = make([]byte, 8192)
			empty++
		}
		if !bytes.Equal(part, was) {
			t.Fatalf("page %d, free: %t, differs", page+1, is)
		}
	}
	var listed int
	if err := x.backend.readers.QueryRowContext(t.Context(), "PRAGMA freelist_count").Scan(&listed); err != nil {
		t.Fatal(err)
	}
	if trunks := listed - empty; trunks < 2 || trunks > 10 || empty < 3000 {
		t.Errorf("%d free pages are empty, of %d", empty, listed)
	}

	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	y, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()
	if err := y.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for row, text := range rowsOfPages(t, y) {
		if rows[row] != text {
			t.Errorf("row %d differs", row)
		}
	}

	trunk := int(binary.BigEndian.Uint32(file[firstTrunkAt:])-1) * 8192
	for name, damage := range map[string]func(b []byte){
		"other number of free pages": func(b []byte) { b[freeCountAt+3]++ },
		"page 1":                     func(b []byte) { copy(b[trunk+8:], []byte{0, 0, 0, 1}) },
		"a trunk":                    func(b []byte) { copy(b[trunk+8:trunk+12], b[firstTrunkAt:]) },
		"page 0":                     func(b []byte) { clear(b[trunk+8 : trunk+12]) },
		"page after the end":         func(b []byte) { b[trunk+8] = 0xff },
		"page twice":                 func(b []byte) { copy(b[trunk+8:trunk+12], b[trunk+12:trunk+16]) },
		"trunk after the end":        func(b []byte) { b[trunk] = 0xff },
		"trunk in a circle":          func(b []byte) { copy(b[trunk:trunk+4], b[firstTrunkAt:]) },
		"too many leaves":            func(b []byte) { b[trunk+5] = 0xff },
		"other size of pages":        func(b []byte) { b[pageSizeAt] = 0x10 },
		"no size of pages":           func(b []byte) { clear(b[pageSizeAt : pageSizeAt+2]) },
		"pages of two bytes":         func(b []byte) { b[pageSizeAt], b[pageSizeAt+1] = 0, 2 },
	} {
		damaged := bytes.Clone(file)
		damage(damaged)
		got, err := withoutFreePages(damaged)
		if err != nil || !bytes.Equal(got, damaged) {
			t.Errorf("%s: the copy is not the file (%v)", name, err)
		}
	}
}

// A file of any content is copied, in parts of any size, and only pages that the list has are zero.
func FuzzFreePages(f *testing.F) {
	file := make([]byte, 4*minPageBytes)
	file[pageSizeAt], file[firstTrunkAt+3], file[freeCountAt+3] = 2, 2, 2
	file[minPageBytes+7], file[minPageBytes+11] = 1, 4
	f.Add(file)
	f.Add(file[:minPageBytes+1])
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := withoutFreePages(file)
		if err != nil || len(got) != len(file) {
			t.Fatalf("%d bytes of %d: %v", len(got), len(file), err)
		}
		for i, b := range got {
			if b != 0 && b != file[i] {
				t.Fatalf("byte %d is %d, want %d", i, b, file[i])
			}
		}
		again, err := io.ReadAll(iotest.OneByteReader(readerOf(t, file)))
		if err != nil || !bytes.Equal(got, again) {
			t.Fatalf("byte by byte, the copy differs: %v", err)
		}
	})
}

// An error of the file is one of the copy.
func TestCopyOfAFileThatFails(t *testing.T) {
	failed := errors.New("input/output error")
	r := &contentReader{file: failingAt{failed}, bytes: 10}
	if _, err := io.ReadAll(r); !errors.Is(err, failed) {
		t.Error(err)
	}
}

type failingAt struct{ err error }

func (f failingAt) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func readerOf(t *testing.T, file []byte) io.Reader {
	t.Helper()
	free, err := readFreePages(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	return &contentReader{file: bytes.NewReader(file), bytes: int64(len(file)), free: free}
}

func withoutFreePages(file []byte) ([]byte, error) {
	free, err := readFreePages(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(&contentReader{file: bytes.NewReader(file), bytes: int64(len(file)), free: free})
}

func copyOf(t *testing.T, x *Index) (copied []byte) {
	t.Helper()
	err := x.Copy(t.Context(), func(file io.Reader, size int64) (err error) {
		copied, err = io.ReadAll(file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return copied
}
