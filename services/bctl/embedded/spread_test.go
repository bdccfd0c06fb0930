package embedded_test

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/spread"
)

// A silentWatcher is told nothing that a test needs.
type silentWatcher struct{}

func (silentWatcher) Look(*index.Restore, []index.Refusal) {}
func (silentWatcher) Problem(backup.Problem)               {}

// A restorer gets the data keys of the packs that its task needs, and of no others. Nobody but its
// session opens them.
func TestKeysOfATaskOnly(t *testing.T) {
	m := newMachine(t)
	var packs [][]string // of each snapshot
	for n, dir := range []string{"a", "b", "c"} {
		m.must(os.MkdirAll(filepath.Join(m.tree, dir), 0o700))
		large := make([]byte, 9<<20) // it has a list of chunks
		for i := range large {
			large[i] = byte(i >> (8 + n))
		}
		m.must(os.WriteFile(filepath.Join(m.tree, dir, "large"), large, 0o600))
		m.must(os.WriteFile(filepath.Join(m.tree, dir, "small"), []byte("in "+dir), 0o600))
		if dir == "c" {
			m.must(os.Link(filepath.Join(m.tree, "c/small"), filepath.Join(m.tree, "linked")))
		}
		s, err := m.backup(t.Context())
		m.must(err)
		packs = append(packs, m.packsOf(&s))
	}
	s := m.last()
	request, err := spread.Request{Overwrite: restore.IfChanged}.Encode()
	m.must(err)
	of := index.Restore{ID: index.NewRestoreID(), Snapshot: s.ID, Site: "here", Target: "/srv", Request: request}
	m.must(m.Index.BeginRestore(t.Context(), of, []index.RestoreTask{
		{Kind: index.RestoreBegin}, {Kind: index.RestorePart, To: backup.PathKey("b")}, {Kind: index.RestorePart, From: backup.PathKey("b"), To: backup.PathKey("c")},
		{Kind: index.RestorePart, From: backup.PathKey("c")}, {Kind: index.RestoreLast},
	}))
	following, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := spread.Follow(following, m.Index, restore.Deps{
			Catalog: m.Index, Store: m.Store, Repository: m.Repository.ID, Opener: m.opener, HashKey: m.WorkerKey.Dedup,
		}, of, silentWatcher{})
		ended <- err
	}()
	for n, want := range [][]string{nil, packs[0], packs[1], packs[2], packs[2]} {
		session, err := seal.NewSession()
		m.must(err)
		_, task, ok, err := m.Index.ClaimRestoreTask(t.Context(), "here", "tester", session.Recipient(), time.Minute)
		m.must(err)
		if !ok {
			t.Fatalf("no task %d", n)
		}
		if task.Kind != index.RestoreBegin {
			got := m.keysOf(&task, session)
			// The pack of "large" and that of "small" may be one.
			if len(got) == 0 || slices.ContainsFunc(got, func(name string) bool { return !slices.Contains(want, name) }) || task.Kind == index.RestorePart && n < 3 && len(got) != len(want) {
				t.Errorf("task %d got the keys of %q, and needs %q", n, got, want)
			}
		}
		m.must(m.Index.SettleRestoreTask(t.Context(), &task, []byte("{}")))
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stop()
}

// keysOf waits for the keys of a task, and returns the packs that they open.
func (m *machine) keysOf(task *index.RestoreTask, session *seal.Session) (names []string) {
	m.Helper()
	other, err := seal.NewSession()
	m.must(err)
	for {
		sealed, err := m.Index.RenewRestoreTask(m.Context(), task, time.Minute, 0, 0)
		m.must(err)
		if sealed == nil {
			loop.Pause(m.Context(), time.Millisecond)
			continue
		}
		given, err := session.Open(sealed)
		m.must(err)
		if _, err := other.Open(sealed); !errors.Is(err, backup.ErrWrongKey) {
			m.Errorf("another session opens the keys: %v", err)
		}
		for _, s := range m.snapshots() {
			for _, name := range m.packsOf(&s) {
				id := seal.KeyID{}
				for key := range given.Keys {
					if strings.EqualFold(key.String(), path.Base(name)) {
						id = key
					}
				}
				if id != (seal.KeyID{}) {
					names = append(names, name)
				}
			}
		}
		if len(names) != len(given.Keys) {
			m.Errorf("%d keys are of %q", len(given.Keys), names)
		}
		return names
	}
}

func (m *machine) snapshots() []backup.Snapshot {
	m.Helper()
	all, err := m.Index.Snapshots(m.Context(), index.SnapshotFilter{})
	m.must(err)
	return all
}
