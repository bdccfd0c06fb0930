//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// An indexed is what one snapshot has cost Postgres.
type indexed struct {
	Step     step             `json:"step"`
	Seconds  float64          `json:"seconds"`
	WALBytes int64            `json:"wal_bytes"`
	Disk     int64            `json:"disk_bytes"` // what the database grew by, indexes, dead rows and free space included
	Rows     map[string]int64 `json:"rows"`       // that came to each table
	RowBytes map[string]int64 `json:"row_bytes"`  // of them, without indexes
}

const (
	maxIndexBytesPerFile = 160
	maxUnchangedBytes    = 1024
)

// measureIndex backs a tree up as a fleet and looks at what that has left in Postgres.
func measureIndex(ctx context.Context, r *runner) (err error) {
	tree := filepath.Join(r.work, "tree")
	s := presets["million20"].shape
	if r.o.full {
		s = presets["million"].shape
	}
	s = r.o.shaped(s)
	progress("making %d files", s.files)
	if err := errors.Join(s.make(tree), pass(ctx)); err != nil {
		return err
	}
	c := r.chapter("index")
	f, err := startFleet(ctx, filepath.Join(r.work, "fleet"), tree, oneOfEach)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	var all []indexed
	for _, step := range []step{first, unchanged} {
		of, err := f.costs(ctx, step, tree)
		if err != nil {
			return err
		}
		progress("%-10s %.2f s, %d bytes of WAL", step, of.Seconds, of.WALBytes)
		all = append(all, of)
	}
	c.Data = all
	writeIndexed(c, all, s)
	return c.end(r.o.markdown)
}

// costs makes a backup.
func (f *fleetHost) costs(ctx context.Context, s step, tree string) (of indexed, err error) {
	conn, err := pgx.Connect(ctx, f.cluster.DSN())
	if err != nil {
		return of, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	// The first change of a page after a checkpoint writes all of it to the log: after this one, or after some other.
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return of, err
	}
	before, err := look(ctx, conn)
	if err != nil {
		return of, err
	}
	b := bench{work: f.dir}
	if _, err := b.run(ctx, command{args: []string{"bctl", "backup", "--filer", theFiler, "--shard", tree}}, f.commandEnv()); err != nil {
		return of, err
	}
	seconds, err := f.lastSeconds(ctx)
	if err != nil {
		return of, err
	}
	after, err := look(ctx, conn)
	if err != nil {
		return of, err
	}
	of = indexed{Step: s, Seconds: seconds, WALBytes: after.wal - before.wal, Disk: after.disk - before.disk, Rows: map[string]int64{}, RowBytes: map[string]int64{}}
	for table, n := range after.rows {
		if rows := n - before.rows[table]; rows != 0 || after.bytes[table] != before.bytes[table] {
			of.Rows[table], of.RowBytes[table] = rows, after.bytes[table]-before.bytes[table]
		}
	}
	return of, nil
}

// A looked is what Postgres has at a moment.
type looked struct {
	wal, disk   int64
	rows, bytes map[string]int64
}

func look(ctx context.Context, conn *pgx.Conn) (l looked, err error) {
	l.rows, l.bytes = map[string]int64{}, map[string]int64{}
	err = conn.QueryRow(ctx, "SELECT (pg_current_wal_lsn() - '0/0')::bigint, pg_database_size(current_database())").Scan(&l.wal, &l.disk)
	if err != nil {
		return l, err
	}
	rows, err := conn.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition`)
	if err != nil {
		return l, err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return l, err
	}
	for _, table := range tables {
		var n, bytes int64
		name := pgx.Identifier{table}.Sanitize()
		if err := conn.QueryRow(ctx, "SELECT count(*), coalesce(sum(pg_column_size(t.*)), 0) FROM "+name+" t").Scan(&n, &bytes); err != nil {
			return l, err
		}
		l.rows[table], l.bytes[table] = n, bytes
	}
	return l, nil
}

func writeIndexed(c *chapter, all []indexed, s shape) {
	c.say("%d files in %d directories, backed up by a fleet of one walker, one reader and one committer on this machine.", s.files, s.directories)
	rows := [][]string{{"snapshot", "s", "files/s", "WAL bytes", "a file", "database grew by", "a file", "rows (bytes each)"}}
	for _, of := range all {
		rows = append(rows, []string{
			of.Step.title(), fmt.Sprintf("%.2f", of.Seconds), fmt.Sprintf("%.0f", float64(s.files)/of.Seconds),
			fmt.Sprint(of.WALBytes), fmt.Sprintf("%.1f", float64(of.WALBytes)/float64(s.files)),
			fmt.Sprint(of.Disk), fmt.Sprintf("%.1f", float64(of.Disk)/float64(s.files)), of.rowsText(),
		})
	}
	c.table(rows)
	c.atMost("First snapshot: bytes of the index a file", "%.0f", float64(all[0].Disk)/float64(s.files), maxIndexBytesPerFile)
	var left int64
	for _, n := range all[1].RowBytes {
		left += n
	}
	c.atMost("Unchanged snapshot: bytes of rows in all", "%.0f", float64(left), maxUnchangedBytes)
}

// rowsText lists the tables that have grown, the largest first.
func (of *indexed) rowsText() string {
	var names []string
	for name := range of.Rows {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return int(of.RowBytes[b] - of.RowBytes[a]) })
	var parts []string
	for _, name := range names {
		n := of.Rows[name]
		if n == 0 {
			parts = append(parts, fmt.Sprintf("%s %+d bytes", name, of.RowBytes[name]))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %d (%.0f)", name, n, float64(of.RowBytes[name])/float64(n)))
	}
	return strings.Join(parts, ", ")
}
