//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	proofSnapshots = 30
	proofRounds    = 3

	maxRebuildSeconds = 60
	maxRebuildMiB     = 512
	maxCheckSeconds   = 10
	minContentSpeed   = 0.8 // of reading, decrypting, decompressing and hashing the packs alone
)

// A proof is one way to read a repository: from its journal, its index or its packs.
type proof struct {
	name string
	run  func(p place) command
	of   []sample
}

// proofs are the commands of this section.
func proofs() []*proof {
	return []*proof{
		{name: "index rebuild --without-copy", run: run("bctl", "index", "rebuild", "--without-copy", "--index", "$TARGET")},
		{name: "index rebuild", run: run("bctl", "index", "rebuild", "--index", "$TARGET")},
		{name: "check --level index", run: run("bctl", "check", "--level", "index")},
		{name: "check", run: run("bctl", "check")},
		{name: "check --level tables", run: run("bctl", "check", "--level", "tables")},
		{name: "check --read-data", run: run("bctl", "check", "--read-data", "--restart")},
		{name: "floor: packs read, decrypted, decompressed", run: run("$BENCH", "-floor", "packs", "$REPO")},
		{name: "floor: chunks hashed, too", run: run("$BENCH", "-floor", "content", "$REPO")},
	}
}

// measureProof takes snapshots of a tree that changes, rebuilds their index, and checks them.
func measureProof(ctx context.Context, r *runner) (err error) {
	preset, rounds := "million20", proofRounds
	if r.o.full {
		preset, rounds = "million", 1
	}
	s := r.o.shaped(presets[preset].shape)
	tree := filepath.Join(r.work, "tree")
	progress("making %d files", s.files)
	if err := errors.Join(s.make(tree), pass(ctx)); err != nil {
		return err
	}
	bctl, ok := findBctl(r.o.tools)
	if !ok {
		return errNoBctl
	}
	c := r.chapter("proof")
	b := r.bench(tree, nil)
	defer func() { err = errors.Join(err, b.close()) }()
	for n := range proofSnapshots {
		if n > 0 {
			if _, err := churn(tree, r.o.churnShare, r.o.seed+uint64(n)); err != nil {
				return err
			}
		}
		if _, err := b.takeSnapshot(ctx, bctl); err != nil {
			return err
		}
		progress("snapshot %d", n+1)
	}
	all := proofs()
	for range rounds {
		for _, p := range all {
			m, err := b.prove(ctx, bctl, p)
			if err != nil {
				return err
			}
			p.of = append(p.of, m)
			progress("%-32s %.2f s (CPU %.2f s), %d MiB", p.name, m.WallSeconds, m.cpuSeconds(), m.PeakBytes>>20)
		}
	}
	size, err := diskBytes(filepath.Join(b.places[bctl.name].repo, "store", "packs"))
	if err != nil {
		return err
	}
	writeProofs(c, all, s, size)
	return c.end()
}

// prove runs a command once. What it makes is removed.
func (b *bench) prove(ctx context.Context, t *tool, p *proof) (sample, error) {
	at := *b.places[t.name]
	at.target = filepath.Join(b.work, "rebuilt.db")
	m, err := b.run(ctx, p.run(at), t.environment(at))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if removed := os.Remove(at.target + suffix); removed != nil && !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	return m, err
}

func writeProofs(c *chapter, all []*proof, s shape, packBytes int64) {
	c.say("%d files, %d snapshots; %.0f%% of the files change between two snapshots. One machine, a repository in a directory with %.0f MB of packs; medians of runs: %d.",
		s.files, proofSnapshots, 100*c.runner.o.churnShare, float64(packBytes)/1e6, len(all[0].of))
	c.say("The floor is a program that reads each pack, opens it with the identity, and decrypts, decompresses and hashes all of its chunks, with the library that bctl uses. It does not look at the index.")
	rows := [][]string{{"command", "s", "CPU, s", "peak MiB"}}
	data := map[string][]sample{}
	figures := map[string][3]float64{}
	for _, p := range all {
		f := [3]float64{
			medianOfSamples(p.of, func(m *sample) float64 { return m.WallSeconds }),
			medianOfSamples(p.of, (*sample).cpuSeconds),
			medianOfSamples(p.of, func(m *sample) float64 { return float64(m.PeakBytes >> 20) }),
		}
		rows = append(rows, []string{p.name, fmt.Sprintf("%.2f", f[0]), fmt.Sprintf("%.2f", f[1]), fmt.Sprintf("%.0f", f[2])})
		figures[p.name], data[p.name] = f, p.of
	}
	c.Data = data
	c.table(rows)
	rebuild, level := figures["index rebuild --without-copy"], figures["check --level index"]
	content, tables, least := figures["check --read-data"], figures["check --level tables"], figures["floor: chunks hashed, too"]
	c.atMost("Rebuild without a copy, seconds", "%.1f", rebuild[0], maxRebuildSeconds)
	c.atMost("Rebuild without a copy, peak MiB", "%.0f", rebuild[2], maxRebuildMiB)
	c.atMost("Check of the index, seconds", "%.1f", level[0], maxCheckSeconds)
	for i, what := range []string{"seconds", "CPU seconds"} {
		speed := least[i] / content[i]
		c.must(speed >= minContentSpeed, "Check of all content, speed relative to the floor, by "+what, fmt.Sprintf("%.2f", speed), fmt.Sprintf("≥ %.2f", minContentSpeed))
		speed = least[i] / max(content[i]-tables[i], 1e-9)
		c.must(speed >= minContentSpeed, "Without the levels below, by "+what, fmt.Sprintf("%.2f", speed), fmt.Sprintf("≥ %.2f", minContentSpeed))
	}
}

func medianOfSamples(all []sample, figure func(*sample) float64) float64 {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = figure(&all[i])
	}
	return median(values)
}
