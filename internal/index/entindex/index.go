package entindex

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/predicate"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/settings"
	"github.com/bctl/bctl/migrations"
)

// An Index is an index.Index over a Backend. It has no state of its own.
type Index struct{ Backend Backend }

var _ index.Index = (*Index)(nil)

// New returns the index in a Backend. Close closes the Backend.
func New(b Backend) *Index { return &Index{b} }

// Close implements index.Index.
func (x *Index) Close() error { return x.Backend.Close() }

// Clock implements index.Index.
func (x *Index) Clock(ctx context.Context) (time.Time, error) { return x.Backend.Clock(ctx) }

// at returns now as the index stores it, or the time of the database's clock if now is zero.
func (x *Index) at(ctx context.Context, now time.Time) (_ time.Time, err error) {
	if now.IsZero() {
		now, err = x.Backend.Clock(ctx)
	}
	return stamp(now), err
}

// at is Index.at within a transaction.
func (tx *Tx) at(ctx context.Context, now time.Time) (time.Time, error) {
	if !now.IsZero() {
		return stamp(now), nil
	}
	var clock int64
	err := tx.Each(ctx, "SELECT "+tx.Now, nil, func(scan func(...any) error) error { return scan(&clock) })
	return fromMicros(clock), err
}

// Migrate implements index.Admin.
func (x *Index) Migrate(ctx context.Context) (from, to int64, err error) {
	s, err := x.Backend.Schema(ctx)
	if err != nil {
		return 0, 0, err
	}
	if s.Newer() {
		return s.Version, s.Version, tooNew(s)
	}
	return x.Backend.Migrate(ctx)
}

// RequireNewest implements index.Admin.
func (x *Index) RequireNewest(ctx context.Context) error {
	if err := x.CheckSchema(ctx); err != nil {
		return err
	}
	return x.exec(ctx, Durable, migrations.RequirePatches)
}

// CheckSchema implements index.Admin.
func (x *Index) CheckSchema(ctx context.Context) error {
	s, err := x.Backend.Schema(ctx)
	if err != nil {
		return err
	}
	if s.Version == 0 {
		return emptyError{}
	}
	if s.Version < s.Needed {
		return fmt.Errorf("%w: the index has version %d, this binary needs %d: run bctl migrate", index.ErrSchema, s.Version, s.Needed)
	}
	return tooNew(s)
}

// An emptyError reports a database without an index: both a backup.ErrNoRepository and an
// index.ErrSchema.
type emptyError struct{}

func (emptyError) Error() string { return "the index is empty: bctl init makes a repository" }

func (emptyError) Is(target error) bool {
	return target == backup.ErrNoRepository || target == index.ErrSchema
}

// tooNew returns an error if the schema is so new that this binary cannot work with it.
func tooNew(s migrations.Schema) error {
	if s.Compatible() {
		return nil
	}
	oldest := "does not say which older ones can work with it"
	if s.Oldest > 0 {
		oldest = fmt.Sprintf("needs binaries of version %d or newer", s.Oldest)
	}
	return fmt.Errorf("%w: the index has version %d, which %s; this one is of version %d: use a newer bctl",
		index.ErrSchema, s.Version, oldest, s.Needed)
}

// The only row of repositories has the id 1.
const (
	insertRepository = `
INSERT INTO repositories (id, repository, version, created, chunker, codec, recipients, signer)
VALUES (1, $1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO NOTHING`

	updateRecipients = `UPDATE repositories SET recipients = $1 WHERE id = 1`

	updateKeyObjects = `UPDATE repositories SET key_objects = $1 WHERE id = 1`
	selectKeyObjects = `SELECT key_objects FROM repositories WHERE id = 1`

	selectRepository = `
SELECT repository, version, created, chunker, codec, recipients, signer
FROM repositories WHERE id = 1`
)

