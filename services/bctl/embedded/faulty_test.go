package embedded_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A faultyMachine has a repository, a tree to back up, and a source with injected faults.
type faultyMachine struct {
	*repository
	faults  *faultsource.Source
	top     string // contains the tree and its source snapshots
	dir     string // the tree
	shard   backup.Shard
	changes int
}

func newFaultyMachine(t *testing.T) *faultyMachine {
	t.Helper()
	r := newRepository(t)
	m := &faultyMachine{repository: r, top: filepath.Join(r.memory, "top")}
	m.dir = filepath.Join(m.top, "snapshots/1")
	treetest.Make(t, m.dir, treetest.Tree{
		"keep/file": treetest.File("keep"), "keep/sub/deep": treetest.File("deep").WithXattr("user.x", "deep"), "keep/link": treetest.Symlink("file"),
		"dir/sub/below": treetest.File("below"), "dir/other file": treetest.File("other"), "dir/link": treetest.Symlink("x"), "dir/fifo": treetest.FIFO(),
	})
	m.change()
	m.faults = faultsource.New(posix.New(posix.Options{}))
	// The clock is ahead, so that nothing is racy.
	m.faults.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), posix.DefaultGrain })
	m.Source = m.faults
	return m
}

// newShard creates a shard of the tree that has no snapshot yet. If snapshots is set, its source
// snapshot is the tree.
func (m *faultyMachine) newShard(snapshots bool) {
	m.Helper()
	s := backup.Shard{Source: posix.URL(m.dir)}
	if snapshots {
		s.Source, s.Snapshots = posix.URL(m.top), "snapshots/*"
	}
	m.shard = m.addShard(s)
}

func (m *faultyMachine) backup() (backup.Snapshot, error) {
	return embedded.Backup(m.Context(), m.Options, m.shard, backup.Snapshot{}, nil)
}

// write writes random content to a file.
func (m *faultyMachine) write(path string, sizeBytes int) {
	m.Helper()
	data := make([]byte, sizeBytes)
	_, _ = rand.NewChaCha8([32]byte{byte(m.changes), byte(m.changes >> 8), byte(len(path))}).Read(data)
	m.must(os.WriteFile(path, data, 0o600))
}

// setXattr sets an attribute, also of symlinks, as far as this user is allowed to.
func (m *faultyMachine) setXattr(path, value string) {
	m.Helper()
	for _, name := range []string{"trusted.test", "user.test"} {
		err := unix.Lsetxattr(path, name, []byte(value), 0)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EOPNOTSUPP) {
			m.Fatal(err)
		}
	}
}

// A state is the content of a tree or a snapshot, by path.
type state map[string]entry

// An entry holds the compared attributes, and for a file the digest of its content.
type entry struct {
	kind            backup.Kind
	flags           backup.Flags
	mode            uint32
	size            int64
	mtime           backup.Time
	content, xattrs string
}

func mergedKeys(a, b state) state {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func digest(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))[:16]
}

// tree returns the tree as the kernel reports it.
func (m *faultyMachine) tree() state {
	m.Helper()
	now := state{}
	m.must(filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		e := entry{kind: backup.KindOfMode(st.Mode), mode: st.Mode & 0o7777, mtime: backup.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}}
		switch e.kind {
		case backup.File:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			e.size, e.content = int64(len(data)), digest(data)
		case backup.Symlink:
			if e.content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		for _, name := range []string{"trusted.test", "user.test", "user.x"} {
			value := make([]byte, 100)
			if n, err := unix.Lgetxattr(path, name, value); err == nil {
				e.xattrs += fmt.Sprintf("%s=%s ", name, value[:n])
			}
		}
		now[strings.TrimPrefix(strings.TrimPrefix(path, m.dir), "/")] = e
		return nil
	}))
	return now
}

// committed returns the content, according to the store, of a snapshot that must be committed. The
// attributes of a directory are those in its own page.
func (m *faultyMachine) committed(snap backup.Snapshot, err error) state {
	m.Helper()
	if err != nil || snap.State != backup.Committed {
		m.Fatalf("%s: %s, error %v", snap.State, snap.Reason, err)
	}
	got, listed := state{}, map[string]bool{"": true}
	var pages backup.PageSet
	for v, err := range m.Index.Pages(m.Context(), snap.ID, "") {
		m.must(err)
		pages.Add(listing.Digest(&v))
		p, err := listing.DecodePage(v)
		m.must(err)
		if p.Self != nil {
			got[p.Path] = m.entryOf(p.Self)
		}
		for i := range p.Entries {
			e := &p.Entries[i]
			path := backup.Join(p.Path, e.Name)
			if e.Kind == backup.Directory {
				listed[path] = true
			} else {
				got[path] = m.entryOf(e)
			}
		}
	}
	if pages != snap.Pages {
		m.Errorf("the snapshot has %d pages, and says that it has %d, or others", pages.Pages, snap.Pages.Pages)
	}
	for path, e := range got {
		if e.kind == backup.Directory && !listed[path] {
			m.Errorf("directory %q is in no listing", path)
		}
		delete(listed, path)
	}
	for path := range listed {
		m.Errorf("directory %q is listed, and has no page", path)
	}
	return got
}

func (m *faultyMachine) entryOf(e *backup.Entry) entry {
	m.Helper()
	got := entry{kind: e.Kind, flags: e.Flags.WithClass(backup.Unclassified), mode: e.Mode, size: e.Size, mtime: e.Mtime, content: e.Target}
	if e.Kind == backup.File {
		var data []byte
		for _, ref := range e.Content.Refs { // these files have neither lists nor holes
			data = append(data, m.chunk(ref.Chunk)...)
		}
		got.content = digest(data)
	}
	xattrs := e.Xattrs
	if e.XattrChunk.Length > 0 {
		var err error
		xattrs, err = listing.DecodeXattrs(m.chunk(e.XattrChunk.Chunk))
		m.must(err)
	}
	for _, x := range xattrs {
		got.xattrs += fmt.Sprintf("%s=%s ", x.Name, x.Value)
	}
	return got
}

// wantTree checks that a snapshot equals the tree, and that no problem was reported.
func (m *faultyMachine) wantTree(snap backup.Snapshot, err error) {
	m.Helper()
	m.wantState(m.committed(snap, err), m.tree())
	if n := snap.Counts; n.Errors+n.Vanished+n.Carried+n.Torn != 0 {
		m.Errorf("counts %+v of a snapshot that is the tree", n)
	}
}

func (m *faultyMachine) wantState(got, want state) {
	m.Helper()
	for path := range mergedKeys(got, want) {
		g, there := got[path]
		w, wanted := want[path]
		switch {
		case !wanted:
			m.Errorf("%q is in the snapshot: %+v", path, g)
		case !there:
			m.Errorf("%q is not in the snapshot", path)
		case g != w:
			m.Errorf("%q:\n got %+v\nwant %+v", path, g, w)
		}
	}
}
