package embedded_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// damage replaces the listings of the directory's pages, either all or only the first.
func (r *repository) damage(path, listing string, first bool) {
	r.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(r.memory, "index.db")+"?_pragma=busy_timeout(60000)")
	r.must(err)
	defer db.Close()
	query := "UPDATE pages SET listing = " + listing + " WHERE path_key = ?"
	if first {
		query += " AND page = 0"
	}
	done, err := db.Exec(query, backup.PathKey(path))
	r.must(err)
	if n, err := done.RowsAffected(); n == 0 || err != nil {
		r.Fatalf("%d pages of %q: %v", n, path, err)
	}
}

// A damaged page of the index is written again when its directory changes. No backup fails, the
// damage is reported once, and the snapshot is complete.
func TestDamagedPageIsMadeAnew(t *testing.T) {
	for form, listing := range map[string]string{"other bytes": "x'0102030405'", "half": "substr(listing, 1, length(listing) / 2)", "nothing": "x''"} {
		for what, test := range map[string]struct {
			path   string
			first  bool
			change func(m *machine, dir string) error
		}{
			"a new file": {path: "dir", change: func(_ *machine, dir string) error {
				return os.WriteFile(filepath.Join(dir, "new"), []byte("new"), 0o600)
			}},
			"a file goes":      {path: "dir", change: func(_ *machine, dir string) error { return os.Remove(filepath.Join(dir, "file 0003")) }},
			"a directory goes": {path: "dir", change: func(_ *machine, dir string) error { return os.RemoveAll(filepath.Join(dir, "sub")) }},
			"a directory goes from the root": {path: "", change: func(_ *machine, dir string) error {
				return os.RemoveAll(filepath.Join(dir, "gone"))
			}},
			"a page of many":  {path: "large", first: true, change: func(_ *machine, dir string) error { return os.Chmod(dir, 0o711) }},
			"all pages":       {path: "large", change: func(_ *machine, dir string) error { return emptied(dir) }},
			"a file in it":    {path: "", change: func(_ *machine, dir string) error { return os.WriteFile(filepath.Join(dir, "top"), []byte("2"), 0o600) }},
			"it is moved":     {path: "dir", change: func(_ *machine, dir string) error { return rename(dir) }},
			"it goes":         {path: "dir", change: func(_ *machine, dir string) error { return os.RemoveAll(dir) }},
			"a kind of entry": {path: "dir", change: replaceBySymlink},
		} {
			if test.path == "large" && form != "half" {
				continue
			}
			t.Run(form+"/"+what, func(t *testing.T) {
				m := newMachine(t)
				faults := faultsource.New(m.Source)
				// Nothing is racy.
				faults.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
				m.Source = faults
				treetest.Make(t, m.tree, treetest.Tree{
					"top": treetest.File("top"), "dir/file 0003": treetest.File("3"), "dir/sub/deep/file": treetest.File("deep"),
					"dir/other/file": treetest.File("other"), "gone/deep/file": treetest.File("gone"), "large/sub/file": treetest.File("large"),
				})
				for i := range 2000 {
					if test.path != "large" {
						break
					}
					m.must(os.WriteFile(filepath.Join(m.tree, "large", fmt.Sprintf("file %04d", i)), nil, 0o600))
				}
				_, err := m.backup(t.Context())
				m.must(err)
				m.damage(test.path, listing, test.first)
				m.must(test.change(m, filepath.Join(m.tree, test.path)))
				// Most of it may vanish.
				s, err := embedded.Backup(t.Context(), m.Options, m.shard, backup.Snapshot{AllowShrink: true}, nil)
				m.must(err)
				if s.State != backup.Committed || s.Counts.Vanished+s.Counts.Carried != 0 {
					t.Errorf("%s %s %+v", s.State, s.Reason, s.Counts)
				}
				if s.Counts.Errors == 0 && what != "it goes" && what != "it is moved" {
					t.Error("nothing is said")
				}
				m.wantRestored(&s)
				s, err = m.backup(t.Context())
				m.must(err)
				if s.Counts.Errors != 0 {
					t.Errorf("the next backup: %+v", s.Counts)
				}
				m.wantRestored(&s)
			})
		}
	}
}

func replaceBySymlink(_ *machine, dir string) error {
	return errors.Join(os.RemoveAll(filepath.Join(dir, "sub")), os.Symlink("x", filepath.Join(dir, "sub")))
}

// An unreadable directory with a damaged page does not fail a backup either; a restore reports it.
func TestDamagedPageOfWhatCannotBeRead(t *testing.T) {
	for what, fault := range map[string]faultsource.Fault{
		"the directory": {Call: faultsource.List, Path: "dir"},
		"an entry":      {Call: faultsource.StatEntry, Path: "dir/file"},
		"a file":        {Call: faultsource.Read, Path: "dir/file"},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t)
			faults := faultsource.New(m.Source)
			faults.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
			m.Source = faults
			treetest.Make(t, m.tree, treetest.Tree{"top": treetest.File("top"), "dir/file": treetest.File("1"), "dir/sub/file": treetest.File("2")})
			_, err := m.backup(t.Context())
			m.must(err)
			m.damage("dir", "x'0102030405'", false)
			fault.Err = faultsource.Posix(fault.Call, syscall.EACCES)
			fails := faults.Inject(fault)
			m.must(os.WriteFile(filepath.Join(m.tree, "dir/file"), []byte("changed"), 0o600))
			s, err := m.backup(t.Context())
			m.must(err)
			if s.State != backup.Committed || s.Counts.Errors < 2 {
				t.Errorf("%s %s %+v", s.State, s.Reason, s.Counts)
			}
			reported, err := m.restore(t.Context(), &s, filepath.Join(t.TempDir(), "restored"))
			m.must(err)
			if len(reported) == 0 {
				t.Error("the restore reports nothing")
			}
			fails.Lift()
			m.must(os.WriteFile(filepath.Join(m.tree, "dir/new"), nil, 0o600))
			_, err = m.backup(t.Context())
			m.must(err)
			s, err = m.backup(t.Context())
			m.must(err)
			m.wantRestored(&s)
		})
	}
}
