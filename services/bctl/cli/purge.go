package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/tty"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

type purgeCommand struct {
	app    *app
	which  which
	path   string
	since  time.Time
	reason string
	dryRun bool
	yes    bool
	resume bool
	// unneeded: no path, but all content that no snapshot needs.
	unneeded bool
	in       *bufio.Reader
	asks     bool // stdin and stderr are a terminal

	// In a fleet with roles: the settings files of a committer and of the pruner, whose access to
	// the store the purge uses.
	committer, pruner string

	repository *repository
	index      index.Index
	store      store.Store
	local      bool

	committerSettings *config.Config // nil: the admin has what a committer needs
	found             []purgeOf
}

// A purgeOf is what is purged of a shard.
type purgeOf struct {
	index.Purged
	shard index.ShardStatus
}

func newPurge(a *app) *cobra.Command {
	c := &purgeCommand{app: a}
	cmd := &cobra.Command{
		Use:   "purge --path PATH --reason TEXT",
		Short: "Remove a file or directory from all snapshots",
		Long: `Removes a file, or a directory with all that is below it, from the snapshots
that have it: name, attributes and content. All other files stay as they are.
PATH is a path within a shard, or as it is on the filer. All shards that have it
are changed, or those that --filer and --shard select; with --since, only
snapshots that started then or later. If a shard has an absolute PATH both ways,
the purge is refused.

Content that other files share stays. The rest is deleted from the index and the
store. A pack that also has content of other files is opened, and their content
is stored again: that needs an identity. At the end, purge looks for what is
left, and reports it. The log (bctl log) has the user, the time, the reason and
the amount, but not the name of the file: do not write it into --reason.

The files of the filer are not touched. If the path still exists there, the next
backup takes it again unless you exclude it.

--unneeded removes no path, but all content that no snapshot needs: of forgotten
snapshots, of purges that were not complete when the index was lost, and what a
repair has dropped. A prune leaves such content where it shares frames with what
is needed.

--dry-run lists what would be removed, and changes nothing. --resume continues a
purge that was interrupted. bctl refuses to purge a snapshot on hold, and a
shard that is being backed up (status 11). Large purges need a confirmation
(bctl brake).

In a fleet, run it as the admin, on the machine with the installation. It needs
the committer key, and access to the store as a committer and as the pruner:
name their settings files with --committer and --pruner. Services go on.`,
		Example: `  bctl purge --path /home/alice/tax.pdf --reason 'request 4711' --dry-run
  bctl purge --path /home/alice/tax.pdf --reason 'request 4711' --yes
  bctl purge --path alice --shard /home --since 2026-01-01 --reason 'ticket 12'
  bctl purge --resume
  bctl purge --unneeded --reason 'request 4711'
  bctl purge --path /home/alice/tax.pdf --reason 'request 4711' \
      --config admin/bctl.yaml --committer committer/bctl.yaml \
      --pruner pruner/bctl.yaml`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.in, c.asks = a.asksFrom(cmd.InOrStdin())
			if err := c.check(); err != nil {
				return err
			}
			return c.withRoles(c.run(cmd.Context()))
		},
	}
	c.which.flags(a, cmd)
	c.flags(cmd.Flags())
	return cmd
}

func (c *purgeCommand) flags(flags *pflag.FlagSet) {
	flags.StringVar(&c.path, "path", "", "the `PATH` to remove")
	sinceFlag(flags, &c.since, "since", "only from snapshots that started at or after `TIME`: "+sinceForms)
	flags.StringVar(&c.reason, "reason", "", "why, a `TEXT` for the log, without the name (required)")
	flags.BoolVar(&c.dryRun, "dry-run", false, "only list what would be removed")
	flags.BoolVarP(&c.yes, "yes", "y", false, "do not ask")
	flags.StringVar(&c.committer, "committer", "", "in a fleet: the settings `FILE` of a committer, for its key and its access to the store")
	flags.StringVar(&c.pruner, "pruner", "", "in a fleet: the settings `FILE` of a pruner, for its access to the store")
	flags.BoolVar(&c.resume, "resume", false, "continue purges that are not complete")
	flags.BoolVar(&c.unneeded, "unneeded", false, "remove all content that no snapshot needs")
}

