//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type options struct {
	sections, presets, steps, tools string
	tree, work, floor               string
	jsonFile, results, tuning       string
	files, directories              int
	bytes                           int64
	seed                            uint64
	rounds, unchangedRounds         int
	churnShare                      float64
	full, assert, keep, changesTree bool
	makesIndex                      bool
}

func parse() *options {
	o := &options{}
	flag.StringVar(&o.sections, "sections", "", "`NAMES` of what is measured, with commas between (default: all): "+strings.Join(sectionNames(), ", "))
	flag.StringVar(&o.presets, "preset", "million20", "`NAMES` of the trees' shapes, with commas between: "+strings.Join(presetNames(), ", "))
	flag.StringVar(&o.steps, "steps", "", "`NAMES` of the steps to measure on them: first, unchanged, restore, churned (default: those that the preset is for)")
	flag.BoolVar(&o.full, "full", false, "in the sections other than trees: sizes that take hours")
	flag.IntVar(&o.files, "files", 0, "instead of the number of files of a preset, or of a section")
	flag.IntVar(&o.directories, "dirs", 0, "instead of the preset's number of directories")
	flag.Int64Var(&o.bytes, "bytes", 0, "instead of the preset's bytes, of all files together")
	flag.Uint64Var(&o.seed, "seed", 1, "of the tree's random numbers")
	flag.StringVar(&o.tree, "tree", "", "`DIR` to back up, instead of one that is made")
	flag.BoolVar(&o.changesTree, "churn-tree", false, "the tree of -tree may be changed")
	flag.StringVar(&o.work, "work", "", "`DIR` for what is made: trees, repositories (default: a new one in $TMPDIR)")
	flag.BoolVar(&o.keep, "keep", false, "do not remove what was made")
	flag.StringVar(&o.tools, "tools", "", "`NAMES` of the tools, with commas between (default: all that are installed)")
	flag.IntVar(&o.rounds, "rounds", 3, "runs of each tool's first backup, restore, and backup after changes")
	flag.IntVar(&o.unchangedRounds, "unchanged-rounds", 5, "runs of each tool's backup of the unchanged tree")
	flag.Float64Var(&o.churnShare, "churn", 0.01, "share of the files that change in a round")
	flag.StringVar(&o.jsonFile, "json", "", "write all figures to `FILE`")
	flag.StringVar(&o.results, "results", "", "write the tables and plots into `DIR`, one file per section")
	flag.StringVar(&o.tuning, "tuning", "", "put the table of settings into `FILE`")
	flag.BoolVar(&o.assert, "assert", false, "exit with 1 where bctl is not as good as it must be")
	flag.StringVar(&o.floor, "floor", "", "do the floor's `WORK` on the directory that is the argument: walk, store:FILE, store-LEVEL:FILE, packs or content")
	flag.BoolVar(&o.makesIndex, "make-index", false, "make the index of section lookups in the file that is the argument")
	flag.Parse()
	return o
}

func main() {
	o := parse()
	if o.floor != "" {
		exit(runFloor(o.floor, flag.Arg(0)))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if o.makesIndex {
		exit(makeIndex(ctx, o, flag.Arg(0), os.Stdout))
	}
	exit(o.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

var errCriteria = errors.New("bctl is not as good as it must be")

func (o *options) run(ctx context.Context) (err error) {
	chosen, err := o.chosen()
	if err != nil {
		return err
	}
	if _, err := o.namedSteps(); err != nil { // before a tree is made for nothing
		return err
	}
	remove, err := o.makeWork()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	all := &document{options: o}
	for _, s := range chosen {
		r := &runner{o: o, self: self, document: all, work: filepath.Join(o.work, s.name)}
		if err := os.Mkdir(r.work, 0o755); err != nil {
			return err
		}
		progress("== %s: %s", s.name, s.what)
		if err := s.run(ctx, r); err != nil {
			return fmt.Errorf("section %s: %w", s.name, err)
		}
	}
	if err := all.writeJSON(); err != nil {
		return err
	}
	fmt.Println()
	writeVerdicts(os.Stdout, all.verdicts)
	if o.assert && slices.ContainsFunc(all.verdicts, func(v verdict) bool { return !v.Holds }) {
		return errCriteria
	}
	return nil
}

// makeWork makes a directory for all that this run makes.
func (o *options) makeWork() (remove func() error, err error) {
	if o.work != "" {
		if err := os.MkdirAll(o.work, 0o755); err != nil {
			return nil, err
		}
	}
	if o.work, err = os.MkdirTemp(o.work, "bctl-bench-"); err != nil {
		return nil, err
	}
	if o.work, err = filepath.Abs(o.work); err != nil {
		return nil, err
	}
	if o.keep {
		return func() error { progress("all is in %s", o.work); return nil }, nil
	}
	return func() error { return os.RemoveAll(o.work) }, nil
}

// youngSeconds is how long a file may be too young for a tool to trust its times.
const youngSeconds = 3

// pass waits until what was just written is no longer young.
func pass(ctx context.Context) error { return passFor(ctx, youngSeconds*time.Second) }

func passFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
