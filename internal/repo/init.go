package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// Options are the options of Init.
type Options struct {
	CommitterKeyPath string   // "": below the user's configuration directory, by the repository's id
	WorkerKeyPath    string   // likewise
	IdentityPath     string   // "": DefaultIdentityPath; an existing file is used unchanged
	Recipients       []string // further age recipients who can restore
	Chunker          string
	Codec            string
	Now              time.Time
	Ask              Asker
}

// Created describes what Init created, or found from an interrupted run.
type Created struct {
	Repository       backup.Repository
	IdentityPath     string
	WorkerKeyPath    string
	CommitterKeyPath string
	// Signer is to be recorded with the identity if the identity file does not name it: that file
	// existed before, and Init does not change it.
	Signer     seal.Signer
	SignerNote bool
	// FoundKeys: the committer key existed, and the repository has its id. An interrupted Init has
	// left it, or it is that of another repository.
	FoundKeys bool
}

// Check returns an error if Init would fail because of the recipients or the identity file. It
// creates nothing, so that no incomplete repository is left.
func (o *Options) Check() error {
	recipient, err := o.ownRecipient()
	if err != nil {
		return err
	}
	if _, err := seal.NewSealer(append([]string{recipient}, o.Recipients...)); err != nil {
		return fmt.Errorf("recipients (the first is that of the identity): %w", err)
	}
	return nil
}

// ownRecipient returns the recipient of the identity file. If there is none yet, it returns a
// recipient of the same type as that of the identity that Init would create.
func (o *Options) ownRecipient() (recipient string, err error) {
	if o.IdentityPath != "" {
		recipient, _, err = readRecipient(o.IdentityPath, backup.RepositoryID{}, o.Ask)
		if !errors.Is(err, fs.ErrNotExist) {
			return recipient, err
		}
	}
	_, recipient, err = seal.GenerateIdentity()
	return recipient, err
}

// Init creates a repository in an empty store and index. It fails with backup.ErrExists if there is
// one; it completes one that an interrupted Init has started.
func Init(ctx context.Context, s store.Store, i Index, o Options) (Created, error) {
	if _, _, err := i.Migrate(ctx); err != nil {
		return Created{}, fmt.Errorf("migrate the index: %w", err)
	}
	object, err := ReadObject(ctx, s)
	switch {
	case err == nil:
		return finish(ctx, s, i, object, o)
	case !errors.Is(err, backup.ErrNoRepository):
		return Created{}, err
	}
	if r, err := i.Repository(ctx); err == nil {
		return Created{}, fmt.Errorf("the index already belongs to repository %v, which is not in %v (if that store is lost: docs/disaster-recovery.md): %w", r.ID, s, backup.ErrExists)
	} else if !errors.Is(err, backup.ErrNoRepository) {
		return Created{}, err
	}
	keys, result, err := makeKeys(o)
	if err != nil {
		return result, err
	}
	return create(ctx, s, i, keys, result, o)
}

// keys are the keys of a repository that is being created.
type keys struct {
	committer seal.CommitterKey
	worker    seal.WorkerKey
}

// makeKeys creates the keys and the identity, or uses existing ones.
func makeKeys(o Options) (k keys, result Created, err error) {
	result = Created{CommitterKeyPath: o.CommitterKeyPath, WorkerKeyPath: o.WorkerKeyPath, IdentityPath: o.IdentityPath}
	if err := k.makeCommitter(o, &result); err != nil {
		return k, result, err
	}
	id, signer := k.committer.Repository, k.committer.Signing.Signer()
	result.Signer = signer
	if result.IdentityPath == "" {
		if result.IdentityPath, err = DefaultIdentityPath(id); err != nil {
			return k, result, err
		}
	}
	recipient, named, err := readRecipient(result.IdentityPath, id, o.Ask)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		named = signer
		recipient, err = writeIdentity(result.IdentityPath, id, signer)
	case err == nil && named != (seal.Signer{}) && named != signer:
		err = fmt.Errorf("identity file %s names another signer of repository %v: %w", result.IdentityPath, id, backup.ErrWrongKey)
	}
	if err != nil {
		return k, result, fmt.Errorf("identity: %w", err)
	}
	result.SignerNote = named != signer
	err = k.makeWorker(o, recipient, &result)
	return k, result, err
}

