package repo

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

const (
	// Version is the version of repositories that Init creates, and the newest that this binary
	// reads.
	Version = 1
	// maxObjectBytes is the maximum length of the repository object.
	maxObjectBytes = 1 << 20

	objectTitle = "bctl-repository"
)

// An Object is the repository object of a store: the repository's configuration, and its worker and
// committer keys, sealed to the recipients. It is signed by the committer key.
type Object struct {
	backup.Repository
	SealedWorkerKey    []byte
	SealedCommitterKey []byte

	first   []string    // the object's own Recipients; nil: they are in Recipients
	inForce *Recipients // nil: those of the object itself
	// former yields earlier statements, newest first, and last that of the object; nil: there is
	// none.
	former iter.Seq2[Recipients, error]
}

// Signer returns the signer that the object names. It must not be trusted unless another source
// names the same signer (CheckSigner).
func (o *Object) Signer() seal.Signer { return seal.Signer(o.Repository.Signer) }

// encode returns the object's text, which docs/formats/store.md describes. It fails with
// backup.ErrInvalid for an object that parseObject would refuse.
func (o *Object) encode(key seal.SigningKey) ([]byte, error) {
	signer := key.Signer()
	w := keytext.NewWriter(objectTitle)
	w.Hex("repository", o.ID[:])
	w.Time("created", o.Created)
	w.Text("chunker", o.Chunker)
	w.Text("codec", o.Codec)
	for _, r := range o.Recipients {
		w.Text("recipient", r)
	}
	w.Hex("signer", signer[:])
	w.Base64("worker-key", o.SealedWorkerKey)
	w.Base64("committer-key", o.SealedCommitterKey)
	w.Hex("signature", key.Sign(o.ID, store.ConfigName, w.Bytes()))
	if _, err := parseObject(w.Bytes()); err != nil {
		return nil, fmt.Errorf("%w: %w", err, backup.ErrInvalid)
	}
	return w.Bytes(), nil
}

// parseObject parses the object from untrusted bytes, and verifies that the signer that it names
// has signed it.
func parseObject(data []byte) (Object, error) {
	o := Object{Repository: backup.Repository{Version: Version}}
	r := keytext.NewReader("repository object", objectTitle, data, maxObjectBytes)
	r.Hex("repository", o.ID[:])
	o.Created = r.Time("created")
	o.Chunker, o.Codec = r.Text("chunker"), r.Text("codec")
	o.Recipients = r.Repeated("recipient", seal.MaxRecipients)
	r.Hex("signer", o.Repository.Signer[:])
	o.SealedWorkerKey, o.SealedCommitterKey = r.Base64("worker-key"), r.Base64("committer-key")
	signed := r.Before()
	var signature [seal.SignatureBytes]byte
	r.Hex("signature", signature[:])
	r.End()
	switch n := len(o.Recipients); {
	case errors.Is(r.Err(), keytext.ErrVersion):
		return Object{}, r.Err()
	case r.Err() != nil:
		return Object{}, fmt.Errorf("%w: %w", r.Err(), backup.ErrCorrupt)
	case n == 0 || n > seal.MaxRecipients || o.ID == (backup.RepositoryID{}):
		return Object{}, fmt.Errorf("repository object: %d recipients of repository %v: %w", n, o.ID, backup.ErrCorrupt)
	}
	if err := o.Signer().Verify(o.ID, store.ConfigName, signed, signature[:]); err != nil {
		return Object{}, err
	}
	return o, nil
}

// ReadObject reads the repository object. It fails with backup.ErrNoRepository if the store has
// none. It does not establish that the signer is the right one; CheckSigner does.
func ReadObject(ctx context.Context, s store.Store) (Object, error) {
	data, err := s.Get(ctx, store.ConfigName, maxObjectBytes)
	if errors.Is(err, backup.ErrNotFound) {
		return Object{}, fmt.Errorf("%w in %v (bctl init creates one)", backup.ErrNoRepository, s)
	}
	if err != nil {
		return Object{}, err
	}
	o, err := parseObject(data)
	if err != nil {
		return Object{}, fmt.Errorf("object %q of %v: %w", store.ConfigName, s, err)
	}
	return o, nil
}

