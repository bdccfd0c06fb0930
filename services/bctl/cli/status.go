package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/run"
)

const (
	// watchEvery is how often status --watch looks.
	watchEvery = 2 * time.Second
	// maxWork is how much work in hand is asked for. A fleet has less: as much as may
	// be queued, and what is stalled.
	maxWork = 20_000
	// fewRunning is up to how many snapshots the work in hand is shown without --work.
	fewRunning = 5
)

type statusCommand struct {
	app   *app
	filer string
	watch bool
	work  bool

	last *overview // of watch: rates are differences
}

func newStatus(a *app) *cobra.Command {
	c := &statusCommand{app: a}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is running",
		Long: `Shows every running snapshot: how long it has run; its walk tasks and read
batches, as 12/20+3 (12 of 20 announced are settled, and workers have 3 in
hand); how many of these are stalled; what the walk has found, of what the last
snapshot leads to expect; how fast that goes, and how fast the filer is read;
and how long it will take.

Then the work in hand, where few snapshots are running, or with --work: who does
it, where, and how long it is theirs (LEASE). What has no answer from its filer
is always shown. Then the filers that are spared: those that answer so slowly
that workers do less than the filer's limit.

It asks the index only. On one machine, a note says so if that is older than the
store. --watch looks again every 2 seconds, until it is interrupted; rates are
those of the last seconds then, and else the mean since the snapshot was begun.`,
		Example: `  bctl status
  bctl status --watch
  bctl status --filer nas1 --work
  bctl status --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&c.filer, "filer", "", "only snapshots of this `FILER`")
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "show it again every 2 seconds")
	cmd.Flags().BoolVar(&c.work, "work", false, "show the work in hand, however many snapshots are running")
	a.completeFlag(cmd, "filer", a.filerNames)
	return cmd
}

func (c *statusCommand) run(ctx context.Context) error {
	i, err := c.app.openIndex(ctx, toRead)
	if err != nil {
		return err
	}
	defer i.Close()
	c.app.noteCurrent(ctx, i)
	if c.filer != "" {
		if _, err := findFiler(ctx, i, c.filer); err != nil {
			return err
		}
	}
	if !c.watch {
		return c.once(ctx, i)
	}
	c.app.interruptible.Store(true)
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		err := c.once(ctx, i)
		switch {
		case errors.Is(context.Cause(ctx), run.ErrInterrupted):
			return nil // that is how a watch ends
		case errors.Is(err, backup.ErrUnavailable):
			c.app.log.Warn("the index does not answer", "error", err)
		case err != nil:
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// once looks at the index and shows what it says.
func (c *statusCommand) once(ctx context.Context, i index.Catalog) error {
	clock, err := i.Clock(ctx)
	if err != nil {
		return err
	}
	now, err := look(ctx, i, c.filer, clock, c.app)
	if err != nil {
		return err
	}
	now.rates(c.last)
	defer func() { c.last = now }()
	if c.app.json {
		for n := range now.running {
			if err := c.app.print(now.running[n].json()); err != nil {
				return err
			}
		}
		return nil
	}
	var text strings.Builder
	if err := now.write(&text, c.work || len(now.running) <= fewRunning); err != nil {
		return err
	}
	switch {
	case !c.watch:
		_, err = io.WriteString(c.app.out, text.String())
	case c.app.term.outIs:
		c.app.term.redraw(zoned(now.at) + "\n\n" + text.String())
	default:
		_, err = fmt.Fprintf(c.app.out, "%s\n%s\n", now.at.Format(time.RFC3339), text.String())
	}
	return err
}

// An overview is what is running, at one time.
type overview struct {
	at      time.Time
	running []*inProgress
	spared  []index.FilerStatus // governed below their limits
	cut     bool                // there is more in hand than was asked for
}

// An inProgress is how far one running snapshot is.
type inProgress struct {
	backup.Snapshot
	base  backup.Counts
	known bool // base is: there was a snapshot before
	work  []index.Work
	tasks inHand
	read  inHand

	at                            time.Time
	filesPerSecond, readPerSecond float64
}

// inHand counts work that is handed out: with a worker, of that stalled, and in the queue.
type inHand struct{ working, stalled, queued int }

func (h *inHand) add(w *index.Work) {
	switch {
	case w.Worker == "":
		h.queued++
	case !w.Stalled.IsZero():
		h.working++
		h.stalled++
	default:
		h.working++
	}
}

// look asks the index. It is four questions, however much is running.
func look(ctx context.Context, i index.Catalog, filer string, now time.Time, a *app) (*overview, error) {
	var running []backup.Snapshot
	var work []index.Work
	var filers []index.FilerStatus
	group, asking := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		running, err = i.Snapshots(asking, index.SnapshotFilter{Filer: filer, States: onlyRunning})
		return err
	})
	group.Go(func() (err error) {
		work, err = i.InHand(asking, now, maxWork)
		return err
	})
	group.Go(func() (err error) {
		filers, err = i.ListFilers(asking, index.FilerFilter{Name: filer})
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	a.markInterrupted(ctx, i, running)
	s := &overview{at: now, cut: len(work) == maxWork}
	ids := make([]backup.SnapshotID, len(running))
	byID := make(map[backup.SnapshotID]*inProgress, len(running))
	for n := range running {
		p := &inProgress{Snapshot: running[n], at: now}
		ids[n], byID[p.ID] = p.ID, p
		s.running = append(s.running, p)
	}
	base, err := i.BaseCounts(ctx, ids)
	if err != nil {
		return nil, err
	}
	for id, counts := range base {
		byID[id].base, byID[id].known = counts, true
	}
	for _, w := range work {
		if p := byID[w.Snapshot]; p != nil && p.State != interrupted { // nobody has it in hand
			p.hold(w)
		}
	}
	for n := range filers {
		if f := &filers[n]; isSpared(f) {
			s.spared = append(s.spared, *f)
		}
	}
	return s, nil
}

// isSpared reports whether the governor allows less than the filer's limits, because it is slow.
func isSpared(f *index.FilerStatus) bool {
	limits := f.Limits.WithDefaults()
	spared := func(slots, limit int, latency time.Duration) bool {
		return slots > 0 && slots < limit && latency > backup.FastLatency
	}
	return spared(f.Load.WalkSlots, limits.WalkTasks, f.Load.WalkLatency) || spared(f.Load.ReadSlots, limits.ReadBatches, f.Load.ReadLatency)
}

func (p *inProgress) hold(w index.Work) {
	p.work = append(p.work, w)
	if w.Task != 0 {
		p.tasks.add(&w)
	} else {
		p.read.add(&w)
	}
}

// rates computes how fast it goes: since last, or since each snapshot was begun.
func (s *overview) rates(last *overview) {
	before := map[backup.SnapshotID]*inProgress{}
	if last != nil {
		for _, p := range last.running {
			before[p.ID] = p
		}
	}
	for _, p := range s.running {
		if p.State == interrupted {
			continue
		}
		since, files, read := p.Started, int64(0), int64(0)
		if b := before[p.ID]; b != nil {
			since, files, read = b.at, b.Counts.Files, b.Counts.ReadBytes
		}
		if seconds := s.at.Sub(since).Seconds(); seconds > 0 {
			p.filesPerSecond = max(0, float64(p.Counts.Files-files)/seconds)
			p.readPerSecond = max(0, float64(p.Counts.ReadBytes-read)/seconds)
		}
	}
}

// left estimates how long a snapshot will take. What is walked, of what the
// last snapshot leads to expect, has its share of the batches; so both shares count.
func (p *inProgress) left() (time.Duration, bool) {
	if p.State == interrupted {
		return 0, false
	}
	walked := share(p.Counts.Files, p.base.Files)
	switch {
	case p.TasksSettled == p.TasksAnnounced:
		walked = 1
	case !p.known:
		return 0, false
	}
	done := min(walked, 1) * share(p.BatchesSettled, p.BatchesAnnounced)
	return remaining(p.at.Sub(p.Started), done, done)
}
