package sqliteindex

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/internal/testenv"
)

// What is deleted page by page is what no snapshot needs, except for bases of versions that stay.
// Each transaction ends at the end of a page.
func TestDropByPage(t *testing.T) {
	x, err := Open(t.Context(), filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	version := func(directory string, page backup.PageKey, first, last, base backup.SnapshotNumber) entindex.Version {
		v := entindex.Version{First: first, Last: last}
		v.Shard, v.Key, v.PathKey, v.Base = 1, page, []byte(directory), base
		copy(v.Directory[:], directory)
		return v
	}
	const open = 1<<63 - 1
	versions := []entindex.Version{
		version("a", 0, 1, 1, 0),
		version("a", 0, 2, 3, 1), // needed by 3
		version("a", 0, 4, 5, 1),
		version("a", 0, 6, open, 0),
		version("a", 1, 1, 2, 0),
		version("b", 0, 4, 4, 0),
		version("b", 0, 5, 5, 4),
		version("b", 0, 6, 6, 4), // needed by 6
		version("c", 0, 4, 4, 0),
		version("c", 0, 5, 5, 4),
		version("c", 0, 7, open, 0),
	}
	// The first row of a is the base of a needed one, and so is the first of b.
	stay := []int{0, 1, 3, 7, 5, 10}
	dropped, transactions := int64(0), 0
	err = x.backend.Update(t.Context(), entindex.Relaxed, func(ctx context.Context, tx *entindex.Tx) error {
		if err := tx.Hot.PutVersions(ctx, versions); err != nil {
			return err
		}
		for cursor := (*entindex.PageCursor)(nil); ; {
			n, next, err := tx.Hot.(entindex.PageDropper).DropByPage(ctx, 1, entindex.Needed{3, 6}, cursor, 1)
			if err != nil {
				return err
			}
			dropped, transactions = dropped+n, transactions+1
			if cursor = next; next == nil {
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(len(versions) - len(stay)); dropped != want || transactions != 4 {
		t.Errorf("%d versions were deleted in %d steps, want %d in 4", dropped, transactions, want)
	}
	for _, i := range stay {
		v := &versions[i]
		var n int
		err := x.backend.readers.QueryRowContext(t.Context(), "SELECT count(*) FROM pages WHERE shard = 1 AND path_key = ? AND page = ? AND first_snapshot = ?",
			v.PathKey, int64(v.Key), int64(v.First)).Scan(&n)
		if err != nil || n != 1 {
			t.Errorf("the version of %s/%d that began with %d: %d rows, %v", v.PathKey, v.Key, v.First, n, err)
		}
	}
}

// TestIndex deletes page by page, too.
func TestMain(m *testing.M) {
	entindex.PageAtOnce = 2
	os.Exit(testenv.InMemory{M: m}.Run())
}
