package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	dir, err := os.MkdirTemp("/dev/shm", "bctl-mirror-") //nolint:usetesting // it syncs in no time
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
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

func TestRunCopiesOnce(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.signed(pack.KindCatalog, store.CatalogName(1))
	w.signed(pack.KindIndex, store.IndexName(1, 0))
	w.must(w.from.Store.Put(t.Context(), "packs/notes", []byte("of somebody else")))
	s := w.run(w.options())
	if s.Copied != 7 || s.Objects != 7 || len(s.Problems) > 0 || s.Repository != w.id {
		t.Errorf("%+v", s)
	}
	w.removeFrom("packs/notes")
	w.wantSame()
	w.to.puts, w.from.gets = nil, 0
	if s := w.run(w.options()); s.Copied != 0 || s.Reread != 0 {
		t.Errorf("the second pass: %+v", s)
	}
	if len(w.to.puts) != 0 || w.from.gets != 1 { // of the repository object
		t.Errorf("the second pass has put %q, and read %d objects", w.to.puts, w.from.gets)
	}
	c, err := Compare(t.Context(), Options{From: w.from, To: w.to, Reread: 1})
	w.must(err)
	if c.Differs() || c.Read != 7 {
		t.Errorf("%+v", c)
	}
}

// What refers to others is written after them.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.signed(pack.KindCatalog, store.CatalogName(1))
	w.signed(pack.KindIndex, store.IndexName(1, 0))
	w.run(w.options())
	last := -1
	for _, name := range w.to.puts {
		if strings.HasPrefix(name, store.MirrorPrefix) {
			continue
		}
		if kindOf(name) < last {
			t.Errorf("%s was put too late: %q", name, w.to.puts)
		}
		last = kindOf(name)
	}
}

var errKilled = errors.New("killed")

// A pass ends at each request in turn, in which the store may nevertheless have done it. The next
// one puts nothing again that is there.
func TestPassIsInterrupted(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for n := 1; ; n++ {
			w := newWorld(t)
			w.snapshot()
			w.signed(pack.KindCatalog, store.CatalogName(1))
			count := 0
			w.to.before = func(op, name string) error {
				if op == "list" {
					return nil
				}
				if count++; count != n {
					return nil
				}
				if applied && op == "put" {
					data, err := w.from.Store.Get(context.Background(), name, maxObjectBytes)
					if err == nil {
						_ = w.to.Store.Put(context.Background(), name, data)
					}
				}
				return errKilled
			}
			o := w.options()
			o.Workers = 1
			_, err := Run(t.Context(), o)
			done := err == nil
			if !done && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			w.to.before = nil
			before := w.objects(w.to)
			w.to.puts = nil
			s := w.run(o)
			for _, name := range w.to.puts {
				if _, was := before[name]; was {
					t.Errorf("request %d: %s was put again", n, name)
				}
			}
			if len(s.Problems) > 0 {
				t.Errorf("request %d: %+v", n, s)
			}
			w.wantSame()
			if done {
				break
			}
		}
	}
}

// A mirror of another repository is not touched, and neither is a directory with other objects.
func TestOtherRepository(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	w.snapshot()
	other.snapshot()
	w.run(w.options())
	w.to.puts = nil
	o := w.options()
	o.From = other.from
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrOther) || !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("another repository: %v", err)
	}
	w.must(w.to.Store.Delete(t.Context(), store.ConfigName))
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, ErrOther) {
		t.Errorf("no repository object: %v", err)
	}
	if len(w.to.puts) > 0 {
		t.Errorf("put %q", w.to.puts)
	}
	w.must(w.from.Store.Delete(t.Context(), store.ConfigName)) // the store is not mounted
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, backup.ErrNoRepository) {
		t.Errorf("no store: %v", err)
	}
}

