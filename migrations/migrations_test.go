package migrations_test

import (
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/bctl/bctl/migrations"
)

var declared = regexp.MustCompile(`(?m)^INSERT INTO schema_versions \(version, oldest\) VALUES \((\d+), (\d+)\);$`)

// Each migration declares its compatible binaries, of versions no older than its predecessor does,
// and removes its row when it is undone. The migrations of both dialects agree.
func TestEachMigrationSaysWhatWorksWithIt(t *testing.T) {
	said := map[migrations.Dialect]map[int64]int64{}
	for _, dialect := range []migrations.Dialect{migrations.Postgres, migrations.SQLite} {
		said[dialect] = map[int64]int64{}
		files, err := migrations.FS(dialect)
		if err != nil {
			t.Fatal(err)
		}
		names, err := fs.Glob(files, "*.sql")
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %q, %v", dialect, names, err)
		}
		before, last := int64(0), int64(0)
		for _, name := range names {
			version := number(t, name[:5])
			if version <= last { // one dialect may omit a migration that only the other needs
				t.Errorf("%s/%s is the migration after %d", dialect, name, last)
			}
			last = version
			text, err := fs.ReadFile(files, name)
			if err != nil {
				t.Fatal(err)
			}
			up, down, _ := strings.Cut(string(text), "-- +goose Down")
			found := declared.FindAllStringSubmatch(up, -1)
			if len(found) != 1 || number(t, found[0][1]) != version {
				t.Errorf("%s/%s does not say once which binaries can work with it: %q", dialect, name, found)
				continue
			}
			oldest := number(t, found[0][2])
			if oldest < before || oldest > version {
				t.Errorf("%s/%s works with binaries of version %d or newer, the one before it with %d", dialect, name, oldest, before)
			}
			before, said[dialect][version] = oldest, oldest
			if undo := "DELETE FROM schema_versions WHERE version = " + strconv.FormatInt(version, 10) + ";"; version > 1 && !strings.Contains(down, undo) {
				t.Errorf("%s/%s is not undone by %s", dialect, name, undo)
			}
		}
	}
	for version, oldest := range said[migrations.Postgres] {
		if version > 12 { // which requires patches, in SQLite alone: bctl migrate --finish does in Postgres
			oldest = max(oldest, 11)
		}
		if other, ok := said[migrations.SQLite][version]; ok && other != oldest {
			t.Errorf("version %d works with binaries of version %d in Postgres, and %d in SQLite", version, oldest, other)
		}
	}
}

func number(t *testing.T, digits string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
