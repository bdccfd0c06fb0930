package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

func (r *repository) checkOptions(level check.Level) check.Options {
	return check.Options{
		Index: r.index, Store: r.Store, Repository: &r.Repository, Level: level, Opener: r.opener, HashKey: r.WorkerKey.Dedup,
		Copies: func(ctx context.Context) ([]int64, error) { return embedded.KeptCopies(ctx, r.index) },
	}
}

// check checks the repository, and describes the findings.
func (r *repository) check(level check.Level) (findings []string) {
	r.Helper()
	report, err := check.Run(r.Context(), r.checkOptions(level))
	r.must(err)
	for _, f := range report.Findings {
		findings = append(findings, describe(f))
	}
	return findings
}

func describe(f *check.Finding) string {
	text := fmt.Sprintf("%s %s: %s", f.Kind, f.Object, f.Text)
	for _, a := range f.Affected {
		text += fmt.Sprintf(", %s in %d-%d", a.Path, a.First, a.Last)
	}
	return text
}

// Nothing is found where nothing is damaged, at each level, whatever was forgotten and pruned.
func TestCheckOfASoundRepository(t *testing.T) {
	m := newMachine(t)
	var snapshots []backup.Snapshot
	for n := range 5 {
		m.grow(n)
		if n == 3 {
			m.must(os.RemoveAll(filepath.Join(m.tree, "d2")))
		}
		s, err := m.backup(t.Context())
		m.must(err)
		snapshots = append(snapshots, s)
		for level := check.Index; level <= check.Content; level++ {
			if found := m.check(level); len(found) > 0 {
				t.Errorf("after backup %d, %s: %q", n, level, found)
			}
		}
	}
	for _, n := range []int{0, 2, 3} {
		m.must(m.index.Forget(t.Context(), snapshots[n].ID, "tester", ""))
	}
	_, err := m.prune(0)
	m.must(err)
	for level := check.Index; level <= check.Content; level++ {
		if found := m.check(level); len(found) > 0 {
			t.Errorf("after a prune, %s: %q", level, found)
		}
	}
}

func (m *machine) prune(maxUnused float64) (prune.Summary, error) {
	return embedded.Prune(m.Context(), m.index, m.Keys, m.LockDir, prune.Options{
		Store: m.Store, Holder: fmt.Sprint("prune ", backup.NewPackID()), Log: slog.New(slog.DiscardHandler), MaxUnused: maxUnused,
	})
}

// Checks find nothing while backups, forgets and prunes run, which store, move and delete packs.
func TestCheckBesideBackupsAndPrunes(t *testing.T) {
	m := newMachine(t)
	m.must(m.index.SetBrake(t.Context(), index.Brake{Snapshots: 100, MinSnapshots: 1 << 30, Bytes: 100, MinBytes: 1 << 60, Operators: 1}, "tester"))
	m.grow(0)
	_, err := m.backup(t.Context())
	m.must(err)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			m.grow(n % 7)
			m.must(os.RemoveAll(filepath.Join(m.tree, fmt.Sprint("d", n%5))))
			if _, err := m.backup(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			committed, err := m.index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Committed}})
			for i := range committed[:max(0, len(committed)-2)] {
				err = errors.Join(err, m.index.Forget(ctx, committed[i].ID, "tester", ""))
			}
			if err == nil || errors.Is(err, index.ErrKept) {
				_, err = m.prune(0)
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, prune.ErrBusy) {
				t.Error(err)
				return
			}
		}
	})
	for n := range 60 {
		if found := m.check(check.Level(n % 4)); len(found) > 0 {
			t.Fatalf("check %d: %q", n, found)
		}
	}
}

// An interrupted check does not read again what it has read.
func TestInterruptedCheck(t *testing.T) {
	m := newMachine(t)
	for n := range 6 {
		m.grow(n)
		_, err := m.backup(t.Context())
		m.must(err)
	}
	path := filepath.Join(m.LockDir, "check")
	run := func(ctx context.Context, restart bool) (check.Report, *check.State, error) {
		state, err := check.OpenState(path, m.Repository.ID, 1, restart)
		m.must(err)
		o := m.checkOptions(check.Content)
		o.Workers, o.Read, o.Proven = 1, state.Read, state
		r, err := check.Run(ctx, o)
		m.must(state.Close(err == nil))
		return r, state, err
	}
	ctx, interrupt := context.WithCancel(t.Context())
	inner := m.Store
	m.Store = &gettingStore{inner, func(name string) {
		if len(name) > len(store.PacksPrefix) && name[:len(store.PacksPrefix)] == store.PacksPrefix {
			interrupt()
		}
	}}
	if _, _, err := run(ctx, false); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	m.Store = inner
	interrupted, state, err := run(t.Context(), false)
	m.must(err)
	if state.Resumed == 0 || interrupted.PacksRead+int64(state.Resumed) != interrupted.Packs {
		t.Errorf("it read %d of %d packs, and %d were read before", interrupted.PacksRead, interrupted.Packs, state.Resumed)
	}
	whole, state, err := run(t.Context(), false) // the check before was complete
	m.must(err)
	if state.Resumed != 0 || whole.PacksRead != whole.Packs {
		t.Errorf("it read %d of %d packs, and %d were read before", whole.PacksRead, whole.Packs, state.Resumed)
	}
}

