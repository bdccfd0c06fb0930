package sqliteindex

import (
	"database/sql"
	"path/filepath"
	"slices"
	"testing"
)

// Each query of pages finds its rows by as many columns as it compares, in the order that it wants: what it costs does not
// grow with the shard.
func TestPlansOfPages(t *testing.T) {
	ctx := t.Context()
	x, err := Open(ctx, filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	const byKey = "INDEX pages_key (shard=? AND directory=? AND page=? AND first_snapshot<?)"
	for _, test := range []struct {
		name, query string
		args        int
		plan        string
	}{
		{"marks", selectMarks + byPathKey, 4, "COVERING INDEX pages_path (shard=? AND path_key>?)"},
		{"marks of a range", selectMarks + " AND path_key < ?5" + byPathKey, 5, "COVERING INDEX pages_path (shard=? AND path_key>? AND path_key<?)"},
		{"pages of a range", selectPages + " AND path_key >= ?4 AND path_key < ?6" + byPathKey, 6, "INDEX pages_path (shard=? AND path_key>? AND path_key<?)"},
		{"pages after one", selectPages + " AND (path_key, page) > (?4, ?5)" + byPathKey, 5, "INDEX pages_path (shard=? AND (path_key,page)>(?,?))"},
		{"a listing", selectListing, 4, byKey},
		{"a directory by its inode", selectByInode, 3, "INDEX pages_inode (shard=? AND inode=?)"},
		{"marks of a directory", selectDirectoryMarks, 3, "INDEX pages_key (shard=? AND directory=?)"},
		{"open page", findOpenPage, 6, "INDEX pages_key (shard=? AND directory=? AND page=?)"},
		{"end of a page", endPage, 4, byKey},
		{"end of a tree", endTree + " AND path_key < ?4", 4, "INDEX pages_path (shard=? AND path_key>? AND path_key<?)"},
		{"undo what began", undoBegun, 2, "INDEX pages_first (shard=? AND first_snapshot=?)"},
		{"undo what ended", undoEnded, 2, "INDEX pages_last (shard=? AND last_snapshot=?)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var plan []string
			err := x.backend.each(ctx, "EXPLAIN QUERY PLAN "+test.query, make([]any, test.args), func(rows *sql.Rows) error {
				var id, parent, unused int
				var step string
				err := rows.Scan(&id, &parent, &unused, &step)
				plan = append(plan, step)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if want := []string{"SEARCH pages USING " + test.plan}; !slices.Equal(plan, want) {
				t.Errorf("%s\nhas the plan %q\nwant %q", test.query, plan, want)
			}
		})
	}
}
