package embedded_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A cachedHoles is a source that reports holes in the directory b as data: the kernel's report
// about space that is allocated but not written depends on its page cache.
type cachedHoles struct{ source.Source }

// Open implements source.Source.
func (s cachedHoles) Open(ctx context.Context, url string) (source.Tree, error) {
	t, err := s.Source.Open(ctx, url)
	return cachedTree{t}, err
}

type cachedTree struct{ source.Tree }

func (t cachedTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	d, err := t.Tree.OpenDirectory(ctx, path)
	if err != nil || path != "b" {
		return d, err
	}
	return cachedDirectory{d}, nil
}

type cachedDirectory struct{ source.Directory }

func (d cachedDirectory) OpenFile(ctx context.Context, name string) (source.File, error) {
	f, err := d.Directory.OpenFile(ctx, name)
	if err != nil {
		return nil, err
	}
	return cachedFile{f}, nil
}

type cachedFile struct{ source.File }

func (cachedFile) NextExtent(offset, size int64) (start, length int64, err error) {
	return offset, size - offset, nil
}

// Hard links to one file that were read at different times stay one file, wherever its holes were
// found each time.
func TestLinksOfAFileWithHoles(t *testing.T) {
	m := newMachine(t)
	late := faultsource.New(cachedHoles{m.Source})
	// Nothing is racy.
	late.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
	m.Source = late
	treetest.Make(t, m.tree, treetest.Tree{"a": treetest.Dir(), "b": treetest.Dir()})
	from, to := filepath.Join(m.tree, "a/g"), filepath.Join(m.tree, "b/g")
	m.must(os.WriteFile(from, make([]byte, 1<<20), 0o600))
	m.must(os.Truncate(from, 10<<20))
	m.must(os.Link(from, to))
	first, err := embedded.Backup(t.Context(), m.Options, m.shard, backup.Snapshot{Selection: backup.Selection{Exclude: []string{"/b"}}}, nil)
	m.must(err)
	if first.Counts.ReadBytes >= 10<<20 {
		t.Fatalf("the first name was read with its holes: %+v", first.Counts)
	}
	s, err := m.backup(t.Context())
	m.must(err)
	if s.Counts.ReadBytes < 10<<20 {
		t.Fatalf("the second name was not read with its holes: %+v", s.Counts)
	}
	target := filepath.Join(t.TempDir(), "restored")
	reported, err := m.restore(t.Context(), &s, target)
	m.must(err)
	if len(reported) > 0 {
		t.Errorf("problems: %v", reported)
	}
	treetest.Equal(t, m.tree, target)
	var a, b unix.Stat_t
	m.must(errors.Join(unix.Stat(filepath.Join(target, "a/g"), &a), unix.Stat(filepath.Join(target, "b/g"), &b)))
	if a.Ino != b.Ino {
		t.Error("the names are two files")
	}
}
