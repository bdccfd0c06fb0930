package rewrap

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A fixture is a repository with packs of data and one object of the journal.
type fixture struct {
	testing.TB
	store     store.Store
	object    repo.Object
	committer seal.CommitterKey
	worker    seal.WorkerKey
	first     *seal.Opener
	packs     []index.Pack
}

// Packs implements Packs.
func (f *fixture) Packs(context.Context) iter.Seq2[index.Pack, error] {
	return func(yield func(index.Pack, error) bool) {
		for _, p := range f.packs {
			if !yield(p, nil) {
				return
			}
		}
	}
}

func newFixture(t testing.TB, packs int) *fixture {
	dir := t.TempDir()
	s, err := dirstore.Create(filepath.Join(dir, "store"))
	must(t, err)
	i, err := sqliteindex.Open(t.Context(), filepath.Join(dir, "index.db"))
	must(t, err)
	t.Cleanup(func() { _ = i.Close() })
	made, err := repo.Init(t.Context(), s, i, repo.Options{
		WorkerKeyPath: filepath.Join(dir, "worker.key"), CommitterKeyPath: filepath.Join(dir, "committer.key"), IdentityPath: filepath.Join(dir, "identity.txt"),
		Chunker: "chunker", Codec: "codec", Now: time.Unix(1_600_000_000, 0),
	})
	must(t, err)
	f := &fixture{TB: t, store: s}
	f.object, f.worker, err = repo.Load(t.Context(), s, i, made.WorkerKeyPath)
	must(t, err)
	f.committer, err = f.object.ReadCommitterKey(made.CommitterKeyPath)
	must(t, err)
	identity, err := repo.FindIdentity(made.IdentityPath, f.object.ID, repo.Asker{})
	must(t, err)
	f.first = identity.Opener
	for range packs {
		f.addPack()
	}
	f.addCatalog(1)
	return f
}

func (f *fixture) sealer() *seal.Sealer {
	s, err := seal.NewSealer(f.object.Recipients)
	must(f, err)
	return s
}

// addPack stores a pack of data as a reader does.
func (f *fixture) addPack() {
	id, snapshot := backup.NewPackID(), backup.NewSnapshotID()
	content := []byte("content of " + id.String())
	w, err := pack.NewWriter(pack.KindData, f.object.ID, id, f.sealer(), nil)
	must(f, err)
	_, err = w.Add(pack.Frame{RawLength: len(content), Body: content, Chunks: []pack.Chunk{{
		Hash: chunk.NewHasher([32]byte(f.worker.Dedup)).Sum(content), Length: uint32(len(content)),
	}}})
	must(f, err)
	data, err := w.Finish()
	must(f, err)
	must(f, f.store.Put(f.Context(), store.PackName(snapshot, id), data))
	f.packs = append(f.packs, index.Pack{Row: int64(len(f.packs)), PackPlace: index.PackPlace{Pack: id, Snapshot: snapshot, Object: id, Bytes: int64(len(data))}})
}

func (f *fixture) addCatalog(sequence int64) {
	keys := journal.Keys{Repository: f.object.ID, Sealer: f.sealer(), Signing: f.committer.Signing}
	data, err := journal.EncodeCatalog(keys, sequence, time.Unix(1, 0), &journal.Catalog{})
	must(f, err)
	must(f, f.store.Put(f.Context(), store.CatalogName(sequence), data))
}

// recipient adds a recipient and returns its identity.
func (f *fixture) recipient() *seal.Opener {
	f.Helper()
	identity, key, err := seal.GenerateIdentity()
	must(f, err)
	list := append(f.object.InForce().List, repo.Recipient{Key: key, Since: time.UnixMilli(1)})
	f.worker, err = f.object.ChangeRecipients(f.Context(), f.store, list, f.worker, f.committer, time.UnixMilli(2))
	must(f, err)
	opener, err := seal.NewOpener([]byte(identity))
	must(f, err)
	return opener
}

func (f *fixture) options(opener *seal.Opener) Options {
	return Options{
		Index: f, Store: f.store, Object: &f.object, Opener: opener, Signing: f.committer.Signing, partKeys: 3, windowKeys: 5,
		Now: func() time.Time { return time.UnixMilli(3) },
	}
}

