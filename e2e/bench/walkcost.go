//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/dustin/go-humanize/english"

	"github.com/bctl/bctl/e2e/bench/plot"
)

// A walked has the measurements of a walk of an unchanged tree.
type walked struct {
	What    string  `json:"what"`
	Files   int     `json:"files"`
	Entries int     `json:"entries"`
	Walkers int     `json:"walkers"` // of a fleet; 0: one process
	Cold    bool    `json:"cold"`
	Wall    float64 `json:"wall_seconds"`
	User    float64 `json:"user_seconds"`
	System  float64 `json:"system_seconds"`
}

func (w *walked) micros() float64 { return (w.User + w.System) / float64(w.Entries) * 1e6 }

const (
	walkFanOut = 128
	// maxWalkDrift bounds the drift of the CPU time per entry over all sizes.
	maxWalkDrift = 0.1
	warmRounds   = 3
)

// measureWalk grows a tree of 128³ directories on an XFS of its own, and measures the walk at
// several sizes of the tree.
func measureWalk(ctx context.Context, r *runner) (err error) {
	sizes, gigabytes := []int{50_000, 100_000, 200_000}, int64(6)
	if r.o.files > 0 {
		sizes = []int{max(r.o.files/2, 1), r.o.files}
	} else if r.o.full {
		sizes, gigabytes = []int{100_000, 250_000, 500_000, 1_000_000, 2_000_000}, 40
	}
	m, err := mountNew(filepath.Join(r.work, "xfs"), gigabytes, []string{"mkfs.xfs", "-q"}, "noatime")
	if err != nil {
		progress("the walk is not measured, because an XFS cannot be mounted: %v", err)
		return nil
	}
	defer func() { err = errors.Join(err, m.close()) }()
	c := r.chapter("walk")
	b := r.bench(filepath.Join(m.dir, "tree"), nil)
	b.work = r.work
	g := &grown{root: b.tree}
	var all []walked
	for _, n := range sizes {
		progress("growing the tree to %d files", n)
		if err := errors.Join(g.growTo(n), pass(ctx)); err != nil {
			return err
		}
		of, err := b.walks(ctx, g)
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	fleet, err := b.walkers(ctx, g)
	if err != nil {
		return err
	}
	c.Data = slices.Concat(all, fleet)
	writeWalks(c, all, fleet)
	return c.end()
}

// A grown is a tree that grows. It has three levels of directories: file i is in the directory
// (i mod 128)/(i / 128 mod 128)/(i / 128² mod 128).
type grown struct {
	root               string
	files, directories int
}

func (g *grown) growTo(files int) error {
	if g.files == 0 {
		g.directories = 1
		if err := os.Mkdir(g.root, 0o755); err != nil {
			return err
		}
	}
	for ; g.files < files; g.files++ {
		i := g.files
		levels := []int{i % walkFanOut, i / walkFanOut % walkFanOut, i / walkFanOut / walkFanOut % walkFanOut}
		path, firstOf := g.root, 1
		for _, n := range levels {
			path = filepath.Join(path, fmt.Sprintf("%03d", n))
			firstOf *= walkFanOut
			if i >= firstOf {
				continue // an earlier file needed it, too
			}
			if err := os.Mkdir(path, 0o755); err != nil {
				return err
			}
			g.directories++
		}
		if err := os.WriteFile(filepath.Join(path, fmt.Sprintf("file-%07d", i)), fmt.Appendf(nil, "content of %d", i), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (g *grown) entries() int { return g.files + g.directories }

// walks measures bctl, the floor and find on the present tree: with warm caches, and with cold ones
// if this process may empty the caches.
func (b *bench) walks(ctx context.Context, g *grown) (all []walked, err error) {
	var found []*tool
	for _, t := range tools() {
		if t.name == "bctl" || t.name == "find" || t.name == "floor walk" {
			found = append(found, t)
		}
	}
	p, err := b.placeFor(ctx, found[0], unchanged, 0)
	if err != nil {
		return nil, err
	}
	if _, err := b.run(ctx, found[0].backup(*p), found[0].environment(*p)); err != nil { // stores the new files
		return nil, err
	}
	for _, cold := range []bool{false, true} {
		for _, t := range found {
			tp, err := b.placeFor(ctx, t, unchanged, 0)
			if err != nil {
				return nil, err
			}
			w, err := b.walkOnce(ctx, t, tp, cold)
			if cold && notAllowed(err) {
				progress("caches cannot be emptied: %v: only warm ones are measured", err)
				return all, nil
			}
			if err != nil {
				return nil, err
			}
			w.What, w.Files, w.Entries, w.Cold = t.name, g.files, g.entries(), cold
			progress("%-10s %8d files %6.2f s, %.2f µs of CPU per entry, cold: %v", t.name, g.files, w.Wall, w.micros(), cold)
			all = append(all, w)
		}
	}
	return all, nil
}

// walkOnce returns the medians of several runs with warm caches, or the values of one run with cold
// caches.
func (b *bench) walkOnce(ctx context.Context, t *tool, p *place, cold bool) (w walked, err error) {
	rounds := warmRounds
	if cold {
		rounds = 1
	}
	var wall, user, system []float64
	for range rounds {
		if cold {
			if err := errors.Join(settle(b.tree), dropCaches()); err != nil {
				return w, err
			}
		}
		m, err := b.beside(ctx, p.host, t.backup(*p), t.environment(*p))
		if err != nil {
			return w, err
		}
		wall, user, system = append(wall, m.WallSeconds), append(user, m.UserSeconds), append(system, m.SystemSeconds)
	}
	w.Wall, w.User, w.System = median(wall), median(user), median(system)
	return w, nil
}

// walkers measures the CPU time of 1, 2, 4 and 8 walkers of a fleet.
func (b *bench) walkers(ctx context.Context, g *grown) (all []walked, err error) {
	f, err := startFleet(ctx, filepath.Join(b.work, "fleet"), b.tree, oneOfEach)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	backup := command{args: []string{"bctl", "backup", "--filer", theFiler, "--shard", b.tree}}
	if _, err := b.run(ctx, backup, f.commandEnv()); err != nil {
		return nil, err
	}
	for have, want := 1, 1; want <= 8; have, want = want, 2*want {
		if err := f.startServices(fleetShape{walkers: want - have}, nil); err != nil {
			return nil, err
		}
		w := walked{What: english.Plural(want, "walker", ""), Walkers: want, Files: g.files, Entries: g.entries()}
		var user, system, wall []float64
		for range warmRounds {
			userBefore, systemBefore := f.serviceCPU("walker")
			m, err := b.run(ctx, backup, f.commandEnv())
			if err != nil {
				return nil, err
			}
			userAfter, systemAfter := f.serviceCPU("walker")
			wall, user, system = append(wall, m.WallSeconds), append(user, userAfter-userBefore), append(system, systemAfter-systemBefore)
		}
		w.Wall, w.User, w.System = median(wall), median(user), median(system)
		progress("%-10s %8d files %6.2f s, %.2f µs of CPU per entry", w.What, w.Files, w.Wall, w.micros())
		all = append(all, w)
	}
	return all, nil
}

func writeWalks(c *chapter, all, fleet []walked) {
	c.say("The tree is on an XFS in a file, mounted with noatime. Each file is in a directory of its own, below three levels of 128 directories. The backups are of the unchanged tree. Values with warm caches are medians of %d runs. The CPU time of a fleet is that of its walkers alone.", warmRounds)
	rows := [][]string{{"", "files", "entries", "cache", "wall s", "user s", "system s", "CPU µs per entry"}}
	lines := map[string]*plot.Series{}
	var series []plot.Series
	var ours, replicas []float64
	for _, w := range slices.Concat(all, fleet) {
		cache := map[bool]string{false: "warm", true: "cold"}[w.Cold]
		rows = append(rows, []string{
			w.What, fmt.Sprint(w.Files), fmt.Sprint(w.Entries), cache, fmt.Sprintf("%.2f", w.Wall), fmt.Sprintf("%.2f", w.User), fmt.Sprintf("%.2f", w.System), fmt.Sprintf("%.2f", w.micros()),
		})
		if w.Walkers > 0 {
			replicas = append(replicas, w.micros())
			continue
		}
		if w.What == "bctl" && !w.Cold {
			ours = append(ours, w.micros())
		}
		name := w.What + ", " + cache
		if lines[name] == nil {
			lines[name] = &plot.Series{Label: name}
		}
		lines[name].Points = append(lines[name].Points, plot.Point{X: float64(w.Files), Y: w.micros()})
	}
	for _, name := range []string{"bctl, warm", "bctl, cold", "find, warm", "find, cold", "floor walk, warm", "floor walk, cold"} {
		if lines[name] != nil {
			series = append(series, *lines[name])
		}
	}
	c.table(rows)
	c.plot("walk", "CPU time per entry, by number of files", plot.Lines("CPU time of a walk", "files", "µs per entry", series))
	c.atMost("CPU time per entry, largest deviation from the middle of the range, over sizes", "%.2f", drift(ours), maxWalkDrift)
	c.atMost("CPU time per entry, largest deviation from the middle of the range, over 1, 2, 4, 8 walkers", "%.2f", drift(replicas), maxWalkDrift)
}

// drift returns the largest distance of the values from the middle of their range, as a share of
// the middle.
func drift(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	low, high := minMax(values)
	return (high - low) / (high + low)
}
