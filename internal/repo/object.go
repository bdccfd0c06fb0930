package repo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

const (
	// Version is the version of repositories that Init makes, and the newest that this binary reads.
	Version = 1
	// maxObjectBytes is the most that the repository object may have.
	maxObjectBytes = 1 << 20
)

// An Object is the repository object of a store: what the repository is, and
// its worker key, sealed to the recipients.
type Object struct {
	backup.Repository
	SealedWorkerKey []byte
}

// objectJSON is the format of the object; docs/formats/store.md describes it.
type objectJSON struct {
	Version         int       `json:"version"`
	ID              string    `json:"id"`
	Created         time.Time `json:"created"`
	Chunker         string    `json:"chunker"`
	Codec           string    `json:"codec"`
	Recipients      []string  `json:"recipients"`
	SealedWorkerKey []byte    `json:"worker_key_sealed"`
}

func (o *Object) encode() ([]byte, error) {
	data, err := json.MarshalIndent(objectJSON{
		Version: o.Version, ID: o.ID.String(), Created: o.Created.UTC(), Chunker: o.Chunker, Codec: o.Codec,
		Recipients: o.Recipients, SealedWorkerKey: o.SealedWorkerKey,
	}, "", "  ")
	return append(data, '\n'), err
}

// parseObject reads the object, whose bytes may be anything. Fields that are
// not known are an error: they would belong to a version that is not either.
func parseObject(data []byte) (Object, error) {
	var version struct{ Version int }
	if err := json.Unmarshal(data, &version); err != nil {
		return Object{}, fmt.Errorf("%w: %w", err, backup.ErrCorrupt)
	}
	if version.Version != Version {
		return Object{}, fmt.Errorf("repository version %d; this bctl knows version %d: %w", version.Version, Version, backup.ErrInvalid)
	}
	var j objectJSON
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return Object{}, fmt.Errorf("%w: %w", err, backup.ErrCorrupt)
	}
	id, err := backup.ParseRepositoryID(j.ID)
	if err != nil {
		return Object{}, fmt.Errorf("%w: %w", err, backup.ErrCorrupt)
	}
	if j.Chunker == "" || j.Codec == "" || len(j.Recipients) == 0 || len(j.SealedWorkerKey) == 0 {
		return Object{}, fmt.Errorf("a field is missing: %w", backup.ErrCorrupt)
	}
	return Object{
		Repository: backup.Repository{
			ID: id, Version: j.Version, Created: j.Created, Chunker: j.Chunker, Codec: j.Codec, Recipients: j.Recipients,
		},
		SealedWorkerKey: j.SealedWorkerKey,
	}, nil
}

// ReadObject reads the repository object; backup.ErrNoRepository if the store has none.
func ReadObject(ctx context.Context, s store.Store) (Object, error) {
	data, err := s.Get(ctx, store.ConfigName, maxObjectBytes)
	if errors.Is(err, backup.ErrNotFound) {
		return Object{}, fmt.Errorf("%w in %v (bctl init makes one)", backup.ErrNoRepository, s)
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

// WorkerKey opens the worker key. backup.ErrWrongKey: the identity is not one of the recipients.
func (o *Object) WorkerKey(opener *seal.Opener) (seal.WorkerKey, error) {
	text, err := opener.OpenBlob(o.SealedWorkerKey)
	if err != nil {
		return seal.WorkerKey{}, fmt.Errorf("open the repository's worker key: %w", err)
	}
	key, err := seal.ParseWorkerKey(text)
	if err != nil {
		return seal.WorkerKey{}, err
	}
	if key.Repository != o.ID {
		return seal.WorkerKey{}, fmt.Errorf("the sealed worker key is of repository %v, not %v: %w", key.Repository, o.ID, backup.ErrCorrupt)
	}
	return key, nil
}