func (f *fixture) rotate(opener *seal.Opener) Result {
	f.Helper()
	r, err := Rotate(f.Context(), f.options(opener))
	must(f, err)
	return r
}

// opened returns how many packs an identity opens, after a test of the catalog.
func (f *fixture) opened(opener *seal.Opener) Tested {
	f.Helper()
	t, err := Test(f.Context(), TestOptions{Index: f, Store: f.store, Object: &f.object, Opener: opener, Dedup: f.worker.Dedup, HasDedup: true})
	must(f, err)
	return t
}

func (f *fixture) opensCatalog(opener *seal.Opener) error {
	data, err := f.store.Get(f.Context(), store.CatalogName(1), pack.MaxBytes)
	must(f, err)
	trust := journal.Trust{Repository: f.object.ID, Signer: f.object.Signer(), Opener: Opener(f.Context(), f.store, &f.object, opener)}
	_, _, err = journal.OpenCatalog(data, 1, trust)
	return err
}

func TestRotate(t *testing.T) {
	f := newFixture(t, 20)
	must(t, f.store.Put(t.Context(), store.SegmentName(backup.SnapshotID{}, backup.NewPackID(), 0), []byte("a committer's test")))
	second := f.recipient()
	if got := f.opened(second); got.Tested != 20 || got.Opened != 0 || !errors.Is(got.Problem, backup.ErrWrongKey) {
		t.Fatalf("before: %+v", got)
	}
	if err := f.opensCatalog(second); !errors.Is(err, backup.ErrWrongKey) {
		t.Fatalf("before: %v", err)
	}
	if r := f.rotate(f.first); r.Rotation != 1 || r.Total != 21 || r.Wrapped != 21 || r.Unopened+r.Missing+r.Had != 0 {
		t.Errorf("%+v", r)
	}
	if got := f.opened(second); got.Opened != 20 || got.Rewrapped != 20 || got.Problem != nil {
		t.Errorf("after: %+v", got)
	}
	if got := f.opened(f.first); got.Opened != 20 || got.Rewrapped != 0 {
		t.Errorf("the first identity: %+v", got)
	}
	must(t, f.opensCatalog(second))

	// Nothing is left to do, and nothing is written.
	if r := f.rotate(f.first); r.Rotation != 0 || r.Wrapped != 0 || r.Had != 21 {
		t.Errorf("again: %+v", r)
	}
	// Only what is new is wrapped.
	f.addPack()
	if r := f.rotate(second); r.Rotation != 2 || r.Wrapped != 1 || r.Had != 21 {
		t.Errorf("one more: %+v", r)
	}
	// The second identity suffices for the third, from the parts alone.
	third := f.recipient()
	if r := f.rotate(second); r.Rotation != 3 || r.Wrapped != 22 || r.Unopened != 0 {
		t.Errorf("third: %+v", r)
	}
	if got := f.opened(third); got.Opened != 21 || got.Problem != nil {
		t.Errorf("the third identity: %+v", got)
	}
	// After a removal, the rotations for more recipients count.
	list := f.object.InForce().List[:2]
	_, err := f.object.ChangeRecipients(t.Context(), f.store, list, f.worker, f.committer, time.UnixMilli(4))
	must(t, err)
	if r := f.rotate(f.first); r.Rotation != 0 || r.Had != 22 {
		t.Errorf("after a removal: %+v", r)
	}
}

// A rotation covers what its identity opens, and reports the rest.
func TestRotateReportsWhatItCannotWrap(t *testing.T) {
	f := newFixture(t, 4)
	second := f.recipient()
	f.addPack()
	must(t, f.store.Delete(t.Context(), store.PackName(f.packs[4].Snapshot, f.packs[4].Object)))
	f.addPack()
	r := f.rotate(second)
	if r.Wrapped != 1 || r.Unopened != 5 || r.Missing != 1 || len(r.Problems) != 6 {
		t.Errorf("%+v", r)
	}
	if r := f.rotate(f.first); r.Wrapped != 5 || r.Had != 1 || r.Missing != 1 {
		t.Errorf("with the first: %+v", r)
	}
}

