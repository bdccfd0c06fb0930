package embedded_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

func (m *machine) trust() journal.Trust {
	return journal.Trust{Repository: m.Repository.ID, Signer: m.Keys.Signing.Signer(), Opener: m.opener}
}

// backupAndCopy changes the tree, makes a snapshot, and copies the index.
func (m *machine) backupAndCopy(n int) backup.Snapshot {
	m.Helper()
	m.grow(n)
	s, err := m.backup(m.Context())
	m.must(err)
	m.must(embedded.CopyIndex(m.Context(), m.index, m.Store, m.Keys, time.Now(), time.Now()))
	return s
}

// copies returns the objects of the index copies, oldest first.
func (m *machine) copies() (names []string) {
	m.Helper()
	for o, err := range m.Store.List(m.Context(), store.IndexPrefix) {
		m.must(err)
		names = append(names, o.Name)
	}
	slices.Sort(names)
	return names
}

// rebuild rebuilds the index at a new place.
func (m *machine) rebuild() (path string, r embedded.Rebuilt, err error) {
	m.Helper()
	path = filepath.Join(m.TempDir(), "index.db")
	r, err = embedded.RebuildIndex(m.Context(), m.Store, m.trust(), path)
	left, readErr := os.ReadDir(filepath.Dir(path))
	m.must(readErr)
	if want := map[bool]int{true: 1, false: 0}[err == nil]; len(left) != want {
		m.Errorf("%d files are left, error %v", len(left), err)
	}
	return path, r, err
}

// wantRebuilt checks that a rebuilt index has these snapshots and no later ones, and restores the
// last.
func (m *machine) wantRebuilt(path string, snapshots ...backup.Snapshot) {
	m.Helper()
	idx, err := sqliteindex.Open(m.Context(), path)
	m.must(err)
	defer idx.Close()
	m.must(idx.CheckSchema(m.Context()))
	got, err := idx.Snapshots(m.Context(), index.SnapshotFilter{States: []backup.State{backup.Committed}})
	m.must(err)
	if !slices.EqualFunc(got, snapshots, func(a, b backup.Snapshot) bool { return a.ID == b.ID && a.Pages == b.Pages }) {
		m.Errorf("%d snapshots, or others; want %d", len(got), len(snapshots))
	}
	lost := m.Index
	m.Index = idx
	defer func() { m.Index = lost }()
	if _, err := m.restore(m.Context(), &snapshots[len(snapshots)-1], filepath.Join(m.TempDir(), "restored")); err != nil {
		m.Error(err)
	}
}

// The store has the last two copies of the index, and the last sound one or the first. The index
// can be rebuilt from the newest.
func TestIndexCopies(t *testing.T) {
	m := newMachine(t)
	if _, _, err := m.rebuild(); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("without a copy: %v", err)
	}
	var made []backup.Snapshot
	for n := range 4 {
		made = append(made, m.backupAndCopy(n))
		got := m.copies()
		if len(got) != min(n+1, 3) {
			t.Errorf("after %d backups: copies %q", n+1, got)
		}
		// The copy exists already.
		m.must(embedded.CopyIndex(t.Context(), m.index, m.Store, m.Keys, made[n].Committed, time.Now()))
		if again := m.copies(); !slices.Equal(again, got) {
			t.Errorf("copied again: %q after %q", again, got)
		}
		path, r, err := m.rebuild()
		m.must(err)
		if len(r.Damaged) > 0 || r.Written.Before(made[n].Committed) {
			t.Errorf("%+v", r)
		}
		m.wantRebuilt(path, made...)
	}
	// Backups continue from it.
	path, _, err := m.rebuild()
	m.must(err)
	m.index, err = sqliteindex.Open(t.Context(), path)
	m.must(err)
	defer m.index.Close()
	m.Index = m.index
	s := m.backupAndCopy(4)
	m.wantRestored(&s)
	if s.BaseID != made[3].ID || s.Number != made[3].Number+1 {
		t.Errorf("number %d on number %d", s.Number, s.Base)
	}
}

