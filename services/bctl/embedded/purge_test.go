package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/rebuild"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// errKilled is what a store returns once its process is dead.
var errKilled = errors.New("killed")

// A killedStore loses the process at a write: before it, or after it has been applied.
type killedStore struct {
	store.Store
	at      int // the number of the last write; 0: none
	applied bool
	writes  int
}

func (s *killedStore) write(do func() error) error {
	s.writes++
	switch {
	case s.at == 0 || s.writes < s.at:
		return do()
	case s.writes == s.at && s.applied:
		return errors.Join(do(), errKilled)
	}
	return errKilled
}

func (s *killedStore) Put(ctx context.Context, name string, data []byte) error {
	return s.write(func() error { return s.Store.Put(ctx, name, data) })
}

func (s *killedStore) PutNew(ctx context.Context, name string, data []byte) error {
	return s.write(func() error { return s.Store.PutNew(ctx, name, data) })
}

func (s *killedStore) Delete(ctx context.Context, names ...string) error {
	return s.write(func() error { return s.Store.Delete(ctx, names...) })
}

// A purgeWorld is a repository with some snapshots, of which each test gets a copy.
type purgeWorld struct {
	*machine
	snapshots []backup.Snapshot
	want      []string // the trees without what is purged
}

// secret is in the path of what is purged, and in no other.
const secret = "klassified"

func newPurgeWorld(t *testing.T) *purgeWorld {
	t.Helper()
	w := &purgeWorld{machine: newMachine(t)}
	for n := range 4 {
		w.grow(n)
		dir := filepath.Join(w.tree, "d1", secret, "deep")
		w.must(os.MkdirAll(dir, 0o700))
		w.must(os.WriteFile(filepath.Join(dir, fmt.Sprint("small", n)), []byte(strings.Repeat(fmt.Sprint("secret ", n), 100)), 0o600))
		w.must(os.WriteFile(filepath.Join(dir, "shared"), []byte(fmt.Sprint("file ", 1, 0)), 0o600)) // as d1/0/1 has it
		s, err := w.backup(t.Context())
		w.must(err)
		w.snapshots = append(w.snapshots, s)
		without := filepath.Join(t.TempDir(), "want")
		w.must(exec.CommandContext(t.Context(), "cp", "-a", w.tree, without).Run())
		w.must(os.RemoveAll(filepath.Join(without, "d1", secret)))
		w.want = append(w.want, without)
	}
	w.mention()
	w.must(w.Index.(*sqliteindex.Index).Forget(t.Context(), w.snapshots[1].ID, "tester", "no longer wanted"))
	w.must(embedded.CopyIndex(t.Context(), w.index, w.Store, w.Keys, time.Now(), time.Now()))
	return w
}

// mention makes the index name the path in all places where commands put names: a hold that was
// removed, and a report of a drill.
func (w *purgeWorld) mention() {
	w.Helper()
	for _, path := range []string{"d1/" + secret, "d1/" + secret + "/deep/shared"} {
		hold, err := w.index.AddHold(w.Context(), index.Hold{Shard: w.shard.ID, Path: path, By: "tester", Reason: "a \"case\""})
		w.must(err)
		w.must(w.index.RemoveHold(w.Context(), hold.ID, "tester", "closed"))
	}
	w.must(w.index.AddDrill(w.Context(), index.Drill{
		ID: backup.NewDrillID(), Shard: w.shard.ID, Snapshot: w.snapshots[2].ID, Started: time.Now(), Passed: true,
		Report: []byte("restored d1/" + secret), Signature: make([]byte, seal.SignatureBytes),
	}))
}

