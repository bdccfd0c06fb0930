package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/rebuild"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A restless store is one in which something happens while it is mirrored.
type restless struct {
	store.Store
	happens func()
}

func (r restless) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	r.happens()
	return r.Store.List(ctx, prefix)
}

func (r restless) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	r.happens()
	return r.Store.Get(ctx, name, maxBytes)
}

// describe puts the repository object, with which a mirror begins.
func (m *machine) describe() {
	m.Helper()
	signer := m.Keys.Signing.Signer()
	k := keytext.NewWriter("bctl-repository")
	k.Hex("repository", m.Repository.ID[:])
	k.Time("created", time.Unix(1_900_000_000, 0))
	k.Text("chunker", m.Repository.Chunker)
	k.Text("codec", m.Repository.Codec)
	k.Text("recipient", m.WorkerKey.Recipients[0])
	k.Hex("signer", signer[:])
	k.Base64("worker-key", []byte("sealed"))
	k.Base64("committer-key", []byte("sealed"))
	k.Hex("signature", m.Keys.Signing.Sign(m.Repository.ID, store.ConfigName, k.Bytes()))
	m.must(m.Store.Put(m.Context(), store.ConfigName, k.Bytes()))
}

// directory makes a store.
func (m *machine) directory(name string) store.Store {
	m.Helper()
	dir, err := os.MkdirTemp(m.memory, name)
	m.must(err)
	s, err := dirstore.Create(filepath.Join(dir, "store"))
	m.must(err)
	m.Cleanup(func() { _ = s.Close() })
	return s
}

// wantWhole rebuilds an index from a store, and checks all content.
func (m *machine) wantWhole(what string, s store.Store) index.Index {
	m.Helper()
	x := m.emptySQLite()
	result, err := rebuild.Run(m.Context(), rebuild.Options{
		Index: x, Store: s, Trust: m.trust(), Dedup: m.WorkerKey.Dedup, Holder: backup.NewPackID().String(), By: "tester", AcceptLoss: 1 << 30,
	})
	m.must(err)
	// The last pass may have copied the segment of a snapshot before the record was put.
	result.Lost = slices.DeleteFunc(result.Lost, func(l rebuild.Lost) bool { return errors.Is(l.Err, rebuild.ErrNoRecord) })
	if len(result.Lost) > 0 || len(result.Damaged) > 0 {
		m.Errorf("%s: lost %v, damaged %v", what, result.Lost, result.Damaged)
	}
	report, err := check.Run(m.Context(), check.Options{Index: x, Store: s, Repository: &m.Repository, Level: check.Content, Opener: m.opener, HashKey: m.WorkerKey.Dedup})
	m.must(err)
	for _, f := range report.Findings {
		m.Errorf("%s: %s %s: %s", what, f.Kind, f.Object, f.Text)
	}
	return x
}

// Whatever happens to a repository, also while a pass runs, all snapshots of the mirror can be
// restored. A store that is made again from it, and an index rebuilt from that, are those that were
// lost.
func TestMirror(t *testing.T) {
	for seed := range uint64(*rebuildHistories) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { testMirror(t, seed, 8) })
	}
}

func testMirror(t *testing.T, seed uint64, passes int) {
	random := rand.New(rand.NewPCG(seed, 1))
	m := newMachine(t)
	m.must(m.index.CreateRepository(t.Context(), m.Repository))
	m.describe()
	second := m.directory("second-")
	all := steps()
	do := func() {
		s := all[random.IntN(len(all))]
		t.Logf("  %s", s.name)
		s.do(m, random)
		m.must(embedded.WriteRecords(t.Context(), m.index, m.Store, m.Keys))
	}
	all[1].do(m, random)
	now := time.Now()
	options := mirror.Options{To: second, KeepDeleted: 3 * time.Hour, Workers: 1, AllowDelete: 1 << 40, Now: func() time.Time { return now }}
	for n := range passes {
		t.Logf("pass %d", n)
		now = now.Add(time.Hour)
		do()
		left := random.IntN(3)
		options.From = restless{m.Store, func() {
			if left > 0 && random.IntN(8) == 0 {
				left--
				do()
			}
		}}
		s, err := mirror.Run(t.Context(), options)
		m.must(err)
		if len(s.Problems) > 0 {
			t.Errorf("%+v", s.Problems)
		}
		m.wantWhole(fmt.Sprintf("pass %d", n), second)
		if t.Failed() {
			return
		}
	}
	options.From = m.Store
	_, err := mirror.Run(t.Context(), options)
	m.must(err)
	again := m.directory("again-")
	_, err = mirror.CopyBack(t.Context(), mirror.BackOptions{From: second, To: again})
	m.must(err)
	wantSameObjects(t, m.Store, again)
	wantSame(t, "rebuilt from what was copied back", contentOf(t, m.index), m.wantWhole("copied back", again))
	m.Store = second
	if s := m.last(); s.State == backup.Committed && s.Counts.Errors == 0 {
		to := filepath.Join(t.TempDir(), "restored")
		reported, err := m.restore(t.Context(), &s, to)
		m.must(err)
		if len(reported) == 0 {
			return
		}
		t.Errorf("restored from the mirror: %v", reported)
		treetest.Equal(t, m.tree, to)
	}
}

// wantSameObjects compares the objects of two stores.
func wantSameObjects(t *testing.T, a, b store.Store) {
	t.Helper()
	read := func(s store.Store) map[string]string {
		all := map[string]string{}
		for o, err := range s.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			data, err := s.Get(t.Context(), o.Name, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			all[o.Name] = string(data)
		}
		return all
	}
	x, y := read(a), read(b)
	for name := range x {
		if x[name] != y[name] {
			t.Errorf("%s differs", name)
		}
	}
	for name := range y {
		if _, there := x[name]; !there {
			t.Errorf("%s is only in the copy", name)
		}
	}
}