// A copy that is damaged in any way is reported and not used; the previous one is.
func TestDamagedIndexCopies(t *testing.T) {
	m := newMachine(t)
	first := m.backupAndCopy(0)
	db, err := sql.Open("sqlite", filepath.Join(m.memory, "index.db"))
	m.must(err)
	// So that there are two parts.
	_, err = db.ExecContext(t.Context(), fmt.Sprintf("CREATE TABLE filler AS SELECT randomblob(%d)", 5<<20))
	m.must(errors.Join(err, db.Close()))
	m.backupAndCopy(1)
	parts := m.copies()[1:]
	if len(parts) != 2 {
		t.Fatalf("parts %q", parts)
	}
	whole := map[string][]byte{}
	for _, name := range m.copies() {
		whole[name], err = m.Store.Get(t.Context(), name, pack.MaxBytes)
		m.must(err)
	}
	set := func(name string, data []byte) {
		t.Helper()
		m.must(m.Store.Delete(t.Context(), name))
		if data != nil {
			m.must(m.Store.Put(t.Context(), name, data))
		}
	}
	flipped := func(data []byte, at int) []byte {
		data = slices.Clone(data)
		data[at] ^= 1
		return data
	}
	for _, name := range parts {
		for what, data := range map[string][]byte{
			"missing": nil, "empty": {}, "cut": whole[name][:len(whole[name])/2], "longer": append(slices.Clone(whole[name]), 0),
			"a bit, at the front": flipped(whole[name], 20), "a bit": flipped(whole[name], len(whole[name])/2), "a bit, at the end": flipped(whole[name], len(whole[name])-1),
			"the other part": whole[parts[0]], "another copy": whole[m.copies()[0]],
		} {
			if name == parts[0] && what == "the other part" {
				data = whole[parts[1]]
			}
			set(name, data)
			path, r, err := m.rebuild()
			if err != nil || len(r.Damaged) != 1 || !strings.Contains(r.Damaged[0].Error(), name) {
				t.Errorf("%s, %s: damaged %v, error %v", name, what, r.Damaged, err)
			} else {
				m.wantRebuilt(path, first)
			}
			set(name, whole[name])
		}
	}
	set(parts[0], nil)
	set(m.copies()[0], []byte("nothing"))
	if _, r, err := m.rebuild(); !errors.Is(err, backup.ErrCorrupt) || len(r.Damaged) != 2 {
		t.Errorf("all are damaged: %v, error %v", r.Damaged, err)
	}
	// The remaining parts are deleted.
	m.backupAndCopy(2)
	m.backupAndCopy(3)
	for _, name := range m.copies() {
		if name < store.IndexName(3, 0) {
			t.Errorf("%s is left", name)
		}
	}
}

// The first copy is kept until a later one is known to be sound, and then that one is kept.
func TestSoundCopyStays(t *testing.T) {
	m := newMachine(t)
	now := time.Now()
	copied := func(after time.Duration) string {
		t.Helper()
		now = now.Add(after)
		m.must(embedded.CopyIndex(t.Context(), m.index, m.Store, m.Keys, now, now))
		list := m.copies()
		return list[len(list)-1]
	}
	wantKept := func(names ...string) {
		t.Helper()
		if got := m.copies(); !slices.Equal(got, names) {
			t.Errorf("copies %q, want %q", got, names)
		}
	}
	first, _, third, fourth := copied(0), copied(time.Hour), copied(time.Hour), copied(time.Hour)
	wantKept(first, third, fourth)
	sound := copied(22 * time.Hour) // a day after the first
	wantKept(fourth, sound)
	fifth, sixth := copied(time.Hour), copied(time.Hour)
	wantKept(sound, fifth, sixth)
	last := copied(-48 * time.Hour) // the clock was set back
	wantKept(sixth, last)
	if own, err := m.index.Copies(t.Context()); err != nil || len(own) != 2 {
		t.Errorf("the index has the copies %v: %v", own, err)
	}
}

