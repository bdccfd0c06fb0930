//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/bench/markdown"
)

type options struct {
	preset, tree, work, tools, floor  string
	jsonFile, markdownFile            string
	files, directories                int
	bytes                             int64
	seed                              uint64
	rounds, unchangedRounds           int
	churnShare                        float64
	strace, assert, keep, changesTree bool
}

func parse() *options {
	o := &options{}
	flag.StringVar(&o.preset, "preset", "million20", "shape of the tree: tiny, million20, million5, million, big")
	flag.IntVar(&o.files, "files", 0, "instead of the preset's number of files")
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
	flag.StringVar(&o.jsonFile, "json", "", "write all samples to `FILE`")
	flag.StringVar(&o.markdownFile, "markdown", "", "put the tables into `FILE`")
	flag.BoolVar(&o.strace, "strace", false, "count bctl's system calls, too")
	flag.BoolVar(&o.assert, "assert", false, "exit with 1 where bctl is not as good as it must be")
	flag.StringVar(&o.floor, "floor", "", "do the floor's `WORK` on the directory that is the argument: walk, or store:FILE")
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
	remove, err := o.makeWork()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	r, err := o.measure(ctx)
	if err != nil {
		return err
	}
	if err := r.writeTables(os.Stdout); err != nil {
		return err
	}
	verdicts := r.criteria()
	for _, v := range verdicts {
		fmt.Printf("%-5s %s\n", map[bool]string{true: "ok", false: "FAIL"}[v.holds], v.text)
	}
	if o.jsonFile != "" {
		if err := r.writeJSON(o.jsonFile); err != nil {
			return err
		}
	}
	if o.markdownFile != "" {
		if err := r.writeMarkdown(o.markdownFile); err != nil {
			return err
		}
	}
	if o.assert && slices.ContainsFunc(verdicts, func(v verdict) bool { return !v.holds }) {
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

// measure runs all steps.
func (o *options) measure(ctx context.Context) (*report, error) {
	found, missing := findTools(o.tools)
	if len(found) == 0 || found[0].name != "bctl" {
		return nil, errors.New("bctl is not on the PATH (make build makes it in bin)")
	}
	r := &report{
		Preset: o.preset, Date: time.Now().Format(time.DateOnly), Machine: markdown.DescribeMachine(o.work),
		Missing: missing, Versions: map[string]string{}, tools: found,
	}
	for _, t := range found {
		r.Versions[t.name] = t.versionLine()
	}
	tree, err := o.makeTree(ctx)
	if err != nil {
		return nil, err
	}
	if r.Tree, err = count(tree); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bench{
		self: self, work: o.work, tree: tree, tools: found, verbose: progress,
		places: map[string]*place{}, broken: map[string]bool{},
		rounds: map[step]int{first: o.rounds, unchanged: o.unchangedRounds, restore: o.rounds, churned: o.rounds},
	}
	if o.tree != "" && !o.changesTree {
		b.rounds[churned] = 0
	}
	if o.strace {
		if r.Calls, err = b.traceCalls(ctx); err != nil {
			return nil, err
		}
	}
	err = b.all(ctx, func(round int) error {
		n, err := churn(tree, o.churnShare, o.seed+uint64(round))
		progress("changed %d files", n)
		return errors.Join(err, settle(o.work), pass(ctx))
	})
	if err != nil {
		return nil, err
	}
	for _, t := range found {
		if b.broken[t.name] {
			r.Broken = append(r.Broken, t.name)
		}
	}
	r.Samples, r.Machine.LoadAfter = b.samples, markdown.LoadAverages()
	r.summarize()
	return r, nil
}

// makeTree returns the tree's absolute path.
func (o *options) makeTree(ctx context.Context) (string, error) {
	if o.tree != "" {
		o.preset = filepath.Base(o.tree)
		return filepath.Abs(o.tree)
	}
	s, ok := presets[o.preset]
	if !ok {
		return "", fmt.Errorf("there is no preset %s", o.preset)
	}
	s.files, s.directories, s.bytes = cmp.Or(o.files, s.files), cmp.Or(o.directories, s.directories), cmp.Or(o.bytes, s.bytes)
	s.seed, s.textShare = o.seed, 0.7
	tree := filepath.Join(o.work, "tree")
	progress("making %s: %d files", o.preset, s.files)
	return tree, errors.Join(s.make(tree), pass(ctx))
}

// youngSeconds is how long a file may be too young for a tool to trust its times.
const youngSeconds = 3

// pass waits until what was just written is no longer young.
func pass(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(youngSeconds * time.Second):
		return nil
	}
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
