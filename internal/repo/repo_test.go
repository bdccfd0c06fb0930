package repo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A place is where a repository is made.
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
		WorkerKeyPath: filepath.Join(dir, "worker.key"), Chunker: "chunker", Codec: "codec", Now: time.Unix(1_600_000_000, 5),
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

func (p *place) init() (Result, error) {
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
	for _, path := range []string{made.IdentityPath, made.WorkerKeyPath} {
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
	opener, path, err := FindIdentity("", object.ID)
	check(t, err)
	if path != made.IdentityPath {
		t.Errorf("found identity %s, made %s", path, made.IdentityPath)
	}
	sealed, err := object.WorkerKey(opener)
	check(t, err)
	if sealed.Dedup != key.Dedup {
		t.Error("the sealed worker key is another one")
	}
	if _, err := p.init(); !errors.Is(err, backup.ErrExists) {
		t.Errorf("second init: %v", err)
	}
}

// Every durable write of Init is lost, or applied and then fails; the next
// Init finishes, or begins anew, and what it makes works.
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
				opener, _, err := FindIdentity("", object.ID)
				check(t, err)
				_, err = object.WorkerKey(opener)
				check(t, err)
				if made.IdentityPath == "" {
					t.Error("init does not say where the identity is")
				}
			})
		}
	}
}

func TestInitWithoutTheKeysOfAnInterruptedOne(t *testing.T) {
	p := newPlace(t)
	faulty := &faultyStep{Index: p.index, Store: p.store, step: "create"}
	_, err := Init(context.Background(), faulty.store(), faulty, p.option)
	if !errors.Is(err, errFault) {
		t.Fatal(err)
	}
	check(t, os.Remove(p.option.WorkerKeyPath))
	made, err := p.init() // with the identity, the worker key is in the store
	check(t, err)
	_, _, err = Load(context.Background(), p.store, p.index, made.WorkerKeyPath)
	check(t, err)

	p = newPlace(t)
	faulty = &faultyStep{Index: p.index, Store: p.store, step: "put"}
	_, err = Init(context.Background(), faulty.store(), faulty, p.option)
	if !errors.Is(err, errFault) {
		t.Fatal(err)
	}
	check(t, os.RemoveAll(filepath.Join(p.dir, "config")))
	if _, err := p.init(); !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), p.option.WorkerKeyPath) {
		t.Errorf("worker key without its identity: %v", err)
	}
}

func TestALostIndexIsNotAnUnfinishedInit(t *testing.T) {
	p := newPlace(t)
	_, err := p.init()
	check(t, err)
	name := store.SegmentName(backup.NewSnapshotID(), backup.NewPackID(), 0)
	check(t, p.store.Put(context.Background(), name, []byte("segment")))
	p.newIndex("empty.db")
	if _, err := p.init(); !errors.Is(err, backup.ErrExists) || !strings.Contains(err.Error(), "rebuilt") {
		t.Errorf("init over backups with an empty index: %v", err)
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
	opener, _, err := FindIdentity(madeB.IdentityPath, madeB.Repository.ID)
	check(t, err)
	object, err := Check(ctx, a.store, a.index)
	check(t, err)
	if _, err := object.WorkerKey(opener); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("another's identity: %v", err)
	}
	for _, named := range []string{"", "/no/such/file"} {
		_, _, err := FindIdentity(named, backup.NewRepositoryID())
		if !errors.Is(err, backup.ErrWrongKey) || !strings.Contains(err.Error(), "exist") {
			t.Errorf("no identity at %q: %v", named, err)
		}
	}
}

func FuzzParseObject(f *testing.F) {
	o := Object{Repository: backup.Repository{ID: backup.NewRepositoryID(), Version: Version, Chunker: "c", Codec: "z", Recipients: []string{"age1"}}, SealedWorkerKey: []byte("x")}
	data, err := o.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version": 2}`))
	f.Add([]byte(`{"version": 1, "id": "x", "more": 1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseObject(data)
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
				t.Errorf("error of no kind: %v", err)
			}
			return
		}
		again, err := o.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseObject(again)
		if err != nil || back.ID != o.ID || !bytes.Equal(back.SealedWorkerKey, o.SealedWorkerKey) {
			t.Errorf("%+v became %+v (%v)", o, back, err)
		}
	})
}
