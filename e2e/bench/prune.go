//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	prunedSnapshots = 100
	keptSnapshots   = 10
	pruneRounds     = 3

	maxPruneSeconds = 15
	maxPruneMiB     = 256
	maxBesidePrune  = 1.1 // × a backup with nothing beside it
)

// A pruned is what it took to free the space of the forgotten snapshots of one repository.
type pruned struct {
	Tool          string  `json:"tool"`
	Round         int     `json:"round"`
	ForgetSeconds float64 `json:"forget_seconds"`
	PruneSeconds  float64 `json:"prune_seconds"`
	PeakBytes     int64   `json:"peak_bytes"`
	Before        int64   `json:"before_bytes"`
	After         int64   `json:"after_bytes"`
	Alone         float64 `json:"backup_seconds,omitempty"`        // of a backup of 1% of the files
	Beside        float64 `json:"backup_beside_seconds,omitempty"` // of the same backup while the space is freed
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
		{&tool{name: "bctl"}, run("bctl", "forget", "--keep-last", keep), run("bctl", "prune")},
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
	for n := range prunedSnapshots {
		if n > 0 {
			if _, err := churn(tree, r.o.churnShare, r.o.seed+uint64(n)); err != nil {
				return err
			}
		}
		for _, t := range chosen {
			if _, err := b.takeSnapshot(ctx, t.tool); err != nil {
				return err
			}
		}
		progress("snapshot %d", n+1)
	}
	// One repository is pruned alone, and one beside a backup: copies of the same.
	var all []pruned
	for round := range pruneRounds {
		for i := range chosen {
			of, err := b.pruneCopies(ctx, chosen[(i+round)%len(chosen)], func() error {
				_, err := churn(tree, r.o.churnShare, r.o.seed+uint64(prunedSnapshots+round))
				return errors.Join(err, settle(r.work))
			})
			if err != nil {
				return err
			}
			of.Round = round
			all = append(all, of)
			progress("%-10s forget %.2f s, prune %.2f s, %d MiB; backup %.2f s, beside it %.2f s", of.Tool, of.ForgetSeconds, of.PruneSeconds, of.PeakBytes>>20, of.Alone, of.Beside)
		}
	}
	c.Data = all
	writePruned(c, all, s)
	return c.end()
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

// pruneCopies forgets and prunes in two copies of a tool's repository: in one alone, and in the
// other while a backup runs.
func (b *bench) pruneCopies(ctx context.Context, t pruner, changes func() error) (of pruned, err error) {
	of.Tool = t.name
	copies := make([]*place, 3)
	defer func() {
		for _, p := range copies {
			if p != nil {
				err = errors.Join(err, os.RemoveAll(p.repo))
			}
		}
	}()
	for i := range copies {
		p := *b.places[t.name]
		p.repo = fmt.Sprintf("%s-copy-%d", p.repo, i)
		copies[i] = &p
		if err := exec.CommandContext(ctx, "cp", "-a", b.places[t.name].repo, p.repo).Run(); err != nil {
			return of, fmt.Errorf("copy %s: %w", b.places[t.name].repo, err)
		}
	}
	alone, beside, untouched := copies[0], copies[1], copies[2]
	for _, p := range []*place{alone, beside} {
		m, err := b.run(ctx, t.forget(*p), t.environment(*p))
		if err != nil {
			return of, err
		}
		of.ForgetSeconds = m.WallSeconds
	}
	if of.Before, err = diskBytes(alone.repo); err != nil {
		return of, err
	}
	if err := settle(b.work); err != nil {
		return of, err
	}
	m, err := b.run(ctx, t.prune(*alone), t.environment(*alone))
	if err != nil {
		return of, err
	}
	of.PruneSeconds, of.PeakBytes = m.WallSeconds, m.PeakBytes
	if of.After, err = diskBytes(alone.repo); err != nil {
		return of, err
	}
	if t.name != "bctl" { // a peer's lock refuses the backup
		return of, nil
	}
	if err := changes(); err != nil {
		return of, err
	}
	if m, err = b.backup(ctx, t.tool, untouched); err != nil {
		return of, err
	}
	of.Alone = m.WallSeconds
	m, err = b.backupBeside(ctx, t, beside)
	of.Beside = m.WallSeconds
	return of, err
}

// backupBeside measures a backup while a prune runs.
func (b *bench) backupBeside(ctx context.Context, t pruner, p *place) (m sample, err error) {
	var both errgroup.Group
	both.Go(func() error {
		_, err := b.run(ctx, t.prune(*p), t.environment(*p))
		return err
	})
	both.Go(func() (err error) {
		if err := passFor(ctx, 200*time.Millisecond); err != nil { // the prune has begun
			return err
		}
		m, err = b.backup(ctx, t.tool, p)
		return err
	})
	err = both.Wait()
	return m, err
}

func writePruned(c *chapter, all []pruned, s shape) {
	c.say("%d files, %d snapshots with %.0f%% of the files changed between two, of which the last %d are kept. Repositories in a directory; medians of %d rounds.",
		s.files, prunedSnapshots, 100*c.runner.o.churnShare, keptSnapshots, pruneRounds)
	rows := [][]string{{"tool", "forget, s", "prune, s", "peak MiB", "before, MB", "after, MB", "backup, s", "backup beside it, s"}}
	of := func(tool string, figure func(p *pruned) float64) float64 {
		var values []float64
		for i := range all {
			if all[i].Tool == tool {
				values = append(values, figure(&all[i]))
			}
		}
		return median(values)
	}
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
			{"%.0f", func(p *pruned) float64 { return float64(p.PeakBytes >> 20) }},
			{"%.0f", func(p *pruned) float64 { return float64(p.Before) / 1e6 }},
			{"%.0f", func(p *pruned) float64 { return float64(p.After) / 1e6 }},
			{"%.2f", func(p *pruned) float64 { return p.Alone }},
			{"%.2f", func(p *pruned) float64 { return p.Beside }},
		} {
			text := "-"
			if v := of(name, column.figure); v > 0 {
				text = fmt.Sprintf(column.format, v)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	c.table(rows)
	c.atMost("Prune, seconds", "%.1f", of("bctl", func(p *pruned) float64 { return p.PruneSeconds }), maxPruneSeconds)
	c.atMost("Prune, peak MiB", "%.0f", of("bctl", func(p *pruned) float64 { return float64(p.PeakBytes >> 20) }), maxPruneMiB)
	c.atMost("A backup beside a prune, × one alone", "%.2f", of("bctl", func(p *pruned) float64 { return p.Beside / p.Alone }), maxBesidePrune)
}