// makeCommitter creates the committer key, or uses the one that an interrupted Init left.
func (k *keys) makeCommitter(o Options, result *Created) error {
	data, err := readKey("committer", "committer_key", o.CommitterKeyPath)
	if err == nil {
		if k.committer, err = seal.ParseCommitterKey(data); err != nil {
			return unusable(fmt.Errorf("%s: %w", o.CommitterKeyPath, err))
		}
		result.FoundKeys = true
		return nil
	}
	var none *keyError
	if !errors.As(err, &none) {
		return err
	}
	k.committer = seal.CommitterKey{Repository: backup.NewRepositoryID(), Signing: seal.NewSigningKey()}
	result.CommitterKeyPath, err = writeKey("committer", o.CommitterKeyPath, k.committer.Repository, k.committer)
	return err
}

// makeWorker creates the worker key, or uses the one that an interrupted Init left.
func (k *keys) makeWorker(o Options, recipient string, result *Created) error {
	id := k.committer.Repository
	found, err := ReadWorkerKey(o.WorkerKeyPath, id)
	var none *keyError
	switch {
	case err == nil && (found.Signer != k.committer.Signing.Signer() || !slices.Contains(found.Recipients, recipient)):
		return fmt.Errorf("worker key %s, which an unfinished init left, does not belong to the identity %s and the committer key %s: %w",
			o.WorkerKeyPath, result.IdentityPath, result.CommitterKeyPath, backup.ErrWrongKey)
	case err == nil:
		k.worker = found
		return nil
	case !errors.As(err, &none):
		return fmt.Errorf("%w (remove it to begin again)", err)
	}
	k.worker = seal.WorkerKey{
		Repository: id, Dedup: seal.NewDedupKey(), Signer: k.committer.Signing.Signer(), Recipients: append([]string{recipient}, o.Recipients...),
	}
	result.WorkerKeyPath, err = writeKey("worker", o.WorkerKeyPath, id, k.worker)
	return err
}

// create puts the repository object, and then creates the row of the index.
func create(ctx context.Context, s store.Store, i Index, k keys, result Created, o Options) (Created, error) {
	sealer, err := seal.NewSealer(k.worker.Recipients)
	if err != nil {
		return result, err
	}
	object := Object{Repository: backup.Repository{
		ID: k.worker.Repository, Version: Version, Created: o.Now.UTC().Truncate(time.Second),
		Chunker: o.Chunker, Codec: o.Codec, Recipients: k.worker.Recipients, Signer: k.worker.Signer,
	}}
	if object.SealedWorkerKey, err = sealKey(sealer, k.worker); err != nil {
		return result, err
	}
	if object.SealedCommitterKey, err = sealKey(sealer, k.committer); err != nil {
		return result, err
	}
	text, err := object.encode(k.committer.Signing)
	if err != nil {
		return result, err
	}
	if err := prove(text, result, o.Ask); err != nil {
		return result, fmt.Errorf("nothing was put into the store, because a test restore failed: %w", err)
	}
	// From here on the repository exists. A PutNew that took effect and then failed is found by the
	// next Init.
	if err := s.PutNew(ctx, store.ConfigName, text); err != nil {
		return result, err
	}
	result.Repository = object.Repository
	if err := i.CreateRepository(ctx, object.Repository); err != nil {
		return result, fmt.Errorf("write the index (run init again to finish): %w", err)
	}
	return result, nil
}

func sealKey(sealer *seal.Sealer, key textMarshaler) ([]byte, error) {
	text, err := key.MarshalText()
	if err != nil {
		return nil, err
	}
	return sealer.SealBlob(text)
}

