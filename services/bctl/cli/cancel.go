package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/services/bctl/embedded"
)

type cancelCommand struct {
	app    *app
	which  which
	all    bool
	detach bool
}

func newCancel(a *app) *cobra.Command {
	c := &cancelCommand{app: a}
	cmd := &cobra.Command{
		Use:   "cancel SNAPSHOT…",
		Short: "Cancel running snapshots",
		Long: `Cancels running snapshots: those named by an id or the beginning of one, those
of a filer or a shard, or all. A cancelled snapshot fails, and its index entries
are removed. The last good snapshot of each shard stays the newest. Content that
a cancelled snapshot has stored is reused by the next backup.

The command waits until the snapshots have ended, unless --detach is given. In a
fleet, a committer ends them.`,
		Example: `  bctl cancel 3f2a
  bctl cancel --filer nas1
  bctl cancel --filer nas1 --shard /export/home
  bctl cancel --all --detach`,
		ValidArgsFunction: func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.complete(cmd, given, a.runningIDs)
		},
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	cmd.Flags().StringVar(&c.which.filer, "filer", "", "all snapshots of this `FILER`")
	shardFlag(cmd.Flags(), &c.which.shard, "the snapshot of this `SHARD`")
	cmd.Flags().BoolVar(&c.all, "all", false, "all running snapshots")
	cmd.Flags().BoolVar(&c.detach, "detach", false, "do not wait until the snapshots have ended")
	a.completeFlag(cmd, "filer", a.filerNames)
	a.completeFlag(cmd, "shard", a.shardNames)
	return cmd
}

func (c *cancelCommand) run(ctx context.Context, given []string) error {
	narrowed := c.which != which{}
	switch {
	case len(given) == 0 && !narrowed && !c.all:
		return usage("nothing to cancel is named: give snapshots, --filer FILER [--shard SHARD] or --all (bctl status lists running snapshots)")
	case c.all && (narrowed || len(given) > 0), narrowed && len(given) > 0:
		return usage("name either snapshots, --filer with or without --shard, or --all")
	}
	return c.app.withIndex(ctx, toWrite, func(i index.Index) error {
		wanted, err := c.wanted(ctx, i, given)
		if err != nil {
			return err
		}
		if len(wanted) == 0 {
			c.app.term.println("No snapshot" + c.which.String() + " is running.")
			return nil
		}
		waiting, err := c.cancel(ctx, i, wanted)
		if err != nil || c.detach || len(waiting) == 0 {
			return err
		}
		c.app.interruptible.Store(true)
		stop, err := c.lookOut(ctx, i)
		if err != nil {
			return err
		}
		defer stop()
		f := &follower{index: i, log: c.app.log.Warn, ended: c.tell}
		err = f.follow(ctx, waiting)
		if errors.Is(err, process.ErrInterrupted) {
			c.app.term.println("The cancellation stays requested. bctl status shows the snapshots that have not ended yet.")
		}
		return err
	})
}

// lookOut reports a missing leader while the command waits for committers.
func (c *cancelCommand) lookOut(ctx context.Context, i index.Index) (stop func(), err error) {
	repository, err := i.Repository(ctx)
	if err != nil {
		return nil, err
	}
	services := newMuster(c.app.cfg, "bctl cancel", repository.ID)
	l := &lookout{app: c.app, ask: services.ask, advice: "the snapshots end as soon as a committer leads; Ctrl-C only stops waiting"}
	quiet := l.watch(ctx, lookoutEvery)
	return func() { quiet(); services.Close() }, nil
}

// wanted returns the running snapshots to cancel.
func (c *cancelCommand) wanted(ctx context.Context, i index.Catalog, given []string) ([]backup.Snapshot, error) {
	if len(given) == 0 {
		if err := c.which.exists(ctx, i); err != nil {
			return nil, err
		}
		return i.Snapshots(ctx, index.SnapshotFilter{Filer: c.which.filer, Shard: c.which.shard, States: onlyRunning})
	}
	var wanted []backup.Snapshot
	for _, arg := range given {
		s, err := c.which.snapshot(ctx, i, arg)
		if err != nil {
			return nil, err
		}
		if s.State != backup.Running {
			return nil, absent("snapshot %s of %s %s is %s: only a running snapshot can be cancelled",
				s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name), s.State)
		}
		wanted = append(wanted, s)
	}
	return wanted, nil
}

// cancel ends snapshots, or requests their end from the committers, and returns those to wait for.
func (c *cancelCommand) cancel(ctx context.Context, i index.Index, wanted []backup.Snapshot) (waiting []backup.Snapshot, err error) {
	reason := "cancelled" + byWhom()
	for n := range wanted {
		s := &wanted[n]
		ended, err := c.one(ctx, i, s, reason)
		switch {
		case errors.Is(err, backup.ErrNotFound): // it has ended in the meantime
			ended = true
		case err != nil:
			return nil, fmt.Errorf("cancel %s: %w", s.ID.Short(), err)
		}
		switch {
		case ended:
			now, err := i.Snapshot(ctx, s.ID)
			if err == nil {
				err = c.tell(&now)
			}
			if err != nil {
				return nil, err
			}
		case c.detach:
			s.Cancel = reason
			if err := c.tell(s); err != nil {
				return nil, err
			}
		default:
			waiting = append(waiting, *s)
		}
	}
	return waiting, nil
}

// one cancels one snapshot, and reports whether the snapshot ended immediately.
func (c *cancelCommand) one(ctx context.Context, i index.Index, s *backup.Snapshot, reason string) (ended bool, err error) {
	if c.app.cfg.Fleet() {
		return false, i.RequestCancel(ctx, s.ID, reason)
	}
	locks, err := c.app.cfg.LockDir()
	if err != nil {
		return false, err
	}
	return embedded.Cancel(ctx, i, locks, s, reason)
}

// byWhom returns " by alice on host", as far as it is known.
func byWhom() (who string) {
	if u, err := user.Current(); err == nil {
		who = " by " + u.Username
	}
	if host, err := os.Hostname(); err == nil {
		who += " on " + host
	}
	return who
}

// cancelJSON is a line of cancel. The names are fixed.
type cancelJSON struct {
	Snapshot string `json:"snapshot"`
	Filer    string `json:"filer"`
	Shard    string `json:"shard"`
	Number   int64  `json:"number"`
	// State is failed; running with --detach; or committed if the request came too late.
	State  string `json:"state"`
	Reason string `json:"reason"`
	Base   int64  `json:"base"` // the last good snapshot; 0: none
}

// tell reports the result for a snapshot.
func (c *cancelCommand) tell(s *backup.Snapshot) error {
	if c.app.json {
		return c.app.print(cancelJSON{
			s.ID.String(), s.Filer.Name, s.Shard.Name, int64(s.Number), string(s.State), cmp.Or(s.Reason, s.Cancel), int64(s.Base),
		})
	}
	text := fmt.Sprintf("snapshot %s of %s %s, number %d, ", s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name), s.Number)
	switch s.State {
	case backup.Running:
		text += "will be cancelled; bctl status shows it until it has ended"
	case backup.Committed:
		text += "was committed before it could be cancelled"
	default:
		text += "is cancelled: its index entries are removed"
		if s.Base > 0 {
			text += fmt.Sprintf(", and number %d is the last good one", s.Base)
		} else {
			text += ", and the shard has no snapshot"
		}
	}
	_, err := fmt.Fprintln(c.app.out, text)
	return err
}
