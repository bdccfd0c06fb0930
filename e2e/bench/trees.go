//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func presetNames() []string { return slices.Sorted(maps.Keys(presets)) }

// measureTrees measures all tools on each of the requested trees.
func measureTrees(ctx context.Context, r *runner) error {
	if r.o.tree != "" {
		tree, err := filepath.Abs(r.o.tree)
		if err != nil {
			return err
		}
		return r.measureTree(ctx, filepath.Base(tree), tree)
	}
	for name := range strings.SplitSeq(r.o.presets, ",") {
		tree := filepath.Join(r.work, name, "tree")
		if err := errors.Join(os.MkdirAll(filepath.Dir(tree), 0o755), r.makeTree(ctx, name, tree)); err != nil {
			return err
		}
		if err := r.measureTree(ctx, name, tree); err != nil {
			return err
		}
	}
	return nil
}

// makeTree makes the tree of a preset.
func (r *runner) makeTree(ctx context.Context, name, tree string) error {
	if _, ok := presets[name]; !ok {
		return fmt.Errorf("there is no preset %s; the presets are %s", name, strings.Join(presetNames(), ", "))
	}
	s := r.o.shaped(presets[name].shape)
	progress("making %s: %d files", name, s.files)
	return errors.Join(s.make(tree), pass(ctx))
}

// shaped returns the shape with the values of the given flags.
func (o *options) shaped(s shape) shape {
	s.files, s.directories, s.bytes = cmp.Or(o.files, s.files), cmp.Or(o.directories, s.directories), cmp.Or(o.bytes, s.bytes)
	s.seed, s.textShare = o.seed, textShare
	return s
}

// namedSteps returns the steps that -steps names, or nil if it names none.
func (o *options) namedSteps() (named []step, err error) {
	if o.steps == "" {
		return nil, nil
	}
	for name := range strings.SplitSeq(o.steps, ",") {
		if !slices.Contains(steps, step(name)) {
			return nil, fmt.Errorf("-steps: there is no step %q, there are %v", name, steps)
		}
		named = append(named, step(name))
	}
	return named, nil
}

// roundsOf returns how often to run each step. The first backup runs at least once, because the
// other steps need it.
func (o *options) roundsOf(preset string) (map[step]int, error) {
	chosen, err := o.namedSteps()
	if err != nil {
		return nil, err
	}
	if p, ok := presets[preset]; chosen == nil && ok && o.tree == "" {
		chosen = p.steps
	} else if chosen == nil {
		chosen = steps
	}
	rounds := map[step]int{}
	for _, s := range chosen {
		rounds[s] = o.rounds
	}
	if slices.Contains(chosen, unchanged) {
		rounds[unchanged] = o.unchangedRounds
	}
	rounds[first] = max(rounds[first], 1)
	if o.tree != "" && !o.changesTree {
		delete(rounds, churned)
	}
	return rounds, nil
}

// measureTree runs all steps on one tree.
func (r *runner) measureTree(ctx context.Context, name, tree string) (err error) {
	found, missing := findTools(r.o.tools)
	if len(found) == 0 || found[0].name != "bctl" {
		return errNoBctl
	}
	rep := &report{Preset: name, Missing: missing, Versions: map[string]string{}, tools: found}
	for _, t := range found {
		rep.Versions[t.name] = t.versionLine()
	}
	if rep.Tree, err = count(tree); err != nil {
		return err
	}
	b := r.bench(tree, found)
	if b.rounds, err = r.o.roundsOf(name); err != nil {
		return err
	}
	b.of = rep.Tree
	defer func() { err = errors.Join(err, b.close()) }()
	c := r.chapter(name)
	err = b.all(ctx, func(round int) error {
		n, err := churn(tree, r.o.churnShare, r.o.seed+uint64(round))
		progress("changed %d files", n)
		return errors.Join(err, settle(r.work), pass(ctx))
	})
	if err != nil {
		return err
	}
	for _, t := range found {
		if b.broken[t.name] {
			rep.Broken = append(rep.Broken, t.name)
		}
	}
	rep.Samples = b.samples
	rep.summarize()
	rep.write(c)
	return c.end()
}

var errNoBctl = errors.New("bctl is not on the PATH (make build makes it in bin)")

// bench returns a bench that measures tools on a tree. It works in the tree's parent directory.
func (r *runner) bench(tree string, tools []*tool) *bench {
	return &bench{
		self: r.self, work: filepath.Dir(tree), tree: tree, tools: tools, verbose: progress,
		places: map[string]*place{}, broken: map[string]bool{}, keep: r.o.keep,
	}
}
