package mirror

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/testenv"
)

// A world is a store with valid objects, and its mirror.
type world struct {
	*testing.T
	from, to *memory
	now      time.Time
	id       backup.RepositoryID
	sealer   *seal.Sealer
	signing  seal.SigningKey
	random   *rand.ChaCha8
}

// A memory is a directory store in which tests can make requests fail, and act between them.
type memory struct {
	*dirstore.Store
	dir string

	mu     sync.Mutex
	puts   []string // names, in their order
	gets   int
	locked map[string]time.Time
	before func(op, name string) error // nil: nothing happens
}

func newMemory(t *testing.T) *memory {
	t.Helper()
	dir := testenv.MemoryDir(t)
	s, err := dirstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &memory{Store: s, dir: dir, locked: map[string]time.Time{}}
}

func (m *memory) happens(op, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if op == "put" {
		m.puts = append(m.puts, name)
	}
	if op == "get" {
		m.gets++
	}
	if m.before != nil {
		return m.before(op, name)
	}
	return nil
}

func (m *memory) Put(ctx context.Context, name string, data []byte) error {
	if err := m.happens("put", name); err != nil {
		return err
	}
	return m.Store.Put(ctx, name, data)
}

func (m *memory) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	if err := m.happens("get", name); err != nil {
		return nil, err
	}
	return m.Store.Get(ctx, name, maxBytes)
}

func (m *memory) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	if err := m.happens("list", prefix); err != nil {
		return func(yield func(store.Object, error) bool) { yield(store.Object{}, err) }
	}
	return m.Store.List(ctx, prefix)
}

// Delete refuses locked objects, as a store that locks.
func (m *memory) Delete(ctx context.Context, names ...string) error {
	var free, locked []string
	for _, name := range names {
		if err := m.happens("delete", name); err != nil {
			return err
		}
		if time.Now().Before(m.locked[name]) {
			locked = append(locked, name)
		} else {
			free = append(free, name)
		}
	}
	err := m.Store.Delete(ctx, free...)
	if err == nil && len(locked) > 0 {
		err = &store.Error{Op: "delete", Err: &store.LockedError{Names: locked}}
	}
	return err
}

func (m *memory) Lock(_ context.Context, name string, until time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locked[name] = until
	return nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	_, recipient, err := seal.GenerateIdentity()
	w := &world{T: t, from: newMemory(t), to: newMemory(t), now: time.Unix(2_000_000_000, 0), id: backup.NewRepositoryID(), signing: seal.NewSigningKey(), random: rand.NewChaCha8([32]byte{1})}
	w.must(err)
	w.sealer, err = seal.NewSealer([]string{recipient})
	w.must(err)
	w.must(w.from.Store.Put(t.Context(), store.ConfigName, RepositoryObject(w.id, recipient, w.signing)))
	return w
}

// RepositoryObject returns a repository object whose sealed keys are of no use.
func RepositoryObject(id backup.RepositoryID, recipient string, signing seal.SigningKey) []byte {
	signer := signing.Signer()
	k := keytext.NewWriter("bctl-repository")
	k.Hex("repository", id[:])
	k.Time("created", time.Unix(1_900_000_000, 0))
	k.Text("chunker", "chunker")
	k.Text("codec", "zstd-1")
	k.Text("recipient", recipient)
	k.Hex("signer", signer[:])
	k.Base64("worker-key", []byte("sealed"))
	k.Base64("committer-key", []byte("sealed"))
	k.Hex("signature", signing.Sign(id, store.ConfigName, k.Bytes()))
	return k.Bytes()
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// pack puts a data pack, and returns its name.
func (w *world) pack(of backup.SnapshotID, bytes int) string {
	w.Helper()
	id := backup.NewPackID()
	b, err := pack.NewWriter(pack.KindData, w.id, id, w.sealer, nil)
	w.must(err)
	body := make([]byte, bytes)
	_, _ = w.random.Read(body)
	_, err = b.Add(pack.Frame{Codec: pack.CodecNone, RawLength: bytes, Body: body, Chunks: []pack.Chunk{{Length: uint32(bytes)}}})
	w.must(err)
	data, err := b.Finish()
	w.must(err)
	name := store.PackName(of, id)
	w.must(w.from.Store.Put(w.Context(), name, data))
	return name
}

// signed puts a signed object.
func (w *world) signed(kind pack.Kind, name string) string {
	w.Helper()
	b, err := pack.NewWriter(kind, w.id, backup.PackID(seal.KeyIDOf(name)), w.sealer, nil)
	w.must(err)
	_, err = b.Add(pack.Frame{Codec: pack.CodecNone, RawLength: 2, Body: []byte("{}")})
	w.must(err)
	data, err := b.FinishSigned(w.signing, name)
	w.must(err)
	w.must(w.from.Store.Put(w.Context(), name, data))
	return name
}

// A made is a snapshot in the store.
type made struct {
	id              backup.SnapshotID
	packs           []string
	segment, record string
}

func (w *world) snapshot() made {
	w.Helper()
	m := made{id: backup.NewSnapshotID()}
	m.packs = []string{w.pack(m.id, 5000), w.pack(m.id, 100)}
	m.segment = w.signed(pack.KindSegment, store.SegmentName(m.id, backup.NewPackID(), 0))
	m.record = w.signed(pack.KindCommit, store.CommitName(m.id))
	return m
}

func (w *world) options() Options {
	return Options{From: w.from, To: w.to, Now: func() time.Time { return w.now }, Workers: 3}
}

func (w *world) run(o Options) Summary {
	w.Helper()
	s, err := Run(w.Context(), o)
	w.must(err)
	return s
}

func (w *world) removeFrom(names ...string) {
	w.Helper()
	w.must(w.from.Store.Delete(w.Context(), names...))
}

// objects returns the bytes of all objects of a repository.
func (w *world) objects(s *memory) map[string]string {
	w.Helper()
	all := map[string]string{}
	for o, err := range s.Store.List(w.Context(), "") {
		w.must(err)
		if strings.HasPrefix(o.Name, store.MirrorPrefix) {
			continue
		}
		data, err := s.Store.Get(w.Context(), o.Name, maxObjectBytes)
		w.must(err)
		all[o.Name] = string(data)
	}
	return all
}

func (w *world) wantSame() {
	w.Helper()
	if a, b := w.objects(w.from), w.objects(w.to); !maps.Equal(a, b) {
		w.Errorf("the store has %q, the mirror %q", slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b)))
	}
}

func (w *world) flip(s *memory, name string, at int) {
	w.Helper()
	data, err := s.Store.Get(w.Context(), name, maxObjectBytes)
	w.must(err)
	data[(at+len(data))%len(data)] ^= 1
	w.must(os.WriteFile(filepath.Join(s.dir, filepath.FromSlash(name)), data, 0o600))
}

// has reports whether the mirror has an object.
func (w *world) has(name string) bool {
	w.Helper()
	_, err := w.to.Stat(w.Context(), name)
	if err != nil && !errors.Is(err, backup.ErrNotFound) {
		w.Fatal(err)
	}
	return err == nil
}
