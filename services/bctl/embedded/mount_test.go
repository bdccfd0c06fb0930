package embedded_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A mountedMachine has a tree with a mounted file system, which is accessible at another path as
// well.
type mountedMachine struct {
	*machine
	faults  *faultsource.Source
	mounted string // the mounted directory
	at      string // the mount point: in the tree, or the tree itself
}

// newMountedMachine mounts a file system in the tree or, if at is "", over the tree itself.
func newMountedMachine(t *testing.T, at string) *mountedMachine {
	t.Helper()
	m := &mountedMachine{machine: newMachine(t), mounted: t.TempDir()}
	treetest.Tmpfs(t, m.mounted)
	m.tree = filepath.Join(t.TempDir(), "tree")
	m.at = filepath.Join(m.tree, at)
	m.must(os.MkdirAll(m.at, 0o755))
	m.shard = m.addShard(backup.Shard{Source: posix.URL(m.tree)})
	treetest.Make(t, m.tree, treetest.Tree{"beside": treetest.File("beside")})
	m.faults = faultsource.New(m.Source)
	// Nothing is racy.
	m.faults.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
	m.Source = m.faults
	return m
}

// change writes new content to each mounted file.
func (m *mountedMachine) change(content string) {
	m.Helper()
	for _, name := range []string{"file", "dir/file", "dir/sub/file"} {
		m.must(os.MkdirAll(filepath.Dir(filepath.Join(m.mounted, name)), 0o755))
		m.must(os.WriteFile(filepath.Join(m.mounted, name), []byte(content), 0o600))
	}
}

// Unmounting a file system during a backup, at any call, loses no file: that backup fails with a
// reason, and the next one keeps the mounted files as in the last good snapshot, and reports it
// (I13).
func TestUnmountedMeanwhile(t *testing.T) {
	for name, at := range map[string]faultsource.Fault{
		"opened by the walker": {Call: faultsource.OpenDirectory, Path: "mnt"},
		"listed":               {Call: faultsource.List, Path: "mnt"},
		"below is opened":      {Call: faultsource.OpenDirectory, Path: "mnt/dir"},
		"below is listed":      {Call: faultsource.List, Path: "mnt/dir/sub"},
		"opened by the reader": {Call: faultsource.OpenDirectory, Path: "mnt/dir", After: 1},
		"a file is opened":     {Call: faultsource.OpenFile, Path: "mnt/dir/file"},
		"a file is read":       {Call: faultsource.Read, Path: "mnt/dir/file"},
		"the result is sent":   {Call: faultsource.Check},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMountedMachine(t, "mnt")
			m.change("first")
			unmount := treetest.Bind(t, m.mounted, m.at)
			first, err := m.backup(t.Context())
			m.must(err)
			m.wantRestored(&first)
			was := filepath.Join(t.TempDir(), "was")
			_, err = m.restore(t.Context(), &first, was)
			m.must(err)

			m.change("second")
			at.Times, at.Do = 1, unmount
			unmounts := m.faults.Inject(at)
			s, err := m.backup(t.Context())
			if unmounts.Happened() == 0 {
				t.Fatal("it was not unmounted")
			}
			switch {
			case err != nil:
			case s.State == backup.Failed && strings.Contains(s.Reason, "no longer mounted"):
			default: // it was detected in time
				m.wantKept(&s, was, name)
			}
			s, err = m.backup(t.Context())
			m.must(err)
			m.wantKept(&s, was, name)

			treetest.Bind(t, m.mounted, m.at)
			s, err = m.backup(t.Context())
			m.must(err)
			if s.Counts.Errors+s.Counts.Carried > 0 {
				t.Errorf("mounted again: %+v", s.Counts)
			}
			m.wantRestored(&s)
		})
	}
}

// wantKept checks that a snapshot has the mounted files as before, and reports that.
func (m *mountedMachine) wantKept(s *backup.Snapshot, was, when string) {
	m.Helper()
	if s.State != backup.Committed || s.Counts.Errors != 1 || s.Counts.Vanished != 0 {
		m.Errorf("%s: %s (%s), %+v", when, s.State, s.Reason, s.Counts)
		return
	}
	to := filepath.Join(m.TempDir(), "kept")
	reported, err := m.restore(m.Context(), s, to)
	m.must(err)
	if got := pathsOf(reported); !slices.Equal(got, []string{"mnt"}) {
		m.Errorf("%s: the restore reports %q", when, got)
	}
	treetest.Equal(m.T, filepath.Join(was, "mnt"), filepath.Join(to, "mnt"))
}

// If the tree itself is unmounted, no snapshot is committed until it is mounted again.
func TestRootUnmountedMeanwhile(t *testing.T) {
	m := newMountedMachine(t, "")
	m.change("first")
	unmount := treetest.Bind(t, m.mounted, m.at)
	first, err := m.backup(t.Context())
	m.must(err)
	m.wantRestored(&first)
	m.change("second")
	m.faults.Inject(faultsource.Fault{Call: faultsource.OpenFile, Path: "dir/file", Times: 1, Do: unmount})
	for _, when := range []string{"unmounted meanwhile", "not mounted"} {
		if s, err := m.backup(t.Context()); err == nil && s.State == backup.Committed {
			t.Errorf("%s: committed, %+v", when, s.Counts)
		}
	}
	treetest.Bind(t, m.mounted, m.at)
	s, err := m.backup(t.Context())
	m.must(err)
	m.wantRestored(&s)
}
