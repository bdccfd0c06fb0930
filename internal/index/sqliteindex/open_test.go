package sqliteindex_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

func TestOpenErrors(t *testing.T) {
	directory := t.TempDir()
	if _, err := sqliteindex.Open(t.Context(), filepath.Join(directory, "absent", "index.db")); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("in no directory: %v", err)
	}
	garbage := filepath.Join(directory, "garbage")
	if err := os.WriteFile(garbage, []byte("this is no database, but it is longer than a header of one hundred bytes is, which is what SQLite looks at first of all"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sqliteindex.Open(t.Context(), garbage); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("no database: %v", err)
	}
}

// Only the owner may read the index, even if its path has odd characters.
func TestFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a name? with #100% odd\xff bytes&mode=memory")
	x := open(t, path)
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != fs.FileMode(0o600) {
			t.Errorf("%s has mode %v", suffix, info.Mode())
		}
	}
}

// A command opens an index and checks its schema. This must take no noticeable time.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "index.db")
	if _, _, err := open(b, path).Migrate(context.Background()); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	for b.Loop() {
		x, err := sqliteindex.Open(context.Background(), path)
		if err != nil {
			b.Fatal(err)
		}
		if err := x.CheckSchema(context.Background()); err != nil {
			b.Fatal(err)
		}
		if err := x.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(time.Since(start).Seconds()*1000/float64(b.N), "ms/open")
}