// A gettingStore calls got after each range that was read.
type gettingStore struct {
	store.Store
	got func(name string)
}

func (s *gettingStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	data, err := s.Store.GetRange(ctx, dst, name, offset, length)
	s.got(name)
	return data, err
}

// A check makes exactly the requests that it has announced.
func TestCheckCost(t *testing.T) {
	m := newMachine(t)
	for n := range 3 {
		m.grow(n)
		_, err := m.backup(t.Context())
		m.must(err)
	}
	for level := check.Objects; level <= check.Content; level++ {
		counted := &countingStore{Store: m.Store}
		o := m.checkOptions(level)
		o.Store = counted
		r, err := check.Run(t.Context(), o)
		m.must(err)
		if r.Cost.Requests != counted.requests || level != check.Tables && r.Cost.Bytes != counted.bytes {
			t.Errorf("%s: announced %d requests for %d bytes, made %d for %d", level, r.Cost.Requests, r.Cost.Bytes, counted.requests, counted.bytes)
		}
		o.Begin = func(check.Cost) bool { return false }
		before := counted.requests
		if r, err = check.Run(t.Context(), o); err != nil || r.Began || counted.requests != before {
			t.Errorf("%s: a check that was not to begin made %d requests, error %v", level, counted.requests-before, err)
		}
	}
}

// A countingStore counts what is read.
type countingStore struct {
	store.Store
	mu              sync.Mutex
	requests, bytes int64
}

func (s *countingStore) count(data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	s.bytes += int64(len(data))
}

func (s *countingStore) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	data, err := s.Store.Get(ctx, name, maxBytes)
	s.count(data)
	return data, err
}

func (s *countingStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	data, err := s.Store.GetRange(ctx, dst, name, offset, length)
	s.count(data)
	return data, err
}

// A check of some snapshots reads only the packs that they need.
func TestCheckOfOneSnapshot(t *testing.T) {
	m := newMachine(t)
	var snapshots []backup.Snapshot
	for n := range 3 {
		for d := range 5 {
			m.must(os.RemoveAll(filepath.Join(m.tree, fmt.Sprint("d", d))))
		}
		m.grow(n)
		s, err := m.backup(t.Context())
		m.must(err)
		snapshots = append(snapshots, s)
	}
	o := m.checkOptions(check.Content)
	o.Only = snapshots[1:2]
	whole, err := check.Run(t.Context(), m.checkOptions(check.Content))
	m.must(err)
	r, err := check.Run(t.Context(), o)
	m.must(err)
	if r.Snapshots != 1 || r.PacksRead == 0 || r.PacksRead >= whole.PacksRead {
		t.Errorf("%d snapshots, %d of %d packs", r.Snapshots, r.PacksRead, whole.PacksRead)
	}
	// Damage to what the others need is not found, and that to its own is.
	for i, want := range []int{0, 1, 0} {
		c := m.packsOf(&snapshots[i])
		if slices.Equal(c, m.packsOf(&snapshots[1])) != (i == 1) {
			t.Fatalf("snapshots share packs")
		}
		restored := m.without(c[0])
		r, err := check.Run(t.Context(), o)
		m.must(err)
		if len(r.Findings) != want {
			t.Errorf("with a pack of snapshot %d missing: %d findings", i+1, len(r.Findings))
		}
		restored()
	}
}

// packsOf returns the names of the packs that were stored for a snapshot.
func (m *machine) packsOf(s *backup.Snapshot) (names []string) {
	m.Helper()
	for o, err := range m.Store.List(m.Context(), store.PacksPrefix+s.ID.String()) {
		m.must(err)
		names = append(names, o.Name)
	}
	slices.Sort(names)
	return names
}

// without removes an object until the returned function is called.
func (r *repository) without(name string) (restore func()) {
	r.Helper()
	path := filepath.Join(r.memory, "store", name)
	data, err := os.ReadFile(path)
	r.must(err)
	r.must(os.Remove(path))
	return func() { r.must(os.WriteFile(path, data, 0o600)) }
}
