package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// Options of Init.
type Options struct {
	WorkerKeyPath string   // "": beside the default identities, by the repository's id
	IdentityPath  string   // "": DefaultIdentityPath; a file that exists is taken as it is
	Recipients    []string // further age recipients who can restore
	Chunker       string
	Codec         string
	Now           time.Time
}

// A Result is what Init has made, or found from a run that was interrupted.
type Result struct {
	Repository    backup.Repository
	IdentityPath  string
	WorkerKeyPath string
}

// Init makes a repository in an empty store and index. backup.ErrExists if
// there is one; one that an interrupted Init has begun is finished.
func Init(ctx context.Context, s store.Store, i Index, o Options) (Result, error) {
	if _, _, err := i.Migrate(ctx); err != nil {
		return Result{}, fmt.Errorf("migrate the index: %w", err)
	}
	object, err := ReadObject(ctx, s)
	switch {
	case err == nil:
		return finish(ctx, s, i, object, o)
	case !errors.Is(err, backup.ErrNoRepository):
		return Result{}, err
	}
	if r, err := i.Repository(ctx); err == nil {
		return Result{}, fmt.Errorf("the index already belongs to repository %v, which is not in %v: %w", r.ID, s, backup.ErrExists)
	} else if !errors.Is(err, backup.ErrNoRepository) {
		return Result{}, err
	}
	key, result, err := keys(o)
	if err != nil {
		return result, err
	}
	return create(ctx, s, i, key, result, o)
}

// keys makes the identity and the worker key, or takes what there is.
func keys(o Options) (seal.WorkerKey, Result, error) {
	key, found, err := leftWorkerKey(o.WorkerKeyPath)
	if err != nil {
		return key, Result{}, err
	}
	if !found {
		key = seal.WorkerKey{Repository: backup.NewRepositoryID(), Dedup: seal.NewDedupKey()}
	}
	result := Result{WorkerKeyPath: o.WorkerKeyPath, IdentityPath: o.IdentityPath}
	if result.IdentityPath == "" {
		if result.IdentityPath, err = DefaultIdentityPath(key.Repository); err != nil {
			return key, result, err
		}
	}
	recipient, err := readRecipient(result.IdentityPath)
	switch {
	case errors.Is(err, fs.ErrNotExist) && found:
		return key, result, &keyError{fmt.Sprintf("worker key %s is left from an init that did not finish, and its identity %s is not there: remove the worker key to begin again",
			o.WorkerKeyPath, result.IdentityPath)}
	case errors.Is(err, fs.ErrNotExist):
		recipient, err = writeIdentity(result.IdentityPath, key.Repository)
	}
	if err != nil {
		return key, result, fmt.Errorf("identity: %w", err)
	}
	if found {
		if !slices.Contains(key.Recipients, recipient) {
			return key, result, fmt.Errorf("worker key %s, left from an init that did not finish, is not for the identity %s: %w", o.WorkerKeyPath, result.IdentityPath, backup.ErrWrongKey)
		}
		return key, result, nil
	}
	key.Recipients = append([]string{recipient}, o.Recipients...)
	result.WorkerKeyPath, err = writeWorkerKey(o.WorkerKeyPath, key)
	return key, result, err
}

// leftWorkerKey reads a worker key that an interrupted Init has left.
func leftWorkerKey(path string) (key seal.WorkerKey, found bool, err error) {
	if path == "" {
		return key, false, nil
	}
	data, err := readKeyFile(path, seal.MaxWorkerKeyBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return key, false, nil
	}
	if err == nil {
		key, err = seal.ParseWorkerKey(data)
	}
	if err != nil {
		return key, false, fmt.Errorf("%s: %w", path, err)
	}
	return key, true, nil
}

func writeWorkerKey(path string, key seal.WorkerKey) (string, error) {
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return "", fmt.Errorf("find a place for the worker key (worker_key sets one): %w", err)
		}
		path = filepath.Join(dir, "bctl", "worker-keys", key.Repository.String()+".key")
	}
	text, err := key.MarshalText()
	if err != nil {
		return path, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return path, err
	}
	if err := writeNew(path, text); err != nil {
		return path, fmt.Errorf("write worker key: %w", err)
	}
	return path, nil
}

// create puts the repository object, and then the row of the index.
func create(ctx context.Context, s store.Store, i Index, key seal.WorkerKey, result Result, o Options) (Result, error) {
	sealer, err := seal.NewSealer(key.Recipients)
	if err != nil {
		return result, err
	}
	text, err := key.MarshalText()
	if err != nil {
		return result, err
	}
	sealed, err := sealer.SealBlob(text)
	if err != nil {
		return result, err
	}
	object := Object{
		Repository: backup.Repository{
			ID: key.Repository, Version: Version, Created: o.Now.UTC().Truncate(time.Second),
			Chunker: o.Chunker, Codec: o.Codec, Recipients: key.Recipients,
		},
		SealedWorkerKey: sealed,
	}
	data, err := object.encode()
	if err != nil {
		return result, err
	}
	// From here on the repository exists. A PutNew that was applied and then
	// failed is found by the next Init.
	if err := s.PutNew(ctx, store.ConfigName, data); err != nil {
		return result, err
	}
	result.Repository = object.Repository
	if err := i.CreateRepository(ctx, object.Repository); err != nil {
		return result, fmt.Errorf("write the index (run init again to finish): %w", err)
	}
	return result, nil
}

// finish completes a repository whose object is in the store already.
func finish(ctx context.Context, s store.Store, i Index, object Object, o Options) (Result, error) {
	result := Result{Repository: object.Repository, WorkerKeyPath: o.WorkerKeyPath, IdentityPath: o.IdentityPath}
	if result.IdentityPath == "" {
		result.IdentityPath, _ = DefaultIdentityPath(object.ID) // for the message only
	}
	r, err := i.Repository(ctx)
	switch {
	case err == nil && r.ID != object.ID:
		return result, fmt.Errorf("the index belongs to repository %v, but %v holds %v: %w", r.ID, s, object.ID, backup.ErrWrongKey)
	case err == nil:
		return result, fmt.Errorf("repository %v in %v: %w", object.ID, s, backup.ErrExists)
	case !errors.Is(err, backup.ErrNoRepository):
		return result, err
	}
	// An empty index beside a store full of backups is a lost index, not an unfinished init.
	for segment, err := range s.List(ctx, store.SegmentsPrefix) {
		if err != nil {
			return result, err
		}
		return result, fmt.Errorf("%v holds backups (%s) that this index does not know; it must be rebuilt: %w", s, segment.Name, backup.ErrExists)
	}
	_, err = ReadWorkerKey(o.WorkerKeyPath, object.ID)
	if errors.Is(err, backup.ErrWrongKey) {
		if result.WorkerKeyPath, err = unsealWorkerKey(object, o); err != nil {
			return result, fmt.Errorf("%v holds repository %v, which this index and worker key are not of: %w", s, object.ID, err)
		}
	}
	if err != nil {
		return result, err
	}
	return result, i.CreateRepository(ctx, object.Repository)
}

// unsealWorkerKey writes the worker key file anew from the object.
func unsealWorkerKey(object Object, o Options) (string, error) {
	opener, _, err := FindIdentity(o.IdentityPath, object.ID)
	if err != nil {
		return "", err
	}
	key, err := object.WorkerKey(opener)
	if err != nil {
		return "", err
	}
	return writeWorkerKey(o.WorkerKeyPath, key)
}
