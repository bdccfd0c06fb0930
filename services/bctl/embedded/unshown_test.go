package embedded_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A hidingSource shows no extended attributes while hides is set, like a mount without them.
type hidingSource struct {
	source.Source
	hides atomic.Bool
}

func (s *hidingSource) Open(ctx context.Context, url string) (source.Tree, error) {
	t, err := s.Source.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return hidingTree{t, s}, nil
}

type hidingTree struct {
	source.Tree
	s *hidingSource
}

func (t hidingTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	d, err := t.Tree.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	return hidingDirectory{d, t.s}, nil
}

type hidingDirectory struct {
	source.Directory
	s *hidingSource
}

func (d hidingDirectory) Xattrs(ctx context.Context, name string, kind backup.Kind) ([]backup.Xattr, error) {
	if d.s.hides.Load() {
		return nil, source.ErrNoXattrs
	}
	return d.Directory.Xattrs(ctx, name, kind)
}

func (d hidingDirectory) OpenFile(ctx context.Context, name string) (source.File, error) {
	f, err := d.Directory.OpenFile(ctx, name)
	if err != nil {
		return nil, err
	}
	return hidingFile{f, d.s}, nil
}

type hidingFile struct {
	source.File
	s *hidingSource
}

func (f hidingFile) Xattrs() ([]backup.Xattr, error) {
	if f.s.hides.Load() {
		return nil, source.ErrNoXattrs
	}
	return f.File.Xattrs()
}

func newHidingMachine(t *testing.T) (*faultyMachine, *hidingSource) {
	t.Helper()
	m := newFaultyMachine(t)
	m.setXattr(filepath.Join(m.dir, "dir/link"), "of a link")
	m.setXattr(filepath.Join(m.dir, "dir/fifo"), "of a pipe")
	m.setXattr(filepath.Join(m.dir, "dir"), "of a directory")
	m.must(os.Link(filepath.Join(m.dir, "keep/sub/deep"), filepath.Join(m.dir, "keep/link to deep")))
	m.newShard(false)
	s := &hidingSource{Source: m.Source}
	m.Source = s
	return m, s
}

// Extended attributes that a mount does not show are read once it shows them. If a mount shows them
// no more, those of unchanged entries stay, and those of changed ones are the last good ones, with
// an error.
func TestXattrsThatAMountDoesNotShow(t *testing.T) {
	m, s := newHidingMachine(t)
	unchanged := func(what string) {
		t.Helper()
		snap, err := m.backup()
		m.committed(snap, err)
		if snap.Segment.Parts > 0 || snap.Counts.Errors > 0 {
			t.Errorf("%s: %+v", what, snap)
		}
	}
	s.hides.Store(true)
	snap, err := m.backup()
	for path, e := range m.committed(snap, err) {
		if e.xattrs != "" || e.flags != backup.XattrsUnshown {
			t.Errorf("%q has %q, flags %d", path, e.xattrs, e.flags)
		}
	}
	if snap.Counts.Errors > 0 {
		t.Errorf("%+v", snap.Counts)
	}
	unchanged("not shown")
	s.hides.Store(false)
	m.wantTree(m.backup())
	unchanged("shown")
	want := m.tree()
	s.hides.Store(true)
	unchanged("shown no more")

	m.must(os.WriteFile(filepath.Join(m.dir, "keep/sub/deep"), []byte("changed"), 0o600))
	m.must(os.WriteFile(filepath.Join(m.dir, "keep/sub/new"), []byte("new"), 0o600))
	snap, err = m.backup()
	got := m.committed(snap, err)
	if e := got["keep/sub/deep"]; e.xattrs != want["keep/sub/deep"].xattrs || e.xattrs == "" || e.flags != backup.XattrsUnreadable || e.content == want["keep/sub/deep"].content {
		t.Errorf("a changed file: %+v", e)
	}
	if e := got["keep/link to deep"]; e.xattrs != want["keep/sub/deep"].xattrs || e.flags != backup.XattrsUnreadable {
		t.Errorf("another name of it: %+v", e)
	}
	if e := got["keep/sub/new"]; e.flags != backup.XattrsUnshown || e.content == "" {
		t.Errorf("a new file: %+v", e)
	}
	var problems []string
	for p, err := range m.Index.Problems(t.Context(), snap.ID) {
		m.must(err)
		problems = append(problems, p.Path+": "+p.Err)
	}
	slices.Sort(problems)
	if snap.Counts.Errors != 2 || len(problems) != 2 || !strings.HasPrefix(problems[0], "keep/link to deep: ") || !strings.HasPrefix(problems[1], "keep/sub/deep: ") || !strings.Contains(problems[0], "shows no extended attributes") {
		t.Errorf("%d errors, %q", snap.Counts.Errors, problems)
	}
	s.hides.Store(false)
	m.wantTree(m.backup())
}

// In whatever order mounts show and hide extended attributes and files change: none that a snapshot
// has is lost in the next one, and in the end, all are there.
func TestXattrsOfMountsThatAlternate(t *testing.T) {
	for seed := range uint64(8) {
		m, s := newHidingMachine(t)
		random := rand.New(rand.NewPCG(seed, 1))
		last := state{}
		for range 8 {
			s.hides.Store(random.IntN(2) == 0)
			for range random.IntN(4) {
				m.alter(random)
			}
			snap, err := m.backup()
			now := m.committed(snap, err)
			for path, was := range last {
				is, there := now[path]
				if there && s.hides.Load() && is.kind == was.kind && was.xattrs != "" && is.xattrs != was.xattrs {
					t.Errorf("seed %d: %q had %q, and has %q: flags %d", seed, path, was.xattrs, is.xattrs, is.flags)
				}
			}
			last = now
		}
		s.hides.Store(false)
		m.wantTree(m.backup())
	}
}

// alter changes an entry of the tree.
func (m *faultyMachine) alter(random *rand.Rand) {
	m.Helper()
	paths := []string{"keep/file", "keep/sub/deep", "dir/other file", "dir/fifo", "dir", "keep/sub"}
	path := filepath.Join(m.dir, paths[random.IntN(len(paths))])
	m.changes++
	switch random.IntN(4) {
	case 0:
		link := filepath.Join(m.dir, []string{"a", "keep/z", "dir/b"}[random.IntN(3)])
		_ = os.Remove(link)
		m.must(os.Link(filepath.Join(m.dir, paths[random.IntN(3)]), link))
	case 1:
		m.setXattr(path, string(rune('a'+m.changes%26)))
	case 2:
		m.must(os.Chmod(path, os.FileMode(0o700+m.changes%64)))
	default:
		var st unix.Stat_t
		if m.must(unix.Lstat(path, &st)); st.Mode&unix.S_IFMT == unix.S_IFREG {
			m.write(path, 10+m.changes)
		}
	}
}