// covers reports whether a complete rotation is for all recipients in force.
func (f *fixture) covers() bool {
	f.Helper()
	complete, err := Coverages(f.Context(), f.store, &f.object)
	must(f, err)
	return slices.ContainsFunc(complete, func(c Coverage) bool { return containsAll(c.Recipients, f.object.Recipients) })
}

// A rotation that lacks a key is not complete, also if it is interrupted at any put and continued,
// by whichever identity. It is when no key is lacking any more.
func TestRotationThatLacksKeysIsNotComplete(t *testing.T) {
	for at := range 8 { // 0: it is not interrupted
		for _, damaged := range []bool{false, true} {
			f := newFixture(t, 10)
			second := f.recipient()
			f.addPack()
			by, lacking := second, f.packs[10]
			name := store.PackName(lacking.Snapshot, lacking.Object)
			data, err := f.store.Get(t.Context(), name, 1<<20)
			must(t, err)
			if damaged {
				by = f.first
				must(t, f.store.Delete(t.Context(), name))
			}
			o := f.options(by)
			o.Store = &faulty{Store: f.store, at: at, applied: at%2 == 0}
			if _, err := Rotate(t.Context(), o); err != nil && !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			for range 2 {
				if r := f.rotate(by); r.Unopened+r.Missing == 0 || f.covers() {
					t.Errorf("put %d, damaged: %t: %+v, complete: %t", at, damaged, r, f.covers())
				}
			}
			if damaged {
				must(t, f.store.Put(t.Context(), name, data))
			}
			if r := f.rotate(f.first); r.Unopened+r.Missing > 0 || !f.covers() {
				t.Errorf("put %d, damaged: %t, with all: %+v, complete: %t", at, damaged, r, f.covers())
			}
			if got := f.opened(second); got.Opened != got.Tested {
				t.Errorf("put %d, damaged: %t: %+v", at, damaged, got)
			}
		}
	}
}

// faulty fails one PutNew, which is lost or applied.
type faulty struct {
	store.Store
	at      int
	applied bool
}

var errFault = errors.New("fault")

func (s *faulty) PutNew(ctx context.Context, name string, data []byte) error {
	if s.at--; s.at != 0 {
		return s.Store.PutNew(ctx, name, data)
	}
	if s.applied {
		if err := s.Store.PutNew(ctx, name, data); err != nil {
			return err
		}
	}
	return errFault
}

// A rotation that is interrupted at any put is continued, and writes no key twice.
func TestRotateAfterAFault(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for at := 1; ; at++ {
			f := newFixture(t, 10)
			second := f.recipient()
			o := f.options(f.first)
			s := &faulty{Store: f.store, at: at, applied: applied}
			o.Store = s
			first, err := Rotate(t.Context(), o)
			if err == nil {
				if s.at < 1 || at < 4 {
					t.Fatalf("no fault at put %d", at)
				}
				break
			}
			if !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			f.addPack() // its id may be one that the rotation has passed
			r := f.rotate(f.first)
			lost := int64(0)
			if applied {
				lost = min(3, 11-first.Wrapped)
			}
			if first.Wrapped+r.Wrapped+lost != 12 {
				t.Errorf("put %d, applied %v: %d keys, then %d", at, applied, first.Wrapped, r.Wrapped)
			}
			if got := f.opened(second); got.Opened != 11 {
				t.Errorf("put %d, applied %v: %+v", at, applied, got)
			}
			if r := f.rotate(f.first); r.Wrapped != 0 {
				t.Errorf("put %d, applied %v: a third run wraps %d", at, applied, r.Wrapped)
			}
			must(t, f.opensCatalog(second))
		}
	}
}