// copied returns a copy of the world.
func (w *purgeWorld) copied(t *testing.T) *purgeWorld {
	t.Helper()
	c := &purgeWorld{machine: &machine{repository: &repository{T: t, Options: w.Options, opener: w.opener}, shard: w.shard, tree: w.tree}, snapshots: w.snapshots, want: w.want}
	var err error
	c.memory, err = os.MkdirTemp(filepath.Dir(w.memory), "bctl-test-") //nolint:usetesting // it syncs in no time
	c.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(c.memory) })
	c.must(w.index.Copy(t.Context(), readInto(filepath.Join(c.memory, "index.db"))))
	c.must(os.CopyFS(filepath.Join(c.memory, "store"), os.DirFS(filepath.Join(w.memory, "store"))))
	c.LockDir = filepath.Join(c.memory, "locks")
	c.open()
	return c
}

// open opens the repository as another process would.
func (w *purgeWorld) open() {
	w.Helper()
	var err error
	w.index, err = sqliteindex.Open(w.Context(), filepath.Join(w.memory, "index.db"))
	w.must(err)
	index := w.index
	w.Cleanup(func() { _ = index.Close() })
	w.Store, err = dirstore.Open(filepath.Join(w.memory, "store"))
	w.must(err)
	w.Index = w.index
}

// purge goes on with the purge that has begun.
func (w *purgeWorld) purge(s store.Store) (embedded.PurgeProof, error) {
	w.Helper()
	pending, err := w.index.Purges(w.Context())
	w.must(err)
	if len(pending) == 0 {
		return embedded.PurgeProof{Complete: true}, nil
	}
	return w.purgeOf(s, pending[0])
}

func (w *purgeWorld) purgeOf(s store.Store, p index.Purge) (embedded.PurgeProof, error) {
	return embedded.Purge(w.Context(), w.options(s, p))
}

// purgeUnneeded removes what no snapshot needs.
func (w *purgeWorld) purgeUnneeded(s store.Store) (embedded.PurgeProof, error) {
	return embedded.PurgeUnneeded(w.Context(), w.options(s, index.Purge{}))
}

func (w *purgeWorld) options(s store.Store, p index.Purge) embedded.PurgeOptions {
	o := embedded.PurgeOptions{Index: w.index, Keys: w.Keys, LockDir: w.LockDir, Purge: p}
	o.Store, o.Log, o.Holder, o.By, o.Sweep = s, slog.New(slog.DiscardHandler), backup.NewPackID().String(), "tester", true
	o.Repository, o.Opener, o.Hasher, o.Sealer = &w.Repository, w.opener, chunk.NewHasher(w.WorkerKey.Dedup), w.Keys.Sealer
	return o
}

func (w *purgeWorld) begin() {
	w.Helper()
	_, err := w.index.BeginPurge(w.Context(), index.Purge{ID: backup.NewPackID(), Shard: w.shard.ID, Path: "d1/" + secret, By: "tester", Reason: "request 1"}, false)
	w.must(err)
}

// check restores all snapshots: they are without what is purged.
func (w *purgeWorld) check(what string) {
	w.Helper()
	w.compare(what, func(string) {})
}

// checkOthers restores all snapshots, and leaves out what is to be purged.
func (w *purgeWorld) checkOthers(what string) {
	w.Helper()
	w.compare(what, func(restored string) { w.must(os.RemoveAll(filepath.Join(restored, "d1", secret))) })
}

// compare restores all snapshots, prepares what was restored, and compares it with the trees
// without what is purged.
func (w *purgeWorld) compare(what string, prepare func(restored string)) {
	w.Helper()
	for i, s := range w.snapshots {
		if i == 1 {
			continue
		}
		now, err := w.index.Snapshot(w.Context(), s.ID)
		w.must(err)
		to := filepath.Join(w.memory, "restored")
		reported, err := w.restore(w.Context(), &now, to)
		if err != nil || len(reported) > 0 {
			w.Fatalf("%s: restore of number %d: %v, %v", what, s.Number, err, reported)
		}
		prepare(to)
		if differences := treetest.Compare(w.want[i], to); len(differences) > 1 { // the times of the directory
			w.Fatalf("%s: number %d: %q", what, s.Number, differences)
		}
		w.must(os.RemoveAll(to))
	}
}

