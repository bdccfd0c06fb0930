//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite" // the index of one machine
)

// localSnapshots is how many backups after changes are measured: until patches have grown, and
// pages are stored whole again.
const localSnapshots = 14

// A localGrown is what one backup has added on one machine.
type localGrown struct {
	Packs    int64 `json:"packs_bytes"`
	Segments int64 `json:"segments_bytes"`
	Used     int64 `json:"index_used_bytes"` // of the index's file, without free pages
	File     int64 `json:"index_file_bytes"`
}

func (g localGrown) less(before localGrown) localGrown {
	return localGrown{g.Packs - before.Packs, g.Segments - before.Segments, g.Used - before.Used, g.File - before.File}
}

// ratio returns the bytes that a backup added to the store and the index, per byte of new packs.
// The packs have the changed content.
func (g localGrown) ratio() float64 {
	return float64(g.Packs+g.Segments+g.Used) / float64(g.Packs)
}

// measureLocalIndex backs a tree up on one machine, changes it at random, and looks at what each
// backup adds to the store and to the index. Copies of the index, of which the store has a few, are
// not counted: they replace each other.
func measureLocalIndex(ctx context.Context, r *runner) (err error) {
	tree := filepath.Join(r.work, "tree")
	s := r.o.shaped(presets["million20"].shape)
	progress("making %d files", s.files)
	if err := errors.Join(s.make(tree), pass(ctx)); err != nil {
		return err
	}
	bctl, ok := findBctl(r.o.tools)
	if !ok {
		return errNoBctl
	}
	c := r.chapter("index-local")
	b := r.bench(tree, nil)
	defer func() { err = errors.Join(err, b.close()) }()
	var all []localGrown
	var before localGrown
	for n := range 1 + localSnapshots {
		if n > 0 {
			if _, err := churn(tree, r.o.churnShare, r.o.seed+uint64(n)); err != nil {
				return err
			}
			if err := settle(r.work); err != nil {
				return err
			}
		}
		if _, err := b.takeSnapshot(ctx, bctl); err != nil {
			return err
		}
		now, err := lookLocal(ctx, b.places[bctl.name].repo)
		if err != nil {
			return err
		}
		all = append(all, now.less(before))
		before = now
		progress("snapshot %d: %+v", n+1, all[n])
	}
	c.Data = all
	writeLocal(c, all, s)
	return c.end()
}

func findBctl(wanted string) (*tool, bool) {
	found, _ := findTools(wanted)
	for _, t := range found {
		if t.name == "bctl" {
			return t, true
		}
	}
	return nil, false
}

// lookLocal returns what a repository on one machine has.
func lookLocal(ctx context.Context, repo string) (g localGrown, err error) {
	at := filepath.Join(repo, "store")
	err = filepath.WalkDir(at, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(at, path)
		switch kind, _, _ := strings.Cut(filepath.ToSlash(name), "/"); kind {
		case "packs":
			g.Packs += info.Size()
		case "segments":
			g.Segments += info.Size()
		}
		return err
	})
	if err != nil {
		return g, err
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(repo, "index.db")+"?mode=ro")
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var size, pages, free int64
	for pragma, to := range map[string]*int64{"page_size": &size, "page_count": &pages, "freelist_count": &free} {
		if err := db.QueryRowContext(ctx, "PRAGMA "+pragma).Scan(to); err != nil {
			return g, err
		}
	}
	g.Used, g.File = (pages-free)*size, pages*size
	return g, nil
}

func writeLocal(c *chapter, all []localGrown, s shape) {
	c.say("%d files in %d directories, backed up on one machine (SQLite). Then %d times: %.0f%% of the files, chosen at random, are rewritten, created or deleted, and backed up. The bytes that each backup added:",
		s.files, s.directories, len(all)-1, 100*c.runner.o.churnShare)
	rows := [][]string{{"backup", "packs", "segments", "index, used", "index, length of the file", "packs, segments and used index, × the packs"}}
	var sum localGrown
	worst := 0.0
	for n, g := range all {
		name := fmt.Sprintf("change %d", n)
		if n == 0 {
			name = "first"
		} else {
			sum = localGrown{sum.Packs + g.Packs, sum.Segments + g.Segments, sum.Used + g.Used, sum.File + g.File}
			worst = max(worst, g.ratio())
		}
		rows = append(rows, []string{name, fmt.Sprint(g.Packs), fmt.Sprint(g.Segments), fmt.Sprint(g.Used), fmt.Sprint(g.File), fmt.Sprintf("%.2f", g.ratio())})
	}
	rows = append(rows, []string{"all changes", fmt.Sprint(sum.Packs), fmt.Sprint(sum.Segments), fmt.Sprint(sum.Used), fmt.Sprint(sum.File), fmt.Sprintf("%.2f", sum.ratio())})
	c.table(rows)
	c.atMost("First backup after a change: packs, segments and index, × the packs", "%.2f", all[1].ratio(), maxGrown)
	c.atMost("All backups after changes, × the packs", "%.2f", sum.ratio(), maxGrown)
	c.atMost("The largest of them, × its packs", "%.2f", worst, maxGrown)
}
