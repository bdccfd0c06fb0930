package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A machine has a repository, and a tree to back up.
type machine struct {
	*testing.T
	embedded.Options
	shard  backup.Shard
	tree   string
	opener *seal.Opener
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bctl-test-") //nolint:usetesting // it syncs in no time
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{T: t, tree: t.TempDir()}
	identity, recipient, err := seal.GenerateIdentity()
	m.must(err)
	m.opener, err = seal.NewOpener([]byte(identity))
	m.must(err)
	m.WorkerKey = seal.WorkerKey{Repository: backup.NewRepositoryID(), Dedup: seal.NewDedupKey(), Recipients: []string{recipient}}
	m.Repository = backup.Repository{ID: m.WorkerKey.Repository, Chunker: chunk.DefaultCutter, Codec: "zstd-1", Recipients: m.WorkerKey.Recipients}
	m.Index, err = sqliteindex.Open(t.Context(), filepath.Join(dir, "index.db"))
	m.must(err)
	t.Cleanup(func() { _ = m.Index.Close() })
	_, _, err = m.Index.Migrate(t.Context())
	m.must(err)
	m.Store, err = dirstore.Create(filepath.Join(dir, "store"))
	m.must(err)
	m.Source, m.LockDir = posix.New(posix.Options{}), filepath.Join(dir, "locks")
	filer, err := m.Index.EnsureFiler(t.Context(), "here")
	m.must(err)
	m.shard, err = m.Index.EnsureShard(t.Context(), filer.ID, m.tree, posix.URL(m.tree))
	m.must(err)
	return m
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *machine) backup(ctx context.Context) (backup.Snapshot, error) {
	return embedded.Backup(ctx, m.Options, m.shard, backup.Snapshot{}, nil)
}

// wantRestored compares the tree with what is restored of the snapshot.
func (m *machine) wantRestored(s backup.Snapshot) {
	m.Helper()
	to := filepath.Join(m.TempDir(), "restored")
	_, err := restore.Restore(m.Context(), restore.Deps{Catalog: m.Index, Store: m.Store, Opener: m.opener, HashKey: m.WorkerKey.Dedup},
		restore.Options{Snapshot: s.ID, Target: to}, observer{m.T})
	m.must(err)
	treetest.Equal(m.T, m.tree, to)
}

// An observer wants no problems.
type observer struct{ t *testing.T }

func (observer) Progress(restore.Progress)  {}
func (observer) Change(restore.Change)      {}
func (o observer) Problem(p backup.Problem) { o.t.Errorf("problem: %+v", p) }

func (m *machine) grow(n int) {
	m.Helper()
	for i := range 20 {
		dir := filepath.Join(m.tree, fmt.Sprint("d", i%5), fmt.Sprint(n))
		m.must(os.MkdirAll(dir, 0o700))
		m.must(os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(fmt.Sprint("file ", i, n)), 0o600))
	}
	large := make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(large)
	m.must(os.WriteFile(filepath.Join(m.tree, "large"), large, 0o600))
}

// A backup that is interrupted at any moment is gone on with, as the same
// snapshot, and is the tree in the end.
func TestInterruptedBackupIsGoneOnWith(t *testing.T) {
	m := newMachine(t)
	random := rand.New(rand.NewPCG(1, 2))
	interrupted := 0
	for n := range 3 {
		m.grow(n)
		var running backup.Snapshot
		for try := 0; ; try++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(40+100*try))*time.Millisecond)
			s, err := m.backup(ctx)
			cancel()
			if err == nil {
				if s.State != backup.Committed {
					t.Fatalf("%s: %s", s.State, s.Reason)
				}
				if running.ID != (backup.SnapshotID{}) && running.ID != s.ID {
					t.Errorf("another snapshot was begun, though %s was running", running.ID.Short())
				}
				m.wantRestored(s)
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			interrupted++
			if list, err := m.Index.Snapshots(t.Context(), index.SnapshotFilter{States: []backup.State{backup.Running}}); err != nil {
				t.Fatal(err)
			} else if len(list) > 0 {
				running = list[0]
			} else {
				running = backup.Snapshot{} // it was committed just before it was interrupted
			}
		}
	}
	if interrupted == 0 {
		t.Error("no backup was interrupted")
	}
}

// Another process that has the lock is backing the shard up.
func TestLockOfAnotherProcess(t *testing.T) {
	m := newMachine(t)
	m.grow(0)
	if s, err := m.backup(t.Context()); err != nil || s.State != backup.Committed {
		t.Fatal(s.State, err)
	}
	flock, err := exec.LookPath("flock")
	if err != nil {
		t.Skip("there is no flock command")
	}
	lock := filepath.Join(m.LockDir, fmt.Sprintf("shard-%d.lock", m.shard.ID))
	other := exec.CommandContext(t.Context(), flock, lock, "sh", "-c", "echo locked; read end")
	in, err := other.StdinPipe()
	m.must(err)
	out, err := other.StdoutPipe()
	m.must(err)
	m.must(other.Start())
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.backup(t.Context()); !errors.Is(err, backup.ErrRunning) {
		t.Errorf("error %v, want ErrRunning", err)
	}
	m.must(in.Close())
	_ = other.Wait()
	if s, err := m.backup(t.Context()); err != nil || s.State != backup.Committed {
		t.Errorf("after the other process: %s, error %v", s.State, err)
	}
}

// A brokenStore cannot be written to.
type brokenStore struct{ store.Store }

var errBroken = fmt.Errorf("no space left: %w", store.ErrFull)

func (brokenStore) Put(context.Context, string, []byte) error { return errBroken }

// In one process nobody mends a store meanwhile: the backup ends with its
// error, and can be gone on with.
func TestBrokenStore(t *testing.T) {
	m := newMachine(t)
	m.grow(0)
	whole := m.Store
	m.Store = brokenStore{whole}
	s, err := m.backup(t.Context())
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("error %v, want that of the store", err)
	}
	if got, err := m.Index.Snapshot(t.Context(), s.ID); err != nil || got.State != backup.Running {
		t.Fatalf("the snapshot is %s, error %v", got.State, err)
	}
	m.Store = whole
	again, err := m.backup(t.Context())
	m.must(err)
	if again.ID != s.ID || again.State != backup.Committed {
		t.Errorf("%s: %s", again.ID.Short(), again.State)
	}
	m.wantRestored(again)
}

func TestRootThatIsGoneFailsTheSnapshot(t *testing.T) {
	m := newMachine(t)
	m.must(os.RemoveAll(m.tree))
	s, err := m.backup(t.Context())
	if err != nil || s.State != backup.Failed || s.Reason == "" {
		t.Errorf("%s (%s), error %v", s.State, s.Reason, err)
	}
}