// wantNoName looks for the name in all files of the repository that are not sealed.
func (w *purgeWorld) wantNoName(what string) {
	w.Helper()
	err := filepath.WalkDir(w.memory, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			w.Errorf("%s: %s has the name", what, path)
		}
		return err
	})
	w.must(err)
	for _, name := range w.copies() {
		if len(w.copies()) > 2 {
			w.Errorf("%s: copies %q", what, name)
		}
	}
}

func TestPurge(t *testing.T) {
	w := newPurgeWorld(t).copied(t)
	w.begin()
	proof, err := w.purge(w.Store)
	w.must(err)
	if !proof.Complete || proof.Amended != 3 || proof.Objects == 0 || proof.Sealed == 0 || proof.Shared != 1 || proof.Chunks != 5 || proof.Read < 6 {
		t.Fatalf("%+v", proof)
	}
	w.check("purged")
	if found := w.repository.check(check.Content); len(found) > 0 {
		t.Errorf("a check finds %q", found)
	}
	w.wantNoName("purged")
	// A rebuilt index is the same.
	path, _, err := w.rebuild()
	w.must(err)
	w.must(w.index.Close())
	data, err := os.ReadFile(path)
	w.must(err)
	w.must(os.WriteFile(filepath.Join(w.memory, "index.db"), data, 0o600))
	w.open()
	w.check("rebuilt")
}

// A purge whose process is killed at any write to the store, before the write or after it, goes on.
// All other files can always be restored.
func TestPurgeIsKilledAtEachWrite(t *testing.T) {
	all, step := newPurgeWorld(t), 1
	if testing.Short() {
		step = 5
	}
	for _, applied := range []bool{false, true} {
		for at := 1; ; at += step {
			w := all.copied(t)
			w.begin()
			killed := &killedStore{Store: w.Store, at: at, applied: applied}
			proof, err := w.purge(killed)
			if err == nil {
				if !proof.Complete || at < 15 {
					t.Fatalf("%d writes: %+v", at, proof)
				}
				break
			}
			if !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			what := fmt.Sprintf("killed at write %d, applied: %t", at, applied)
			w.must(w.index.Close())
			w.open()
			if at%4 == 0 {
				w.check(what)
			}
			if proof, err = w.purge(w.Store); err != nil || !proof.Complete {
				t.Fatalf("%s: %+v, %v", what, proof, err)
			}
			if at%3 == 0 {
				w.check(what)
			}
			w.wantNoName(what)
			w.wantJournal(what)
			w.must(w.index.Close())
		}
	}
}

// The path is backed up again after a purge has stopped. The purge goes on, and a second one
// removes the path again.
func TestPurgeGoesOnAfterABackup(t *testing.T) {
	all, again := newPurgeWorld(t), 0
	for at := 1; ; at += 3 {
		w := all.copied(t)
		w.begin()
		killed := &killedStore{Store: w.Store, at: at, applied: at%2 == 0}
		if _, err := w.purge(killed); err == nil {
			break
		} else if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		what := fmt.Sprint("killed at write ", at)
		for range 2 {
			s, err := w.backup(t.Context())
			w.must(err)
			w.wantRestored(&s)
		}
		again++
		proof, err := w.purge(w.Store)
		if err != nil || !proof.Complete {
			t.Fatalf("%s: %+v, %v", what, proof, err)
		}
		w.check(what)
		w.begin()
		if proof, err = w.purge(w.Store); err != nil || !proof.Complete {
			t.Fatalf("%s, again: %+v, %v", what, proof, err)
		}
		w.check(what)
		w.wantNoName(what)
		w.wantJournal(what)
		if found := w.repository.check(check.Content); len(found) > 0 {
			t.Errorf("%s: a check finds %q", what, found)
		}
		w.must(w.index.Close())
	}
	if again < 5 {
		t.Errorf("the purge was stopped %d times", again)
	}
}