// finish completes a repository whose object is already in the store.
func finish(ctx context.Context, s store.Store, i Index, object Object, o Options) (Created, error) {
	if err := object.LoadRecipients(ctx, s); err != nil {
		return Created{}, err
	}
	result := Created{
		Repository: object.Repository, CommitterKeyPath: o.CommitterKeyPath, WorkerKeyPath: o.WorkerKeyPath, IdentityPath: o.IdentityPath, Signer: object.Signer(),
	}
	if result.IdentityPath == "" {
		result.IdentityPath, _ = DefaultIdentityPath(object.ID) // for the message only
	}
	r, err := i.Repository(ctx)
	switch {
	case err == nil && r.ID != object.ID:
		return result, fmt.Errorf("the index belongs to repository %v, but %v holds %v: %w", r.ID, s, object.ID, backup.ErrWrongKey)
	case err == nil && (o.CommitterKeyPath == "" || o.WorkerKeyPath == "" || exists(o.CommitterKeyPath) && exists(o.WorkerKeyPath)):
		return result, fmt.Errorf("repository %v in %v: %w", object.ID, s, backup.ErrExists)
	case err == nil: // key files were lost
		result.CommitterKeyPath, result.WorkerKeyPath, err = unsealMissing(object, o)
		if err != nil {
			return result, fmt.Errorf("repository %v in %v: %w, but a key file is missing, and cannot be written again: %w", object.ID, s, backup.ErrExists, err)
		}
		return result, nil
	case !errors.Is(err, backup.ErrNoRepository):
		return result, err
	}
	// An empty index with a store full of backups is a lost index, not an incomplete init.
	if err := LostIndex(ctx, s); err != nil {
		return result, err
	}
	if result.CommitterKeyPath, result.WorkerKeyPath, err = unsealMissing(object, o); err != nil {
		return result, fmt.Errorf("%v holds repository %v, but this index and these keys belong to another: %w", s, object.ID, err)
	}
	return result, i.CreateRepository(ctx, object.Repository)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// unsealMissing recreates missing key files from the object. Existing key files must belong to the
// repository, and to its signer. If both are missing, the identity file may name the signer.
func unsealMissing(object Object, o Options) (committerPath, workerPath string, err error) {
	committerPath, workerPath = o.CommitterKeyPath, o.WorkerKeyPath
	committer, committerMissing, err := missing(ReadCommitterKey(o.CommitterKeyPath, object.ID))
	if err == nil && !committerMissing {
		err = object.CheckSigner(committer.Signing.Signer(), "the committer key")
	}
	if err != nil {
		return committerPath, workerPath, err
	}
	worker, workerMissing, err := missing(ReadWorkerKey(o.WorkerKeyPath, object.ID))
	if err == nil && !workerMissing {
		err = object.CheckSigner(worker.Signer, "the worker key")
	}
	if err != nil || !committerMissing && !workerMissing {
		return committerPath, workerPath, err
	}
	identity, err := FindIdentity(o.IdentityPath, object.ID, o.Ask)
	if err != nil {
		return committerPath, workerPath, err
	}
	if err := identity.Check(&object); err != nil {
		return committerPath, workerPath, err
	}
	if committerMissing {
		if committer, err = object.CommitterKey(identity.Opener); err == nil {
			committerPath, err = writeKey("committer", o.CommitterKeyPath, object.ID, committer)
		}
		if err != nil {
			return committerPath, workerPath, err
		}
	}
	if workerMissing {
		if worker, err = object.WorkerKey(identity.Opener); err == nil {
			workerPath, err = writeKey("worker", o.WorkerKeyPath, object.ID, worker)
		}
	}
	return committerPath, workerPath, err
}

// missing distinguishes a missing key file from an unusable one.
func missing[K any](key K, err error) (K, bool, error) {
	var none *keyError
	if errors.As(err, &none) {
		return key, true, nil
	}
	return key, false, err
}
