package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/seal"
)

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

The exit status is 12 if an identity does not open something, and 1 if packs are
missing or damaged.`,
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
	Damaged    int64    `json:"damaged"`   // missing or damaged packs
	Error      string   `json:"error,omitempty"`
}

// opensWhole reports whether the identity opens everything that is not damaged.
func (v *verifiedJSON) opensWhole() bool {
	return v.Worker && v.Committer && v.Opened == v.Packs-v.Damaged
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
	failed, damaged := 0, false
	for _, file := range files {
		v, err := c.verify(ctx, r, file)
		if err != nil {
			return err
		}
		damaged = damaged || v.Damaged > 0
		if !v.opensWhole() {
			failed++
		}
		if err := a.reportVerified(&v); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s cannot restore everything: %w", failed, counted(len(files), "identity file"), backup.ErrWrongKey)
	}
	if damaged {
		return errors.New("packs are missing or damaged; the identities open all others. bctl check --read-data names the affected files")
	}
	return nil
}

func (a *app) reportVerified(v *verifiedJSON) error {
	text := fmt.Sprintf("%s\n  worker key     %s\n  committer key  %s\n  packs          %s of %s open", v.Identity,
		opens(v.Worker), opens(v.Committer), humanize.Comma(v.Opened), humanize.Comma(v.Packs))
	if v.Again > 0 {
		text += fmt.Sprintf(", %s by keys that were wrapped again", humanize.Comma(v.Again))
	}
	if v.Damaged > 0 {
		text += fmt.Sprintf(", %s missing or damaged", humanize.Comma(v.Damaged))
	}
	text += "\n"
	if v.Error != "" {
		text += "  " + v.Error + "\n"
	}
	if err := a.result(v, "%s", text); err != nil {
		return err
	}
	switch {
	case v.Worker && !v.InForce:
		a.note("%s is no recipient in force: what is backed up now is not sealed to it", v.Identity)
	case v.Worker && !v.Signer:
		a.note("%s does not name the signer of the backups: bctl key add prints the line that does, for a recipient that it adds", v.Identity)
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
	v.Packs, v.Opened, v.Again, v.Damaged = found.Tested, found.Opened, found.Rewrapped, found.Damaged
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
