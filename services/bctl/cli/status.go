package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/services/bctl/open"
)

const (
	// watchEvery is the refresh interval of status --watch.
	watchEvery = 2 * time.Second
	// maxWork is the maximum amount of open work that is requested. A fleet has less: as much as
	// may be queued, and stalled work.
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
	looks  []*overview // of the watch, within ratesOver: the oldest first
	// answers ends what is shown until the index answers. It may be called again.
	answers func()
	listed  bool // the services, meanwhile
}

const statusHelp = `Reports first what is missing in a fleet: a leading committer, or walkers and
readers at the site of each filer with shards. It also names services that take
no work, with the reason.

Then it lists every running snapshot: first those that need attention, last
those that no worker works on. The columns are

  AGE            time since the snapshot was started
  TASKS, BATCHES walk tasks and read batches. "12/20+3": of the 20 known so far,
                 12 are done, workers are working on 3, and the other 5 wait.
                 The 20 grows while the walk finds more
  STALLED        number of assigned tasks and batches that wait for the filer
  FILES, SIZE    found by the walk, compared with the last snapshot
  FILES/S        files found per second, within the last minute
  READ/S         read rate within the last minute, including batches in progress
  LEFT           estimated time left at these rates; "stalled": all assigned
                 work waits for the filer; "waiting": a service is missing;
                 "committing": all work is done; "-": not known

Then it lists waiting work, one line per cause: a filer that does not answer, a
lost worker, other workers, a limit, a window; and filers whose read limit slows
their backups. Work of a lost worker is assigned again within seconds if its
process has died, otherwise when its lease has ended. If few snapshots are
running, or with --work, it then lists the work in progress with its worker, its
location and the time left of its lease (LEASE). Finally it lists filers whose
limits are reduced because they have become slow, and shards whose newest
snapshot has failed within the last day.

Restores by bctl restore --fleet follow the snapshots, with their tasks and the
number of restorers that have one. STATE says whether a restore waits for
restorers or for keys. With --filer, restores are not shown.

--watch refreshes the output every 2 seconds until it is interrupted, and fits
it to the terminal: the most important lines come first. It counts snapshots
that are only queued; --work lists them. A terminal that is too narrow for all
columns shows the most important ones (--wide: all).

In a fleet, the workers report the rates; a rate that they do not report is "-".
On one machine, rates are known while a snapshot is younger than a minute, and
with --watch. Without NATS, the command cannot list the services. If the index
does not answer within 3 seconds, it lists the services as bctl worker ls does,
and the rest when the index answers.`

