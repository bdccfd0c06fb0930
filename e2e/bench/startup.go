//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	startupRuns    = 21
	maxStartupMS   = 30
	maxBinaryBytes = 80e6
)

// measureStartup times commands that have little to do. Each runs as a process of its own.
func measureStartup(ctx context.Context, r *runner) error {
	bctl, err := exec.LookPath("bctl")
	if err != nil {
		return errNoBctl
	}
	info, err := os.Stat(bctl)
	if err != nil {
		return err
	}
	tree := filepath.Join(r.work, "tree")
	s := shape{files: 100, directories: 5, bytes: 100_000, textShare: textShare, seed: r.o.seed}
	if err := errors.Join(s.make(tree), pass(ctx)); err != nil {
		return err
	}
	c := r.chapter("startup")
	t := tools()[0]
	b := r.bench(tree, []*tool{t})
	p, err := b.placeFor(ctx, t, first, 0)
	if err != nil {
		return err
	}
	figures := map[string]float64{"binary bytes": float64(info.Size())}
	rows := [][]string{{"command", "ms", "least", "most", "peak MiB"}}
	for _, args := range [][]string{{"version"}, {"backup", tree}, {"snapshot", "ls"}, {"ls", "latest"}} {
		var ms []float64
		var peak int64
		for range startupRuns {
			m, err := b.run(ctx, command{args: append([]string{bctl}, args...)}, t.environment(*p))
			if err != nil {
				return err
			}
			ms, peak = append(ms, m.WallSeconds*1000), max(peak, m.PeakBytes)
		}
		name := "bctl " + args[0]
		if len(args) > 1 && args[0] != "backup" {
			name += " " + args[1]
		}
		figures[name] = median(ms)
		low, high := minMax(ms)
		rows = append(rows, []string{"`" + name + "`", fmt.Sprintf("%.1f", median(ms)), fmt.Sprintf("%.1f", low), fmt.Sprintf("%.1f", high), fmt.Sprint(peak >> 20)})
	}
	c.Data = figures
	c.say("The repository is on this machine. Its tree has 100 files, which change before the first backup only; %d runs of each command. The binary has %.1f MB.", startupRuns, float64(info.Size())/1e6)
	c.table(rows)
	c.atMost("`bctl snapshot ls`, ms", "%.1f", figures["bctl snapshot ls"], maxStartupMS)
	c.atMost("Binary, MB", "%.1f", float64(info.Size())/1e6, maxBinaryBytes/1e6)
	return c.end()
}

func minMax(values []float64) (low, high float64) {
	low, high = values[0], values[0]
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return low, high
}
