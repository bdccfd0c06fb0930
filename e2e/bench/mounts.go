//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxListSeconds   = 3.0
	maxCopyRatio     = 1.25 // of the time of a restore
	maxMountMiB      = 150
	maxReadySeconds  = 1.0
	mountPatience    = time.Minute
	mountPollingTime = 10 * time.Millisecond
)

// A mounter is a tool that shows backups as a file system. The directory of the tree is found there
// by its shape, with a glob.
type mounter struct {
	tool     string
	args     []string // to which the mountpoint is added
	snapshot func(at, tree string) string
}

func mounters() []mounter {
	return []mounter{
		{"bctl", []string{"bctl", "mount"}, func(at, _ string) string { return filepath.Join(at, "ids", "*") }},
		{"restic", []string{"restic", "mount"}, func(at, tree string) string { return filepath.Join(at, "ids", "*", tree) }},
	}
}

// A view is what one run through a mount has cost.
type view struct {
	Tool         string  `json:"tool"`
	Program      string  `json:"program"`
	Round        int     `json:"round"`
	ReadySeconds float64 `json:"ready_seconds"` // until the snapshot was shown
	WallSeconds  float64 `json:"wall_seconds"`
	CPUSeconds   float64 `json:"cpu_seconds"`       // of the program
	MountSeconds float64 `json:"mount_cpu_seconds"` // CPU time of the mount's process
	PeakBytes    int64   `json:"peak_bytes"`        // of the mount's process
}

// programs are run in this order.
var programs = []string{"find", "ls -lR", "cp -a"}

// viewers are the programs that look at a snapshot, and what they are called with.
func viewers(snapshot, target string) map[string][]string {
	return map[string][]string{
		"find": {"find", snapshot}, "ls -lR": {"ls", "-lR", snapshot}, "cp -a": {"cp", "-a", snapshot, target},
	}
}

// measureMounts looks at 50,000 files through a mount, and restores the same. Each program has a
// mount of its own, so that the kernel knows nothing.
func measureMounts(ctx context.Context, r *runner) (err error) {
	tree := filepath.Join(r.work, "tree")
	if err := r.makeTree(ctx, "million20", tree); err != nil {
		return err
	}
	found, _ := findTools("bctl,restic")
	if len(found) == 0 || found[0].name != "bctl" {
		return errNoBctl
	}
	b := r.bench(tree, found)
	defer func() { err = errors.Join(err, b.close()) }()
	if b.of, err = count(tree); err != nil {
		return err
	}
	var views []view
	for round := range r.o.rounds {
		for _, t := range found {
			if round == 0 {
				if err := b.one(ctx, t, first, 0); err != nil {
					return err
				}
			}
			if err := b.one(ctx, t, restore, round); err != nil {
				return err
			}
			of, err := b.lookAround(ctx, t, round)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			views = append(views, of...)
		}
	}
	c := r.chapter("mount")
	writeMounts(c, b, views)
	return c.end()
}

// lookAround runs each program once.
func (b *bench) lookAround(ctx context.Context, t *tool, round int) (views []view, err error) {
	for _, m := range mounters() {
		if m.tool != t.name {
			continue
		}
		for _, program := range programs {
			v, err := b.look(ctx, t, &m, program, round)
			if err != nil {
				return nil, err
			}
			b.verbose("%-10s %-12s %8.2f s wall %8.2f s CPU and %.2f s in the mount, %d MiB", program, t.name, v.WallSeconds, v.CPUSeconds, v.MountSeconds, v.PeakBytes>>20)
			views = append(views, v)
		}
	}
	return views, nil
}

// look mounts, runs a program, and unmounts.
func (b *bench) look(ctx context.Context, t *tool, m *mounter, program string, round int) (v view, err error) {
	p := b.places[t.name]
	leave, err := b.giveTarget(p, t, round)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	at := filepath.Join(b.work, "mounted-"+t.name)
	if err := errors.Join(os.MkdirAll(at, 0o755), settle(b.work)); err != nil {
		return v, err
	}
	began := time.Now()
	process := exec.CommandContext(ctx, m.args[0], append(m.args[1:], at)...)
	process.Env = t.environment(*p)
	process.Cancel = func() error { return process.Process.Signal(unix.SIGINT) }
	if err := process.Start(); err != nil {
		return v, err
	}
	snapshot, err := shown(ctx, m.snapshot(at, b.tree))
	v = view{Tool: t.name, Program: program, Round: round, ReadySeconds: time.Since(began).Seconds()}
	if err == nil {
		var s sample
		s, err = b.run(ctx, command{args: viewers(snapshot, p.target)[program]}, os.Environ())
		v.WallSeconds, v.CPUSeconds = s.WallSeconds, s.cpuSeconds()
	}
	_, unmounted := output("umount", at)
	if unmounted != nil {
		unmounted = errors.Join(unmounted, process.Process.Signal(unix.SIGINT))
	}
	err = errors.Join(err, unmounted, process.Wait())
	if err == nil {
		state := process.ProcessState
		v.MountSeconds = (state.UserTime() + state.SystemTime()).Seconds()
		v.PeakBytes = state.SysUsage().(*syscall.Rusage).Maxrss << 10
	}
	return v, err
}

