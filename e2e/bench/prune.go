//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	prunedSnapshots = 100
	keptSnapshots   = 10
	pruneRounds     = 3
	besideRounds    = 5
	deletedAtOnce   = 1000 // objects of a request

	maxPruneSeconds = 15
	maxPruneMiB     = 256
	maxBesidePrune  = 1.1 // relative to a backup alone
	minOverlap      = 0.9 // of such a backup
)

// A pruned is what it took to free the space of the forgotten snapshots of one repository.
type pruned struct {
	Tool          string  `json:"tool"`
	Round         int     `json:"round"`
	ForgetSeconds float64 `json:"forget_seconds"`
	PruneSeconds  float64 `json:"prune_seconds"`
	CPUSeconds    float64 `json:"cpu_seconds"`
	PeakBytes     int64   `json:"peak_bytes"`
	Before        int64   `json:"before_bytes"`
	After         int64   `json:"after_bytes"`

	Result pruneResult `json:"result"` // of bctl
}

// A pruneResult is what bctl prune --json prints.
type pruneResult struct {
	DeletedPacks int64 `json:"deleted_packs"`
	ThinnedPacks int64 `json:"thinned_packs"`
	Packs        int64 `json:"packs"`
	Requests     struct {
		Delete      int64 `json:"delete"`
		DeletePacks int64 `json:"delete_packs"`
		List        int64 `json:"list"`
		Get         int64 `json:"get"`
		Put         int64 `json:"put"`
	} `json:"requests"`
}

// deletes is how many requests delete the packs: those that are deleted as a whole, and those that
// were thinned.
func (r *pruneResult) deletes() int64 {
	requests := func(objects int64) int64 { return (objects + deletedAtOnce - 1) / deletedAtOnce }
	return requests(r.DeletedPacks) + requests(r.ThinnedPacks)
}

// A pruner is a tool that forgets and prunes.
type pruner struct {
	*tool
	forget, prune func(p place) command
}

// pruners are the tools of this section. Their commands forget all snapshots but the last ones.
func pruners(all []*tool) (found []pruner) {
	keep := fmt.Sprint(keptSnapshots)
	for _, p := range []pruner{
		{&tool{name: "bctl"}, run("bctl", "forget", "--keep-last", keep), run("bctl", "prune", "--json")},
		{&tool{name: "restic"}, run("restic", "forget", "--group-by", "", "--keep-last", keep), run("restic", "prune", "--max-unused", "10%")},
	} {
		if i := slices.IndexFunc(all, func(t *tool) bool { return t.name == p.name }); i >= 0 {
			p.tool = all[i]
			found = append(found, p)
		}
	}
	return found
}

// measurePrune takes many snapshots of a tree that changes, forgets most of them, and frees their
// space. With -full, peers are left out: their backups alone would take hours.
func measurePrune(ctx context.Context, r *runner) (err error) {
	preset := "million20"
	if r.o.full {
		preset = "million"
	}
	s := r.o.shaped(presets[preset].shape)
	tree := filepath.Join(r.work, "tree")
	progress("making %d files", s.files)
	if err := errors.Join(s.make(tree), pass(ctx)); err != nil {
		return err
	}
	found, _ := findTools(r.o.tools)
	chosen := pruners(found)
	if len(chosen) == 0 || chosen[0].name != "bctl" {
		return errNoBctl
	}
	if r.o.full {
		chosen = chosen[:1]
	}
	c := r.chapter("prune")
	b := r.bench(tree, nil)
	defer func() { err = errors.Join(err, b.close()) }()
	if err := r.takeSnapshots(ctx, b, chosen); err != nil {
		return err
	}
	// The brake would stop what is measured here.
	p := b.places["bctl"]
	allow := run("bctl", "brake", "set", "--snapshots", "100%", "--bytes", "100%")
	if _, err := b.run(ctx, allow(*p), chosen[0].environment(*p)); err != nil {
		return err
	}
	var all []pruned
	for round := range pruneRounds {
		for i := range chosen {
			of, err := b.pruneCopy(ctx, chosen[(i+round)%len(chosen)])
			if err != nil {
				return err
			}
			of.Round = round
			all = append(all, of)
			progress("%-10s forget %.2f s, prune %.2f s (CPU %.2f s), %d MiB", of.Tool, of.ForgetSeconds, of.PruneSeconds, of.CPUSeconds, of.PeakBytes>>20)
		}
	}
	var beside []besidePrune
	if _, err := churn(tree, r.o.churnShare, r.o.seed+prunedSnapshots); err != nil {
		return err
	}
	for round := range besideRounds {
		of, err := b.besides(ctx, chosen[0], round) // a peer's lock refuses the backup
		if err != nil {
			return err
		}
		beside = append(beside, of)
		progress("backup %.2f s, beside %d prunes %.2f s (%.0f%% of it)", of.Alone, of.Prunes, of.Beside, 100*of.Overlap)
	}
	c.Data = map[string]any{"pruned": all, "beside": beside}
	writePruned(c, all, s)
	writeBeside(c, beside)
	return c.end()
}

