package repo

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

var errFault = errors.New("fault")

// A faultyStep fails one durable write, either without performing it or after it.
type faultyStep struct {
	Index
	Store   store.Store
	step    string
	applied bool
}

func (f *faultyStep) fail(step string, do func() error) error {
	if step != f.step {
		return do()
	}
	if f.applied {
		if err := do(); err != nil {
			return err
		}
	}
	return errFault
}

func (f *faultyStep) Migrate(ctx context.Context) (from, to int64, err error) {
	err = f.fail("migrate", func() error { from, to, err = f.Index.Migrate(ctx); return err })
	return from, to, err
}

func (f *faultyStep) CreateRepository(ctx context.Context, r backup.Repository) error {
	return f.fail("create", func() error { return f.Index.CreateRepository(ctx, r) })
}

func (f *faultyStep) store() store.Store { return &faultyStore{f.Store, f} }

type faultyStore struct {
	store.Store
	f *faultyStep
}

func (s *faultyStore) PutNew(ctx context.Context, name string, data []byte) error {
	return s.f.fail("put", func() error { return s.Store.PutNew(ctx, name, data) })
}