// check fails unless the arguments define what to remove.
func (c *purgeCommand) check() error {
	if c.resume {
		if c.path != "" || c.reason != "" || c.dryRun || c.unneeded || !c.since.IsZero() || c.which != (which{}) {
			return usage("--resume takes no other flags: what is purged was said when it began")
		}
		return nil
	}
	if c.unneeded {
		if c.path != "" || !c.since.IsZero() || c.which != (which{}) {
			return usage("--unneeded is for all packs: it takes no path, and selects nothing")
		}
		return c.checkReason("")
	}
	if c.path == "" {
		return usage("say what to remove, with --path PATH")
	}
	path, err := browse.CleanPath(c.path)
	if err != nil {
		return usage("%v", err)
	}
	if path == "" {
		return usage("--path is the root of a shard: forget its snapshots instead (bctl forget)")
	}
	return c.checkReason(path)
}

// checkReason fails unless there is a reason without the name, and somebody to ask or --yes.
func (c *purgeCommand) checkReason(path string) error {
	if strings.TrimSpace(c.reason) == "" {
		return usage("say why, with --reason TEXT: the log keeps it")
	}
	if _, name := backup.Split(path); name != "" && strings.Contains(c.reason, name) {
		return usage("--reason has the name %s, and the log would keep it: give another reason, such as the number of a request", display(name))
	}
	if !c.dryRun && !c.yes && !c.asks {
		return usage("purge cannot be undone: look with --dry-run, and then give --yes")
	}
	return nil
}

func (c *purgeCommand) run(ctx context.Context) (err error) {
	if c.repository, err = c.app.openRepository(ctx, toWrite); err != nil {
		return err
	}
	defer c.repository.close()
	c.index, c.store = c.repository.index, c.repository.store
	_, c.local = c.index.(*sqliteindex.Index)
	closeStores, err := c.openStores(ctx)
	if err != nil {
		return err
	}
	defer closeStores()
	if c.resume {
		return c.goOn(ctx)
	}
	// A snapshot without a record is refused as one that is running.
	keys, err := c.keys()
	if err != nil {
		return err
	}
	if err := embedded.WriteRecords(ctx, c.index, c.store, keys); err != nil {
		return err
	}
	if c.unneeded {
		return c.purgeUnneeded(ctx)
	}
	if err := c.find(ctx); err != nil {
		return err
	}
	if err := c.list(); err != nil || c.dryRun {
		return err
	}
	if err := c.agree(); err != nil {
		return err
	}
	if err := c.app.aloneWithIndex(); err != nil {
		return err
	}
	done, err := c.brake(ctx)
	if err != nil {
		return err
	}
	for n := range c.found {
		f := &c.found[n]
		purge := f.Purge
		purge.ID = backup.NewPackID()
		if f.Purged, err = c.index.BeginPurge(ctx, purge, false); err != nil {
			return c.refused(err, &f.shard)
		}
		if n == len(c.found)-1 {
			if err := done(); err != nil {
				return err
			}
		}
		if f.Drills > 0 {
			c.app.note("deleted %s, because the snapshots have changed (bctl drill proves them again)", counted(f.Drills, "drill report"))
		}
		if err := c.finish(ctx, f.Purge, &f.shard); err != nil {
			return err
		}
	}
	return nil
}