// shown waits until a mount shows a snapshot.
func shown(ctx context.Context, pattern string) (string, error) {
	for deadline := time.Now().Add(mountPatience); time.Now().Before(deadline); {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return found[0], nil
		}
		if err := passFor(ctx, mountPollingTime); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("nothing is shown at %s", pattern)
}

// writeMounts shows the medians.
func writeMounts(c *chapter, b *bench, views []view) {
	c.say("%d files in %d directories, %d MiB. Each program has a new mount. The processor time of a restore is that of its process; of a program, that of the program and of the mount. Medians of runs: %d.",
		b.of.Files, b.of.Directories, b.of.Bytes>>20, c.runner.o.rounds)
	rows := [][]string{{"tool", "program", "s", "CPU, s", "of which the mount, s", "peak MiB"}}
	for _, t := range b.tools {
		of := samplesOf(b.samples, t.name)
		restored := medianOfSamples(of, func(s *sample) float64 { return s.WallSeconds })
		rows = append(rows, []string{
			t.name, "restore", fmt.Sprintf("%.2f", restored), fmt.Sprintf("%.2f", medianOfSamples(of, (*sample).cpuSeconds)), "",
			fmt.Sprintf("%.0f", medianOfSamples(of, func(s *sample) float64 { return float64(s.PeakBytes >> 20) })),
		})
		for _, program := range programs {
			v := medianView(views, t.name, program)
			rows = append(rows, []string{
				t.name, program, fmt.Sprintf("%.2f", v.WallSeconds), fmt.Sprintf("%.2f", v.CPUSeconds+v.MountSeconds),
				fmt.Sprintf("%.2f", v.MountSeconds), fmt.Sprint(v.PeakBytes >> 20),
			})
			if t.name == "bctl" {
				c.judge(&v, restored)
			}
		}
	}
	c.Data = struct {
		Restores []sample `json:"restores"`
		Views    []view   `json:"views"`
	}{b.samples, views}
	c.table(rows)
}

// judge adds the criteria of a mount.
func (c *chapter) judge(v *view, restoreSeconds float64) {
	switch v.Program {
	case "ls -lR":
		c.atMost("`ls -lR`, s", "%.2f", v.WallSeconds, maxListSeconds)
		c.atMost("Until a snapshot is shown, s", "%.2f", v.ReadySeconds, maxReadySeconds)
	case "cp -a":
		c.atMost("`cp -a`, × a restore", "%.2f", v.WallSeconds/restoreSeconds, maxCopyRatio)
		c.atMost("Peak of a mount, MiB", "%.0f", float64(v.PeakBytes>>20), maxMountMiB)
	}
}

// medianView has the medians of a program's figures.
func medianView(all []view, tool, program string) view {
	of := func(figure func(*view) float64) float64 {
		var values []float64
		for i := range all {
			if v := &all[i]; v.Tool == tool && v.Program == program {
				values = append(values, figure(v))
			}
		}
		return median(values)
	}
	return view{
		Tool: tool, Program: program,
		ReadySeconds: of(func(v *view) float64 { return v.ReadySeconds }),
		WallSeconds:  of(func(v *view) float64 { return v.WallSeconds }),
		CPUSeconds:   of(func(v *view) float64 { return v.CPUSeconds }),
		MountSeconds: of(func(v *view) float64 { return v.MountSeconds }),
		PeakBytes:    int64(of(func(v *view) float64 { return float64(v.PeakBytes) })),
	}
}

func samplesOf(all []sample, tool string) (of []sample) {
	for _, s := range all {
		if s.Tool == tool && s.Step == restore {
			of = append(of, s)
		}
	}
	return of
}