// Damaged objects are not copied, and do not replace sound ones. Sound ones replace damaged ones.
func TestDamage(t *testing.T) {
	const inStore, inMirror = true, false
	for _, c := range []struct {
		what    string
		side    bool
		at      int
		of      func(m *made) string
		copied  bool // before the damage
		reread  bool
		problem Side // "": none
		healed  bool
	}{
		{"pack header, not yet copied", inStore, 3, func(m *made) string { return m.packs[0] }, false, false, InStore, false},
		{"pack trailer, not yet copied", inStore, -9, func(m *made) string { return m.packs[0] }, false, false, InStore, false},
		{"record, not yet copied", inStore, 200, func(m *made) string { return m.record }, false, false, InStore, false},
		{"frame, copied", inStore, 1000, func(m *made) string { return m.packs[0] }, true, true, InStore, false},
		{"frame of the mirror", inMirror, 1000, func(m *made) string { return m.packs[0] }, true, true, "", true},
		{"segment of the mirror", inMirror, 250, func(m *made) string { return m.segment }, true, true, "", true},
		{"frame of the mirror, not read", inMirror, 1000, func(m *made) string { return m.packs[0] }, true, false, "", false},
	} {
		w := newWorld(t)
		m := w.snapshot()
		if c.copied {
			w.run(w.options())
		}
		sound := w.objects(w.from)[c.of(&m)]
		damage := map[bool]*memory{inStore: w.from, inMirror: w.to}[c.side]
		w.flip(damage, c.of(&m), c.at)
		compared, err := Compare(t.Context(), Options{From: w.from, To: w.to, Reread: 1})
		if c.copied {
			w.must(err)
			want := map[bool]Side{inStore: InStore, inMirror: InMirror}[c.side]
			if len(compared.Problems) != 1 || compared.Problems[0].Name != c.of(&m) || compared.Problems[0].Side != want {
				t.Errorf("%s: compared: %+v", c.what, compared.Problems)
			}
		}
		o := w.options()
		if c.reread {
			o.Reread = 1
		}
		s := w.run(o)
		got, there := w.objects(w.to)[c.of(&m)]
		switch {
		case c.problem == "" && len(s.Problems) > 0, c.problem != "" && (len(s.Problems) != 1 || s.Problems[0].Side != c.problem || s.Problems[0].Name != c.of(&m)):
			t.Errorf("%s: %+v", c.what, s.Problems)
		case c.healed && (s.Replaced != 1 || got != sound):
			t.Errorf("%s: it was not replaced", c.what)
		case c.side == inStore && c.copied && got != sound:
			t.Errorf("%s: the mirror has the damaged one", c.what)
		case !c.copied && there:
			t.Errorf("%s: it was copied", c.what)
		}
	}
}

// What the store deleted stays, and is deleted only when it was gone for long enough.
func TestKeepDeleted(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	for range 5 {
		w.snapshot()
	}
	o := w.options()
	w.run(o)
	w.removeFrom(append(m.packs, m.segment, m.record)...)
	if s := w.run(o); s.Gone != 4 || s.Deleted != 0 || s.Retained != 4 {
		t.Errorf("%+v", s)
	}
	w.now = w.now.Add(100 * 24 * time.Hour)
	if s := w.run(o); s.Deleted != 0 || s.Retained != 4 { // for ever
		t.Errorf("%+v", s)
	}
	o.KeepDeleted = 101 * 24 * time.Hour
	if s := w.run(o); s.Deleted != 0 {
		t.Errorf("%+v", s)
	}
	// The gone record is not one of the mirror's.
	records := 0
	for _, err := range store.Records(t.Context(), w.to) {
		w.must(err)
		records++
	}
	if records != 5 {
		t.Errorf("%d records", records)
	}
	w.now = w.now.Add(2 * 24 * time.Hour)
	dry := o
	dry.DryRun = true
	if s := w.run(dry); s.Deleted != 4 {
		t.Errorf("a dry run: %+v", s)
	}
	if s := w.run(o); s.Deleted != 4 || s.Retained != 0 {
		t.Errorf("%+v", s)
	}
	w.wantSame()
	for o, err := range w.to.List(t.Context(), store.GonePrefix) {
		w.must(err)
		t.Errorf("%s stays", o.Name)
	}
}

// An object that the store has again is not deleted.
func TestObjectComesBack(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.snapshot()
	o := w.options()
	o.KeepDeleted = time.Hour
	w.run(o)
	data, err := w.from.Store.Get(t.Context(), m.packs[0], maxObjectBytes)
	w.must(err)
	w.removeFrom(m.packs[0])
	w.run(o)
	w.must(w.from.Store.Put(t.Context(), m.packs[0], data))
	w.now = w.now.Add(2 * time.Hour)
	if s := w.run(o); s.Deleted != 0 || s.Retained != 0 {
		t.Errorf("%+v", s)
	}
	w.removeFrom(m.packs[0])
	if s := w.run(o); s.Gone != 1 || s.Deleted != 0 {
		t.Errorf("its time begins anew: %+v", s)
	}
}

