//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// An indexed is what one snapshot has cost Postgres.
type indexed struct {
	Step     step    `json:"step"`
	Seconds  float64 `json:"seconds"`
	WALBytes int64   `json:"wal_bytes"`
	Disk     int64   `json:"disk_bytes"` // what the database grew by, indexes, dead rows and free space included
	// The growth of each table that has grown.
	Tables map[string]grownTable `json:"tables"`
	// The growth of the store.
	Packs    int64 `json:"packs_bytes"`
	Segments int64 `json:"segments_bytes"`
}

// rows returns the bytes that were added to the tables in rows and indexes, without dead rows and
// free space.
func (of *indexed) rows() (n int64) {
	for _, t := range of.Tables {
		n += t.RowBytes + t.Indexes
	}
	return n
}

// A grownTable is the growth of a table.
type grownTable struct {
	Rows     int64 `json:"rows"`
	RowBytes int64 `json:"row_bytes"` // of them
	Disk     int64 `json:"disk_bytes"`
	Indexes  int64 `json:"index_disk_bytes"` // of its indexes
}

func (t grownTable) less(before grownTable) grownTable {
	return grownTable{t.Rows - before.Rows, t.RowBytes - before.RowBytes, t.Disk - before.Disk, t.Indexes - before.Indexes}
}

const (
	maxIndexBytesPerFile = 160
	maxUnchangedBytes    = 1024

	churnedSnapshots = 10  // until patches have grown, and pages are stored whole again
	maxGrown         = 1.5 // × the packs: packs, segments and the index
)

// measureIndex backs a tree up as a fleet and looks at what that has left in Postgres.
func measureIndex(ctx context.Context, r *runner) (err error) {
	tree := filepath.Join(r.work, "tree")
	s := presets["million5"].shape
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
	for n, step := range append([]step{first, unchanged}, slices.Repeat([]step{churned}, churnedSnapshots)...) {
		if step == churned {
			if _, err := churn(tree, r.o.churnShare, r.o.seed+uint64(n)); err != nil {
				return err
			}
			if err := settle(r.work); err != nil {
				return err
			}
		}
		of, err := f.costs(ctx, step, tree)
		if err != nil {
			return err
		}
		progress("%-10s %.2f s, %d bytes of WAL", step, of.Seconds, of.WALBytes)
		all = append(all, of)
	}
	c.Data = all
	writeIndexed(c, all, s)
	return c.end()
}

// costs makes a backup.
func (f *fleetHost) costs(ctx context.Context, s step, tree string) (of indexed, err error) {
	conn, err := pgx.Connect(ctx, f.cluster.DSN())
	if err != nil {
		return of, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	// The first change of a page after a checkpoint writes the whole page to the log. This
	// checkpoint makes sure that it does so in each measurement.
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return of, err
	}
	before, err := look(ctx, conn)
	if err != nil {
		return of, err
	}
	packs, segments, err := f.objectBytes()
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
	of = indexed{Step: s, Seconds: seconds, WALBytes: after.wal - before.wal, Disk: after.disk - before.disk, Tables: map[string]grownTable{}}
	if of.Packs, of.Segments, err = f.objectBytes(); err != nil {
		return of, err
	}
	of.Packs, of.Segments = of.Packs-packs, of.Segments-segments
	for name, t := range after.tables {
		if t = t.less(before.tables[name]); t != (grownTable{}) {
			of.Tables[name] = t
		}
	}
	return of, nil
}

// objectBytes returns the lengths of all packs and of all segments.
func (f *fleetHost) objectBytes() (packs, segments int64, err error) {
	repo := filepath.Join(f.bucket, "repo")
	err = filepath.WalkDir(repo, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(repo, path)
		switch kind, _, _ := strings.Cut(filepath.ToSlash(name), "/"); kind {
		case "packs":
			packs += info.Size()
		case "segments":
			segments += info.Size()
		}
		return err
	})
	return packs, segments, err
}

// A looked is what Postgres has at a moment.
type looked struct {
	wal, disk int64
	tables    map[string]grownTable
}

