package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

// forecast walks the shards and reports what a backup would do. It reads the index only, so that it
// can neither create a filer or shard nor begin a snapshot.
func (c *backupCommand) forecast(ctx context.Context, paths []string) error {
	i, err := c.app.openIndex(ctx, toRead)
	if err != nil {
		return err
	}
	defer i.Close()
	c.app.noteCurrent(ctx, i)
	report := newReport(c.app, i, len(paths))
	report.verbose, report.unmatched = c.verbose, c.given()
	targets, err := c.targets(ctx, i, paths, report)
	if err != nil {
		return err
	}
	for n := range targets {
		err := c.forecastOne(ctx, i, &targets[n], len(targets) > 1, report)
		if errors.Is(context.Cause(ctx), process.ErrInterrupted) {
			return context.Cause(ctx)
		}
		if err != nil {
			err = report.failed(targets[n].shard.Name, fmt.Errorf("dry run of %s: %w", display(targets[n].shard.Name), err))
		}
		if err != nil {
			return err
		}
	}
	return report.ending()
}

// forecastOne reports what a backup of one shard would do.
func (c *backupCommand) forecastOne(ctx context.Context, i index.Index, t *target, several bool, r *report) error {
	started := time.Now()
	status, base, err := c.present(ctx, i, t)
	if err != nil {
		return err
	}
	request, err := c.requestOf(t)
	if err != nil {
		return err
	}
	var watch patternWatch
	o := embedded.Options{Index: i, Source: open.Source(c.app.cfg), Log: c.app.log}
	o.Walker.Tasks, o.Walker.Directories = c.app.cfg.Worker.Tasks, c.app.cfg.Worker.Directories
	o.Walker.Reread, o.Walker.Compile = c.reread, watch.compile
	if c.verbose {
		o.Walker.OnChange = c.app.printFound(t, several)
	}
	progress := newTracker()
	progress.expect(backup.SnapshotID{}, base.Counts.Files, base.Counts.Bytes)
	stop := c.app.animate(progress.line)
	defer stop()
	causes := causeCounter{term: c.app.term, all: c.verbose}
	if several {
		causes.label = display(t.shard.Name) + ": "
	}
	f, err := embedded.Survey(ctx, o, &status, request, base, func(m *backup.SliceWalked) {
		n := &m.Counts
		progress.add(backup.Progress{FilesFound: n.Files, FilesDone: n.Files, BytesFound: n.Bytes, BytesDone: n.Bytes, Errors: n.Errors})
		for _, p := range m.Problems {
			if c.app.json {
				c.app.print(problemJSON(p))
			} else {
				causes.problem(p)
			}
		}
	})
	stop()
	causes.end("bctl backup --dry-run -v prints all errors; so does --json.")
	if err != nil {
		return err
	}
	var unmatched given
	if f.Failed == "" {
		unmatched = watch.unmatched(c.given())
		r.notFound = c.list.notFound(watch.unmatched(given{patterns: c.list.patterns}).patterns)
	}
	r.unmatched = r.unmatched.only(unmatched)
	return r.forecast(t, &f, time.Since(started), unmatched)
}

// present returns what the index knows of a shard, and its newest committed snapshot. A shard that
// the index does not have is returned as it would be created.
func (c *backupCommand) present(ctx context.Context, i index.Catalog, t *target) (status index.ShardStatus, base backup.Snapshot, err error) {
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: t.filer, Name: t.shard.Name})
	if err != nil {
		return status, base, err
	}
	if len(shards) == 0 {
		status.Shard = t.shard
		filers, err := i.ListFilers(ctx, index.FilerFilter{Name: t.filer})
		if len(filers) > 0 {
			status.Filer = filers[0].Filer
		}
		return status, base, err
	}
	found, err := i.Snapshots(ctx, index.SnapshotFilter{Filer: t.filer, Shard: t.shard.Name, States: []backup.State{backup.Committed}, Limit: 1})
	if err != nil {
		return status, base, err
	}
	if len(found) > 0 {
		base = found[0]
	}
	err = c.mayBeListed(&base, t)
	return shards[0], base, err
}

// forecastJSON is the output of backup --dry-run --json for each shard. The names are fixed.
type forecastJSON struct {
	Type   string `json:"type"` // dry_run
	Filer  string `json:"filer"`
	Shard  string `json:"shard"`
	Base   int64  `json:"base"`             // number of the snapshot to compare with; 0: none
	Reason string `json:"reason,omitempty"` // why the backup would fail
	foundJSON
	FilesRemoved   *int64  `json:"files_removed"` // null if not known
	ReadFiles      int64   `json:"read_files"`
	ReadBytes      int64   `json:"read_bytes"`
	Errors         int64   `json:"errors"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`
	unmatchedJSON
	NotFound []string `json:"not_found,omitempty"` // as in backupSummary
}

// forecast prints what a backup of a shard would do.
func (r *report) forecast(t *target, f *embedded.Forecast, elapsed time.Duration, unmatched given) error {
	n := &f.Counts
	switch {
	case f.Failed != "":
		r.failures++
		r.failure = fmt.Errorf("the snapshot of %s would fail: %s", display(t.shard.Name), f.Failed)
		if r.asked > 1 && !r.app.json {
			r.app.term.println("bctl: " + r.failure.Error())
		}
	case n.Errors > 0:
		r.incomplete++
	}
	if r.app.json {
		return r.app.print(newForecastJSON(t, f, elapsed, unmatched, r.notFound))
	}
	return r.app.details(func(row rowFunc) {
		if n.Errors > 0 {
			row("errors", "%s: the snapshot would differ from the file server", humanize.Comma(n.Errors))
		}
		row("dry run", "of %s: nothing was written (%.1f s)", t, elapsed.Seconds())
		row("compared", "with %s", forecastBase(f))
		row("files", "%s in %s, %s", humanize.Comma(n.Files), counted(n.Directories, "directory"), size(n.Bytes))
		changes := fmt.Sprintf("%s new, %s changed, %s unchanged", humanize.Comma(n.FilesNew), humanize.Comma(n.FilesChanged), humanize.Comma(n.FilesUnchanged))
		if f.Removed >= 0 {
			changes += fmt.Sprintf(", %s removed", humanize.Comma(f.Removed))
		}
		row("", "%s", changes)
		row("to read", "up to %s in %s", size(f.ReadBytes), counted(f.ReadFiles, "file"))
	})
}

func forecastBase(f *embedded.Forecast) string {
	if f.Base == 0 {
		return "no snapshot: it would be the first"
	}
	return fmt.Sprintf("number %d", f.Base)
}

func newForecastJSON(t *target, f *embedded.Forecast, elapsed time.Duration, unmatched given, notFound []string) forecastJSON {
	n := &f.Counts
	j := forecastJSON{
		Type: "dry_run", Filer: t.filer, Shard: t.shard.Name, Base: int64(f.Base), Reason: f.Failed,
		foundJSON: newFoundJSON(n),
		ReadFiles: f.ReadFiles, ReadBytes: f.ReadBytes, Errors: n.Errors, ElapsedSeconds: elapsed.Seconds(), unmatchedJSON: unmatched.json(), NotFound: notFound,
	}
	if f.Removed >= 0 {
		j.FilesRemoved = &f.Removed
	}
	return j
}
