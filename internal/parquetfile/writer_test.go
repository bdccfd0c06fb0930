package parquetfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"
)

type row struct {
	Name  string   `parquet:"name"`
	Size  int64    `parquet:"size"`
	Mtime *int64   `parquet:"mtime,optional,timestamp(microsecond)"`
	Other *string  `parquet:"other,optional"`
	Flags []string `parquet:"flags,list"`
}

func rowOf(n, text int) row {
	r := row{Name: fmt.Sprintf("%d%s", n, strings.Repeat("x", text)), Size: int64(n)}
	if n%2 == 0 {
		at, other := int64(n), fmt.Sprint(n)
		r.Mtime, r.Other, r.Flags = &at, &other, []string{"a", other}
	}
	return r
}

// What is written is read back, in row groups of bounded size.
func TestWriter(t *testing.T) {
	for _, test := range []struct{ rows, text, groups int }{{0, 0, 0}, {1, 0, 1}, {1000, 0, 1}, {100_001, 0, 2}, {1100, 32 << 10, 3}} {
		path := filepath.Join(t.TempDir(), "file")
		w, err := Create[row](path)
		if err != nil {
			t.Fatal(err)
		}
		for n := range test.rows {
			if err := w.Add(rowOf(n, test.text), test.text); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the file is there before it is complete: %v", err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		w.Discard()
		if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
			t.Errorf("%d files, %v", len(list), err)
		}
		check(t, path, test.rows, test.text, test.groups)
	}
}

func check(t *testing.T, path string, rows, text, groups int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(file.RowGroups()); n != groups {
		t.Errorf("%d rows are in %d row groups, want %d", rows, n, groups)
	}
	read, err := parquet.Read[row](f, info.Size())
	if err != nil || len(read) != rows {
		t.Fatalf("%d rows of %d, %v", len(read), rows, err)
	}
	for n := range read {
		if len(read[n].Flags) == 0 {
			read[n].Flags = nil
		}
		if want := rowOf(n, text); !reflect.DeepEqual(read[n], want) {
			t.Fatalf("row %d is %+v, want %+v", n, read[n], want)
		}
	}
}

// A file that is not completed leaves what was there.
func TestDiscard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Create[row](path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(rowOf(1, 0), 0); err != nil {
		t.Fatal(err)
	}
	w.Discard()
	list, err := os.ReadDir(filepath.Dir(path))
	text, err2 := os.ReadFile(path)
	if err != nil || err2 != nil || len(list) != 1 || string(text) != "before" {
		t.Errorf("%d files, %q, %v, %v", len(list), text, err, err2)
	}
	if _, err := Create[row](filepath.Join(path, "below")); err == nil {
		t.Error("a file below a file")
	}
}

// Only a regular file is replaced, whatever is at the path when the file begins or ends.
func TestOnlyRegularFilesAreReplaced(t *testing.T) {
	for what, test := range map[string]struct {
		make  func(path string) error
		taken bool
	}{
		"nothing":               {func(string) error { return nil }, true},
		"a file":                {func(path string) error { return os.WriteFile(path, []byte("old"), 0o600) }, true},
		"a directory":           {func(path string) error { return os.Mkdir(path, 0o700) }, false},
		"a pipe":                {func(path string) error { return unix.Mkfifo(path, 0o600) }, false},
		"a symlink":             {func(path string) error { return os.Symlink("/dev/null", path) }, false},
		"a symlink to a file":   {func(path string) error { return os.Symlink("/etc/passwd", path) }, false},
		"a symlink to nowhere":  {func(path string) error { return os.Symlink("nowhere", path) }, false},
		"a socket":              {func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }, false},
		"a path below one file": {func(path string) error { return os.WriteFile(filepath.Dir(path), nil, 0o600) }, false},
	} {
		for _, late := range []bool{false, true} {
			dir := filepath.Join(t.TempDir(), "dir")
			path := filepath.Join(dir, "table")
			below := what == "a path below one file"
			if below && late {
				continue
			}
			if !below {
				must(t, os.Mkdir(dir, 0o700))
			}
			var w *Writer[row]
			var err error
			if late {
				if w, err = Create[row](path); err != nil {
					t.Fatal(err)
				}
			}
			must(t, test.make(path))
			before, _ := os.Lstat(path)
			if !late {
				w, err = Create[row](path)
			}
			if err == nil {
				err = errors.Join(w.Add(rowOf(1, 0), 1), w.Close())
				w.Discard()
			}
			after, _ := os.Lstat(path)
			if (err == nil) != test.taken || !test.taken && before != nil && !os.SameFile(before, after) {
				t.Errorf("%s, late %v: %v", what, late, err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".bctl-*")); len(left) > 0 {
				t.Errorf("%s, late %v: %q is left", what, late, left)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