// Whoever empties the store does not empty the mirror.
func TestBrake(t *testing.T) {
	w := newWorld(t)
	var all []made
	for range 20 {
		all = append(all, w.snapshot())
	}
	o := w.options()
	o.KeepDeleted = time.Hour
	w.run(o)
	for _, m := range all[:11] {
		w.removeFrom(append(m.packs, m.segment, m.record)...)
	}
	w.run(o)
	w.now = w.now.Add(2 * time.Hour)
	var stopped *BrakeError
	_, err := Run(t.Context(), o)
	if !errors.As(err, &stopped) || stopped.Records != 11 || stopped.OfRecords != 20 {
		t.Fatalf("11 of 20: %v", err)
	}
	w.snapshot()
	if s, err := Run(t.Context(), o); !errors.As(err, &stopped) || s.Copied != 4 {
		t.Errorf("the pass copies nothing: %+v, %v", s, err)
	}
	o.AllowDelete = stopped.Bytes - 1
	if _, err := Run(t.Context(), o); !errors.As(err, &stopped) {
		t.Errorf("with too few bytes allowed: %v", err)
	}
	o.AllowDelete++
	if s := w.run(o); s.Deleted != 44 {
		t.Errorf("%+v", s)
	}
	// A day counts as one pass.
	o.AllowDelete = 0
	w.removeFrom(all[12].record)
	w.run(o)
	w.now = w.now.Add(2 * time.Hour)
	if _, err := Run(t.Context(), o); !errors.As(err, &stopped) {
		t.Errorf("later on the same day: %v", err)
	}
	w.now = w.now.Add(24 * time.Hour)
	if s := w.run(o); s.Deleted != 1 {
		t.Errorf("the day after: %+v", s)
	}
}

// Nothing is deleted while damage is known.
func TestDamageDelaysDeletion(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	for range 3 {
		w.snapshot()
	}
	o := w.options()
	o.KeepDeleted = time.Hour
	w.run(o)
	w.removeFrom(m.packs[1])
	w.run(o)
	w.now = w.now.Add(2 * time.Hour)
	bad := w.snapshot()
	w.flip(w.from, bad.record, 200)
	if s := w.run(o); s.Deleted != 0 || len(s.Problems) != 1 {
		t.Errorf("%+v", s)
	}
	w.removeFrom(bad.record)
	if s := w.run(o); s.Deleted != 1 {
		t.Errorf("%+v", s)
	}
}

// A list that leaves out objects is not believed.
func TestListThatLies(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.run(w.options())
	o := w.options()
	o.From = liar{w.from}
	if s := w.run(o); s.Gone != 0 {
		t.Errorf("%+v", s)
	}
}

// A liar lists no packs.
type liar struct{ *memory }

func (l liar) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	if prefix == store.PacksPrefix {
		return func(func(store.Object, error) bool) {}
	}
	return l.memory.List(ctx, prefix)
}

// The mirror locks what the store has, and extends the locks. What is gone goes when its lock ends.
func TestLocks(t *testing.T) {
	w := newWorld(t)
	w.now = time.Now()
	m := w.snapshot()
	w.snapshot()
	o := w.options()
	o.KeepDeleted, o.Locks = 10*24*time.Hour, true
	w.run(o)
	want := w.now.Add(o.KeepDeleted).Truncate(time.Second)
	if got := w.to.locked[m.packs[0]]; !got.Equal(want) || !w.to.locked[store.ConfigName].Equal(want) {
		t.Errorf("locked until %v, want %v", got, want)
	}
	w.now = w.now.Add(4 * 24 * time.Hour)
	if s := w.run(o); s.LockExtended != 0 {
		t.Errorf("too soon: %+v", s)
	}
	w.removeFrom(m.packs[0])
	w.run(o)
	w.now = w.now.Add(2 * 24 * time.Hour)
	if s := w.run(o); s.LockExtended != 8 || !w.to.locked[m.packs[0]].Equal(want) {
		t.Errorf("%+v; the gone one is locked until %v", s, w.to.locked[m.packs[0]])
	}
	w.now = w.now.Add(10 * 24 * time.Hour) // the mirror's clock is wrong: the store's is not
	if s := w.run(o); s.Deleted != 0 || s.LockedGone != 1 {
		t.Errorf("%+v", s)
	}
	w.to.locked[m.packs[0]] = time.Time{}
	if s := w.run(o); s.Deleted != 1 {
		t.Errorf("%+v", s)
	}
}