// aloneWithIndex prevents all other processes from writing to the index, which this process has
// opened for writing.
func (a *app) aloneWithIndex() error {
	if a.indexLock == nil { // of a fleet: the index itself excludes what a purge must not meet
		return nil
	}
	err := syscall.Flock(int(a.indexLock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return &busyError{fmt.Sprintf("a backup or another command writes to the index; run this command again when it has ended (it holds %s)", a.indexLock.Name())}
	}
	return err
}

// find finds the shards that have the path, and what would be removed.
func (c *purgeCommand) find(ctx context.Context) error {
	if err := c.which.exists(ctx, c.index); err != nil {
		return err
	}
	shards, err := c.index.ListShards(ctx, index.ShardFilter{Filer: c.which.filer, Name: c.which.shard, Retired: true})
	if err != nil {
		return err
	}
	for n := range shards {
		before := len(c.found)
		for _, path := range c.pathsIn(&shards[n]) {
			p := index.Purge{Shard: shards[n].ID, Path: path, Since: c.since, By: operator(), Reason: c.reason}
			found, err := c.index.BeginPurge(ctx, p, true)
			if errors.Is(err, backup.ErrNotFound) {
				continue
			}
			if err != nil {
				return c.refused(err, &shards[n])
			}
			if len(c.found) > before {
				first := &c.found[before]
				return fmt.Errorf("%s %s has two paths that %s may mean, and nothing was removed: give the one that you mean, relative to the shard: %s or %s",
					display(shards[n].Filer.Name), display(shards[n].Name), display(c.path), display(first.Path), display(path))
			}
			c.found = append(c.found, purgeOf{found, shards[n]})
		}
	}
	if len(c.found) == 0 {
		since := ""
		if !c.since.IsZero() {
			since = " that started at " + zoned(c.since) + " or later"
		}
		return absent("no snapshot%s%s has %s (bctl ls SNAPSHOT lists what a snapshot has; if it was being purged when the index was lost, bctl purge --unneeded removes its content)", &c.which, since, display(c.path))
	}
	return nil
}

// pathsIn returns the paths within a shard that the user may mean.
func (c *purgeCommand) pathsIn(s *index.ShardStatus) (paths []string) {
	path, err := browse.CleanPath(c.path)
	if err != nil {
		return nil
	}
	paths = append(paths, path)
	_, root, err := treeAt(s.Source)
	if err != nil {
		root = s.Name
	}
	if below, ok := strings.CutPrefix("/"+path, strings.TrimSuffix(root, "/")+"/"); ok && filepath.IsAbs(c.path) && below != "" && below != path {
		paths = append(paths, below)
	}
	return paths
}

// refused explains why the index refuses a purge.
func (c *purgeCommand) refused(err error, s *index.ShardStatus) error {
	of := display(s.Filer.Name) + " " + display(s.Name)
	text := strings.TrimSuffix(err.Error(), ": "+cmp.Or(errors.Unwrap(err), err).Error())
	switch {
	case errors.Is(err, index.ErrKept):
		return fmt.Errorf("%s: %s, and nothing was removed: remove the hold first (bctl hold rm), or purge only what is newer (--since)", of, text)
	case errors.Is(err, backup.ErrRunning):
		return &busyError{fmt.Sprintf("%s is being backed up or restored (%s), and nothing was removed: run this command again when that has ended (bctl status shows it, and bctl cancel ends what was interrupted)", of, text)}
	case errors.Is(err, backup.ErrExists):
		return fmt.Errorf("%s has %s: go on with it first (bctl purge --resume)", of, text)
	}
	return wrongSetting(err)
}

// agree asks for a confirmation.
func (c *purgeCommand) agree() error {
	if c.yes {
		return nil
	}
	if !c.app.confirmed(c.in, "This cannot be undone. Remove it? [y/N] ") {
		return errors.New("nothing was removed")
	}
	return nil
}

// asksFrom returns where answers are read from. asks: in and stderr are a terminal.
func (a *app) asksFrom(in io.Reader) (answers *bufio.Reader, asks bool) {
	file, is := in.(*os.File)
	return bufio.NewReader(in), is && tty.Is(file) && a.term.isTerminal
}

// confirmed asks a question, and reports whether the answer is yes.
func (a *app) confirmed(in *bufio.Reader, question string) bool {
	fmt.Fprint(a.term, question)
	line, err := in.ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	}
	if err != nil {
		a.term.println("")
	}
	return false
}

// brake stops a purge of a large share of what is stored, until operators have confirmed it. done
// notes that the confirmation is used up: once a purge has begun, nothing brings back what it
// removes.
func (c *purgeCommand) brake(ctx context.Context) (done func() error, err error) {
	var d index.Deletion
	for n := range c.found {
		d.Bytes += c.found[n].Total.Bytes
	}
	for p, err := range c.index.Packs(ctx) {
		if err != nil {
			return nil, err
		}
		d.OfBytes += p.Bytes
	}
	return c.braked(ctx, d)
}

// braked is brake for a deletion of this user.
func (c *purgeCommand) braked(ctx context.Context, d index.Deletion) (done func() error, err error) {
	d.By = index.ByPurge(operator())
	err = c.index.MayDelete(ctx, d)
	var stopped *index.StoppedError
	if errors.As(err, &stopped) {
		s := stopOf{Stop: stopped.Stop}
		return nil, fmt.Errorf("the brake has stopped the purge, and nothing was removed: it would remove %s. To confirm it, run %s; then run this command again", s.what(), s.confirmation())
	}
	return func() error { return c.index.Deleted(ctx, d, true) }, err
}

