package embedded_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// If a directory vanishes between walk and read, its files are missing from the snapshot. A restore
// reports that, and the next backup has them at their new place.
func TestDirectoryRenamedBeforeItIsRead(t *testing.T) {
	for what, test := range map[string]struct {
		files int
		at    faultsource.Fault
		do    func(dir string) error
		lost  bool
	}{
		"renamed":        {files: 20, do: rename, lost: true},
		"renamed, large": {files: 2000, do: rename, lost: true}, // of many pages
		"replaced":       {files: 20, do: func(dir string) error { return errors.Join(rename(dir), os.Mkdir(dir, 0o700)) }, lost: true},
		"removed":        {files: 20, do: os.RemoveAll, lost: true},
		"the parent":     {files: 20, do: func(dir string) error { return rename(filepath.Dir(dir)) }, lost: true},
		"removed later":  {files: 20, at: faultsource.Fault{Call: faultsource.OpenFile, Path: "top/dir/file 0005"}, do: os.RemoveAll, lost: true},
		// The part below.
		"renamed later":    {files: 20, at: faultsource.Fault{Call: faultsource.OpenFile, Path: "top/dir/file 0005"}, do: rename, lost: true},
		"files alone":      {files: 20, do: emptied},
		"some files alone": {files: 20, do: func(dir string) error { return os.Remove(filepath.Join(dir, "file 0005")) }},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t)
			faults := faultsource.New(m.Source)
			// Nothing is racy.
			faults.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
			m.Source = faults
			dir := filepath.Join(m.tree, "top/dir")
			treetest.Make(t, m.tree, treetest.Tree{"beside": treetest.File("b"), "top/dir/sub/below": treetest.File("below")})
			for i := range test.files {
				m.must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("file %04d", i)), []byte(fmt.Sprint("content ", i)), 0o600))
			}
			at := test.at
			if at.Call == "" { // the reader opens it after the walker
				at = faultsource.Fault{Call: faultsource.OpenDirectory, Path: "top/dir", After: 1}
			}
			at.Times, at.Do = 1, func() { m.must(test.do(dir)) }
			happens := faults.Inject(at)
			// Most of the tree vanishes.
			s, err := embedded.Backup(t.Context(), m.Options, m.shard, backup.Snapshot{AllowShrink: true}, nil)
			m.must(err)
			if happens.Happened() == 0 {
				t.Fatal("nothing happened")
			}
			if s.State != backup.Committed || s.Counts.Errors != 0 {
				t.Fatalf("%s %s: %+v", s.State, s.Reason, s.Counts)
			}
			target := filepath.Join(t.TempDir(), "restored")
			reported, err := m.restore(t.Context(), &s, target)
			m.must(err)
			named := slices.ContainsFunc(reported, func(p backup.Problem) bool { return strings.HasPrefix(p.Path, "top/dir") })
			if named != test.lost {
				t.Errorf("the restore reports %v", reported)
			}
			if test.lost && s.Counts.Vanished == 0 {
				t.Errorf("%+v", s.Counts)
			}
			s, err = m.backup(t.Context())
			m.must(err)
			m.wantRestored(&s)
		})
	}
}

func rename(dir string) error { return os.Rename(dir, dir+" 2") }

func emptied(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "file *"))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}