// Each half of a page of the index is damaged in turn. After the damage is detected, no copy is
// made, and a rebuild uses the last copy without the damage.
func TestDamagedIndexIsNotCopied(t *testing.T) {
	m := newMachine(t)
	first := m.backupAndCopy(0)
	m.backupAndCopy(1)
	m.must(m.index.Close())
	file := filepath.Join(m.memory, "index.db")
	whole, err := os.ReadFile(file)
	m.must(err)
	good := m.copies()
	newest := time.Now().Add(time.Hour).UnixMilli()
	found := 0
	const half = 4096
	for at := 2 * half; at < len(whole); at += half {
		damaged := slices.Clone(whole)
		clear(damaged[at : at+half])
		m.must(journal.WriteIndexCopy(m.Keys, newest, time.Now(), bytes.NewReader(damaged), int64(len(damaged)), func(name string, data []byte) error {
			return m.Store.Put(t.Context(), name, data)
		}))
		path, r, err := m.rebuild()
		m.must(err)
		if r.Sequence == newest { // an unused page, or one whose damage only digests show
			m.must(m.Store.Delete(t.Context(), store.IndexName(newest, 0)))
			continue
		}
		found++
		if len(r.Damaged) != 1 || !errors.Is(r.Damaged[0], backup.ErrCorrupt) {
			t.Errorf("at %d: %v", at, r.Damaged)
		}
		m.must(m.Store.Delete(t.Context(), store.IndexName(newest, 0)))
		if found == 1 {
			m.wantHas(path, first)
		}
		m.refusesToCopy(damaged, good)
	}
	if halves := len(whole)/half - 2; found < halves/2 {
		t.Errorf("%d of %d halves matter", found, halves)
	}
}

// wantHas checks that an index has a snapshot.
func (m *machine) wantHas(path string, s backup.Snapshot) {
	m.Helper()
	idx, err := sqliteindex.Open(m.Context(), path)
	m.must(err)
	defer idx.Close()
	if _, err := idx.Snapshot(m.Context(), s.ID); err != nil {
		m.Error(err)
	}
}

// refusesToCopy copies an index whose last sound copy is old.
func (m *machine) refusesToCopy(file []byte, want []string) {
	m.Helper()
	path := filepath.Join(m.TempDir(), "index.db")
	m.must(os.WriteFile(path, file, 0o600))
	idx, err := sqliteindex.Open(m.Context(), path)
	if err == nil {
		now := time.Now().Add(25 * time.Hour)
		err = errors.Join(embedded.CopyIndex(m.Context(), idx, m.Store, m.Keys, now, now), idx.Close())
	}
	if !errors.Is(err, backup.ErrCorrupt) {
		m.Errorf("copied with the error %v", err)
	}
	if got := m.copies(); !slices.Equal(got, want) {
		m.Errorf("copies %q, want %q", got, want)
	}
}

// A copy of another index is neither deleted nor counted as a copy of this index.
func TestCopiesOfAnotherIndexStay(t *testing.T) {
	m := newMachine(t)
	m.backupAndCopy(0)
	path, _, err := m.rebuild()
	m.must(err)
	m.backupAndCopy(1)
	theirs := m.copies()
	m.index, err = sqliteindex.Open(t.Context(), path) // as it was before the second backup
	m.must(err)
	defer m.index.Close()
	m.Index = m.index
	for n := range 4 {
		m.backupAndCopy(2 + n)
	}
	left := m.copies()
	if !slices.Contains(left, theirs[1]) || slices.Contains(left, theirs[0]) || len(left) != 4 {
		t.Errorf("copies %q, of another index %q", left, theirs)
	}
	// A copy of another index that is newer than the last change does not replace a copy of this
	// index.
	own, err := m.index.Copies(t.Context())
	m.must(err)
	last := slices.Max(slices.Collect(maps.Keys(own)))
	m.must(m.Store.Put(t.Context(), store.IndexName(last+1, 0), []byte("another's")))
	m.must(embedded.CopyIndex(t.Context(), m.index, m.Store, m.Keys, time.UnixMilli(last), time.Now()))
	if got := m.copies(); len(got) != 5 || got[4] <= store.IndexName(last+1, 0) {
		t.Errorf("copies %q after %q", got, left)
	}
}

