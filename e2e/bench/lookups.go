//go:build linux

package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/bctl/bctl/e2e/bench/madeindex"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

const (
	lookupRounds = 5

	maxHistorySeconds = 0.05
	maxFindSeconds    = 1.0
	maxGlobSeconds    = 10.0
	maxDiffSeconds    = 1.0 // a million files
	maxNameBytes      = 4.0 // an entry
)

// lookupShape is what the index has: with -full what the criteria are for, otherwise less.
func lookupShape(o *options) madeindex.Shape {
	s := madeindex.Shape{Files: 500_000, Snapshots: 20, Changed: 0.01, Seed: o.seed}
	if o.full {
		s.Files, s.Snapshots = 10_000_000, 100
	}
	s.Files = cmp.Or(o.files, s.Files)
	return s
}

// A lookup is one question that is asked of the index.
type lookup struct {
	name  string
	args  []string
	limit float64 // seconds
	of    []sample
}

func lookups(m *madeindex.Made) []*lookup {
	return []*lookup{
		{name: "a command that looks for nothing: shard ls", args: []string{"shard", "ls"}},
		{name: "history of a file", args: []string{"history", m.Path}, limit: maxHistorySeconds},
		{name: "find by name", args: []string{"find", m.Name}, limit: maxFindSeconds},
		{name: "find by a glob that finds nothing", args: []string{"find", "nothing*like[0-9]this.*"}, limit: maxGlobSeconds},
		{name: "find by a glob that finds hundreds", args: []string{"find", "*_4711.*"}, limit: maxGlobSeconds},
		{name: "find by a regular expression", args: []string{"find", "--regex", "^photo.*-31-4?11[.]jpg$"}, limit: maxGlobSeconds},
		{name: "diff of the last two snapshots, by directory", args: []string{"diff", m.Last[0].Short(), m.Last[1].Short(), "--depth", "1"}, limit: maxDiffSeconds * float64(m.Files) / 1e6},
		{name: "du of a snapshot", args: []string{"du", "latest", "--by", "directory"}, limit: 2},
		{name: "ls of the largest directory", args: []string{"ls", "latest:" + m.Large}},
	}
}

// measureLookups makes an index of many snapshots, and asks it what operators ask. The index stays
// in the page cache, as that of a machine that makes backups does.
func measureLookups(ctx context.Context, r *runner) (err error) {
	bctl, ok := findBctl(r.o.tools)
	if !ok {
		return errNoBctl
	}
	b := r.bench(filepath.Join(r.work, "tree"), nil)
	defer func() { err = errors.Join(err, b.close()) }()
	at := place{repo: filepath.Join(r.work, "repo"), home: filepath.Join(r.work, "home")}
	if err := os.MkdirAll(at.home, 0o755); err != nil {
		return err
	}
	environment := bctl.environment(at)
	if _, err := b.run(ctx, bctl.init(at), environment); err != nil {
		return err
	}
	made, err := b.makeIndex(ctx, r.o, filepath.Join(at.repo, "index.db"))
	if err != nil {
		return err
	}
	all := lookups(&made)
	for range lookupRounds {
		for _, l := range all {
			m, err := b.run(ctx, command{args: append([]string{"bctl"}, l.args...)}, environment)
			if err != nil {
				return err
			}
			l.of = append(l.of, m)
			progress("%-44s %.3f s (CPU %.3f s), %d MiB", l.name, m.WallSeconds, m.cpuSeconds(), m.PeakBytes>>20)
		}
	}
	c := r.chapter("lookups")
	if err := writeLookups(ctx, c, all, &made, filepath.Join(at.repo, "index.db")); err != nil {
		return err
	}
	return c.end()
}

// makeIndex makes the index in another process, whose memory is not that of the commands.
func (b *bench) makeIndex(ctx context.Context, o *options, file string) (made madeindex.Made, err error) {
	out, err := os.Create(filepath.Join(b.work, "made.json"))
	if err != nil {
		return made, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	progress("making an index of %d files in %d snapshots", lookupShape(o).Files, lookupShape(o).Snapshots)
	args := []string{b.self, fmt.Sprintf("-full=%t", o.full), fmt.Sprintf("-files=%d", o.files), fmt.Sprintf("-seed=%d", o.seed), "-make-index", file}
	if _, err := b.run(ctx, command{args: args, stdout: out}, os.Environ()); err != nil {
		return made, err
	}
	text, err := os.ReadFile(out.Name())
	if err == nil {
		err = json.Unmarshal(text, &made)
	}
	return made, err
}

// makeIndex fills an index, and says in JSON what it has.
func makeIndex(ctx context.Context, o *options, file string, out io.Writer) (err error) {
	x, err := sqliteindex.Open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	made, err := madeindex.Write(ctx, x, "made", "/srv/made", lookupShape(o), progress)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(made)
}

func writeLookups(ctx context.Context, c *chapter, all []*lookup, m *madeindex.Made, file string) error {
	size, err := nameBytes(ctx, file)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	perEntry := float64(size) / float64(m.Files+m.Directories)
	c.say("An index of one machine (SQLite) with %d snapshots of %d files in %d directories: %d versions of pages, %d MiB. Names, sizes and changes are made; between two snapshots %.0f%% of the files change, chosen at random, which changes most directories. Of the content there are only names of chunks. Medians of runs: %d.",
		m.Snapshots, m.Files, m.Directories, m.Pages, info.Size()>>20, 100*lookupShape(c.runner.o).Changed, len(all[0].of))
	rows := [][]string{{"question", "s", "CPU, s", "peak MiB"}}
	data := map[string][]sample{}
	for _, l := range all {
		data[l.name] = l.of
		seconds := medianOfSamples(l.of, func(m *sample) float64 { return m.WallSeconds })
		rows = append(rows, []string{
			l.name, fmt.Sprintf("%.3f", seconds), fmt.Sprintf("%.3f", medianOfSamples(l.of, (*sample).cpuSeconds)),
			fmt.Sprintf("%.0f", medianOfSamples(l.of, func(m *sample) float64 { return float64(m.PeakBytes >> 20) })),
		})
		if l.limit > 0 {
			c.atMost(l.name+", seconds", "%.3f", seconds, l.limit)
		}
	}
	c.Data = data
	c.table(rows)
	c.say("The names take %.2f bytes an entry.", perEntry)
	c.atMost("Names, bytes an entry", "%.2f", perEntry, maxNameBytes)
	return nil
}

// nameBytes returns how many bytes the names in an index take.
func nameBytes(ctx context.Context, file string) (size int64, err error) {
	db, err := sql.Open("sqlite", "file:"+file+"?mode=ro")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.QueryRowContext(ctx, "SELECT sum(length(block)) FROM name_blocks").Scan(&size)
	return size, err
}
