package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/process"
)

type drainCommand struct {
	app   *app
	which services
	undo  bool
	wait  bool
}

func newWorkerDrain(a *app) *cobra.Command {
	c := &drainCommand{app: a}
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "Stop a walker or reader from taking new work",
		Long: `Stops a worker from taking new work. It finishes what it can of its current work
within worker.stop_timeout and hands back the rest, which other workers of its
site take at once. No backup fails because of a drain. When bctl worker ls shows
the worker as drained, you can stop it.

A drain lasts until bctl worker undrain, or until the process ends: a restarted
worker takes work. To keep a worker from starting, stop and disable its service,
or scale its deployment down.

NAME is the worker's name (worker.name), or the instance that --json shows.`,
		Example: `  bctl worker drain walker2 --wait
  bctl worker drain node7 --role reader
  bctl worker undrain walker2`,
	}
	cmd.Flags().BoolVar(&c.wait, "wait", false, "wait until the worker is drained")
	return c.add(cmd)
}

func newWorkerUndrain(a *app) *cobra.Command {
	c := &drainCommand{app: a, undo: true}
	return c.add(&cobra.Command{
		Use:     "undrain NAME",
		Short:   "Let a drained worker take work again",
		Long:    `Lets a worker take work again after bctl worker drain.`,
		Example: `  bctl worker undrain walker2`,
	})
}

func (c *drainCommand) add(cmd *cobra.Command) *cobra.Command {
	cmd.Args = args(cobra.ExactArgs(1))
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if err := c.which.check(); err != nil {
			return err
		}
		return c.run(cmd.Context(), given[0])
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.app.completeServices(cmd, func(i *flow.Instance) string {
			if !i.Worker() {
				return ""
			}
			return i.Name
		})
	}
	c.which.flags(c.app, cmd, "walker, reader")
	return cmd
}

func (c *drainCommand) run(ctx context.Context, name string) error {
	return c.app.withServices(ctx, func(conn *flow.Conn) error {
		all, err := conn.Instances(ctx)
		if err != nil {
			return err
		}
		worker, err := c.which.find(all, name)
		if err != nil {
			return err
		}
		if !worker.Worker() {
			return usage("%s is a %s and cannot be drained: stop its process; another %s takes over, if one runs", display(name), worker.Role, worker.Role)
		}
		if worker.Silent {
			return fmt.Errorf("%s %s does not answer: it was last heard of %s ago", worker.Role, display(name), age(time.Since(worker.Heard)))
		}
		now, err := conn.Drain(ctx, worker, c.undo, strings.TrimPrefix(byWhom(), " by "))
		if err != nil {
			return err
		}
		if !c.undo {
			c.noteAlone(all, &now)
		}
		if c.wait {
			c.app.interruptible.Store(true)
			if now, err = c.await(ctx, conn, now); err != nil {
				return err
			}
		}
		return c.tell(&now)
	})
}

// noteAlone prints a note if no other worker takes the work of the site.
func (c *drainCommand) noteAlone(all []flow.Instance, worker *flow.Instance) {
	if !slices.ContainsFunc(all, func(i flow.Instance) bool {
		return i.Role == worker.Role && i.Site == worker.Site && i.ID != worker.ID && takesWork(&i)
	}) {
		c.app.note("no other %s of site %s is ready: its work waits", worker.Role, worker.Site)
	}
}

// drainEvery is the interval between checks whether a worker is drained.
const drainEvery = 500 * time.Millisecond

// await waits until a worker is drained.
func (c *drainCommand) await(ctx context.Context, conn *flow.Conn, worker flow.Instance) (flow.Instance, error) {
	look := time.NewTicker(drainEvery)
	defer look.Stop()
	for !worker.Drained {
		select {
		case <-look.C:
		case <-ctx.Done():
			c.app.term.println("The worker continues to drain: bctl worker ls shows when it is drained.")
			return worker, context.Cause(ctx)
		}
		all, err := conn.Instances(ctx)
		switch {
		case errors.Is(context.Cause(ctx), process.ErrInterrupted):
			continue
		case errors.Is(err, backup.ErrUnavailable):
			c.app.log.Warn("NATS does not answer", "error", err)
			continue
		case err != nil:
			return worker, err
		}
		n := slices.IndexFunc(all, func(i flow.Instance) bool { return i.ID == worker.ID && i.Role == worker.Role && i.Site == worker.Site })
		switch {
		case n < 0 || all[n].Lost:
			return worker, fmt.Errorf("%s %s ended before it was drained: its work is assigned again", worker.Role, display(worker.Name))
		case !all[n].Draining:
			return worker, fmt.Errorf("%s %s takes work again: the drain was undone", worker.Role, display(worker.Name))
		}
		worker = all[n]
	}
	return worker, nil
}

// tell reports the state of the worker.
func (c *drainCommand) tell(i *flow.Instance) error {
	text := "takes no new work, and has " + counted(i.Tasks+i.Batches, pieceOf(i)) + " in progress; bctl worker ls shows when it is drained"
	switch {
	case c.undo:
		text = "takes work again"
	case i.Drained:
		text = "is drained: it has no work and can be stopped"
	}
	return c.app.result(newServiceJSON(i), "%s %s at site %s %s\n", i.Role, display(i.Name), i.Site, text)
}

func pieceOf(i *flow.Instance) string {
	if i.Role == flow.RoleReader {
		return "batch"
	}
	return "task"
}
