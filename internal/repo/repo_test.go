package repo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A place holds the parts of a repository under test.
type place struct {
	t      *testing.T
	dir    string
	store  store.Store
	index  *sqliteindex.Index
	option Options
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	s, err := dirstore.Create(filepath.Join(dir, "store"))
	check(t, err)
	p := &place{t: t, dir: dir, store: s, option: Options{
		WorkerKeyPath: filepath.Join(dir, "worker.key"), CommitterKeyPath: filepath.Join(dir, "committer.key"), Chunker: "chunker", Codec: "codec", Now: time.Unix(1_600_000_000, 5),
	}}
	p.newIndex("index.db")
	return p
}

func (p *place) newIndex(name string) {
	p.t.Helper()
	i, err := sqliteindex.Open(context.Background(), filepath.Join(p.dir, name))
	check(p.t, err)
	p.t.Cleanup(func() { i.Close() })
	p.index = i
}

func (p *place) init() (Created, error) {
	return Init(context.Background(), p.store, p.index, p.option)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInitAndLoad(t *testing.T) {
	p := newPlace(t)
	made, err := p.init()
	check(t, err)
	for _, path := range []string{made.IdentityPath, made.WorkerKeyPath, made.CommitterKeyPath} {
		info, err := os.Stat(path)
		check(t, err)
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
	object, key, err := Load(context.Background(), p.store, p.index, made.WorkerKeyPath)
	check(t, err)
	if object.ID != made.Repository.ID || key.Repository != object.ID || object.Chunker != "chunker" || len(key.Recipients) != 1 {
		t.Errorf("loaded %+v, made %+v", object.Repository, made.Repository)
	}
	_, committer, err := LoadCommitter(context.Background(), p.store, p.index, made.CommitterKeyPath)
	check(t, err)
	identity, err := FindIdentity("", object.ID, Asker{})
	check(t, err)
	if identity.Path != made.IdentityPath {
		t.Errorf("found identity %s, made %s", identity.Path, made.IdentityPath)
	}
	sealed, err := object.WorkerKey(identity.Opener)
	check(t, err)
	if sealed.Dedup != key.Dedup {
		t.Error("the sealed worker key is another one")
	}
	sealedCommitter, err := object.CommitterKey(identity.Opener)
	check(t, err)
	for who, signer := range map[string]seal.Signer{
		"object": object.Signer(), "worker key": key.Signer, "committer key": committer.Signing.Signer(), "identity": identity.Signer,
		"sealed worker key": sealed.Signer, "sealed committer key": sealedCommitter.Signing.Signer(), "index": seal.Signer(made.Repository.Signer),
	} {
		if signer != made.Signer {
			t.Errorf("the %s names signer %v, made %v", who, signer, made.Signer)
		}
	}
	if made.SignerNote {
		t.Error("the identity file names the signer, and init says that it does not")
	}
	if _, err := p.init(); !errors.Is(err, backup.ErrExists) {
		t.Errorf("second init: %v", err)
	}
}

// Each durable write of Init is lost, or takes effect and then fails. The next Init completes the
// repository or starts again, and the result works.
func TestInitAfterACrashAtEachStep(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for _, step := range []string{"migrate", "put", "create"} {
			t.Run(map[bool]string{false: "lost ", true: "applied "}[applied]+step, func(t *testing.T) {
				p := newPlace(t)
				faulty := &faultyStep{Index: p.index, Store: p.store, step: step, applied: applied}
				if _, err := Init(context.Background(), faulty.store(), faulty, p.option); !errors.Is(err, errFault) {
					t.Fatalf("init with a fault: %v", err)
				}
				made, err := p.init()
				if step == "create" && applied {
					if !errors.Is(err, backup.ErrExists) {
						t.Errorf("all was done, and init says %v", err)
					}
				} else {
					check(t, err)
				}
				object, _, err := Load(context.Background(), p.store, p.index, p.option.WorkerKeyPath)
				check(t, err)
				_, _, err = LoadCommitter(context.Background(), p.store, p.index, p.option.CommitterKeyPath)
				check(t, err)
				identity, err := FindIdentity("", object.ID, Asker{})
				check(t, err)
				check(t, identity.Check(&object))
				_, err = object.WorkerKey(identity.Opener)
				check(t, err)
				if made.IdentityPath == "" {
					t.Error("init does not say where the identity is")
				}
			})
		}
	}
}

// Once the object is in the store, the identity recovers lost keys.
func TestInitWithoutTheKeysOfAnInterruptedOne(t *testing.T) {
	for _, lost := range [][]string{{"worker.key"}, {"committer.key"}, {"worker.key", "committer.key"}} {
		p := newPlace(t)
		faulty := &faultyStep{Index: p.index, Store: p.store, step: "create"}
		if _, err := Init(context.Background(), faulty.store(), faulty, p.option); !errors.Is(err, errFault) {
			t.Fatal(err)
		}
		for _, name := range lost {
			check(t, os.Remove(filepath.Join(p.dir, name)))
		}
		made, err := p.init()
		check(t, err)
		_, _, err = Load(context.Background(), p.store, p.index, made.WorkerKeyPath)
		check(t, err)
		_, _, err = LoadCommitter(context.Background(), p.store, p.index, made.CommitterKeyPath)
		check(t, err)
	}
	p := newPlace(t)
	faulty := &faultyStep{Index: p.index, Store: p.store, step: "put"}
	if _, err := Init(context.Background(), faulty.store(), faulty, p.option); !errors.Is(err, errFault) {
		t.Fatal(err)
	}
	check(t, os.RemoveAll(filepath.Join(p.dir, "config")))
	if _, err := p.init(); !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), p.option.WorkerKeyPath) {
		t.Errorf("worker key without its identity: %v", err)
	}
}