// goOn finishes the purges that are not complete.
func (c *purgeCommand) goOn(ctx context.Context) error {
	pending, err := c.index.Purges(ctx)
	if err != nil {
		return err
	}
	if len(pending) == 0 {
		return c.app.result(struct {
			Type    string `json:"type"`
			Pending int    `json:"pending"`
		}{"purges", 0}, "all purges are complete\n")
	}
	if err := c.app.aloneWithIndex(); err != nil {
		return err
	}
	shards, err := shardsByID(ctx, c.index)
	if err != nil {
		return err
	}
	for _, p := range pending {
		shard := shards[p.Shard]
		if shard == nil {
			return fmt.Errorf("purge %s is of a shard that the index does not have: %w", p.ID, backup.ErrCorrupt)
		}
		// A process that was killed may have left the confirmation.
		if err := c.index.Deleted(ctx, index.Deletion{By: index.ByPurge(p.By)}, true); err != nil {
			return err
		}
		if err := c.finish(ctx, p, shard); err != nil {
			return err
		}
	}
	return nil
}

// finish carries out a purge that has begun, and reports it.
func (c *purgeCommand) finish(ctx context.Context, p index.Purge, shard *index.ShardStatus) error {
	o, err := c.options(ctx, p)
	if err != nil {
		return err
	}
	started := time.Now()
	var proof embedded.PurgeProof
	_, err = c.app.runPrune(func(with prune.Options) (prune.Summary, error) {
		o.Progress = with.Progress
		proof, err = embedded.Purge(ctx, o)
		return prune.Summary{}, err
	}, prune.Options{})
	switch {
	case errors.Is(err, prune.ErrBusy):
		err = &busyError{err.Error() + "; go on with bctl purge --resume when that has ended"}
	case err != nil:
		c.app.term.println("The purge is not complete. Go on with bctl purge --resume.")
	}
	if err != nil {
		return err
	}
	return c.report(&p, shard, &proof, time.Since(started))
}

// withRoles adds to an error of the store which settings a purge in a fleet takes.
func (c *purgeCommand) withRoles(err error) error {
	if errors.Is(err, fs.ErrPermission) && !c.local && c.repository != nil && (c.committer == "" || c.pruner == "") {
		return needsRoles(err)
	}
	return err
}

func needsRoles(err error) error {
	return fmt.Errorf("%w. In a fleet, run bctl purge as the admin, with --committer and --pruner", err)
}

// keys returns the keys for objects of the journal.
func (c *purgeCommand) keys() (k journal.Keys, err error) {
	r := c.repository
	path := c.app.cfg.CommitterKey
	if c.committerSettings != nil {
		path = c.committerSettings.CommitterKey
	}
	key, err := r.object.ReadCommitterKey(path)
	if err != nil && !c.local && c.committer == "" {
		err = needsRoles(err)
	}
	if err != nil {
		return k, err
	}
	return open.JournalKeys(&r.object, key)
}

// options returns what a purge needs. Without an identity, it does what it can.
func (c *purgeCommand) options(ctx context.Context, p index.Purge) (o embedded.PurgeOptions, err error) {
	a, r := c.app, c.repository
	if o.Keys, err = c.keys(); err != nil {
		return o, err
	}
	if c.local {
		if o.LockDir, err = a.cfg.LockDir(); err != nil {
			return o, err
		}
	}
	o.Index, o.Purge, o.Repository, o.Sealer = c.index, p, &r.object.Repository, o.Keys.Sealer
	o.Store, o.Log, o.By = c.store, a.log, operator()
	o.Sweep = c.local // in a fleet, the pruner sweeps
	o.Holder = fmt.Sprintf("purge-%d-%s", os.Getpid(), backup.NewPackID())
	opener, dedup, err := a.openSealed(ctx, r)
	switch {
	case err == nil:
		o.Opener, o.Hasher = opener, chunk.NewHasher(dedup)
	case a.cfg.Identity != "":
		return o, err
	default:
		a.note("%v", err)
	}
	return o, nil
}
