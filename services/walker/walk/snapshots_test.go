package walk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
)

const hourly = ".snapshot/hourly.*"

// below returns a tree moved into a directory.
func below(dir string, tree treetest.Tree) treetest.Tree {
	moved := treetest.Tree{}
	for path, e := range tree {
		moved[dir+"/"+path] = e
	}
	return moved
}

// rotate renames hourly.0 to hourly.1, and links its files into a new hourly.0, as rsnapshot does.
func (f *fixture) rotate() {
	f.Helper()
	f.remove(".snapshot/hourly.1")
	f.rename(".snapshot/hourly.0", ".snapshot/hourly.1")
	from, to := filepath.Join(f.dir, ".snapshot/hourly.1"), filepath.Join(f.dir, ".snapshot/hourly.0")
	must(f, filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		switch at := to + strings.TrimPrefix(path, from); {
		case err != nil:
			return err
		case d.IsDir():
			return os.Mkdir(at, 0o755)
		default:
			return os.Link(path, at)
		}
	}))
}

// The newest source snapshot is walked instead of the tree. Its result names it, and when the next
// snapshot uses another, nothing counts as new because of its path.
func TestSourceSnapshot(t *testing.T) {
	f := newFixture(t, merged(below(".snapshot/hourly.0", home), treetest.Tree{
		".snapshot/hourly.1/older": treetest.File("older"), "live": treetest.File("live"),
	}))
	f.snapshots, f.compare = hourly, backup.CompareMtime
	f.svc.budgets = budgetOf(2)
	w := f.snapshot()
	if len(w.parts) < 2 || w.parts[0].Source == "" || strings.Count(w.source, "hourly.0") != 1 {
		t.Fatalf("%d results, the first of source %q", len(w.parts), w.parts[0].Source)
	}
	for _, p := range w.parts[1:] {
		if p.Source != "" {
			t.Errorf("task %d has source %q as well", p.Task, p.Source)
		}
	}
	var files []string
	for path, e := range f.state(w) {
		if e.Kind != backup.Directory {
			files = append(files, path)
		}
	}
	slices.Sort(files)
	if want := []string{"ann/mail/1", "ann/mail/2", "ann/mail/old/0", "ann/notes", "bob/photos/a", "bob/photos/link", "bob/pipe", "readme"}; !slices.Equal(files, want) {
		t.Errorf("the snapshot has %q, want %q", files, want)
	}
	f.rotate()
	f.write(".snapshot/hourly.0/new", "new")
	again := f.snapshot()
	if got := again.wanted(t); !slices.Equal(got, []string{"new"}) || again.source == w.source {
		t.Errorf("to read %q of %s", got, again.source)
	}
}

// The directory that holds the source snapshots is not backed up if the file server lists it; below
// the root the name has no special meaning.
func TestSnapshotDirIsLeftOut(t *testing.T) {
	f := newFixture(t, below(".snapshot/hourly.0", treetest.Tree{
		".snapshot/hourly.0/file": treetest.File("x"), "sub/.snapshot/file": treetest.File("x"), "file": treetest.File("x"),
	}))
	f.snapshots = hourly
	state := f.state(f.snapshot())
	for path, want := range map[string]bool{".snapshot": false, ".snapshot/hourly.0/file": false, "sub/.snapshot/file": true, "file": true} {
		if _, got := state[path]; got != want {
			t.Errorf("%s is in the snapshot: %v", path, got)
		}
	}
	f.remove(".snapshot/hourly.0/.snapshot")
	f.write(".snapshot/hourly.0/.snapshot", "a file")
	if _, ok := f.state(f.snapshot())[".snapshot"]; !ok {
		t.Error("a file of that name is not in the snapshot")
	}
	for pattern, want := range map[string]string{"": "", "hourly.*": "", ".zfs/snapshot/*": ".zfs", ".snap*/x": "", "daily/latest": "daily"} {
		if got := snapshotDir(pattern); got != want {
			t.Errorf("of %q %q is left out, want %q", pattern, got, want)
		}
	}
}

