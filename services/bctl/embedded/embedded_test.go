package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A machine has a repository and a tree to back up.
type machine struct {
	*repository
	shard backup.Shard
	tree  string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{repository: newRepository(t), tree: t.TempDir()}
	m.shard = m.addShard(backup.Shard{Source: posix.URL(m.tree)})
	return m
}

func (m *machine) backup(ctx context.Context) (backup.Snapshot, error) {
	return embedded.Backup(ctx, m.Options, m.shard, backup.Snapshot{}, nil)
}

// wantRestored compares the tree with the restored snapshot.
func (m *machine) wantRestored(s *backup.Snapshot) {
	m.Helper()
	to := filepath.Join(m.TempDir(), "restored")
	reported, err := m.restore(m.Context(), s, to)
	m.must(err)
	if len(reported) > 0 {
		m.Errorf("problems: %v", reported)
	}
	treetest.Equal(m.T, m.tree, to)
}

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

// wantInterrupted checks that a snapshot has failed because its process ended.
func (m *machine) wantInterrupted(id backup.SnapshotID) {
	m.Helper()
	s, err := m.Index.Snapshot(m.Context(), id)
	m.must(err)
	if s.State != backup.Failed || s.Reason != "interrupted" {
		m.Errorf("the interrupted snapshot is %s: %q", s.State, s.Reason)
	}
}

// last returns the newest snapshot, in any state.
func (m *machine) last() backup.Snapshot {
	m.Helper()
	list, err := m.Index.Snapshots(m.Context(), index.SnapshotFilter{Limit: 1})
	m.must(err)
	if len(list) == 0 {
		return backup.Snapshot{}
	}
	return list[0]
}

// A backup is interrupted at each step. The next one makes a new snapshot, which equals the tree.
func TestInterruptedBackupBeginsAgain(t *testing.T) {
	m := newMachine(t)
	random := rand.New(rand.NewPCG(1, 2))
	interrupted := 0
	for n := range 3 {
		m.grow(n)
		for try, done := 0, false; !done; try++ {
			before := m.last()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(40<<min(try, 12)))*time.Millisecond)
			s, err := m.backup(ctx)
			cancel()
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				interrupted++
			case err != nil:
				t.Fatal(err)
			case s.State != backup.Committed || s.ID == before.ID:
				t.Fatalf("%s (%s)", s.State, s.Reason)
			default:
				done = true
				m.wantRestored(&s)
			}
			if before.State == backup.Running && m.last().ID != before.ID {
				m.wantInterrupted(before.ID)
			}
		}
	}
	if interrupted == 0 {
		t.Error("no backup was interrupted")
	}
}

// Content that a killed backup has stored is not read again. Everything else follows from the new
// request and the present tree (I14).
func TestRequestAfterAKilledBackup(t *testing.T) {
	m := newMachine(t)
	faults := faultsource.New(m.Source)
	// Nothing is racy.
	faults.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
	m.Source = faults
	for _, dir := range []string{"stored", "hangs"} {
		files := treetest.Tree{"fills a batch": treetest.Sparse(65 << 20)}
		for i := range 20 {
			files[fmt.Sprint("file-", i)] = treetest.File(fmt.Sprint(dir, i))
		}
		treetest.Make(t, filepath.Join(m.tree, dir), files)
	}
	hang := faults.Inject(faultsource.Fault{Call: faultsource.OpenFile, Path: "hangs/file-0", Hang: true})
	killed := m.killOnce(func(s *backup.Snapshot) bool { return s.BatchesSettled == 1 })
	hang.Lift()

	treetest.Make(t, m.tree, treetest.Tree{"stored/added": treetest.File("added"), "excluded": treetest.File("excluded")})
	faults.Count()
	s, err := embedded.Backup(t.Context(), m.Options, m.shard, backup.Snapshot{
		Tags: []string{"second"}, Selection: backup.Selection{Exclude: []string{"/excluded"}},
	}, nil)
	m.must(err)
	if s.State != backup.Committed || s.ID == killed.ID || !slices.Equal(s.Tags, []string{"second"}) || s.Started.Before(killed.Started) {
		t.Errorf("%s (%s), tags %q, started %v", s.State, s.Reason, s.Tags, s.Started)
	}
	m.wantInterrupted(killed.ID)
	for i := range 20 {
		if n := faults.Asked(faultsource.OpenFile, fmt.Sprint("stored/file-", i)); n > 0 {
			t.Errorf("stored/file-%d was read %d times more", i, n)
		}
	}
	if n := faults.Asked(faultsource.OpenFile, "stored/added"); n != 1 {
		t.Errorf("what is new was read %d times", n)
	}
	m.must(os.Remove(filepath.Join(m.tree, "excluded")))
	m.must(os.Chtimes(m.tree, time.Time{}, time.Unix(1, 0)))
	again, err := m.backup(t.Context())
	m.must(err)
	m.wantRestored(&again)
	if n := again.Counts; n.FilesNew+n.FilesChanged != 0 {
		t.Errorf("counts %+v: the snapshot before was another tree", n)
	}
}

