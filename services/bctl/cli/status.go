package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
)

const (
	// watchEvery is the refresh interval of status --watch.
	watchEvery = 2 * time.Second
	// maxWork is the maximum amount of open work that is requested. A fleet has less: as much as may
	// be queued, and stalled work.
	maxWork = 20_000
	// fewRunning is the maximum number of snapshots for which open work is shown without --work.
	fewRunning = 5
)

type statusCommand struct {
	app   *app
	filer string
	watch bool
	work  bool

	muster *muster
	last   *overview // of the watch: rates are differences
}

func newStatus(a *app) *cobra.Command {
	c := &statusCommand{app: a}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show running snapshots, and what they wait for",
		Long: `Shows first what is missing in a fleet: a committer that leads, walkers and
readers at the site of each filer that has shards; and which services take no
work, and why.

Then every running snapshot. The columns are

  AGE            how long it has been running
  TASKS, BATCHES walk tasks and read batches. "12/20+3": of the 20 known so far,
                 12 are done, workers are working on 3, and the other 5 wait.
                 The 20 grows while the walk finds more
  STALLED        of those that workers have: how many wait for the filer
  FILES, SIZE    what the walk has found, of what the last snapshot had
  FILES/S        how fast the walk finds files
  READ/S         how fast the filer is read, including batches in progress
  LEFT           how long it will probably take; "stalled": all that workers
                 have waits for the filer; "waiting": a service is missing;
                 "committing": all work is done; "-": not known yet

Then what waits, one line for all that waits for the same: a filer that does not
answer, a worker that was lost, other workers, a limit, a window. Work of a lost
worker is assigned again within seconds if its process has died, and otherwise
when its lease has ended. Then the work in hand, where few snapshots
are running, or with --work: who does it, where, and how long it is theirs
(LEASE). Then the filers that are spared: those that answer so slowly that
workers do less than the filer's limit; and the shards whose newest snapshot
has failed within a day.

--watch looks again every 2 seconds, until it is interrupted, and fits the
terminal: the most important comes first. Snapshots that are only queued are
counted; --work lists them. Rates are those of the last seconds then, and else
the mean since the snapshot was begun. A terminal that is too narrow for all
columns shows the most important ones; --wide shows all.

It works without NATS, and says then that nobody knows which services run. On
one machine, a note says so if the index is older than the store.`,
		Example: `  bctl status
  bctl status --watch
  bctl status --filer nas1 --work
  bctl status --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.wide && c.watch {
				return usage("--wide and --watch are given together")
			}
			return c.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&c.filer, "filer", "", "only snapshots of this `FILER`")
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "show it again every 2 seconds")
	cmd.Flags().BoolVar(&c.work, "work", false, "show the work in progress of any number of snapshots; with\n--watch, the snapshots that are only queued")
	a.wideFlag(cmd)
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
	repository, err := i.Repository(ctx)
	if err != nil {
		return err
	}
	c.muster = newMuster(c.app.cfg, "bctl status", repository.ID)
	defer c.muster.Close()
	if !c.watch {
		return c.once(ctx, i)
	}
	c.app.interruptible.Store(true)
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		err := c.once(ctx, i)
		switch {
		case errors.Is(context.Cause(ctx), process.ErrInterrupted):
			return nil // the normal end of a watch
		case errors.Is(err, backup.ErrUnavailable):
			if err := c.blind(err); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// blind shows that the index is unavailable, above its last state.
func (c *statusCommand) blind(err error) error {
	if c.last == nil || c.app.json || !c.app.term.outIs {
		c.app.log.Warn("the index does not answer", "error", err)
		return nil
	}
	c.last.lacks = append([]lack{{What: "index", Text: "the index does not answer; this is how it was: " + firstLine(err.Error()), Stops: true}},
		slices.DeleteFunc(c.last.lacks, func(l lack) bool { return l.What == "index" })...)
	return c.show(c.last)
}

// once reads the state and shows it.
func (c *statusCommand) once(ctx context.Context, i index.Catalog) error {
	now, err := c.look(ctx, i)
	if err != nil {
		return err
	}
	now.rates(c.last)
	c.last = now
	return c.show(now)
}

func (c *statusCommand) show(now *overview) error {
	switch {
	case c.app.json:
		return now.printJSON(c.app.print)
	case !c.watch:
		var text strings.Builder
		err := now.write(&text, c.work || len(now.running) <= fewRunning, c.app.width())
		if err == nil {
			_, err = io.WriteString(c.app.out, text.String())
		}
		return err
	case c.app.term.outIs:
		width, height := c.app.term.screen()
		c.app.term.redraw(now.screen(width-1, height-1, c.work))
		return nil
	}
	_, err := fmt.Fprintf(c.app.out, "%s\n", now.screen(0, 0, c.work))
	return err
}

// An overview is the state of all backups at one time.
type overview struct {
	at      time.Time // by the clock of the index
	heardAt time.Time // by the clock of this machine: when the services answered
	silent  map[workerName]*flow.Instance
	fleet   bool
	lacks   []lack
	crew    *crew
	places  map[string]int // running snapshots of each site
	running []*inProgress
	filers  map[string]*index.FilerStatus
	stalled map[filerWork]int
	due     []nextRun           // not started yet
	failed  []failure           // recently
	spared  []index.FilerStatus // governed below their limits
	cut     bool                // there is more open work than was requested
}

// An inProgress is the progress of one running snapshot.
type inProgress struct {
	backup.Snapshot
	base  backup.Counts
	known bool // base is known: there was an earlier snapshot
	work  []index.Work
	tasks inHand
	read  inHand
	still bool // no worker works for it, because a service is missing
	lost  int  // part of the work with workers: theirs do not answer

	// Of the batches that readers have in progress: bytes read, and the sum of the shares done.
	handRead int64
	handDone float64

	at                            time.Time
	filesPerSecond, readPerSecond float64
}

// inHand counts open work: with a worker, stalled there, and queued.
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

// isSpared reports whether the governor allows less than the filer's limits because the filer is
// slow.
func isSpared(f *index.FilerStatus) bool {
	limits := f.Limits.WithDefaults()
	spared := func(slots, limit int, latency time.Duration) bool {
		return slots > 0 && slots < limit && latency > backup.FastLatency
	}
	return spared(f.Load.WalkSlots, limits.WalkTasks, f.Load.WalkLatency) || spared(f.Load.ReadSlots, limits.ReadBatches, f.Load.ReadLatency)
}

// rates computes the speeds since last, or since the start of each snapshot.
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
			since, files, read = b.at, b.Counts.Files, b.readBytes()
		}
		if seconds := s.at.Sub(since).Seconds(); seconds > 0 {
			p.filesPerSecond = max(0, float64(p.Counts.Files-files)/seconds)
			p.readPerSecond = max(0, float64(p.readBytes()-read)/seconds)
		}
	}
}

// left estimates the remaining time of a snapshot. The estimate is the settled share of the
// batches, multiplied by the walked share of the files that the previous snapshot leads to expect,
// because both take time.
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
	if p.isStalled() || p.still {
		return 0, false
	}
	done := min(walked, 1) * p.readShare()
	return remaining(p.at.Sub(p.Started), done, done)
}
