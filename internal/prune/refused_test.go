package prune_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// A refusingStore fails in place of some requests.
type refusingStore struct {
	store.Store
	get, put error
}

func (s *refusingStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if s.get != nil {
		return dst, s.get
	}
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

func (s *refusingStore) Put(ctx context.Context, name string, data []byte) error {
	if err := s.Store.Put(ctx, name, data); err != nil {
		return err
	}
	return s.put // it may have written the object
}

// If packs cannot be copied, they stay as they are, and everything else is deleted. Only a store
// that does not answer ends the pass.
func TestPacksThatCannotBeCopied(t *testing.T) {
	for name, test := range map[string]struct {
		s    refusingStore
		want error
	}{
		"packs may not be read":       {refusingStore{get: fs.ErrPermission}, nil},
		"a pack is gone":              {refusingStore{get: backup.ErrNotFound}, nil},
		"a pack is damaged":           {refusingStore{get: backup.ErrCorrupt}, nil},
		"the store does not answer":   {refusingStore{get: backup.ErrUnavailable}, backup.ErrUnavailable},
		"packs may not be put":        {refusingStore{put: fs.ErrPermission}, nil},
		"the store is full":           {refusingStore{put: store.ErrFull}, nil},
		"the answer to a put is lost": {refusingStore{put: backup.ErrUnavailable}, backup.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			m := newWorld(t, openSQLite(t), 1)
			m.exact = true
			s := m.shards[0]
			first := m.backup(s, wants{"a": {1, 2, 3}, "b": {4}})
			m.backup(s, wants{"a": {1}, "b": {5}})
			m.forget(s, first)
			refusing := test.s
			refusing.Store = m.s
			result, err := prune.Run(m.ctx, prune.Options{Index: m.x, Store: &refusing, Holder: "pass", Log: slog.New(slog.DiscardHandler)})
			if !errors.Is(err, test.want) || result.Packs != 1 || result.Thinned != 0 || result.Unused == 0 && err == nil {
				t.Fatalf("%+v, %v", result, err)
			}
			m.check()
			m.twoPasses()
			m.checkNoLeaks()
			m.empty()
		})
	}
}