// killOnce starts a backup, and kills it when its snapshot fulfils the condition.
func (m *machine) killOnce(is func(*backup.Snapshot) bool) backup.Snapshot {
	m.Helper()
	ctx, kill := context.WithCancel(m.Context())
	defer kill()
	ended := make(chan error, 1)
	go func() {
		_, err := m.backup(ctx)
		ended <- err
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			m.Fatalf("the backup has ended: %v", err)
		case <-tick.C:
		}
		if s := m.last(); is(&s) {
			kill()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				m.Fatal(err)
			}
			return s
		}
	}
}

// If another process holds the lock, it is backing up the shard.
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

// In one process nothing repairs a store meanwhile: the backup ends with the store's error, and
// another can be made when the store works.
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
	if again.State != backup.Committed {
		t.Errorf("%s: %s", again.State, again.Reason)
	}
	m.wantInterrupted(s.ID)
	m.wantRestored(&again)
}

// A hookedStore calls a function before each object is put.
type hookedStore struct {
	store.Store
	put func(name string) error
}

func (s hookedStore) Put(ctx context.Context, name string, data []byte) error {
	if err := s.put(name); err != nil {
		return err
	}
	return s.Store.Put(ctx, name, data)
}

// After each fault around the commit point, the result of a backup agrees with the index: a
// committed snapshot is not reported as a failure, and an uncommitted one is not reported as a
// success.
func TestEndIsWhatTheIndexHas(t *testing.T) {
	for _, prefix := range []string{store.PacksPrefix, store.SegmentsPrefix, store.CommitsPrefix, store.CatalogPrefix} {
		for what, fault := range map[string]func(cancel context.CancelCauseFunc) error{
			"interrupted": func(cancel context.CancelCauseFunc) error { cancel(errInterrupted); return nil },
			"full":        func(context.CancelCauseFunc) error { return errBroken },
			"both":        func(cancel context.CancelCauseFunc) error { cancel(errInterrupted); return errBroken },
		} {
			t.Run(prefix+what, func(t *testing.T) {
				m := newMachine(t)
				m.grow(0)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				whole := m.Store
				m.Store = hookedStore{whole, func(name string) error {
					if strings.HasPrefix(name, prefix) {
						return fault(cancel)
					}
					return nil
				}}
				s, err := m.backup(ctx)
				got, readErr := m.Index.Snapshot(t.Context(), s.ID)
				m.must(readErr)
				if (err == nil) != (got.State == backup.Committed) || err == nil && s.State != backup.Committed {
					t.Errorf("it returns %s, error %v; the index has %s", s.State, err, got.State)
				}
				m.Store = whole
				last, err := m.backup(t.Context())
				m.must(err)
				m.wantRestored(&last)
			})
		}
	}
}

var errInterrupted = errors.New("interrupted")

func TestRootThatIsGoneFailsTheSnapshot(t *testing.T) {
	m := newMachine(t)
	m.must(os.RemoveAll(m.tree))
	s, err := m.backup(t.Context())
	if err != nil || s.State != backup.Failed || s.Reason == "" {
		t.Errorf("%s (%s), error %v", s.State, s.Reason, err)
	}
}