func newStatus(a *app) *cobra.Command {
	c := &statusCommand{app: a}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show running snapshots, and what they wait for",
		Long:  statusHelp,
		Example: `  bctl status
  bctl status --watch
  bctl status --filer nas1 --work
  bctl status --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.wide && c.watch {
				return usage("--wide and --watch exclude each other: give one of them")
			}
			return c.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&c.filer, "filer", "", "only snapshots of this `FILER`")
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "show it again every 2 seconds")
	cmd.Flags().BoolVar(&c.work, "work", false, "show the work in progress of any number of snapshots; with --watch, the snapshots that are only queued")
	a.wideFlag(cmd)
	a.completeFlag(cmd, "filer", a.filerNames)
	return cmd
}

func (c *statusCommand) run(ctx context.Context) error {
	c.answers = c.servicesMeanwhile(ctx)
	defer c.answers()
	i, err := c.app.openIndex(ctx, toRead)
	if err != nil {
		c.answers()
		refuses := open.IndexRefuses(err)
		if (refuses || errors.Is(err, backup.ErrUnavailable)) && c.app.cfg.Fleet() && !c.app.json && !c.listed {
			c.listServices(ctx, refuses)
		}
		return err
	}
	defer i.Close()
	var repository backup.Repository
	err = c.app.answered(ctx, giveUpAfter, func(ctx context.Context) (err error) {
		repository, err = c.begin(ctx, i)
		return err
	})
	if err != nil {
		return err
	}
	c.answers() // it does
	var comparing sync.WaitGroup
	comparing.Go(func() { c.app.noteCurrent(ctx, i) }) // the store may be slower than the index
	defer comparing.Wait()
	c.muster = newMuster(c.app.cfg, "bctl status", repository.ID)
	defer c.muster.Close()
	if !c.watch {
		return c.answer(ctx, i)
	}
	return c.keepShowing(ctx, i)
}

// servicesMeanwhile lists the services of a fleet, which answer over NATS, if the index has not
// answered within patience. stop returns when nothing more is printed. JSON objects have a fixed
// order, so that bctl worker ls --json is the command for them.
func (c *statusCommand) servicesMeanwhile(ctx context.Context) (stop func()) {
	if !c.app.cfg.Fleet() || c.app.json {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var owned sync.WaitGroup
	owned.Go(func() {
		select {
		case <-ctx.Done():
		case <-time.After(patience):
			c.listServices(ctx, false)
		}
	})
	return func() { cancel(); owned.Wait() }
}

// listServices prints the services, whichever repository they belong to: only the index has its id.
// refused means that the index has answered, and refuses this client.
func (c *statusCommand) listServices(ctx context.Context, refused bool) {
	why := "the index does not answer"
	if refused {
		why = "the index refuses this client"
	}
	all := newMuster(c.app.cfg, "bctl status", backup.RepositoryID{})
	defer all.Close()
	crew := all.ask(ctx, nil)
	switch {
	case ctx.Err() != nil: // the index has answered
	case crew.err != nil:
		c.app.note("%s, and the services are not known: %v", why, crew.err)
	default:
		c.listed = true
		c.app.note("%s: running snapshots are not known", why)
		// If the output has ended, the command fails when it prints its result.
		_ = c.app.printServices(crew.services, crew.services)
		fmt.Fprintln(c.app.out)
	}
}

// begin reads what the command needs once.
func (c *statusCommand) begin(ctx context.Context, i index.Index) (backup.Repository, error) {
	if c.filer != "" {
		if _, err := findFiler(ctx, i, c.filer); err != nil {
			return backup.Repository{}, err
		}
	}
	return i.Repository(ctx)
}

// answer shows the state. A server that does not answer makes it fail after a time.
func (c *statusCommand) answer(ctx context.Context, i index.Index) error {
	return c.app.answered(ctx, giveUpAfter, func(ctx context.Context) error { return c.once(ctx, i) })
}

// keepShowing shows the state until it is interrupted. While the index does not answer, it shows
// the last one.
func (c *statusCommand) keepShowing(ctx context.Context, i index.Index) error {
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
	if len(c.looks) == 0 || c.app.json || !c.app.term.outIs {
		c.app.log.Warn("the index does not answer", "error", err)
		return nil
	}
	last := c.looks[len(c.looks)-1]
	last.lacks = append([]lack{{What: "index", Text: "the index does not answer; this is how it was: " + firstLine(err.Error()), Stops: true}},
		slices.DeleteFunc(last.lacks, func(l lack) bool { return l.What == "index" })...)
	return c.show(last)
}

// once reads the state and shows it.
func (c *statusCommand) once(ctx context.Context, i index.Index) error {
	now, err := c.await(ctx, i)
	if err != nil {
		return err
	}
	now.rates(c.looks)
	c.looks = append(slices.DeleteFunc(c.looks, func(o *overview) bool { return now.at.Sub(o.at) > ratesOver }), now)
	return c.show(now)
}

// await is look. If the index takes long to answer, it shows that meanwhile.
func (c *statusCommand) await(ctx context.Context, i index.Index) (now *overview, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		now, err = c.look(ctx, i)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		if err := c.blind(fmt.Errorf("no answer within %v", patience)); err != nil {
			return nil, err
		}
		<-ended
	}
	return now, err
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
	slots   map[string]int // running snapshots of each site
	running []*inProgress
	filers  map[string]*index.FilerStatus
	stalled map[filerWork]int
	due     []nextRun           // not started yet
	failed  []failure           // recently
	spared  []index.FilerStatus // governed below their limits
	// restores are those that restorers share, if those of all filers are shown.
	restores []sharedRestore
	cut      bool // there is more open work than was requested
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
	full  bool // no reader works for it, because the store is full
	lost  int  // part of the work with workers: theirs do not answer

	// Of the batches that readers have in progress: bytes read, and the sum of the shares done.
	handRead int64
	handDone float64

	at          time.Time
	walk, reads recent
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