func look(ctx context.Context, conn *pgx.Conn) (l looked, err error) {
	err = conn.QueryRow(ctx, "SELECT (pg_current_wal_lsn() - '0/0')::bigint, pg_database_size(current_database())").Scan(&l.wal, &l.disk)
	if err != nil {
		return l, err
	}
	rows, err := conn.Query(ctx, `SELECT coalesce(p.relname, c.relname), sum(pg_table_size(c.oid))::bigint, sum(pg_indexes_size(c.oid))::bigint
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
		WHERE n.nspname = 'public' AND c.relkind = 'r' GROUP BY 1`)
	if err != nil {
		return l, err
	}
	l.tables = map[string]grownTable{}
	var name string
	var t grownTable
	_, err = pgx.ForEachRow(rows, []any{&name, &t.Disk, &t.Indexes}, func() error {
		l.tables[name] = t
		return nil
	})
	if err != nil {
		return l, err
	}
	for name, t := range l.tables {
		count := "SELECT count(*), coalesce(sum(pg_column_size(t.*)), 0) FROM " + pgx.Identifier{name}.Sanitize() + " t"
		if err := conn.QueryRow(ctx, count).Scan(&t.Rows, &t.RowBytes); err != nil {
			return l, err
		}
		l.tables[name] = t
	}
	return l, nil
}

func writeIndexed(c *chapter, all []indexed, s shape) {
	c.say("%d files in %d directories, backed up by a fleet of one walker, one reader and one committer on this machine.", s.files, s.directories)
	files := float64(s.files)
	rows := [][]string{{"snapshot", "s", "files/s", "WAL bytes", "per file", "database grew by", "per file"}}
	tables := [][]string{{"snapshot", "table", "rows", "bytes per row", "table on disk", "per file", "indexes on disk", "per file"}}
	for _, of := range all[:2] {
		rows = append(rows, []string{
			of.Step.title(), fmt.Sprintf("%.2f", of.Seconds), fmt.Sprintf("%.0f", files/of.Seconds),
			fmt.Sprint(of.WALBytes), fmt.Sprintf("%.1f", float64(of.WALBytes)/files), fmt.Sprint(of.Disk), fmt.Sprintf("%.1f", float64(of.Disk)/files),
		})
		for _, name := range of.largestFirst() {
			t := of.Tables[name]
			aRow := "-"
			if t.Rows != 0 {
				aRow = fmt.Sprintf("%.0f", float64(t.RowBytes)/float64(t.Rows))
			}
			tables = append(tables, []string{
				of.Step.title(), name, fmt.Sprint(t.Rows), aRow, fmt.Sprint(t.Disk), fmt.Sprintf("%.1f", float64(t.Disk)/files),
				fmt.Sprint(t.Indexes), fmt.Sprintf("%.1f", float64(t.Indexes)/files),
			})
		}
	}
	c.table(rows)
	c.say("The growth of each table (\"on disk\" is in pages of 8 KiB, with their free space):")
	c.table(tables)
	c.atMost("First snapshot: bytes of the index per file", "%.0f", float64(all[0].Disk)/files, maxIndexBytesPerFile)
	var left int64
	for _, t := range all[1].Tables {
		left += t.RowBytes
	}
	c.atMost("Unchanged snapshot: bytes of rows in all", "%.0f", float64(left), maxUnchangedBytes)
	writeGrown(c, all[2:])
}

// writeGrown compares the growth of the store and the index with the packs, which have the changed
// content.
func writeGrown(c *chapter, all []indexed) {
	c.say("After %.0f%% of the files had changed, %d times:", 100*c.runner.o.churnShare, len(all))
	rows := [][]string{{"snapshot", "packs", "segments", "rows and indexes", "all, × the packs", "WAL bytes", "database grew by"}}
	var packs, grown int64
	for i := range all {
		of := &all[i]
		sum := of.Packs + of.Segments + of.rows()
		packs, grown = packs+of.Packs, grown+sum
		rows = append(rows, []string{
			fmt.Sprint(i + 1), fmt.Sprint(of.Packs), fmt.Sprint(of.Segments), fmt.Sprint(of.rows()), fmt.Sprintf("%.2f", float64(sum)/float64(of.Packs)),
			fmt.Sprint(of.WALBytes), fmt.Sprint(of.Disk),
		})
	}
	c.table(rows)
	c.atMost("Changed snapshots: packs, segments and index, × the packs", "%.2f", float64(grown)/float64(packs), maxGrown)
}

func (of *indexed) largestFirst() []string {
	return slices.SortedFunc(maps.Keys(of.Tables), func(a, b string) int {
		return cmp.Or(cmp.Compare(of.Tables[b].RowBytes, of.Tables[a].RowBytes), cmp.Compare(a, b))
	})
}