// CheckSigner returns an error that wraps backup.ErrWrongKey unless the object names the known
// signer, which comes from another source: a key file, the index, or the identity file.
func (o *Object) CheckSigner(known seal.Signer, from string) error {
	if known == o.Signer() {
		return nil
	}
	return fmt.Errorf("the object %q in the store names signer %.16s…, but %s names %.16s…: the object was replaced, or %s belongs to another repository: %w",
		store.ConfigName, o.Signer(), from, known, from, backup.ErrWrongKey)
}

// WorkerKey opens the worker key. It fails with backup.ErrWrongKey if the identity is not one of
// the recipients in force, and never was one.
func (o *Object) WorkerKey(opener *seal.Opener) (seal.WorkerKey, error) {
	text, err := o.openSealed(opener, func(r *Recipients) []byte { return r.SealedWorkerKey })
	if err != nil {
		return seal.WorkerKey{}, fmt.Errorf("open the repository's worker key: %w", err)
	}
	key, err := seal.ParseWorkerKey(text)
	if err != nil {
		return seal.WorkerKey{}, err
	}
	if key.Repository != o.ID || key.Signer != o.Signer() {
		return seal.WorkerKey{}, fmt.Errorf("the sealed worker key belongs to repository %v, not %v: %w", key.Repository, o.ID, backup.ErrCorrupt)
	}
	return key, nil
}

// CommitterKey opens the committer key. Errors are those of WorkerKey.
func (o *Object) CommitterKey(opener *seal.Opener) (seal.CommitterKey, error) {
	text, err := o.openSealed(opener, func(r *Recipients) []byte { return r.SealedCommitterKey })
	if err != nil {
		return seal.CommitterKey{}, fmt.Errorf("open the repository's committer key: %w", err)
	}
	key, err := seal.ParseCommitterKey(text)
	if err != nil {
		return seal.CommitterKey{}, err
	}
	if key.Repository != o.ID || key.Signing.Signer() != o.Signer() {
		return seal.CommitterKey{}, fmt.Errorf("the sealed committer key belongs to repository %v, not %v: %w", key.Repository, o.ID, backup.ErrCorrupt)
	}
	return key, nil
}

// CheckInForce fails with ErrFormer if the identity is not one of the recipients in force: it may
// open what was sealed before, but nothing that is sealed now.
func (o *Object) CheckInForce(opener *seal.Opener) error {
	r := o.InForce()
	_, err := opener.OpenBlob(r.SealedWorkerKey)
	if errors.Is(err, backup.ErrWrongKey) {
		return ErrFormer
	}
	return err
}

// ErrFormer reports an identity that is none of the recipients in force.
var ErrFormer = fmt.Errorf("the identity is not one of the recipients in force (bctl key ls lists them): it was removed, or never added. Use one that is: --identity FILE: %w", backup.ErrWrongKey)

// openSealed opens a blob of the recipients in force, or that of former ones: a removed identity
// still opens what was sealed to it.
func (o *Object) openSealed(opener *seal.Opener, blob func(*Recipients) []byte) ([]byte, error) {
	r := o.InForce()
	text, err := opener.OpenBlob(blob(&r))
	if !errors.Is(err, backup.ErrWrongKey) || o.former == nil {
		return text, err
	}
	for older, failed := range o.former {
		if failed != nil {
			return nil, failed
		}
		if text, wrong := opener.OpenBlob(blob(&older)); wrong == nil {
			return text, nil
		}
	}
	return nil, err
}

// VerifyObject returns the repository object with the given bytes, which are not trusted. The
// signer that it names has signed it. Errors wrap backup.ErrCorrupt or keytext.ErrVersion.
func VerifyObject(data []byte) (Object, error) {
	o, err := parseObject(data)
	if err != nil {
		err = fmt.Errorf("%s: %w", store.ConfigName, err)
	}
	return o, err
}