// beginAgain begins a purge if a snapshot has the path.
func (w *purgeWorld) beginAgain(what string) {
	w.Helper()
	_, err := w.index.BeginPurge(w.Context(), index.Purge{ID: backup.NewPackID(), Shard: w.shard.ID, Path: "d1/" + secret, By: "tester"}, false)
	if err != nil && !errors.Is(err, backup.ErrNotFound) {
		w.Fatalf("%s: %v", what, err)
	}
}

// lose replaces the index by a rebuilt one.
func (w *purgeWorld) lose(what string) rebuild.Result {
	w.Helper()
	if len(w.copies()) > 0 {
		path, _, err := w.rebuild()
		w.must(err)
		w.must(w.index.Close())
		data, err := os.ReadFile(path)
		w.must(err)
		w.must(os.WriteFile(filepath.Join(w.memory, "index.db"), data, 0o600))
		w.open()
	} else {
		empty := w.emptySQLite()
		w.must(w.index.Close())
		for _, sidecar := range []string{"", "-wal", "-shm"} {
			_ = os.Remove(filepath.Join(w.memory, "index.db"+sidecar))
		}
		w.index, w.Index = empty, empty
	}
	result := w.rebuildInto(w.index)
	if len(result.Lost) > 0 {
		w.Fatalf("%s: the rebuild has lost %v", what, result.Lost)
	}
	shards, err := w.index.ListShards(w.Context(), index.ShardFilter{})
	w.must(err)
	w.shard = shards[0].Shard
	return result
}

// A snapshot is forgotten after a purge has stopped. The segment that is based on it can still be
// read.
func TestPurgeGoesOnAfterAForget(t *testing.T) {
	all, forgotten := newPurgeWorld(t), 0
	for at := 1; ; at += 3 {
		w := all.copied(t)
		w.begin()
		killed := &killedStore{Store: w.Store, at: at, applied: true}
		if _, err := w.purge(killed); err == nil {
			break
		} else if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		w.must(w.index.Forget(t.Context(), w.snapshots[2].ID, "tester", "no longer wanted"))
		forgotten++
		proof, err := w.purge(w.Store)
		if err != nil || !proof.Complete {
			t.Fatalf("killed at write %d: %+v, %v", at, proof, err)
		}
		if found := w.repository.check(check.Content); len(found) > 0 {
			t.Errorf("killed at write %d: a check finds %q", at, found)
		}
		w.wantNoName(fmt.Sprint("killed at write ", at))
		w.must(w.index.Close())
	}
	if forgotten < 5 {
		t.Errorf("the purge was stopped %d times", forgotten)
	}
}