// The pruner moves a chunk into another pack while the store is listed and read.
func TestPackMovesMeanwhile(t *testing.T) {
	for _, when := range []string{"list packs/", "get"} {
		w := newWorld(t)
		m := w.snapshot()
		moved := ""
		w.from.before = func(op, name string) error {
			if moved == "" && (op+" "+name == when || op == when && name == m.packs[0]) {
				w.from.mu.Unlock()
				moved = w.pack(m.id, 5000)
				w.removeFrom(m.packs[0])
				w.from.mu.Lock()
			}
			return nil
		}
		w.run(w.options())
		if moved == "" {
			t.Fatal("nothing was moved")
		}
		got := w.objects(w.to)
		if _, there := got[m.record]; there && got[moved] == "" {
			t.Errorf("%s: the mirror has the record, and not the pack", when)
		}
		w.run(w.options())
		w.wantSame()
	}
}

// A purge amends a record while a pass runs: the old record is not copied without its segment.
func TestRecordIsAmendedMeanwhile(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	done := false
	w.from.before = func(op, name string) error {
		if !done && op == "list" && name == store.SegmentsPrefix {
			done = true
			w.signed(pack.KindSegment, store.SegmentName(m.id, backup.NewPackID(), 0))
			w.signed(pack.KindCommit, store.AmendedName(m.id, 1))
			w.removeFrom(m.segment)
		}
		return nil
	}
	if s := w.run(w.options()); s.Behind == 0 {
		t.Errorf("%+v", s)
	}
	if _, there := w.objects(w.to)[m.record]; there {
		t.Error("the mirror has the old record, without its segment")
	}
	w.run(w.options())
	w.wantSame()
}

func TestCopyBack(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.snapshot()
	w.run(w.options())
	before := w.objects(w.from)
	asOf := w.now
	w.now = w.now.Add(time.Hour)
	w.removeFrom(append(m.packs, m.segment, m.record)...)
	w.snapshot()
	w.run(w.options())
	now := w.objects(w.from)
	for at, want := range map[time.Time]map[string]string{{}: now, asOf: before} {
		for n := 1; ; n++ { // interrupted at each request
			empty := newMemory(t)
			count := 0
			empty.before = func(op, _ string) error {
				if count++; op != "list" && count == n {
					return errKilled
				}
				return nil
			}
			o := BackOptions{From: w.to, To: empty, AsOf: at, Workers: 1}
			_, err := CopyBack(t.Context(), o)
			done := err == nil && count < n
			empty.before = nil
			s, err := CopyBack(t.Context(), o)
			w.must(err)
			if got := w.objects(empty); !maps.Equal(got, want) || s.Objects != int64(len(want)) || len(s.Problems) > 0 {
				t.Errorf("at %v: %q, %+v", at, slices.Sorted(maps.Keys(got)), s)
			}
			if done {
				break
			}
		}
	}
	if _, err := CopyBack(t.Context(), BackOptions{From: w.to, To: w.from}); err != nil {
		t.Errorf("into a store that has just that: %v", err)
	}
	w.snapshot()
	if _, err := CopyBack(t.Context(), BackOptions{From: w.to, To: w.from}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a store with other objects: %v", err)
	}
}

// Damaged objects of the mirror are not copied back.
func TestCopyBackOfADamagedMirror(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.run(w.options())
	w.flip(w.to, m.packs[0], 1000)
	empty := newMemory(t)
	s, err := CopyBack(t.Context(), BackOptions{From: w.to, To: empty})
	w.must(err)
	if _, there := w.objects(empty)[m.packs[0]]; there || len(s.Problems) != 1 || s.Problems[0].Name != m.packs[0] {
		t.Errorf("%+v", s)
	}
}

