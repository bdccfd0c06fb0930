package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/seal"
)

func newKeyRotate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Make all identities open what was backed up before",
		Long: `Wraps the keys of all packs again, for the recipients in force. It reads the
beginning of each pack and rewrites no data. Afterwards an identity that was
added later opens the packs that were written before, on its own.

This needs an identity that opens the packs. It can be interrupted, and run
again: it continues. What an earlier rotation has wrapped for all recipients in
force is not wrapped again.

After the removal of a recipient there is nothing to rotate: no packs can be
closed to an identity that opens them.`,
		Example: "  bctl key rotate\n  bctl key rotate --identity /media/usb/first.txt",
		Args:    args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.rotateKeys(cmd.Context()) },
	}
}

// rotatedJSON is the result of key rotate. The names are fixed.
type rotatedJSON struct {
	Rotation   int64    `json:"rotation"` // 0: nothing was to be done
	Recipients []string `json:"recipients"`
	Packs      int64    `json:"packs"`   // with objects of the journal
	Wrapped    int64    `json:"wrapped"` // keys
	Had        int64    `json:"had"`     // keys that were wrapped for these recipients before
	Bytes      int64    `json:"bytes"`   // put into the store
	Unopened   int64    `json:"unopened"`
	Missing    int64    `json:"missing"`
	Seconds    float64  `json:"elapsed_seconds"`
}

