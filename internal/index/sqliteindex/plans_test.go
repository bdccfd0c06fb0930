package sqliteindex

import (
	"database/sql"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

// Each query of pages finds its rows by all columns that it compares, in the order that it needs,
// so that its cost does not grow with the shard.
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
	subtree := entindex.Range{From: backup.PathKey("d"), To: backup.PathKeyEnd("d")}
	marks := func(r entindex.Range) []any { return built(selectMarks(1, 1, r, 9)) }
	pages := func(r entindex.Range, after []byte) []any { return built(selectPages(1, 1, r, after, 0, 9)) }
	tree := func(r entindex.Range) []any { return built(endTree(entindex.Tree{Shard: 1, Number: 2, Range: r})) }
	const (
		byKey      = "SEARCH pages USING INDEX pages_key (shard=? AND directory=? AND page=? AND first_snapshot<?)"
		byPath     = "SEARCH pages USING INDEX pages_path (shard=? AND path_key>?)"
		byPathEnds = "SEARCH pages USING INDEX pages_path (shard=? AND path_key>? AND path_key<?)"
	)
	sorted := func(by string) []string {
		return []string{"CO-ROUTINE changed", "SEARCH pages USING " + by, "USE TEMP B-TREE FOR ORDER BY", "SCAN changed", "SEARCH pages USING INTEGER PRIMARY KEY (rowid=?)"}
	}
	// The base of a patch is one lookup; of is the number of the subquery.
	withBase := func(of string, plan ...string) []string {
		return append(plan, "CORRELATED SCALAR SUBQUERY "+of, "SEARCH b USING INDEX pages_key (shard=? AND directory=? AND page=? AND first_snapshot=?)")
	}
	for _, test := range []struct {
		name  string
		query []any // the query and its arguments
		plan  []string
	}{
		{"marks", marks(entindex.Range{}), []string{"SEARCH pages USING COVERING INDEX pages_path (shard=? AND path_key>?)"}},
		{"marks of a subtree", marks(subtree), []string{"SEARCH pages USING COVERING INDEX pages_path (shard=? AND path_key>? AND path_key<?)"}},
		{"pages", pages(entindex.Range{}, nil), withBase("1", byPath)},
		{"pages of a subtree", pages(subtree, nil), withBase("1", byPathEnds)},
		{"pages after one", pages(entindex.Range{}, backup.PathKey("d")), withBase("1", "SEARCH pages USING INDEX pages_path (shard=? AND (path_key,page)>(?,?))")},
		{"pages of a subtree after one", pages(subtree, backup.PathKey("d")), withBase("1", "SEARCH pages USING INDEX pages_path (shard=? AND (path_key,page)>(?,?) AND path_key<?)")},
		{"a listing", []any{selectListing, 1, 1, []byte{}, 0}, withBase("1", byKey)},
		{"a directory by its inode", []any{selectByInode, 1, 1, 1}, []string{"SEARCH pages USING INDEX pages_inode (shard=? AND inode=?)"}},
		{"marks of a directory", []any{selectDirectoryMarks, 1, 1, []byte{}}, []string{"SEARCH pages USING INDEX pages_key (shard=? AND directory=?)"}},
		{"begun", []any{selectChanged(begun, true), 1, 1}, withBase("2", withBase("1", append(sorted("INDEX pages_first (shard=? AND first_snapshot=?)"),
			"SEARCH o USING INDEX pages_key (shard=? AND directory=? AND page=? AND first_snapshot<?) LEFT-JOIN")...)...)},
		{"ended", []any{selectChanged(ended, false), 1, 1}, sorted("INDEX pages_last (shard=? AND last_snapshot=?)")},
		{"open page", []any{findOpenPage, 1, []byte{}, 0}, append(withBase("1", "SEARCH pages USING INDEX pages_key (shard=? AND directory=? AND page=?)"), "SCALAR SUBQUERY 2", "SEARCH schema_versions")},
		{"the next snapshot", []any{nextFirst, 1, 1, 9}, []string{"SEARCH pages USING COVERING INDEX pages_first (shard=? AND first_snapshot>? AND first_snapshot<?)"}},
		{"listings of a snapshot", []any{selectListingsOf(""), 1, 1, 0, 9, 9}, withBase("1", "SEARCH pages USING INDEX pages_first (shard=? AND first_snapshot=? AND rowid>?)")},
		{"drop patches", []any{dropPatches, 1, 1, 9, 2}, []string{"SEARCH pages USING INDEX pages_last (shard=? AND last_snapshot>? AND last_snapshot<?)"}},
		{"drop versions", []any{dropVersions, 1, 1, 9, 2}, []string{
			"SEARCH pages USING INDEX pages_last (shard=? AND last_snapshot>? AND last_snapshot<?)",
			"CORRELATED SCALAR SUBQUERY 1", "SEARCH p USING INDEX pages_key (shard=? AND directory=? AND page=? AND first_snapshot>?)",
		}},
		{"versions that ended, by page", []any{endedFrom, 1, []byte{}, 0}, []string{"SEARCH pages USING COVERING INDEX pages_path (shard=? AND (path_key,page)>(?,?))"}},
		{"places", []any{joinedPlaces, []byte{}, []byte{1}}, []string{"SEARCH chunks USING PRIMARY KEY (id>? AND id<?)"}},
		{"the end of places", []any{afterPlaces, []byte{}, []byte{1}, 9}, []string{"SEARCH chunks USING PRIMARY KEY (id>? AND id<?)"}},
		{"pages at a held path", []any{pathQueries.Has, 1, 1, []byte{}, []byte{1}}, []string{"SEARCH pages USING COVERING INDEX pages_path (shard=? AND path_key>? AND path_key<?)"}},
		{"pages at a held path that began", []any{pathQueries.Began, 1, 1, []byte{}, []byte{1}, 2}, []string{"SEARCH pages USING INDEX pages_first (shard=? AND first_snapshot>? AND first_snapshot<?)"}},
		{"pages at a held path that ended", []any{pathQueries.Ended, 1, 1, []byte{}, []byte{1}, 2}, []string{"SEARCH pages USING INDEX pages_last (shard=? AND last_snapshot>? AND last_snapshot<?)"}},
		{"listings of a held path's directory", []any{pathQueries.Pages, 1, 1, []byte{}, []byte{0}}, withBase("1", byPathEnds)},
		{"end of a page", []any{endPage, 1, []byte{}, 0, 1}, []string{
			"SEARCH pages USING INDEX pages_key (shard=? AND directory=? AND page=? AND first_snapshot=?)",
			"SCALAR SUBQUERY 1", "SEARCH pages USING COVERING INDEX pages_key (shard=? AND directory=? AND page=? AND first_snapshot<?)",
		}},
		{"end of everything", tree(entindex.Range{}), []string{byPath}},
		{"end of a tree", tree(subtree), []string{byPathEnds}},
		{"keep what began", []any{keepBegun, 1, 1}, []string{"SEARCH pages USING INDEX pages_first (shard=? AND first_snapshot=?)"}},
		{"undo what began", []any{undoBegun, 1, 1}, []string{"SEARCH pages USING INDEX pages_first (shard=? AND first_snapshot=?)"}},
		{"undo what ended", []any{undoEnded, 1, 1}, []string{"SEARCH pages USING INDEX pages_last (shard=? AND last_snapshot=?)"}},
		{"an interrupted listing", []any{selectInterrupted, 1, []byte{}, 0}, withBase("1", "SEARCH interrupted_pages USING INDEX interrupted_pages_key (shard=? AND directory=? AND page=?)")},
		{"drop interrupted pages", []any{dropInterrupted, 1}, []string{"SEARCH interrupted_pages USING INDEX interrupted_pages_key (shard=?)"}},
		{"copies", []any{selectCopies, []byte{}}, []string{"SEARCH chunk_copies USING PRIMARY KEY (id=?)"}},
		{"one more place", []any{insertCopy, []byte{}, 1, 0, 0, 1}, []string{"SEARCH chunks EXISTS USING PRIMARY KEY (id=?)"}},
		{"a known list", []any{selectKnownList, []byte{}}, []string{"SEARCH chunk_lists USING COVERING INDEX sqlite_autoindex_chunk_lists_1 (list=?)"}},
		{"unrecorded", []any{"SELECT * FROM snapshots WHERE ended IS NOT NULL AND NOT recorded" + newest("ASC")}, []string{"SCAN snapshots USING INDEX snapshot_unrecorded"}},
		{"snapshots", []any{"SELECT * FROM snapshots" + newest("DESC")}, []string{"SCAN snapshots USING INDEX snapshot_sort_time_shard_id_number_filer_id"}},
		{"snapshots of a shard", []any{"SELECT * FROM snapshots WHERE shard_id = 1 ORDER BY number DESC LIMIT 9"}, []string{"SEARCH snapshots USING INDEX snapshot_shard_id_number (shard_id=?)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var plan []string
			query := test.query[0].(string)
			err := x.backend.each(ctx, "EXPLAIN QUERY PLAN "+query, test.query[1:], func(rows *sql.Rows) error {
				var id, parent, unused int
				var step string
				err := rows.Scan(&id, &parent, &unused, &step)
				plan = append(plan, step)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(plan, test.plan) {
				t.Errorf("%s\nhas the plan %q\nwant %q", query, plan, test.plan)
			}
		})
	}
}

func newest(order string) string {
	return " ORDER BY sort_time " + order + ", shard_id " + order + ", number " + order + " LIMIT 9"
}

func built(query string, args []any) []any { return append([]any{query}, args...) }
