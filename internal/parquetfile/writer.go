// Package parquetfile writes tables to files in the format Apache Parquet, for tools such as
// DuckDB. A file appears at its path when it is complete, and replaces only a regular file.
package parquetfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parquet-go/parquet-go"

	"github.com/bctl/bctl/internal/backup"
)

// A row group is in memory until it ends. It ends after maxRows rows or maxBytes bytes.
const (
	maxRows  = 100_000
	maxBytes = 16 << 20
	atOnce   = 256 // rows that are passed on together
)

// A Writer writes rows of type T to a file. The columns are the exported fields of T, with the
// names in their tags. It is used by one goroutine.
type Writer[T any] struct {
	path  string
	file  *os.File // beside path
	table *parquet.GenericWriter[T]
	rows  []T // not passed on yet
	count int // rows of the row group
	bytes int // of the row group
}

// Create begins a file. Until Close, nothing is at path, or what was there before. Only a regular
// file is replaced: a device, a pipe or a symlink, such as /dev/stdout, is backup.ErrInvalid.
func Create[T any](path string) (*Writer[T], error) {
	if err := checkReplaceable(path); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".bctl-*") // mode 0600: names may be secret
	if err != nil {
		return nil, err
	}
	return &Writer[T]{path: path, file: f, table: parquet.NewGenericWriter[T](f, parquet.Compression(&parquet.Zstd))}, nil
}

// checkReplaceable returns an error unless there is nothing or a regular file at path.
func checkReplaceable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file, and only such a file is replaced: %w", path, backup.ErrInvalid)
	}
	return nil
}

// Add adds a row, with the length of its texts.
func (w *Writer[T]) Add(row T, bytes int) error {
	w.rows = append(w.rows, row)
	w.count++
	w.bytes += bytes
	end := w.count >= maxRows || w.bytes >= maxBytes
	if len(w.rows) < atOnce && !end {
		return nil
	}
	if err := w.pass(); err != nil || !end {
		return err
	}
	w.count, w.bytes = 0, 0
	return w.table.Flush()
}

// pass passes rows on.
func (w *Writer[T]) pass() error {
	_, err := w.table.Write(w.rows)
	clear(w.rows)
	w.rows = w.rows[:0]
	return err
}

// Close completes the file, and puts it at its path once it is durable. It replaces what was there.
func (w *Writer[T]) Close() error {
	if err := w.pass(); err != nil {
		return err
	}
	if err := errors.Join(w.table.Close(), w.file.Sync(), w.file.Close()); err != nil {
		return err
	}
	if err := checkReplaceable(w.path); err != nil {
		return err
	}
	if err := os.Rename(w.file.Name(), w.path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(w.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Discard removes what was written, unless Close has put it at its path.
func (w *Writer[T]) Discard() {
	_ = w.file.Close()           // it was closed before, or nobody will read it
	_ = os.Remove(w.file.Name()) // after Close there is no file of this name
}