// Single objects are put back if the mirror's are whole.
func TestPutBack(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.run(w.options())
	before := w.objects(w.from)
	source, err := NewSource(t.Context(), w.to, w.id, w.signing.Signer())
	w.must(err)
	back := func(name string, want bool) {
		t.Helper()
		if got, err := source.PutBack(t.Context(), w.from, name); err != nil || got != want {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
	back(m.packs[0], false) // it is sound
	w.flip(w.from, m.packs[0], 1000)
	back(m.packs[0], true)
	w.removeFrom(m.record)
	back(m.record, true)
	back(store.CommitName(backup.NewSnapshotID()), false)
	if !maps.Equal(before, w.objects(w.from)) {
		t.Error("the store is not what it was")
	}
	w.flip(w.from, m.packs[0], 1000)
	w.flip(w.to, m.packs[0], 2000)
	back(m.packs[0], false)
	if _, err := NewSource(t.Context(), w.to, backup.NewRepositoryID(), w.signing.Signer()); !errors.Is(err, ErrOther) {
		t.Errorf("another repository: %v", err)
	}
}

// Many passes leave few objects with notes.
func TestNotesAreMerged(t *testing.T) {
	w := newWorld(t)
	for range 70 {
		w.pack(backup.NewSnapshotID(), 10)
		w.run(w.options())
	}
	n := 0
	for _, err := range w.to.List(t.Context(), store.SumsPrefix) {
		w.must(err)
		n++
	}
	if n > 64 {
		t.Errorf("%d objects with notes", n)
	}
	w.from.gets = 0
	if s := w.run(w.options()); s.Adopted != 0 || s.Copied != 0 || w.from.gets != 1 {
		t.Errorf("%+v: notes were lost", s)
	}
}

// Damaged notes cost a comparison.
func TestDamagedNotes(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.run(w.options())
	for o, err := range w.to.List(t.Context(), store.SumsPrefix) {
		w.must(err)
		w.flip(w.to, o.Name, 100)
	}
	if s := w.run(w.options()); s.Copied != 0 || s.Adopted != 5 || len(s.Problems) != 1 {
		t.Errorf("%+v", s)
	}
	if s := w.run(w.options()); s.Adopted != 0 || len(s.Problems) != 0 {
		t.Errorf("the next pass: %+v", s)
	}
}

func TestSums(t *testing.T) {
	var lines []byte
	want := map[string]note{}
	for i := range 5 {
		name := store.PackName(backup.NewSnapshotID(), backup.NewPackID())
		n := note{sizeBytes: int64(i), sum: sum{byte(i)}, copied: 1, locked: int64(i)}
		want[name] = n
		lines = appendNote(lines, name, &n)
	}
	data := encodeSums(lines)
	got := map[string]note{}
	if err := parseSums(data, func(name string, n note) { got[name] = n }); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for i := range data {
		other := bytes.Clone(data)
		other[i] ^= 1
		if err := parseSums(other, func(string, note) { t.Error("a damaged note is believed") }); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	for _, line := range []string{
		"packs/x 1 00 1 0", "other/x 1 " + strings.Repeat("0", 64) + " 1 0", store.ConfigName + " -1 " + strings.Repeat("0", 64) + " 1 0",
		store.ConfigName + " 1 " + strings.Repeat("0", 64) + " 0 0", store.ConfigName + " 1 " + strings.Repeat("0", 64) + " 1",
		store.ConfigName + " 99999999999999 " + strings.Repeat("0", 64) + " 1 0",
	} {
		if err := parseSums(encodeSums([]byte(line+"\n")), func(string, note) {}); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func FuzzSums(f *testing.F) {
	f.Add([]byte(""))
	n := note{sizeBytes: 1, copied: 1}
	f.Add(appendNote(nil, store.ConfigName, &n))
	f.Fuzz(func(t *testing.T, lines []byte) {
		var again []byte
		if err := parseSums(lines, func(string, note) {}); err != nil && !errors.Is(err, backup.ErrCorrupt) {
			t.Error(err)
		}
		err := parseSums(encodeSums(lines), func(name string, n note) { again = appendNote(again, name, &n) })
		if err != nil {
			return
		}
		same := map[string]note{}
		if err := parseSums(encodeSums(again), func(name string, n note) { same[name] = n }); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}

func FuzzProve(f *testing.F) {
	f.Add("packs/"+fmt.Sprintf("%032x/%032x", 1, 2), []byte("bctlpack"))
	f.Add(store.ConfigName, []byte("bctl-repository v1\n"))
	f.Add(store.RecipientsName(1), []byte("bctl-recipients v1\n"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		p := &Prover{}
		if err := p.Prove(name, data); err == nil && len(data) > 0 {
			t.Errorf("%q is proven by no key", name)
		}
	})
}