// CreateRepository implements index.Admin.
func (x *Index) CreateRepository(ctx context.Context, r backup.Repository) error {
	for _, s := range []string{r.Chunker, r.Codec} {
		if !settings.IsText(s) {
			return invalid("repository setting %q", s)
		}
	}
	recipients, err := encodeTexts("recipient", r.Recipients)
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		n, err := tx.change(ctx, insertRepository,
			uuid.UUID(r.ID), r.Version, stamp(r.Created), r.Chunker, r.Codec, recipients, r.Signer[:])
		if err == nil && n == 0 {
			err = fmt.Errorf("repository: %w", backup.ErrExists)
		}
		return err
	})
}

// encodeTexts encodes a list; what names one of it in an error.
func encodeTexts(what string, list []string) (json.RawMessage, error) {
	for _, s := range list {
		if !settings.IsText(s) {
			return nil, invalid("%s %q", what, s)
		}
	}
	return json.Marshal(append([]string{}, list...))
}

// SetRecipients implements index.Admin.
func (x *Index) SetRecipients(ctx context.Context, recipients []string) error {
	encoded, err := encodeTexts("recipient", recipients)
	if err != nil {
		return err
	}
	return x.setRepository(ctx, updateRecipients, encoded)
}

// setRepository sets a column of the description of the repository.
func (x *Index) setRepository(ctx context.Context, update string, to json.RawMessage) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		n, err := tx.change(ctx, update, to)
		if err == nil && n == 0 {
			err = fmt.Errorf("index: %w", backup.ErrNoRepository)
		}
		return err
	})
}

// SetKeyObjects implements index.Admin.
func (x *Index) SetKeyObjects(ctx context.Context, names []string) error {
	encoded, err := encodeTexts("object", slices.Sorted(slices.Values(names)))
	if err != nil {
		return err
	}
	return x.setRepository(ctx, updateKeyObjects, encoded)
}

// KeyObjects implements index.Admin.
func (x *Index) KeyObjects(ctx context.Context) (names []string, err error) {
	err = x.query(ctx, selectKeyObjects, nil, func(scan func(...any) error) error {
		var encoded []byte
		if err := scan(&encoded); err != nil {
			return err
		}
		return json.Unmarshal(encoded, &names)
	})
	return names, err
}

// Repository implements index.Admin.
func (x *Index) Repository(ctx context.Context) (backup.Repository, error) {
	r, found := backup.Repository{}, false
	err := x.query(ctx, selectRepository, nil, func(scan func(...any) error) error {
		var id uuid.UUID
		var recipients, signer []byte
		if err := scan(&id, &r.Version, &r.Created, &r.Chunker, &r.Codec, &recipients, &signer); err != nil {
			return err
		}
		r.ID, r.Created, found = backup.RepositoryID(id), r.Created.UTC(), true
		copy(r.Signer[:], signer)
		return json.Unmarshal(recipients, &r.Recipients)
	})
	if err == nil && !found {
		err = fmt.Errorf("index: %w", backup.ErrNoRepository)
	}
	return r, err
}

// snapshotRow returns a snapshot with its shard and filer.
func (x *Index) snapshotRow(ctx context.Context, client *ent.Client, where ...predicate.Snapshot) (*ent.Snapshot, error) {
	return client.Snapshot.Query().Where(where...).WithShard(func(q *ent.ShardQuery) { q.WithFiler() }).Only(ctx)
}

// committed returns a snapshot whose pages may be read, or backup.ErrNotFound.
func (x *Index) committed(ctx context.Context, id backup.SnapshotID) (*ent.Snapshot, error) {
	row, err := x.Backend.Client().Snapshot.Query().
		Where(snapshot.ID(uuid.UUID(id)), snapshot.State(string(backup.Committed))).Only(ctx)
	if err == nil && row.Forgotten != nil {
		return x.beingRead(ctx, row)
	}
	return row, x.Backend.Wrap(orNotFound(err, "committed snapshot %s", id))
}