// takeSnapshots makes prunedSnapshots backups of the tree with each tool, and changes the tree
// before each but the first.
func (r *runner) takeSnapshots(ctx context.Context, b *bench, tools []pruner) error {
	for n := range prunedSnapshots {
		if n > 0 {
			if _, err := churn(b.tree, r.o.churnShare, r.o.seed+uint64(n)); err != nil {
				return err
			}
		}
		for _, t := range tools {
			if _, err := b.takeSnapshot(ctx, t.tool); err != nil {
				return err
			}
		}
		progress("snapshot %d", n+1)
	}
	return nil
}

// takeSnapshot makes a backup with a tool at its place, which it makes first.
func (b *bench) takeSnapshot(ctx context.Context, t *tool) (sample, error) {
	p, err := b.placeFor(ctx, t, unchanged, 0)
	if err != nil {
		return sample{}, err
	}
	return b.backup(ctx, t, p)
}

func (b *bench) backup(ctx context.Context, t *tool, p *place) (sample, error) {
	c, err := p.next(t, unchanged)
	if err != nil {
		return sample{}, err
	}
	return b.run(ctx, c, t.environment(*p))
}

// pruneCopy forgets and prunes in a copy of a tool's repository.
func (b *bench) pruneCopy(ctx context.Context, t pruner) (of pruned, err error) {
	of.Tool = t.name
	p, err := b.copyOf(ctx, t.tool)
	defer func() { err = errors.Join(err, removeCopy(p)) }()
	if err != nil {
		return of, err
	}
	m, err := b.run(ctx, t.forget(*p), t.environment(*p))
	if err != nil {
		return of, err
	}
	of.ForgetSeconds = m.WallSeconds
	if of.Before, err = diskBytes(p.repo); err != nil {
		return of, err
	}
	if err := settle(b.work); err != nil {
		return of, err
	}
	output, err := os.Create(filepath.Join(b.work, "prune.json"))
	if err != nil {
		return of, err
	}
	defer output.Close()
	c := t.prune(*p)
	c.stdout = output
	if m, err = b.run(ctx, c, t.environment(*p)); err != nil {
		return of, err
	}
	of.PruneSeconds, of.CPUSeconds, of.PeakBytes = m.WallSeconds, m.UserSeconds+m.SystemSeconds, m.PeakBytes
	if of.After, err = diskBytes(p.repo); err != nil || t.name != "bctl" {
		return of, err
	}
	data, err := os.ReadFile(output.Name())
	if err != nil {
		return of, err
	}
	return of, json.Unmarshal(data, &of.Result)
}