// A source snapshot that expires while it is walked fails the snapshot: files that vanished with it
// were not deleted.
func TestSourceSnapshotExpires(t *testing.T) {
	for name, test := range map[string]struct {
		tree   treetest.Tree
		expire func(f *fixture)
	}{
		"removed": {linksOfParts(), func(f *fixture) { f.remove(".snapshot/hourly.0") }},
		"rotated": {home, func(f *fixture) { f.rotate() }},
		// As far as the deletion has progressed.
		"emptied": {home, func(f *fixture) { f.remove(".snapshot/hourly.0/ann") }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, below(".snapshot/hourly.0", test.tree))
			f.snapshots, f.compare = hourly, backup.CompareMtime
			f.svc.budgets, f.svc.opts.Directories = budgetOf(1), 1
			task := f.rootTask()
			task.Job.Snapshots, task.Job.Compare = hourly, f.compare
			must(t, f.walk(t.Context(), task))
			sent := f.take()
			f.apply(sent...)
			children, err := f.index.ClaimTasks(t.Context(), f.claim(backup.Snapshot{ID: task.Job.Snapshot}))
			must(t, err)
			child := &children[0]
			child.Job.Source = sent[len(sent)-1].Source
			f.svc.budgets = budgetOf(1000)
			child.Directories = nil // all of them: the result would have parts
			for _, c := range children {
				child.Directories = append(child.Directories, c.Directories...)
			}

			var opened atomic.Int32
			f.svc.source = &hookedSource{Source: posix.New(posix.Options{}), onDirectory: func(string, string) {
				if opened.Add(1) == 2 {
					test.expire(f)
				}
			}}
			must(t, f.walk(t.Context(), child))
			f.wantExpired(f.take())
			must(t, f.walk(t.Context(), child)) // it is gone from the beginning
			f.wantExpired(f.take())
		})
	}
}

// A missing root is reported as such.
func TestSourceSnapshotExpiresAtTheRoot(t *testing.T) {
	f := newFixture(t, below(".snapshot/hourly.0", home))
	f.svc.source = &hookedSource{Source: posix.New(posix.Options{}), onDirectory: func(string, string) { f.remove(".snapshot/hourly.0") }}
	task := f.rootTask()
	task.Job.Snapshots = hourly
	must(t, f.walk(t.Context(), task))
	f.wantExpired(f.take())
}

func (f *fixture) wantExpired(sent []*backup.SliceWalked) {
	f.Helper()
	if len(sent) != 1 || !sent[0].Last || len(sent[0].Removed)+len(sent[0].Pages) > 0 {
		f.Errorf("%d results were sent of a source snapshot that has expired", len(sent))
		return
	}
	for _, want := range []string{source.ErrExpired.Error(), ".snapshot/hourly.0", "kept for longer"} {
		if !strings.Contains(sent[0].Failed, want) {
			f.Errorf("it failed with %q, which does not say %q", sent[0].Failed, want)
		}
	}
}

func TestNoSourceSnapshot(t *testing.T) {
	f := newFixture(t, home)
	task := f.rootTask()
	task.Job.Snapshots = hourly
	must(t, f.walk(t.Context(), task))
	if sent := f.take(); len(sent) != 1 || !strings.Contains(sent[0].Failed, hourly) || !strings.Contains(sent[0].Failed, f.dir) {
		t.Errorf("sent %+v", sent)
	}
}

// A source snapshot that is rotated away between being found and being opened is looked for again.
func TestRotatedWhileResolved(t *testing.T) {
	f := newFixture(t, below(".snapshot/hourly.0", home))
	f.snapshots = hourly
	var rotated atomic.Int32
	f.svc.source = &hookedSource{Source: posix.New(posix.Options{}), onOpen: func(string) error {
		if rotated.Add(1) < resolveTries {
			f.rotate()
		}
		return nil
	}}
	if w := f.snapshot(); w.counts.Files != int64(len(home)-1) {
		t.Errorf("counts %+v", w.counts)
	}
	f.svc.source = &hookedSource{Source: posix.New(posix.Options{}), onOpen: func(string) error { return source.ErrExpired }}
	task := f.rootTask()
	task.Job.Snapshots = hourly
	must(t, f.walk(t.Context(), task))
	if sent := f.take(); len(sent) != 1 || !strings.Contains(sent[0].Failed, source.ErrExpired.Error()) {
		t.Errorf("sent %+v", sent)
	}
}

// If it is unknown whether a snapshot still exists, the snapshot does not fail, and nothing is
// sent.
func TestCheckFails(t *testing.T) {
	f := newFixture(t, home)
	task := f.rootTask()
	r := newFindings(f.svc, task)
	away := errors.New("away")
	r.check = func(context.Context) error { return away }
	if err := r.finish(t.Context()); !errors.Is(err, away) {
		t.Errorf("error %v", err)
	}
	if sent := f.take(); len(sent) > 0 {
		t.Errorf("sent %+v", sent)
	}
}