// wantJournal checks that the store has a valid record and segment of each kept snapshot, and no
// others.
func (w *purgeWorld) wantJournal(what string) {
	w.Helper()
	journals, err := w.index.Journals(w.Context(), w.shard.ID)
	w.must(err)
	var want, got []string
	for i := range journals {
		j := &journals[i]
		want = append(want, store.AmendedName(j.ID, j.Sequence))
		for part := range j.Segment.Parts {
			want = append(want, store.SegmentName(j.ID, j.Segment.Attempt, part))
		}
	}
	for _, prefix := range []string{store.CommitsPrefix, store.SegmentsPrefix} {
		for o, err := range w.Store.List(w.Context(), prefix) {
			w.must(err)
			got = append(got, o.Name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.Errorf("%s: the journal has\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// readInto returns a function that writes a file.
func readInto(path string) func(io.Reader, int64) error {
	return func(file io.Reader, _ int64) error {
		data, err := io.ReadAll(file)
		if err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o600)
	}
}

// A purge of locked content stays incomplete until the locks end, and says when. Meanwhile, another
// path can be purged, and all other files can be restored.
func TestPurgeOfLockedContent(t *testing.T) {
	w := newPurgeWorld(t).copied(t)
	locked := newLockedStore(t, w.Store)
	pass := prune.Options{Store: locked, Log: slog.New(slog.DiscardHandler), Holder: "tester", MaxUnused: 1, ObjectLock: true}
	_, err := embedded.Prune(t.Context(), w.index, w.Keys, w.LockDir, pass)
	w.must(err)
	w.begin()
	proof, err := w.purge(locked)
	w.must(err)
	if left := time.Until(proof.LockedUntil); proof.Complete || left < 24*time.Hour {
		t.Fatalf("locked for %v: %+v", left, proof)
	}
	w.check("locked")
	other := index.Purge{ID: backup.NewPackID(), Shard: w.shard.ID, Path: "d2", By: "tester", Reason: "request 2"}
	_, err = w.index.BeginPurge(t.Context(), other, true)
	w.must(err)
}

// A sweptStore has another pruner sweep it after each write of a purge.
type sweptStore struct {
	store.Store
	sweep func()
}

func (s *sweptStore) Put(ctx context.Context, name string, data []byte) error {
	defer s.sweep()
	return s.Store.Put(ctx, name, data)
}

func (s *sweptStore) PutNew(ctx context.Context, name string, data []byte) error {
	defer s.sweep()
	return s.Store.PutNew(ctx, name, data)
}

// A sweep that would run while a purge writes segments again must not take them for orphans: their
// snapshots have ended, and no row names them yet. So a purge leads as the pruner all the time.
func TestSweepDuringAPurge(t *testing.T) {
	w := newPurgeWorld(t)
	w.begin()
	tried := 0
	swept := &sweptStore{Store: w.Store, sweep: func() {
		_, err := prune.Run(t.Context(), prune.Options{Index: w.index, Store: w.Store, Holder: backup.NewPackID().String(), Sweep: true, Log: slog.New(slog.DiscardHandler)})
		tried++
		if err != nil && !errors.Is(err, prune.ErrBusy) {
			t.Error(err)
		}
	}}
	proof, err := w.purge(swept)
	w.must(err)
	if !proof.Complete || tried == 0 {
		t.Errorf("%+v after %d sweeps", proof, tried)
	}
	w.check("after a purge beside sweeps")
}

// A record that was amended is damaged, and nothing can write it again: as in a fleet, whose
// committers have no other record of the snapshot. The repair does the rest, and makes the next
// segment of the shard one that later snapshots can be read from.
func TestRepairOfAmendedRecords(t *testing.T) {
	w := newPurgeWorld(t).copied(t)
	w.begin()
	_, err := w.purge(w.Store)
	w.must(err)
	damaged := store.AmendedName(w.snapshots[2].ID, 1)
	w.must(w.Store.Delete(t.Context(), damaged))
	if _, err := w.Store.Stat(t.Context(), damaged); !errors.Is(err, backup.ErrNotFound) {
		t.Fatal(err)
	}
	repaired := func(wantWritten, wantLeft int) {
		t.Helper()
		report, err := check.Run(t.Context(), w.checkOptions(check.Objects))
		w.must(err)
		found := report.Findings
		if len(found) != 1 || found[0].Kind != check.Record || found[0].Object != damaged || found[0].First != w.snapshots[2].Number || found[0].Last != w.snapshots[3].Number {
			t.Fatalf("%+v", found)
		}
		o := repair.Options{Index: w.index, Store: w.Store, Check: w.checkOptions(check.Objects), By: "tester"}
		s, err := repair.Run(t.Context(), o, &report)
		if err != nil || s.Journal != wantWritten || s.Left != wantLeft {
			t.Fatalf("%+v, %v: want %d written again, %d left", s, err, wantWritten, wantLeft)
		}
	}
	repaired(1, 0)
	w.grow(9)
	next, err := w.backup(t.Context())
	w.must(err)
	repaired(0, 1)

	rebuilt := w.emptySQLite()
	result := w.rebuildInto(rebuilt)
	if result.Snapshots != 2 || len(result.Lost) != 2 || result.Lost[0].ID != w.snapshots[2].ID || result.Lost[1].ID != w.snapshots[3].ID {
		t.Errorf("%+v", result)
	}
	lost := w.index
	w.index, w.Index = rebuilt, rebuilt
	w.wantRestored(&next)
	w.index, w.Index = lost, lost
}