func writePruned(c *chapter, all []pruned, s shape) {
	c.say("%d files, %d snapshots; %.0f%% of the files change between two snapshots. The last %d snapshots are kept. Repositories in a directory; medians of %d rounds.",
		s.files, prunedSnapshots, 100*c.runner.o.churnShare, keptSnapshots, pruneRounds)
	rows := [][]string{{"tool", "forget, s", "prune, s", "CPU, s", "peak MiB", "before, MB", "after, MB"}}
	var names []string
	for i := range all {
		if !slices.Contains(names, all[i].Tool) {
			names = append(names, all[i].Tool)
		}
	}
	for _, name := range names {
		row := []string{name}
		for _, column := range []struct {
			format string
			figure func(p *pruned) float64
		}{
			{"%.2f", func(p *pruned) float64 { return p.ForgetSeconds }},
			{"%.2f", func(p *pruned) float64 { return p.PruneSeconds }},
			{"%.2f", func(p *pruned) float64 { return p.CPUSeconds }},
			{"%.0f", func(p *pruned) float64 { return float64(p.PeakBytes >> 20) }},
			{"%.0f", func(p *pruned) float64 { return float64(p.Before) / 1e6 }},
			{"%.0f", func(p *pruned) float64 { return float64(p.After) / 1e6 }},
		} {
			row = append(row, fmt.Sprintf(column.format, medianOf(all, name, column.figure)))
		}
		rows = append(rows, row)
	}
	c.table(rows)
	c.atMost("Prune, seconds", "%.1f", medianOf(all, "bctl", func(p *pruned) float64 { return p.PruneSeconds }), maxPruneSeconds)
	c.atMost("Prune, CPU seconds", "%.1f", medianOf(all, "bctl", func(p *pruned) float64 { return p.CPUSeconds }), maxPruneSeconds)
	c.atMost("Prune, peak MiB", "%.0f", medianOf(all, "bctl", func(p *pruned) float64 { return float64(p.PeakBytes >> 20) }), maxPruneMiB)
	writeRequests(c, &all[slices.IndexFunc(all, func(p pruned) bool { return p.Tool == "bctl" })].Result)
}

// medianOf returns the median of a figure of a tool.
func medianOf(all []pruned, tool string, figure func(p *pruned) float64) float64 {
	var values []float64
	for i := range all {
		if all[i].Tool == tool {
			values = append(values, figure(&all[i]))
		}
	}
	return median(values)
}

// writeRequests shows the requests of bctl to the store. They are the same in all rounds.
func writeRequests(c *chapter, r *pruneResult) {
	c.say("bctl deleted %d packs as a whole, and replaced %d others by copies of their needed parts; %d remain. Its requests to the store:", r.DeletedPacks, r.ThinnedPacks, r.Packs)
	c.table([][]string{
		{"request", "number"},
		{"delete packs", fmt.Sprint(r.Requests.DeletePacks)},
		{"delete others (segments, commit records, catalogs)", fmt.Sprint(r.Requests.Delete - r.Requests.DeletePacks)},
		{"list", fmt.Sprint(r.Requests.List)},
		{"get", fmt.Sprint(r.Requests.Get)},
		{"put", fmt.Sprint(r.Requests.Put)},
	})
	c.atMost("Requests that list", "%.0f", float64(r.Requests.List), 0)
	c.atMost("Requests that delete packs", "%.0f", float64(r.Requests.DeletePacks), float64(r.deletes()))
}

func writeBeside(c *chapter, all []besidePrune) {
	c.say("A backup of 1%% changed files alone, and the same backup while prunes run one after the other. The first of these frees the space:")
	rows := [][]string{{"round", "backup, s", "with prunes, s", "ratio", "prunes that ended meanwhile", "share of the backup with a prune"}}
	var ratios, overlaps []float64
	for i := range all {
		of := &all[i]
		ratios, overlaps = append(ratios, of.Beside/of.Alone), append(overlaps, of.Overlap)
		rows = append(rows, []string{
			fmt.Sprint(i + 1), fmt.Sprintf("%.2f", of.Alone), fmt.Sprintf("%.2f", of.Beside), fmt.Sprintf("%.2f", of.Beside/of.Alone), fmt.Sprint(of.Prunes),
			fmt.Sprintf("%.2f", of.Overlap),
		})
	}
	c.table(rows)
	c.atMost("A backup with prunes, relative to one alone", "%.2f", median(ratios), maxBesidePrune)
	least := slices.Min(overlaps)
	c.must(least >= minOverlap, "Share of the backup during which a prune ran, at least", fmt.Sprintf("%.2f", least), fmt.Sprintf("≥ %.2f", minOverlap))
}
