package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

func newKey(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "key", Short: "Manage the identities that can restore", Aliases: []string{"keys"},
		Long: `Backups are sealed to recipients, which are public keys. Each recipient has an
identity, a secret key that opens the backups. These commands show and change
the recipients, test identities, and make copies of an identity on paper.
docs/keys.md describes what to do on the first day, for a new colleague, and
when an identity is lost or stolen.`,
	})
	cmd.AddCommand(newKeyLs(a), newKeyAdd(a), newKeyRm(a), newKeyRotate(a), newKeyVerify(a),
		newKeyProtect(a), newKeyExport(a), newKeyImport(a), newKeySplit(a), newKeyCombine(a))
	return cmd
}

// repositoryKeys are the keys with which recipients are changed. They come from the key files, or
// else from the store, where they are sealed to the recipients.
type repositoryKeys struct {
	worker    seal.WorkerKey
	committer seal.CommitterKey
	onDisk    *seal.WorkerKey // the worker key file's; nil: there is none here
}

// repositoryKeys reads the keys. identity names a file; "": the default.
func (a *app) repositoryKeys(ctx context.Context, r *repository, identity string) (k repositoryKeys, err error) {
	worker, workerErr := r.object.ReadWorkerKey(a.cfg.WorkerKey)
	committer, committerErr := r.object.ReadCommitterKey(a.cfg.CommitterKey)
	if workerErr == nil {
		k.onDisk = &worker
	}
	k.worker, k.committer = worker, committer
	if workerErr == nil && committerErr == nil {
		return k, nil
	}
	opened, err := repo.FindIdentity(identity, r.object.ID, a.ask(ctx))
	if err == nil {
		err = opened.Check(&r.object)
	}
	if err == nil {
		err = r.object.CheckInForce(opened.Opener)
	}
	if err == nil && workerErr != nil {
		k.worker, err = r.object.WorkerKey(opened.Opener)
	}
	if err == nil && committerErr != nil {
		k.committer, err = r.object.CommitterKey(opened.Opener)
	}
	if err != nil {
		return k, fmt.Errorf("this takes the committer key and the worker key, or an identity that opens the backups: %w; %w", errors.Join(workerErr, committerErr), err)
	}
	return k, nil
}

