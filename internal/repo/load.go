package repo

import (
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// An Index is the part of the index that this package uses, with the contracts of index.Admin.
type Index interface {
	// Migrate upgrades the schema to the current version.
	Migrate(ctx context.Context) (from, to int64, err error)
	// CreateRepository stores the repository's row.
	CreateRepository(ctx context.Context, r backup.Repository) error
	// Repository returns that row.
	Repository(ctx context.Context) (backup.Repository, error)
}

// Check returns an error that wraps backup.ErrWrongKey, and describes the difference, unless the
// index belongs to the repository in the store and names the signer that signed the store's object.
func Check(ctx context.Context, s store.Store, i Index) (Object, error) {
	o, err := ReadObject(ctx, s)
	if errors.Is(err, backup.ErrNoRepository) {
		if r, indexErr := i.Repository(ctx); indexErr == nil {
			return o, StoreGone(s.String(), r.ID)
		}
	}
	if err != nil {
		return o, err
	}
	r, err := i.Repository(ctx)
	if errors.Is(err, backup.ErrNoRepository) {
		if lost := LostIndex(ctx, s); lost != nil {
			return o, lost
		}
		return o, fmt.Errorf("%w in the index, but %v holds %v (bctl init completes it)", backup.ErrNoRepository, s, o.ID)
	}
	if err != nil {
		return o, err
	}
	if err := CheckVersion(&r); err != nil {
		return o, err
	}
	if r.ID != o.ID {
		return o, fmt.Errorf("the index belongs to repository %v, but %v holds %v: %w", r.ID, s, o.ID, backup.ErrWrongKey)
	}
	err = o.CheckSigner(seal.Signer(r.Signer), "the index")
	return o, err
}

// CheckVersion returns an error that wraps backup.ErrInvalid if this binary cannot work with the
// repository that the index describes.
func CheckVersion(r *backup.Repository) error {
	if r.Version <= Version {
		return nil
	}
	return fmt.Errorf("repository %v has version %d, and this bctl works with versions up to %d: use a newer bctl (nothing was changed): %w", r.ID, r.Version, Version, backup.ErrInvalid)
}

// StoreGone returns the error for a store that lacks the repository that the index names.
func StoreGone(at string, indexed backup.RepositoryID) error {
	return fmt.Errorf("%w in %v, but the index belongs to repository %v: the store is not mounted, or is elsewhere (--repo, store.url). If it is lost: docs/disaster-recovery.md", backup.ErrNoRepository, at, indexed)
}

// LostIndex returns an error that wraps ErrIndexLost if the store holds backups: an index that does
// not know them is then not a new index. It returns nil if the store holds no backups, or no
// repository.
func LostIndex(ctx context.Context, s store.Store) error {
	o, err := ReadObject(ctx, s)
	if errors.Is(err, backup.ErrNoRepository) {
		return nil
	}
	if err != nil {
		return err
	}
	first, err := firstOfBackups(ctx, s)
	if err != nil || first == "" {
		return err
	}
	return fmt.Errorf("%v holds the backups of repository %v, but no index of them exists: %w", s, o.ID, ErrIndexLost)
}

// LostObject returns an error if the store has backups, or a part of them, but no repository
// object: they could not be read with the keys that Init would create.
func LostObject(ctx context.Context, s store.Store) error {
	if _, err := ReadObject(ctx, s); !errors.Is(err, backup.ErrNoRepository) {
		return err
	}
	first, err := firstOfBackups(ctx, s)
	if err != nil || first == "" {
		return err
	}
	return fmt.Errorf("%w in %v: its object %q is lost, but it has backups (%s). Put that object back, or name an empty directory or bucket for a new repository",
		backup.ErrNoRepository, s, store.ConfigName, first)
}

// ErrIndexLost: the store holds backups that the index does not know. It is a
// backup.ErrNoRepository.
var ErrIndexLost error = indexLostError{}

type indexLostError struct{}

func (indexLostError) Error() string        { return "the index is lost" }
func (indexLostError) Is(target error) bool { return target == backup.ErrNoRepository }

// firstOfBackups returns the name of an object that belongs to a backup, or "" if there is none.
func firstOfBackups(ctx context.Context, s store.Store) (string, error) {
	for _, prefix := range []string{store.CommitsPrefix, store.SegmentsPrefix, store.PacksPrefix} {
		for object, err := range s.List(ctx, prefix) {
			return object.Name, err
		}
	}
	return "", nil
}

// Load is Check, and also reads the worker key.
func Load(ctx context.Context, s store.Store, i Index, workerKeyPath string) (_ Object, key seal.WorkerKey, _ error) {
	o, err := Check(ctx, s, i)
	if err == nil {
		key, err = o.ReadWorkerKey(workerKeyPath)
	}
	return o, key, err
}

// LoadCommitter is Load for a committer, which holds the committer key instead of the worker key.
// It seals to the recipients in force; readers, which cannot list the store, to those of their
// worker key.
func LoadCommitter(ctx context.Context, s store.Store, i Index, committerKeyPath string) (_ Object, key seal.CommitterKey, _ error) {
	o, err := Check(ctx, s, i)
	if err == nil {
		err = o.LoadRecipients(ctx, s)
	}
	if err == nil {
		key, err = o.ReadCommitterKey(committerKeyPath)
	}
	return o, key, err
}

// ReadWorkerKey reads a worker key file, which must name the signer of the object.
func (o *Object) ReadWorkerKey(path string) (seal.WorkerKey, error) {
	key, err := ReadWorkerKey(path, o.ID)
	if err == nil {
		err = o.CheckSigner(key.Signer, "worker key "+path)
	}
	return key, err
}

// ReadCommitterKey is ReadWorkerKey for a committer key file.
func (o *Object) ReadCommitterKey(path string) (seal.CommitterKey, error) {
	key, err := ReadCommitterKey(path, o.ID)
	if err == nil {
		err = o.CheckSigner(key.Signing.Signer(), "committer key "+path)
	}
	return key, err
}