// Parts that the signer has not signed are not believed, and neither are damaged ones.
func TestForgedPartsAreIgnored(t *testing.T) {
	f := newFixture(t, 3)
	second := f.recipient()
	f.rotate(f.first)
	thief := seal.NewSigningKey()
	sealed, err := f.sealer().SealBlob(encodeEntries([]entry{{id: seal.KeyID(f.packs[0].Pack), key: seal.RawKey{1}}}))
	must(t, err)
	p := part{rotation: 9, last: lastID, made: time.UnixMilli(1), recipients: f.object.Recipients, sealed: sealed}
	text, err := p.encode(f.object.ID, thief)
	must(t, err)
	must(t, f.store.PutNew(t.Context(), p.name(), text))
	p.rotation = 8
	must(t, f.store.PutNew(t.Context(), p.name(), bytes.Repeat([]byte("x"), maxPartBytes+1)))
	if got := f.opened(second); got.Opened != 3 {
		t.Errorf("%+v", got)
	}
	if c, err := Coverages(t.Context(), f.store, &f.object); err != nil || len(c) != 1 || !slices.Equal(c[0].Recipients, f.object.Recipients) {
		t.Errorf("%+v, %v", c, err)
	}
	// The names are taken, so the next rotation has the next number.
	f.recipient()
	if r := f.rotate(f.first); r.Rotation != 10 {
		t.Errorf("%+v", r)
	}
}

// A signed part with another key does not open the pack: the pack's own bytes say so.
func TestWrongKeyInAPart(t *testing.T) {
	f := newFixture(t, 1)
	second := f.recipient()
	sealed, err := f.sealer().SealBlob(encodeEntries([]entry{{id: seal.KeyID(f.packs[0].Pack), key: seal.RawKey{1}}}))
	must(t, err)
	p := part{rotation: 1, last: lastID, made: time.UnixMilli(1), recipients: f.object.Recipients, sealed: sealed}
	text, err := p.encode(f.object.ID, f.committer.Signing)
	must(t, err)
	must(t, f.store.PutNew(t.Context(), p.name(), text))
	if got := f.opened(second); got.Opened != 0 || !errors.Is(got.Problem, backup.ErrCorrupt) {
		t.Errorf("%+v", got)
	}
}

func TestEntries(t *testing.T) {
	a, b := seal.KeyID{1}, seal.KeyID{2}
	good := encodeEntries([]entry{{id: a, key: seal.RawKey{7}}, {id: b, key: seal.RawKey{8}}})
	got, err := parseEntries(good, a, b)
	if err != nil || len(got) != 2 || got[1].id != b || got[1].key != (seal.RawKey{8}) {
		t.Errorf("%v, %v", got, err)
	}
	for what, err := range map[string]error{
		"cut":       second(parseEntries(good[:len(good)-1], a, b)),
		"order":     second(parseEntries(slices.Concat(good[entryBytes:], good[:entryBytes]), a, b)),
		"twice":     second(parseEntries(slices.Concat(good[:entryBytes], good[:entryBytes]), a, b)),
		"too small": second(parseEntries(good, b, b)),
		"too large": second(parseEntries(good, a, a)),
		"too many":  second(parseEntries(make([]byte, (maxKeys+1)*entryBytes), seal.KeyID{}, lastID)),
	} {
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := next(seal.KeyID{15: 0xff}); got != (seal.KeyID{14: 1}) {
		t.Errorf("after …00ff: %s", got)
	}
	secret := entry{id: a, key: seal.RawKey(bytes.Repeat([]byte{0xab}, 32))}
	if text := fmt.Sprintf("%v %x %+v %#v", secret, secret.key, []entry{secret}, secret); strings.Contains(text, "abab") || strings.Contains(text, "171") {
		t.Error("a key is shown: " + text)
	}
}

func second[T any](_ T, err error) error { return err }

// An accepted part is the only text of its content.
func FuzzPart(f *testing.F) {
	var id backup.RepositoryID
	id[0] = 1
	key := seal.NewSigningKey()
	good := part{rotation: 7, first: seal.KeyID{1}, last: lastID, made: time.UnixMilli(5).UTC(), recipients: []string{"age1a", "age1b"}, sealed: []byte("s")}
	text, err := good.encode(id, key)
	must(f, err)
	body, _, _ := bytes.Cut(text, []byte("signature "))
	f.Add(string(body))
	f.Fuzz(func(t *testing.T, body string) {
		signature := key.Sign(id, good.name(), []byte(body))
		text := []byte(body + "signature " + hex.EncodeToString(signature) + "\n")
		p, err := parsePart(text, good.name(), id, key.Signer())
		if err != nil {
			return
		}
		again, err := p.encode(id, key)
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("%q is another text of %q: %v", text, again, err)
		}
	})
}
