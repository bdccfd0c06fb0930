package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/store"
)

// A hangingStore calls a function before its first Put of a pack, which then hangs until the backup
// ends.
type hangingStore struct {
	store.Store
	once sync.Once
	do   func()
}

func (s *hangingStore) Put(ctx context.Context, name string, data []byte) error {
	if !strings.HasPrefix(name, store.PacksPrefix) {
		return s.Store.Put(ctx, name, data)
	}
	s.once.Do(s.do)
	<-ctx.Done()
	return ctx.Err()
}

// A backup whose index was replaced or removed fails with that reason. Otherwise it would wait for
// ever for what it wrote to a file that no longer exists.
func TestIndexIsReplacedDuringABackup(t *testing.T) {
	for name, change := range map[string]func(m *machine, path string) error{
		"removed": func(_ *machine, path string) error { return os.Remove(path) },
		"moved":   func(_ *machine, path string) error { return os.Rename(path, path+".aside") },
		"all files moved, another in their place": func(m *machine, path string) error {
			other := path + ".other"
			data, err := os.ReadFile(path)
			m.must(err)
			m.must(os.WriteFile(other, data, 0o600))
			for _, suffix := range []string{"-wal", "-shm", ""} {
				m.must(os.Rename(path+suffix, path+".aside"+suffix))
			}
			return os.Rename(other, path)
		},
		"another written over it": func(m *machine, path string) error {
			old, err := os.ReadFile(filepath.Join(m.memory, "old.db"))
			m.must(err)
			for _, suffix := range []string{"-wal", "-shm"} {
				m.must(os.Remove(path + suffix))
			}
			return os.WriteFile(path, old, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.grow(0)
			old, err := os.ReadFile(filepath.Join(m.memory, "index.db"))
			m.must(err)
			m.must(os.WriteFile(filepath.Join(m.memory, "old.db"), old, 0o600))
			m.Store = &hangingStore{Store: m.Store, do: func() { m.must(change(m, filepath.Join(m.memory, "index.db"))) }}
			_, err = m.backup(t.Context())
			if err == nil || !strings.Contains(err.Error(), "index") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A backup that ends before the next check does not report that its snapshot is committed.
func TestIndexIsReplacedAtTheEnd(t *testing.T) {
	m := newMachine(t)
	m.grow(0)
	path := filepath.Join(m.memory, "index.db")
	m.Store = &replacingStore{Store: m.Store, do: func() { m.must(os.Rename(path, path+".aside")) }}
	if s, err := m.backup(t.Context()); err == nil || !strings.Contains(err.Error(), "the snapshot is lost") {
		t.Errorf("snapshot is %s, error %v", s.State, err)
	}
}

// A replacingStore calls a function when a commit record is written.
type replacingStore struct {
	store.Store
	once sync.Once
	do   func()
}

func (s *replacingStore) PutNew(ctx context.Context, name string, data []byte) error {
	if strings.HasPrefix(name, store.CommitsPrefix) {
		s.once.Do(s.do)
	}
	return s.Store.PutNew(ctx, name, data)
}
