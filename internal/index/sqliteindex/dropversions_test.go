package sqliteindex

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/internal/testenv"
)

const openEnd = 1<<63 - 1

// testVersions are versions of three shards, and the positions of those that stay if snapshots 3
// and 6 of shard 1 need theirs.
func testVersions() (versions []entindex.Version, stay []int) {
	add := func(shard backup.ShardID, directory string, page backup.PageKey, first, last, base backup.SnapshotNumber) {
		v := entindex.Version{First: first, Last: last}
		v.Shard, v.Key, v.PathKey, v.Base = shard, page, []byte(directory), base
		v.Inode = uint64(len(versions))
		copy(v.Directory[:], directory)
		if v.Fingerprint[0] = byte(len(versions)); len(versions)%2 == 0 { // others have no listing
			v.Listing = bytes.Repeat([]byte(directory), 1000*len(versions))
		}
		versions = append(versions, v)
	}
	add(1, "a", 0, 1, 1, 0)
	add(1, "a", 0, 2, 3, 1) // needed by 3
	add(1, "a", 0, 4, 5, 1)
	add(1, "a", 0, 6, openEnd, 0)
	add(1, "a", 1, 1, 2, 0)
	add(1, "b", 0, 4, 4, 0)
	add(1, "b", 0, 5, 5, 4)
	add(1, "b", 0, 6, 6, 4) // needed by 6
	add(1, "c", 0, 4, 4, 0)
	add(1, "c", 0, 5, 5, 4)
	add(1, "c", 0, 7, openEnd, 0)
	add(2, "a", 0, 4, 5, 0) // of another shard
	add(3, "a", 0, 4, 4, 0)
	add(3, "a", 0, 5, 5, 4)
	// The first row of a is the base of a needed one, and so is the first of b.
	return versions, []int{0, 1, 3, 7, 5, 10, 11, 12, 13}
}

// What is deleted is what no snapshot needs, except for bases of versions that stay: page by page,
// where each transaction ends at the end of a page, and by writing again what stays. Nothing of
// what stays is changed.
func TestWaysToDropVersions(t *testing.T) {
	for name, drop := range map[string]func(context.Context, *entindex.Tx) (int64, error){
		"by page": func(ctx context.Context, tx *entindex.Tx) (dropped int64, err error) {
			transactions := 0
			for cursor := (*entindex.PageCursor)(nil); ; {
				n, next, err := tx.Hot.(entindex.ManyDropper).DropByPage(ctx, 1, entindex.Needed{3, 6}, cursor, 1)
				if err != nil {
					return 0, err
				}
				dropped, transactions = dropped+n, transactions+1
				if cursor = next; next == nil {
					break
				}
			}
			if transactions != 4 {
				t.Errorf("%d steps, want 4", transactions)
			}
			return dropped, nil
		},
		"keeping": func(ctx context.Context, tx *entindex.Tx) (int64, error) {
			return tx.Hot.(entindex.ManyDropper).KeepVersions(ctx, 1, entindex.Needed{3, 6})
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t)
			versions, stay := testVersions()
			update(t, x, func(ctx context.Context, tx *entindex.Tx) error { return tx.Hot.PutVersions(ctx, versions) })
			before := rowsOfPages(t, x)
			var dropped int64
			update(t, x, func(ctx context.Context, tx *entindex.Tx) (err error) {
				dropped, err = drop(ctx, tx)
				return err
			})
			if want := int64(len(versions) - len(stay)); dropped != want {
				t.Errorf("%d versions were deleted, want %d", dropped, want)
			}
			want := map[int64]string{}
			for _, i := range stay {
				want[int64(i)+1] = before[int64(i)+1] // the rowids of a new table
			}
			if after := rowsOfPages(t, x); !maps.Equal(after, want) {
				t.Errorf("these rows are left: %v\nwant: %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(want)))
			}
			if err := x.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// If a write fails, or the process ends, before all that stays is written again, nothing is
// changed.
func TestKeepVersionsIsUndone(t *testing.T) {
	x := newIndex(t)
	versions, _ := testVersions()
	update(t, x, func(ctx context.Context, tx *entindex.Tx) error { return tx.Hot.PutVersions(ctx, versions) })
	before := rowsOfPages(t, x)
	if _, err := x.backend.writer.ExecContext(t.Context(), "CREATE TRIGGER full BEFORE INSERT ON pages WHEN NEW.shard = 3 BEGIN SELECT RAISE(FAIL, 'full'); END"); err != nil {
		t.Fatal(err)
	}
	err := x.backend.Update(t.Context(), entindex.Relaxed, func(ctx context.Context, tx *entindex.Tx) error {
		_, err := tx.Hot.(entindex.ManyDropper).KeepVersions(ctx, 1, entindex.Needed{3, 6})
		return err
	})
	if err == nil || !maps.Equal(rowsOfPages(t, x), before) {
		t.Errorf("%v, and %d rows of %d are left", err, len(rowsOfPages(t, x)), len(before))
	}
}

func newIndex(t *testing.T) *Index {
	t.Helper()
	x, err := Open(t.Context(), filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return x
}

func update(t *testing.T, x *Index, do func(context.Context, *entindex.Tx) error) {
	t.Helper()
	if err := x.backend.Update(t.Context(), entindex.Relaxed, do); err != nil {
		t.Fatal(err)
	}
}

// rowsOfPages returns all columns of the rows, as text by rowid.
func rowsOfPages(t *testing.T, x *Index) map[int64]string {
	t.Helper()
	rows, err := x.backend.readers.QueryContext(t.Context(), "SELECT rowid, * FROM pages")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	values, pointers := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		pointers[i] = &values[i]
	}
	texts := map[int64]string{}
	for rows.Next() {
		if err := rows.Scan(pointers...); err != nil {
			t.Fatal(err)
		}
		texts[values[0].(int64)] = fmt.Sprintf("%x", values[1:])
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return texts
}

// TestIndex deletes page by page, too.
func TestMain(m *testing.M) {
	entindex.PageAtOnce, entindex.KeptPerDropped = 2, 1
	os.Exit(testenv.InMemory{M: m}.Run())
}
