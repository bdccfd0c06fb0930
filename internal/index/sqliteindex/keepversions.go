package sqliteindex

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
)

const (
	// pages_path has these columns, so the rows themselves are not read.
	selectRanges = "SELECT rowid, shard, first_snapshot, coalesce(last_snapshot, ?1) FROM pages INDEXED BY pages_path"

	selectBases = "SELECT b.rowid FROM pages p JOIN pages b INDEXED BY pages_key ON b.shard = p.shard AND b.directory = p.directory AND b.page = p.page AND b.first_snapshot = p.base" +
		" WHERE p.rowid IN (SELECT value FROM json_each(?1)) AND p.base IS NOT NULL"

	selectKept = "SELECT rowid, * FROM pages WHERE rowid IN (SELECT value FROM json_each(?1)) ORDER BY rowid"

	// deleteAll has no condition: SQLite then frees the pages of the table and of its indexes, and
	// does not search for each row in each of them.
	deleteAll = "DELETE FROM pages"
)

// KeepVersions implements entindex.ManyDropper. It deletes all rows, and inserts those that stay
// again. They are read in a transaction that began before. Each keeps its rowid, by which other
// readers go on.
func (w hotWriter) KeepVersions(ctx context.Context, shard backup.ShardID, needed entindex.Needed) (dropped int64, err error) {
	before, err := w.b.readers.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer before.Rollback() // it has only read
	kept, known, err := keptVersions(ctx, before, shard, needed)
	if err != nil {
		return 0, err
	}
	all, err := w.exec(ctx, deleteAll)
	if err == nil && all != known {
		err = fmt.Errorf("the table of versions has %d rows, and its index %d: %w", all, known, backup.ErrCorrupt)
	}
	if err != nil {
		return 0, err
	}
	if err := w.storesNames(ctx, true); err != nil { // the names of what stays do not change
		return 0, err
	}
	inserted, err := w.insertFrom(ctx, before, kept)
	if err == nil {
		err = w.storesNames(ctx, false)
	}
	if err == nil && inserted != int64(len(kept)) {
		err = fmt.Errorf("%d versions of %d that stay were written again: %w", inserted, len(kept), backup.ErrCorrupt)
	}
	return all - inserted, err
}

// keptVersions returns the rows of the versions that stay, in order: of other shards, those that
// have not ended, those that are needed, and their bases. known is the number of all rows.
func keptVersions(ctx context.Context, before *sql.Tx, shard backup.ShardID, needed entindex.Needed) (kept []int64, known int64, err error) {
	err = eachRow(ctx, before, selectRanges, []any{int64(math.MaxInt64)}, func(rows *sql.Rows) error {
		known++
		var row int64
		var of backup.ShardID
		var first, last backup.SnapshotNumber
		err := rows.Scan(&row, &of, &first, &last)
		if err == nil && (of != shard || last == math.MaxInt64 || needed.Has(first, last)) {
			kept = append(kept, row)
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	list, err := json.Marshal(kept)
	if err != nil {
		return nil, 0, err
	}
	err = eachRow(ctx, before, selectBases, []any{string(list)}, func(rows *sql.Rows) error {
		var row int64
		err := rows.Scan(&row)
		kept = append(kept, row)
		return err
	})
	slices.Sort(kept)
	return slices.Compact(kept), known, err
}

// insertFrom inserts rows that a transaction from before they were deleted reads.
func (w hotWriter) insertFrom(ctx context.Context, before *sql.Tx, kept []int64) (inserted int64, err error) {
	list, err := json.Marshal(kept)
	if err != nil {
		return 0, err
	}
	var insert string
	var values, pointers []any
	err = eachRow(ctx, before, selectKept, []any{string(list)}, func(rows *sql.Rows) error {
		if insert == "" {
			columns, err := rows.Columns()
			if err != nil {
				return err
			}
			insert = "INSERT INTO pages (" + strings.Join(columns, ", ") + ") VALUES (?" + strings.Repeat(", ?", len(columns)-1) + ")"
			values = make([]any, len(columns))
			for i := range values {
				pointers = append(pointers, &values[i])
			}
		}
		if err := rows.Scan(pointers...); err != nil {
			return err
		}
		for i, v := range values {
			if v, ok := v.([]byte); ok {
				values[i] = entindex.NotNull(v)
			}
		}
		n, err := w.exec(ctx, insert, values...)
		inserted += n
		return err
	})
	return inserted, err
}

func eachRow(ctx context.Context, tx *sql.Tx, query string, args []any, do func(*sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