// A damaged key, or a key of another repository, is not replaced by the one from the store.
func TestInitKeepsKeysThatItCannotRead(t *testing.T) {
	for _, name := range []string{"worker.key", "committer.key"} {
		p := newPlace(t)
		faulty := &faultyStep{Index: p.index, Store: p.store, step: "create"}
		if _, err := Init(context.Background(), faulty.store(), faulty, p.option); !errors.Is(err, errFault) {
			t.Fatal(err)
		}
		path := filepath.Join(p.dir, name)
		text, err := os.ReadFile(path)
		check(t, err)
		check(t, os.WriteFile(path, text[:len(text)-3], 0o600))
		if _, err := p.init(); !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s cut short: %v", name, err)
		}
		if _, err := Check(context.Background(), p.store, p.index); !errors.Is(err, backup.ErrNoRepository) {
			t.Errorf("%s cut short, and the index has the repository: %v", name, err)
		}
	}
}

func TestALostIndexIsNotAnUnfinishedInit(t *testing.T) {
	p := newPlace(t)
	_, err := p.init()
	check(t, err)
	name := store.SegmentName(backup.NewSnapshotID(), backup.NewPackID(), 0)
	check(t, p.store.Put(context.Background(), name, []byte("segment")))
	p.newIndex("empty.db")
	if _, err := p.init(); !errors.Is(err, ErrIndexLost) || !errors.Is(err, backup.ErrNoRepository) {
		t.Errorf("init over backups with an empty index: %v", err)
	}
	if _, err := p.index.Repository(context.Background()); !errors.Is(err, backup.ErrNoRepository) {
		t.Errorf("the empty index is the repository's now: %v", err)
	}
}

func TestGivenIdentityAndRecipients(t *testing.T) {
	p := newPlace(t)
	first, err := p.init()
	check(t, err)
	second := newPlace(t)
	second.option.IdentityPath = first.IdentityPath
	second.option.Recipients = first.Repository.Recipients
	_, err = second.init()
	if err == nil {
		t.Log("the same recipient twice is taken")
	}
	third := newPlace(t)
	third.option.IdentityPath = first.IdentityPath
	made, err := third.init()
	check(t, err)
	if !made.SignerNote {
		t.Error("the identity file does not name the signer, and init does not say so")
	}
	if made.Repository.Recipients[0] != first.Repository.Recipients[0] || made.Repository.ID == first.Repository.ID {
		t.Errorf("made %+v with the identity of %+v", made.Repository, first.Repository)
	}
}

func TestWhatDoesNotBelongTogether(t *testing.T) {
	ctx := context.Background()
	a, b := newPlace(t), newPlace(t)
	if _, err := Check(ctx, a.store, a.index); !errors.Is(err, backup.ErrNoRepository) {
		t.Errorf("nothing there: %v", err)
	}
	_, err := a.init()
	check(t, err)
	madeB, err := b.init()
	check(t, err)
	if _, err := Check(ctx, a.store, b.index); !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), madeB.Repository.ID.String()) {
		t.Errorf("another's index: %v", err)
	}
	if _, _, err := Load(ctx, a.store, a.index, madeB.WorkerKeyPath); !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), madeB.WorkerKeyPath) {
		t.Errorf("another's worker key: %v", err)
	}
	if _, _, err := LoadCommitter(ctx, a.store, a.index, madeB.CommitterKeyPath); !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), madeB.CommitterKeyPath) {
		t.Errorf("another's committer key: %v", err)
	}
	identity, err := FindIdentity(madeB.IdentityPath, madeB.Repository.ID, Asker{})
	check(t, err)
	object, err := Check(ctx, a.store, a.index)
	check(t, err)
	if _, err := object.WorkerKey(identity.Opener); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("another's identity: %v", err)
	}
	for _, named := range []string{"", "/no/such/file"} {
		_, err := FindIdentity(named, backup.NewRepositoryID(), Asker{})
		if !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), "exist") {
			t.Errorf("no identity at %q: %v", named, err)
		}
	}
}
