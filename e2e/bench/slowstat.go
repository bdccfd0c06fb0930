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
	"strings"
	"time"

	"github.com/bctl/bctl/e2e/bench/plot"
	"github.com/bctl/bctl/e2e/slowfs"
)

// A slow is one run on a filer that takes its time.
type slow struct {
	Tool      string        `json:"tool"`
	Latency   time.Duration `json:"latency_ns"`
	Step      step          `json:"step"`
	Seconds   float64       `json:"seconds"`
	Stats     int64         `json:"stats"`
	Lists     int64         `json:"lists"`
	Peak      int           `json:"most_at_once"`
	StatCalls int64         `json:"stat_calls,omitempty"` // as bctl counts them
}

var latencies = []time.Duration{500 * time.Microsecond, time.Millisecond, 5 * time.Millisecond}

const (
	minTimesRestic = 10
	// attrTimeout is how long the kernel trusts attributes of files on NFS at first (acregmin).
	attrTimeout = 3 * time.Second
	// maxDirectoryLookups is how often a directory may be looked up in addition to its stat. It is
	// opened by its path, and the kernel caches no names.
	maxDirectoryLookups = 2
)

// measureSlowStat backs up a tree on a filer, in user space, that takes a while for each LOOKUP,
// GETATTR, OPEN and page of a directory, and for a READ: bctl, and restic with and without its
// scan.
func measureSlowStat(ctx context.Context, r *runner) error {
	behind := filepath.Join(r.work, "behind")
	s := shape{files: 2_000, directories: 40, sigma: 0.5}
	if r.o.full {
		s.files, s.directories = 5_000, 100
	}
	s.bytes = int64(s.files) * 1_000
	s = r.o.shaped(s)
	if err := errors.Join(s.make(behind), pass(ctx)); err != nil {
		return err
	}
	c := r.chapter("slowstat")
	entries := int64(s.files + s.directories)
	var all []slow
	for _, latency := range latencies {
		of, err := r.slowFiler(ctx, behind, latency)
		if notAllowed(err) {
			progress("slowfs cannot be mounted: %v: left out", err)
			return nil
		}
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	c.Data = all
	writeSlow(c, all, s)
	for _, of := range all {
		if of.Tool == "bctl" && of.Step == unchanged {
			c.must(of.StatCalls == entries, fmt.Sprintf("%v: unchanged, stats of %d entries", of.Latency, entries), fmt.Sprint(of.StatCalls), fmt.Sprint(entries))
			c.atMost(fmt.Sprintf("%v: further stats at the filer, per directory that is opened", of.Latency), "%.2f",
				float64(of.Stats-entries)/float64(s.directories), maxDirectoryLookups)
		}
	}
	return c.end()
}

// slowTools are bctl and the two ways of restic, if it has both.
func slowTools() []*tool {
	found, _ := findTools("bctl,restic")
	for _, t := range found {
		if t.name != "restic" {
			continue
		}
		help, err := exec.Command("restic", "backup", "--help").Output()
		if err != nil || !strings.Contains(string(help), "--no-scan") {
			progress("this restic has no --no-scan")
			break
		}
		fast := *t
		fast.name, fast.backup = "restic --no-scan", run("restic", "backup", "--no-scan", "$TREE")
		return append(found, &fast)
	}
	return found
}

// slowFiler measures all tools at one latency. Each gets a new mount, so that none uses what the
// kernel has cached for another.
func (r *runner) slowFiler(ctx context.Context, behind string, latency time.Duration) (all []slow, err error) {
	for _, t := range slowTools() {
		dir := filepath.Join(r.work, fmt.Sprintf("%v-%s", latency, strings.ReplaceAll(t.name, " ", "")))
		b := r.bench(filepath.Join(dir, "tree"), []*tool{t})
		if err := os.MkdirAll(b.tree, 0o755); err != nil {
			return nil, err
		}
		of, err := b.onSlowFiler(ctx, t, behind, latency)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

func (b *bench) onSlowFiler(ctx context.Context, t *tool, behind string, latency time.Duration) (all []slow, err error) {
	filer, err := slowfs.Start(behind, b.tree, slowfs.Options{
		Latency:     slowfs.Latency{Stat: latency, Open: latency, Read: latency, List: latency},
		AttrTimeout: attrTimeout,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, filer.Close()) }()
	p, err := b.placeFor(ctx, t, first, 0)
	if err != nil {
		return nil, err
	}
	for _, s := range []step{first, unchanged} {
		before := filer.Counters()
		filer.Peak()
		var m sample
		var told summary
		if t.ours {
			told, m, err = b.summary(ctx, t, *p)
		} else {
			m, err = b.run(ctx, t.backup(*p), t.environment(*p))
		}
		if err != nil {
			return nil, fmt.Errorf("%s at %v: %w", t.name, latency, err)
		}
		after := filer.Counters()
		of := slow{
			Tool: t.name, Latency: latency, Step: s, Seconds: m.WallSeconds, Stats: after.Stats - before.Stats, Lists: after.Lists - before.Lists,
			Peak: filer.Peak(), StatCalls: told.StatCalls,
		}
		progress("%-16s %-6v %-10s %8.2f s %8d stats, at most %d at once", t.name, latency, s, of.Seconds, of.Stats, of.Peak)
		all = append(all, of)
	}
	return all, nil
}

func writeSlow(c *chapter, all []slow, s shape) {
	c.say("%d files of about 1 kB in %d directories, through slowfs. Each LOOKUP, GETATTR, OPEN, READ and page of a directory takes the latency of the row. \"least s\" is stats × latency / most requests at once, the least possible time with that number of requests at once.",
		s.files, s.directories)
	rows := [][]string{{"tool", "latency", "step", "s", "stats", "stats per file", "pages listed", "most at once", "least s"}}
	at := map[string]slow{}
	lines := map[string]*plot.Series{}
	var names []string
	for _, of := range all {
		at[fmt.Sprint(of.Tool, of.Latency, of.Step)] = of
		rows = append(rows, []string{
			of.Tool, of.Latency.String(), of.Step.title(), fmt.Sprintf("%.2f", of.Seconds), fmt.Sprint(of.Stats), fmt.Sprintf("%.2f", float64(of.Stats)/float64(s.files)),
			fmt.Sprint(of.Lists), fmt.Sprint(of.Peak), fmt.Sprintf("%.2f", float64(of.Stats)*of.Latency.Seconds()/float64(max(of.Peak, 1))),
		})
		if of.Step != unchanged {
			continue
		}
		if lines[of.Tool] == nil {
			lines[of.Tool] = &plot.Series{Label: of.Tool}
			names = append(names, of.Tool)
		}
		lines[of.Tool].Points = append(lines[of.Tool].Points, plot.Point{X: of.Latency.Seconds() * 1000, Y: of.Seconds})
	}
	c.table(rows)
	var series []plot.Series
	for _, name := range names {
		series = append(series, *lines[name])
	}
	c.plot("slowstat", "seconds of an unchanged backup by latency", plot.Lines("Nothing changed, a filer that takes its time", "ms an operation", "s", series))
	for _, latency := range latencies {
		ours, ok := at[fmt.Sprint("bctl", latency, unchanged)]
		of, share := "restic --no-scan", 1.0
		peer, both := at[fmt.Sprint(of, latency, unchanged)]
		if !both {
			of, share = "restic in half its time", 0.5
			peer, both = at[fmt.Sprint("restic", latency, unchanged)]
		}
		if ok && both {
			times := share * peer.Seconds / ours.Seconds
			c.must(times >= minTimesRestic, fmt.Sprintf("%v: unchanged, times as fast as %s", latency, of), fmt.Sprintf("%.1f", times), fmt.Sprintf("≥ %d", minTimesRestic))
		}
	}
	if !slices.Contains(names, "restic --no-scan") {
		c.say("The installed version of restic has no --no-scan. Its scan stats each file once, and its backup several times. So without the scan, restic would take more than half of this time.")
	}
}