func (a *app) rotateKeys(ctx context.Context) error {
	r, k, err := a.openKeys(ctx, a.cfg.Identity)
	if err != nil {
		return err
	}
	defer r.close()
	identity, err := a.identityOf(ctx, r, a.cfg.Identity)
	if err != nil {
		return err
	}
	now, err := r.index.Clock(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	var done, total atomic.Int64
	stop := a.animate(func() string {
		return fmt.Sprintf("%s of %s keys", humanize.Comma(done.Load()), humanize.Comma(total.Load()))
	})
	result, err := rewrap.Rotate(ctx, rewrap.Options{
		Index: r.index, Store: r.store, Object: &r.object, Opener: identity.Opener, Signing: k.committer.Signing,
		Now:      func() time.Time { return now.Add(time.Since(began)) },
		Progress: func(d, t int64) { done.Store(d); total.Store(t) },
	})
	stop()
	if err != nil {
		if result.Wrapped > 0 {
			a.note("%s of this rotation are in the store; bctl key rotate continues it", counted(result.Wrapped, "key"))
		}
		return err
	}
	return a.reportRotation(r, &result, time.Since(began))
}

func (a *app) reportRotation(r *repository, result *rewrap.Result, took time.Duration) error {
	object := rotatedJSON{
		result.Rotation, r.object.Recipients, result.Total, result.Wrapped, result.Had, result.Bytes, result.Unopened, result.Missing, took.Seconds(),
	}
	text := fmt.Sprintf("wrapped %s for %s (%s)\n", counted(result.Wrapped, "key"), counted(len(r.object.Recipients), "recipient"), size(result.Bytes))
	if result.Wrapped == 0 {
		text = fmt.Sprintf("nothing to do: %s are wrapped for all recipients in force\n", counted(result.Had, "key"))
	}
	if err := a.result(object, "%s", text); err != nil {
		return err
	}
	for _, problem := range result.Problems {
		a.note("%v", problem)
	}
	if result.Unopened > 0 {
		a.note("%s were not wrapped, because this identity does not open them: run bctl key rotate once more with one that does (--identity)", counted(result.Unopened, "key"))
	}
	if result.Missing > 0 {
		a.note("%s are missing from the store or damaged: run bctl doctor", counted(result.Missing, "pack"))
	}
	if result.Unopened+result.Missing > 0 {
		return errIncomplete
	}
	return nil
}

// identityOf reads an identity file, and checks its signer.
func (a *app) identityOf(ctx context.Context, r *repository, path string) (*repo.Identity, error) {
	identity, err := repo.FindIdentity(path, r.object.ID, a.ask(ctx))
	if err == nil {
		err = identity.Check(&r.object)
	}
	return identity, err
}

type keyVerify struct {
	app *app
	n   int
	all bool
}

func newKeyVerify(a *app) *cobra.Command {
	c := &keyVerify{app: a}
	cmd := &cobra.Command{
		Use:   "verify [FILE…]",
		Short: "Test whether identities open the backups",
		Long: `Tests each identity file: whether it names the right signer, opens the worker
key and the committer key, and opens packs. Of each pack that is tested, the
first part is read and restored in memory, and compared with its hash. Without
FILE, the configured identity is tested.

The packs are spread over all that there are, from the oldest to the newest.
--all tests all of them.

The exit status is 12 if an identity does not open something.`,
		Example: `  bctl key verify
  bctl key verify --all /media/usb/first.txt /media/safe/second.txt`,
		Args: args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	numberFlag(cmd.Flags(), &c.n, "packs", 20, 1, most, "test `N` packs")
	cmd.Flags().BoolVar(&c.all, "all", false, "test all packs")
	return cmd
}

// verifiedJSON is a line of key verify. The names are fixed.
type verifiedJSON struct {
	Identity   string   `json:"identity"`
	Recipients []string `json:"recipients"` // of its identities
	InForce    bool     `json:"in_force"`   // one of them is a recipient in force
	Signer     bool     `json:"signer"`     // it names the signer
	Worker     bool     `json:"worker_key"`
	Committer  bool     `json:"committer_key"`
	Packs      int64    `json:"packs"` // tested
	Opened     int64    `json:"opened"`
	Again      int64    `json:"rewrapped"` // of the opened ones, by a key that was wrapped again
	Error      string   `json:"error,omitempty"`
}

func (v *verifiedJSON) opensAll() bool {
	return v.Error == "" && v.Worker && v.Committer && v.Opened == v.Packs
}

func (c *keyVerify) run(ctx context.Context, given []string) error {
	a := c.app
	r, err := a.openRepository(ctx, toRead)
	if err != nil {
		return err
	}
	defer r.close()
	a.interruptible.Store(true)
	files, err := a.identityFiles(r.object.ID, given)
	if err != nil {
		return err
	}
	failed := 0
	for _, file := range files {
		v, err := c.verify(ctx, r, file)
		if err != nil {
			return err
		}
		if !v.opensAll() {
			failed++
		}
		if err := a.reportVerified(&v); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s cannot restore everything: %w", failed, counted(len(files), "identity file"), backup.ErrWrongKey)
	}
	return nil
}

func (a *app) reportVerified(v *verifiedJSON) error {
	text := fmt.Sprintf("%s\n  worker key     %s\n  committer key  %s\n  packs          %s of %s open", v.Identity,
		opens(v.Worker), opens(v.Committer), humanize.Comma(v.Opened), humanize.Comma(v.Packs))
	if v.Again > 0 {
		text += fmt.Sprintf(", %s by keys that were wrapped again", humanize.Comma(v.Again))
	}
	text += "\n"
	if v.Error != "" {
		text += "  " + v.Error + "\n"
	}
	if err := a.result(v, "%s", text); err != nil {
		return err
	}
	switch {
	case v.Error == "" && !v.InForce:
		a.note("%s is no recipient in force: what is backed up now is not sealed to it", v.Identity)
	case v.Error == "" && !v.Signer:
		a.note("%s does not name the signer of the backups: bctl key ls and bctl init describe the line", v.Identity)
	}
	return nil
}

func opens(ok bool) string { return map[bool]string{true: "opens", false: "does not open"}[ok] }

// verify tests an identity file. An error is one of the repository; those of the identity are in
// the result.
func (c *keyVerify) verify(ctx context.Context, r *repository, file string) (v verifiedJSON, err error) {
	v = verifiedJSON{Identity: file, Recipients: []string{}}
	identity, err := c.app.identityOf(ctx, r, file)
	if err != nil {
		if ctx.Err() != nil {
			return v, err
		}
		v.Error = err.Error()
		return v, nil
	}
	v.Signer = identity.Signer != (seal.Signer{})
	v.Recipients = append(v.Recipients, identity.Recipients...)
	v.InForce = slices.ContainsFunc(v.Recipients, func(key string) bool { return slices.Contains(r.object.Recipients, key) })
	worker, err := r.object.WorkerKey(identity.Opener)
	v.Worker = err == nil
	_, committerErr := r.object.CommitterKey(identity.Opener)
	v.Committer = committerErr == nil
	if broken := errors.Join(err, committerErr); broken != nil && !errors.Is(broken, backup.ErrWrongKey) {
		return v, broken
	}
	found, err := rewrap.Test(ctx, rewrap.TestOptions{
		Index: r.index, Store: r.store, Object: &r.object, Opener: identity.Opener, Dedup: worker.Dedup, HasDedup: v.Worker, Packs: c.packs(),
	})
	v.Packs, v.Opened, v.Again = found.Tested, found.Opened, found.Rewrapped
	if found.Problem != nil {
		v.Error = found.Problem.Error()
	}
	return v, err
}

func (c *keyVerify) packs() int {
	if c.all {
		return 0
	}
	return c.n
}