// Write access to the store does not suffice to create an index copy that is accepted.
func TestForgedIndexCopy(t *testing.T) {
	m := newMachine(t)
	first := m.backupAndCopy(0)
	forger := m.Keys
	forger.Signing = seal.NewSigningKey()
	m.grow(1)
	_, err := m.backup(t.Context())
	m.must(err)
	m.must(embedded.CopyIndex(t.Context(), m.index, m.Store, forger, time.Now(), time.Now()))
	path, r, err := m.rebuild()
	if err != nil || len(r.Damaged) != 1 {
		t.Fatalf("damaged %v, error %v", r.Damaged, err)
	}
	m.wantRebuilt(path, first)
}

// Nor does it move the sequences of copies towards their end.
func TestForgedSequence(t *testing.T) {
	m := newMachine(t)
	m.backupAndCopy(0)
	m.must(m.Store.Put(t.Context(), store.IndexName(math.MaxInt64-1, 0), []byte("made up")))
	m.backupAndCopy(1)
	own, err := m.index.Copies(t.Context())
	m.must(err)
	for n := range own {
		if at := time.UnixMilli(n); time.Until(at).Abs() > time.Hour {
			t.Errorf("a copy of %s", at)
		}
	}
	if len(own) != 2 {
		t.Errorf("%d copies, want 2", len(own))
	}
}

// A rebuild does not replace an existing index, and uses nothing from it.
func TestRebuildKeepsWhatIsThere(t *testing.T) {
	m := newMachine(t)
	m.backupAndCopy(0)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		m.must(os.WriteFile(name, []byte("there"), 0o600))
	}
	if _, err := embedded.RebuildIndex(t.Context(), m.Store, m.trust(), path); !errors.Is(err, os.ErrExist) {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if data, err := os.ReadFile(name); string(data) != "there" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	// The log of a lost index would be replayed into the new one.
	m.must(os.Remove(path))
	_, err := embedded.RebuildIndex(t.Context(), m.Store, m.trust(), path)
	m.must(err)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, error %v", left, err)
	}
}

// A copy with a newer schema is kept, and this version reports that a newer one is needed.
func TestIndexCopyOfANewerSchema(t *testing.T) {
	m := newMachine(t)
	m.backupAndCopy(0)
	db, err := sql.Open("sqlite", filepath.Join(m.memory, "index.db"))
	m.must(err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) SELECT max(version_id) + 1, true FROM goose_db_version")
	m.must(errors.Join(err, db.Close()))
	m.must(embedded.CopyIndex(t.Context(), m.index, m.Store, m.Keys, time.Now(), time.Now()))
	path, _, err := m.rebuild()
	m.must(err)
	idx, err := sqliteindex.Open(t.Context(), path)
	if err == nil {
		err = idx.CheckSchema(t.Context())
		m.must(idx.Close())
	}
	if !errors.Is(err, index.ErrSchema) {
		t.Errorf("error %v, want one of the schema", err)
	}
}

// A large index is copied if its last copy is old, or lacks what was logged; a small one, whenever
// it has changed.
func TestCopiesThatAreDue(t *testing.T) {
	m := newMachine(t)
	small := embedded.SmallIndex
	t.Cleanup(func() { embedded.SmallIndex = small })
	copied := func(now time.Time) bool {
		t.Helper()
		before := m.copies()
		m.must(embedded.CopyIndexIfDue(t.Context(), m.index, m.Store, m.Keys, now, now))
		return !slices.Equal(before, m.copies())
	}
	m.grow(1)
	if _, err := m.backup(t.Context()); err != nil {
		t.Fatal(err)
	}
	embedded.SmallIndex = 0
	if !copied(time.Now()) {
		t.Error("there is no copy, and none is due")
	}
	m.grow(2)
	if _, err := m.backup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if copied(time.Now()) {
		t.Error("a copy is due for a few files in a large index")
	}
	m.must(m.index.SetBrake(t.Context(), index.Brake{Snapshots: 40, MinSnapshots: 5, Bytes: 60, MinBytes: 1 << 40, Operators: 1}, "tester"))
	if now := time.Now().Add(time.Second); !copied(now) || copied(now.Add(time.Second)) {
		t.Error("no copy, or a second one, is due for what was logged")
	}
	if !copied(time.Now().Add(25 * time.Hour)) {
		t.Error("the last copy is old, and none is due")
	}
	embedded.SmallIndex = small
	if !copied(time.Now().Add(27 * time.Hour)) {
		t.Error("the index is small, and no copy is due")
	}
}