// follow makes the index and the worker key file name the recipients in force. An earlier command
// may have been interrupted before it did so.
func (a *app) follow(ctx context.Context, r *repository, k *repositoryKeys) error {
	if err := a.restate(ctx, r, k); err != nil {
		return err
	}
	indexed, err := r.index.Repository(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(indexed.Recipients, r.object.Recipients) {
		if err := r.index.SetRecipients(ctx, r.object.Recipients); err != nil {
			return fmt.Errorf("the recipients are in force, but the index does not have them yet (run this command again): %w", err)
		}
	}
	if k.onDisk == nil || slices.Equal(k.onDisk.Recipients, r.object.Recipients) {
		return nil
	}
	key := *k.onDisk
	key.Recipients = r.object.Recipients
	if err := repo.ReplaceWorkerKey(a.cfg.WorkerKey, key); err != nil {
		return fmt.Errorf("the recipients are in force, but the worker key does not have them yet (run this command again): %w", err)
	}
	k.onDisk = &key
	return nil
}

// restate puts the statement of recipients again if the store has lost the one that the index
// knows: an older one names others, perhaps a recipient that was removed.
func (a *app) restate(ctx context.Context, r *repository, k *repositoryKeys) error {
	objects, err := r.index.KeyObjects(ctx)
	if err != nil {
		return err
	}
	known := int64(0)
	for _, name := range objects {
		if sequence, is := store.ParseRecipientsName(name); is {
			known = max(known, sequence)
		}
	}
	if known <= r.object.InForce().Sequence {
		return nil
	}
	now, err := r.index.Clock(ctx)
	if err != nil {
		return err
	}
	indexed, err := r.index.Repository(ctx)
	if err != nil {
		return err
	}
	list := make([]repo.Recipient, len(indexed.Recipients))
	for i, key := range indexed.Recipients {
		list[i] = repo.Recipient{Key: key, Since: now.UTC().Truncate(time.Millisecond)}
		if n := slices.IndexFunc(r.object.InForce().List, func(old repo.Recipient) bool { return old.Key == key }); n >= 0 {
			list[i] = r.object.InForce().List[n]
		}
	}
	if _, err := r.object.ChangeRecipients(ctx, r.store, list, k.worker, k.committer, now); err != nil {
		return err
	}
	a.note("the store had lost the statement of the recipients in force, %s: it is written again, with the recipients that the index knows", store.RecipientsName(known))
	return a.noteKeyObjects(context.WithoutCancel(ctx), r, false)
}

// noteKeyObjects notes which objects below keys/ the store must have from now on, for bctl check:
// the statement that is in force, and the parts of rotations. After a rotation that has wrapped all
// keys, these are the parts that it could read: damaged ones are not needed any more.
func (a *app) noteKeyObjects(ctx context.Context, r *repository, rotated bool) error {
	before, err := r.index.KeyObjects(ctx)
	if err != nil {
		return err
	}
	parts, err := rewrap.Parts(ctx, r.store, r.object.ID, r.object.Signer())
	if err != nil {
		return err
	}
	must := map[string]bool{}
	if sequence := r.object.InForce().Sequence; sequence > 0 {
		must[store.RecipientsName(sequence)] = true
	}
	for name, sound := range parts {
		if sound || !rotated && len(before) == 0 {
			must[name] = true
		}
	}
	for _, name := range before {
		if _, _, part := store.ParseWrapsName(name); part && !rotated {
			must[name] = true
		}
	}
	return r.index.SetKeyObjects(ctx, slices.Collect(maps.Keys(must)))
}

// openKeys opens the repository to change its recipients, and its keys.
func (a *app) openKeys(ctx context.Context, identity string) (*repository, repositoryKeys, error) {
	r, err := a.openRepository(ctx, toWrite)
	if err != nil {
		return nil, repositoryKeys{}, err
	}
	k, err := a.repositoryKeys(ctx, r, identity)
	if err == nil {
		err = a.follow(ctx, r, &k)
	}
	if err != nil {
		r.close()
		return nil, k, err
	}
	return r, k, nil
}

// identityFiles returns the identity files that a command names, or the configured one.
func (a *app) identityFiles(id backup.RepositoryID, given []string) ([]string, error) {
	if len(given) > 0 {
		return given, nil
	}
	if a.cfg.Identity != "" {
		return []string{a.cfg.Identity}, nil
	}
	path, err := repo.DefaultIdentityPath(id)
	if err != nil {
		return nil, err
	}
	return []string{path}, nil
}

// noteWorkers says what is left to do in a fleet, after the recipients have changed.
func (a *app) noteWorkers() {
	if !a.cfg.Fleet() {
		return
	}
	a.note("readers seal to the recipients in their worker key, and committers to those that were in force when they started. Copy %s to the folders of all readers, then restart the readers and the committers (docs/keys.md). Until then bctl worker ls marks them", a.cfg.WorkerKey)
}

// readOneIdentity reads an identity file, without its passphrase, that has exactly one identity.
func (a *app) readOneIdentity(ctx context.Context, path string) (file []byte, identity string, err error) {
	file, err = repo.ReadIdentityFile(path, a.ask(ctx))
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", fmt.Errorf("identity file %s does not exist: %w", path, backup.ErrWrongKey)
	}
	if err != nil {
		return nil, "", err
	}
	lines := seal.Identities(file)
	if len(lines) != 1 {
		return nil, "", fmt.Errorf("identity file %s has %d identities: put the one that you mean into a file of its own: %w", path, len(lines), backup.ErrWrongKey)
	}
	if _, err := seal.NewOpener(file); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, errors.Join(err, backup.ErrWrongKey))
	}
	return file, lines[0], nil
}
