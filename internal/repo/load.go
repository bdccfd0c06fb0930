package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// An Index is what this package asks of the index, with the contracts of index.Admin.
type Index interface {
	// Migrate brings the schema up to date.
	Migrate(ctx context.Context) (from, to int64, err error)
	// CreateRepository stores the repository's row.
	CreateRepository(ctx context.Context, r backup.Repository) error
	// Repository returns that row.
	Repository(ctx context.Context) (backup.Repository, error)
}

// Check returns an error that wraps backup.ErrWrongKey, and says which is
// which, unless the index belongs to the repository that the store holds.
func Check(ctx context.Context, s store.Store, i Index) (Object, error) {
	o, err := ReadObject(ctx, s)
	if err != nil {
		return o, err
	}
	r, err := i.Repository(ctx)
	if errors.Is(err, backup.ErrNoRepository) {
		return o, fmt.Errorf("%w in the index; %v holds %v (bctl init finishes making it)", backup.ErrNoRepository, s, o.ID)
	}
	if err != nil {
		return o, err
	}
	if r.ID != o.ID {
		return o, fmt.Errorf("the index belongs to repository %v, but %v holds %v: %w", r.ID, s, o.ID, backup.ErrWrongKey)
	}
	return o, nil
}

// Load is Check, with the worker key as well.
func Load(ctx context.Context, s store.Store, i Index, workerKeyPath string) (Object, seal.WorkerKey, error) {
	o, err := Check(ctx, s, i)
	if err != nil {
		return o, seal.WorkerKey{}, err
	}
	key, err := ReadWorkerKey(workerKeyPath, o.ID)
	return o, key, err
}

// ReadWorkerKey reads a worker key file. backup.ErrWrongKey: there is none, or
// it is another repository's.
func ReadWorkerKey(path string, id backup.RepositoryID) (seal.WorkerKey, error) {
	if path == "" {
		return seal.WorkerKey{}, &keyError{"no worker key file is set (worker_key)"}
	}
	data, err := readKeyFile(path, seal.MaxWorkerKeyBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return seal.WorkerKey{}, &keyError{fmt.Sprintf("worker key file %s does not exist", path)}
	}
	if err != nil {
		return seal.WorkerKey{}, fmt.Errorf("worker key: %w", err)
	}
	key, err := seal.ParseWorkerKey(data)
	if err != nil {
		return key, fmt.Errorf("%s: %w", path, err)
	}
	if key.Repository != id {
		return key, fmt.Errorf("worker key file %s is of repository %v, not %v: %w", path, key.Repository, id, backup.ErrWrongKey)
	}
	return key, nil
}

// A keyError is a backup.ErrWrongKey that needs no such words: there is no key.
type keyError struct{ text string }

func (e *keyError) Error() string        { return e.text }
func (e *keyError) Is(target error) bool { return target == backup.ErrWrongKey }

func readKeyFile(path string, maxBytes int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, maxBytes+1)
	n, err := readFull(f, buf)
	if err != nil {
		return nil, err
	}
	if int64(n) > maxBytes {
		return nil, fmt.Errorf("%s is larger than any key file: %w", path, backup.ErrInvalid)
	}
	return buf[:n], nil
}
