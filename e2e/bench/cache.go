//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A cached is what was in the page cache after a tool's backup.
type cached struct {
	Tool             string  `json:"tool"`
	WallSeconds      float64 `json:"wall_seconds"`
	HotBytes         int64   `json:"hot_bytes"`         // still resident, of the file that was
	ColdBytes        int64   `json:"cold_bytes"`        // resident, of files that were not
	AfterUnchanged   int64   `json:"after_unchanged"`   // the same after a backup of the unchanged tree
	ThroughputMBytes float64 `json:"throughput_mbytes"` // a second
}

const (
	cacheHotName = "hot"
	// maxColdShare is the maximum share of the data that the backup has read that may stay in the
	// page cache: readahead that was not finished.
	maxColdShare = 0.01
	minHotShare  = 0.99
)

// measureCache measures what a first backup changes in the page cache. Before it, the page cache
// has no pages of the tree except those of one large file.
func measureCache(ctx context.Context, r *runner) (err error) {
	if !onPath("fincore") {
		progress("fincore is not installed: left out")
		return nil
	}
	tree, fileBytes, hotBytes := filepath.Join(r.work, "tree"), int64(50e6), int64(100e6)
	if r.o.full {
		fileBytes, hotBytes = 500e6, 1e9
	}
	s := shape{files: 8, directories: 2, bytes: 8 * fileBytes, textShare: textShare, seed: r.o.seed}
	hot := shape{files: 1, directories: 1, bytes: hotBytes, textShare: 1, seed: r.o.seed}
	if err := errors.Join(s.make(tree), hot.make(filepath.Join(tree, cacheHotName)), settle(r.work), pass(ctx)); err != nil {
		return err
	}
	c := r.chapter("cache")
	found, _ := findTools(r.o.tools)
	b := r.bench(tree, found)
	defer func() { err = errors.Join(err, b.close()) }()
	var all []cached
	for _, t := range found {
		if t.backup == nil || t.only != "" && t.name != "floor store" {
			continue
		}
		of, err := b.cached(ctx, t)
		if err != nil && (t.ours || ctx.Err() != nil) {
			return err
		}
		if err != nil {
			progress("%v: %s is left out", err, t.name)
			continue
		}
		of.ThroughputMBytes = float64(s.bytes+hot.bytes) / 1e6 / of.WallSeconds
		all = append(all, of)
		progress("%-12s %.2f s, %d MiB cold left, %d MiB hot left", t.name, of.WallSeconds, of.ColdBytes>>20, of.HotBytes>>20)
	}
	c.Data = all
	writeCached(c, all, s.bytes, hot.bytes)
	return c.end()
}

// cached measures one tool.
func (b *bench) cached(ctx context.Context, t *tool) (of cached, err error) {
	of.Tool = t.name
	p, err := b.placeFor(ctx, t, first, 0)
	if err != nil {
		return of, err
	}
	p.serial++
	if err := chill(b.tree); err != nil {
		return of, err
	}
	m, err := b.beside(ctx, p.host, t.backup(*p), t.environment(*p))
	if err != nil {
		return of, err
	}
	of.WallSeconds = m.WallSeconds
	if of.HotBytes, of.ColdBytes, err = resident(ctx, b.tree); err != nil || t.reference {
		return of, err
	}
	if err := chill(b.tree); err != nil {
		return of, err
	}
	p.serial++
	if _, err := b.beside(ctx, p.host, t.backup(*p), t.environment(*p)); err != nil {
		return of, err
	}
	_, of.AfterUnchanged, err = resident(ctx, b.tree)
	return of, err
}

// chill drops all files of a tree from the page cache, and reads those in the hot directory.
func chill(tree string) error {
	return filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if filepath.Base(filepath.Dir(path)) != cacheHotName {
			return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
		buffer := make([]byte, 1<<20)
		for {
			if n, _ := f.Read(buffer); n == 0 {
				return nil
			}
		}
	})
}

// resident asks fincore how much of a tree is in the page cache: of the hot directory, and of the
// rest.
func resident(ctx context.Context, tree string) (hot, cold int64, err error) {
	err = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		out, err := exec.CommandContext(ctx, "fincore", "--bytes", "--noheadings", "--raw", "--output", "RES", path).Output()
		if err != nil {
			return fmt.Errorf("fincore: %w", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		if filepath.Base(filepath.Dir(path)) == cacheHotName {
			hot += n
		} else {
			cold += n
		}
		return err
	})
	return hot, cold, err
}

func writeCached(c *chapter, all []cached, coldBytes, hotBytes int64) {
	c.say("8 files of %d MB that are not in the page cache, and one of %d MB that is. The table has the parts that are in the page cache after a first backup. The last column has those of the cold files after a backup of the unchanged tree (`fincore`):",
		coldBytes/8e6, hotBytes/1e6)
	rows := [][]string{{"tool", "wall s", "MB/s", "hot file, MiB", "cold files, MiB", "after unchanged, MiB"}}
	var ours, limit cached
	for _, of := range all {
		rows = append(rows, []string{
			of.Tool, fmt.Sprintf("%.2f", of.WallSeconds), fmt.Sprintf("%.0f", of.ThroughputMBytes), mebibytes(of.HotBytes), mebibytes(of.ColdBytes), mebibytes(of.AfterUnchanged),
		})
		switch of.Tool {
		case "bctl":
			ours = of
		case "floor store":
			limit = of
		}
	}
	c.table(rows)
	if ours.Tool == "" {
		return
	}
	share := float64(ours.HotBytes) / float64(hotBytes)
	c.must(share >= minHotShare, "Hot pages that stay", fmt.Sprintf("%.3f", share), fmt.Sprintf("≥ %.2f", minHotShare))
	c.atMost("Cold pages that are left, share", "%.3f", float64(ours.ColdBytes)/float64(coldBytes), maxColdShare)
	if limit.Tool != "" {
		c.atMost("First backup from a cold cache, relative to floor store", "%.2f", ours.WallSeconds/limit.WallSeconds, 1.3)
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }
