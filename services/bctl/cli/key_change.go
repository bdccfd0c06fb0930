package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
)

// changedJSON is the result of key add and key rm. The names are fixed.
type changedJSON struct {
	Action     string   `json:"action"` // added, removed, labeled or unchanged
	Recipient  string   `json:"recipient"`
	Label      string   `json:"label"`
	Identity   string   `json:"identity,omitempty"` // the file that key add --new has created
	Recipients []string `json:"recipients"`         // in force
}

type keyAdd struct {
	app      *app
	label    string
	generate bool
}

func newKeyAdd(a *app) *cobra.Command {
	c := &keyAdd{app: a}
	cmd := &cobra.Command{
		Use:   "add [RECIPIENT]",
		Short: "Add a recipient, whose identity can then restore",
		Long: `Adds a recipient: what is backed up from now on is also sealed to it. RECIPIENT
is an age public key (age1…), as age-keygen and plugins for hardware keys print
it. With --identity instead, it is the recipient of an identity file; --new
creates that file.

The new identity does not open packs that were written before: bctl key rotate
makes it open them, too.

This needs the committer key and the worker key, or an identity that opens the
backups. In a fleet, the readers need the new worker key afterwards, and readers
and committers a restart: bctl worker ls marks those that still seal to other
recipients.

If the recipient is in force already, only its label is changed, if one is
given.`,
		Example: `  bctl key add age1qx5… --label 'Alice'
  bctl key add --identity /media/usb/second.txt --new --label 'safe'
  bctl key rotate`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			file := ""
			if cmd.Flags().Changed("identity") {
				file = a.cfg.Identity
			}
			switch {
			case len(given) == 0 && file == "":
				return usage("name the recipient, or an identity file with --identity FILE")
			case c.generate && (len(given) > 0 || file == ""):
				return usage("--new creates the file that --identity names; give no RECIPIENT")
			}
			return c.run(cmd.Context(), given, file, cmd.Flags().Changed("label"))
		},
	}
	cmd.Flags().StringVar(&c.label, "label", "", "a `TEXT` for people: whose key it is, or where it is kept")
	cmd.Flags().BoolVar(&c.generate, "new", false, "create the file that --identity names")
	return cmd
}

func (c *keyAdd) run(ctx context.Context, given []string, file string, labeled bool) error {
	a := c.app
	if err := repo.CheckLabel(c.label); err != nil {
		return wrongSetting(err)
	}
	identity := a.cfg.Identity // opens the backups, unless it is the one that is added
	if len(given) == 0 {
		identity = ""
	}
	r, k, err := a.openKeys(ctx, identity)
	if err != nil {
		return err
	}
	defer r.close()
	var recipient, created string
	switch {
	case len(given) > 0:
		recipient = strings.TrimSpace(given[0])
	case c.generate:
		if recipient, err = repo.NewIdentityFile(file, r.object.ID, r.object.Signer()); errors.Is(err, os.ErrExist) {
			return usage("%s exists: leave --new out to add its recipient", file)
		}
		created = file
	default:
		recipient, err = repo.ReadRecipient(file, a.ask(ctx))
	}
	if err != nil {
		return err
	}
	return c.add(ctx, r, k, repo.Recipient{Key: recipient, Label: c.label}, labeled, created)
}

func (c *keyAdd) add(ctx context.Context, r *repository, k repositoryKeys, to repo.Recipient, labeled bool, created string) error {
	a := c.app
	now, err := r.index.Clock(ctx) // key ls compares it with the times of snapshots
	if err != nil {
		return err
	}
	now = now.UTC().Truncate(time.Millisecond)
	list := slices.Clone(r.object.InForce().List)
	action := "added"
	if i := slices.IndexFunc(list, func(old repo.Recipient) bool { return old.Key == to.Key }); i >= 0 {
		if !labeled || list[i].Label == to.Label {
			return a.reportChange(r, "unchanged", list[i], created)
		}
		list[i].Label, action = to.Label, "labeled"
		to = list[i]
	} else {
		to.Since = now
		list = append(list, to)
	}
	if err := a.changeRecipients(ctx, r, k, list, now); err != nil {
		return wrongSetting(err)
	}
	return a.reportChange(r, action, to, created)
}

// changeRecipients puts new recipients into force: in the store, the index and the worker key.
func (a *app) changeRecipients(ctx context.Context, r *repository, k repositoryKeys, list []repo.Recipient, now time.Time) error {
	_, err := r.object.ChangeRecipients(ctx, r.store, list, k.worker, k.committer, now)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := a.follow(ctx, r, &k); err != nil {
		return err
	}
	return a.noteKeyObjects(ctx, r, false)
}

func (a *app) reportChange(r *repository, action string, to repo.Recipient, created string) error {
	object := changedJSON{Action: action, Recipient: to.Key, Label: to.Label, Identity: created, Recipients: r.object.Recipients}
	name := to.Key
	if to.Label != "" {
		name += " (" + display(to.Label) + ")"
	}
	switch action {
	case "unchanged":
		return a.result(object, "%s is a recipient already\n", name)
	case "labeled":
		return a.result(object, "%s has its label\n", name)
	case "removed":
		err := a.result(object, "removed %s\nWhat is backed up from now on is not sealed to it. Its identity still opens everything that was sealed to it before.\n", name)
		a.noteWorkers()
		return err
	}
	text := "added %s\n"
	if created != "" {
		text += "Its identity is in " + created + ". Keep it where the others are not.\n"
	}
	err := a.result(object, text+"What is backed up from now on is sealed to it, too. bctl key rotate makes its identity open the packs that were written before.\n", name)
	if created == "" && !a.json {
		a.term.println("Add this line to its identity file, so that bctl refuses a store that was replaced:\n" + seal.SignerComment(r.object.ID, r.object.Signer()))
	}
	a.noteWorkers()
	return err
}

type keyRm struct {
	app  *app
	yes  bool
	in   *bufio.Reader
	asks bool // stdin and stderr are a terminal
}

func newKeyRm(a *app) *cobra.Command {
	c := &keyRm{app: a}
	cmd := &cobra.Command{
		Use:   "rm RECIPIENT|LABEL",
		Short: "Remove a recipient",
		Long: `Removes a recipient: what is backed up from now on is not sealed to it. The last
recipient cannot be removed. If only this recipient opens some of the packs, the
command says how many and asks first: bctl key rotate makes the others open them
as well.

The identity of a removed recipient still opens everything that was sealed to it
before, for everyone who can read the store: nothing can take that back.
docs/keys.md describes what to do when an identity is stolen.

RECIPIENT is a public key, or the beginning of one; LABEL is its label in bctl
key ls.`,
		Example: `  bctl key rm Alice
  bctl key rm age1qx5… --yes`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			c.in, c.asks = a.asksFrom(cmd.InOrStdin())
			return c.run(cmd.Context(), given[0])
		},
	}
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask if only this recipient opens some packs")
	return cmd
}

func (c *keyRm) run(ctx context.Context, given string) error {
	a := c.app
	r, k, err := a.openKeys(ctx, a.cfg.Identity)
	if err != nil {
		return err
	}
	defer r.close()
	list := slices.Clone(r.object.InForce().List)
	i, err := findRecipient(list, given)
	if err != nil {
		return err
	}
	if len(list) == 1 {
		return fmt.Errorf("%s is the only recipient: add another one first (bctl key add), because without a recipient nothing could be restored", list[i].Key)
	}
	if err := c.agree(ctx, r, i); err != nil {
		return err
	}
	gone := list[i]
	if err := a.changeRecipients(ctx, r, k, slices.Delete(list, i, i+1), time.Now()); err != nil {
		return wrongSetting(err)
	}
	return a.reportChange(r, "removed", gone, "")
}

// agree asks for a confirmation if only the recipient opens some packs.
func (c *keyRm) agree(ctx context.Context, r *repository, recipient int) error {
	n, err := openedOnlyBy(ctx, r, recipient)
	if err != nil || n == 0 {
		return err
	}
	what := fmt.Sprintf("only the identity of this recipient opens %s: if it is lost, they are, too. bctl key rotate makes the others open them as well", counted(n, "pack"))
	switch {
	case c.yes:
		c.app.note("%s", what)
		return nil
	case !c.asks:
		return fmt.Errorf("%s. To remove it without that, give --yes", what)
	}
	c.app.note("%s", what)
	if !c.app.confirmed(c.in, "Remove it nevertheless? [y/N] ") {
		return errors.New("nothing was removed")
	}
	return nil
}

// minPrefix is the length from which on the beginning of a recipient names it.
const minPrefix = len("age1") + 4

// findRecipient returns the number of the recipient that a user names by its key, the beginning of
// it, or its label.
func findRecipient(list []repo.Recipient, given string) (int, error) {
	found := -1
	for i := range list {
		byPrefix := len(given) >= minPrefix && strings.HasPrefix(list[i].Key, strings.TrimSuffix(given, "…"))
		if list[i].Key != given && list[i].Label != given && !byPrefix {
			continue
		}
		if found >= 0 {
			return 0, usage("%q names several recipients: give the whole public key (bctl key ls lists them)", given)
		}
		found = i
	}
	if found < 0 {
		return 0, absent("%q is no recipient in force (bctl key ls lists them)", given)
	}
	return found, nil
}
