//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/bctl/bctl/e2e/bench/plot"
)

// A peaked has the peak memory of each process of one run.
type peaked struct {
	Tree  string           `json:"tree"`
	Files int              `json:"files"`
	Step  step             `json:"step"`
	Peaks map[string]int64 `json:"peaks"` // bytes, by process
}

// A sized is a tree of a certain size.
type sized struct {
	name  string
	files int
	make  func(root string) error
}

// maxGrowth bounds the memory of a service for the largest tree, as a multiple of its memory for
// the second largest.
const maxGrowth = 1.25

// sizedTrees returns trees of increasing sizes (curve), and trees that are extreme in one respect
// (special).
func sizedTrees(o *options) (curve, special []sized) {
	files := []int{10_000, 100_000, 300_000}
	hugeDirectory, empty, sparse := 200_000, 500_000, int64(20e9)
	if o.files > 0 {
		files, hugeDirectory, empty, sparse = []int{max(o.files/10, 1), o.files}, o.files, o.files, 1e9
	} else if o.full {
		files = []int{10_000, 100_000, 1_000_000}
		hugeDirectory, empty, sparse = 1_000_000, 5_000_000, 200e9
	}
	for _, n := range files {
		s := shape{files: n, directories: max(n/100, 1), bytes: int64(n) * 1000, seed: 1, textShare: textShare}
		curve = append(curve, sized{name: "1 kB each", files: n, make: s.make})
	}
	return curve, []sized{
		{name: "one directory", files: hugeDirectory, make: shape{files: hugeDirectory, directories: 1, seed: 1}.make},
		{name: "empty files", files: empty, make: shape{files: empty, directories: max(empty/1000, 1), seed: 1}.make},
		{name: fmt.Sprintf("one sparse file of %d GB", sparse/1e9), files: 1, make: func(root string) error { return makeSparse(root, sparse) }},
	}
}

// makeSparse makes a file with little data at its ends and in its middle.
func makeSparse(root string, size int64) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(root, "sparse"))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, at := range []int64{0, size / 2, size - 4096} {
		if _, err := f.WriteAt([]byte("here is data"), at); err != nil {
			return err
		}
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// measureMemory measures the peak of resident memory of bctl in one process, and of each service of
// a fleet.
func measureMemory(ctx context.Context, r *runner) error {
	c := r.chapter("memory")
	curve, special := sizedTrees(r.o)
	var all []peaked
	for i, t := range append(curve, special...) {
		progress("making %d files: %s", t.files, t.name)
		dir := filepath.Join(r.work, fmt.Sprint(i))
		b := r.bench(filepath.Join(dir, "tree"), nil)
		if err := errors.Join(os.Mkdir(dir, 0o755), t.make(b.tree), pass(ctx)); err != nil {
			return err
		}
		of, err := b.peaked(ctx, t)
		if err := errors.Join(err, b.close()); err != nil {
			return err
		}
		all = append(all, of...)
	}
	c.Data = all
	writePeaked(c, all, len(curve))
	return c.end()
}

// peaked measures a first and an unchanged backup in one process and as a fleet.
func (b *bench) peaked(ctx context.Context, t sized) ([]peaked, error) {
	peaks := map[step]map[string]int64{first: {}, unchanged: {}}
	for _, tool := range tools()[:2] {
		p, err := b.placeFor(ctx, tool, first, 0)
		if err != nil {
			return nil, err
		}
		for _, s := range []step{first, unchanged} {
			m, err := b.beside(ctx, p.host, tool.backup(*p), tool.environment(*p))
			if err != nil {
				return nil, err
			}
			if p.host == nil {
				peaks[s]["one process"] = m.PeakBytes
			}
			maps.Copy(peaks[s], m.Services)
			progress("%-10s %-10s %d MiB", tool.name, s, m.PeakBytes>>20)
		}
	}
	return []peaked{{t.name, t.files, first, peaks[first]}, {t.name, t.files, unchanged, peaks[unchanged]}}, nil
}

func writePeaked(c *chapter, all []peaked, curve int) {
	var names []string
	for _, of := range all {
		for name := range of.Peaks {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	rows := [][]string{append([]string{"tree", "files", "snapshot"}, names...)}
	worst := map[string]float64{}
	for _, of := range all {
		row := []string{of.Tree, fmt.Sprint(of.Files), of.Step.title()}
		for _, name := range names {
			row = append(row, fmt.Sprint(of.Peaks[name]>>20))
			worst[name] = max(worst[name], float64(of.Peaks[name]>>20))
		}
		rows = append(rows, row)
	}
	c.say("Peak of resident memory, MiB: of bctl in one process, and of each service of a fleet.")
	c.table(rows)
	var series []plot.Series
	for _, name := range names {
		line := plot.Series{Label: name}
		for _, of := range all[:2*curve] {
			if of.Step == first {
				line.Points = append(line.Points, plot.Point{X: float64(of.Files), Y: float64(of.Peaks[name] >> 20)})
			}
		}
		series = append(series, line)
		most := float64(maxServiceMiB)
		if name == "one process" {
			most = maxPeakMiB
		}
		c.atMost(name+": peak, MiB", "%.0f", worst[name], most)
		if n := len(line.Points); n > 1 && line.Points[n-2].Y > 0 {
			c.atMost(fmt.Sprintf("%s: peak of %.0f files × that of %.0f", name, line.Points[n-1].X, line.Points[n-2].X), "%.2f", line.Points[n-1].Y/line.Points[n-2].Y, maxGrowth)
		}
	}
	c.plot("memory", "peak memory by number of files", plot.Lines("Peak memory of a first backup, by files in the tree", "files", "MiB", series))
}
