//go:build linux

package restore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// caseless shows a directory through FUSE as a file system that preserves the case of names and
// ignores it.
type caseless struct {
	fuse.RawFileSystem
	noReplace bool // supports RENAME_NOREPLACE; NFS does not

	mu    sync.Mutex
	paths map[uint64]string // of directories, by node
}

// stored returns the name under which a directory has name.
func (c *caseless) stored(node uint64, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, _ := os.ReadDir(c.paths[node]) // a directory that does not exist has no names
	for _, e := range entries {
		if strings.EqualFold(e.Name(), name) {
			return e.Name()
		}
	}
	return name
}

func (c *caseless) has(node uint64, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := os.Lstat(filepath.Join(c.paths[node], name))
	return err == nil
}

func (c *caseless) entered(node uint64, name string, out *fuse.EntryOut, status fuse.Status) fuse.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if status.Ok() && out.NodeId != 0 {
		c.paths[out.NodeId] = filepath.Join(c.paths[node], name)
	}
	return status
}

func (c *caseless) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	name = c.stored(h.NodeId, name)
	return c.entered(h.NodeId, name, out, c.RawFileSystem.Lookup(cancel, h, name, out))
}

func (c *caseless) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	name = c.stored(in.NodeId, name)
	return c.entered(in.NodeId, name, out, c.RawFileSystem.Mkdir(cancel, in, name, out))
}

func (c *caseless) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	name = c.stored(in.NodeId, name)
	return c.RawFileSystem.Create(cancel, in, name, out)
}

func (c *caseless) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return c.RawFileSystem.Symlink(cancel, h, target, c.stored(h.NodeId, name), out)
}

func (c *caseless) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.RawFileSystem.Link(cancel, in, c.stored(in.NodeId, name), out)
}

func (c *caseless) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return c.RawFileSystem.Unlink(cancel, h, c.stored(h.NodeId, name))
}

func (c *caseless) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return c.RawFileSystem.Rmdir(cancel, h, c.stored(h.NodeId, name))
}

func (c *caseless) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if in.Flags != 0 && !c.noReplace {
		return fuse.EINVAL
	}
	from, to = c.stored(in.NodeId, from), c.stored(in.Newdir, to)
	if in.Flags != 0 && c.has(in.Newdir, to) {
		return fuse.Status(unix.EEXIST)
	}
	in.Flags = 0
	return c.RawFileSystem.Rename(cancel, in, from, to)
}

// caselessDir mounts a file system that ignores case, and returns a directory of it.
func caselessDir(t *testing.T, noReplace bool) string {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("takes FUSE: ", err)
	}
	backing, at := t.TempDir(), t.TempDir()
	root, err := fs.NewLoopbackRoot(backing)
	check(t, err)
	raw := &caseless{
		RawFileSystem: fs.NewNodeFS(root, &fs.Options{}), noReplace: noReplace,
		paths: map[uint64]string{fuse.FUSE_ROOT_ID: backing},
	}
	server, err := fuse.NewServer(raw, at, &fuse.MountOptions{FsName: "caseless", DirectMountStrict: true, DisableReadDirPlus: true})
	if errors.Is(err, unix.EPERM) {
		t.Skip("takes the right to mount: ", err)
	}
	check(t, err)
	go server.Serve() // until it is unmounted
	t.Cleanup(func() { check(t, server.Unmount()) })
	check(t, server.WaitMount())
	return at
}

const (
	sharedName = "another file of the snapshot has this name here: the target ignores case"
	otherCase  = "the target ignores case, and has this name with letters of other case"
)

// Names of a snapshot that a target considers equal are never confused.
func TestTargetThatIgnoresCase(t *testing.T) {
	for what, noReplace := range map[string]bool{"renames without replacing": true, "no such renames": false} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			big := f.file("BIG", "12")
			big.Content.Refs = []backup.Ref{f.chunk([]byte("1"), 0), f.chunk([]byte("2"), 0)}
			small := f.file("big", "34")
			small.Content.Refs = []backup.Ref{f.chunk([]byte("3"), 0), f.chunk([]byte("4"), 0)}
			one, two := f.file("linked", "l"), f.file("LINKED", "l")
			one.Nlink, two.Nlink = 2, 2
			f.directory("", f.file("file", "f"), f.file("FILE", "F"), big, small, one, two, symlink("link", "a"), symlink("LINK", "b"),
				subdirectory("dir"), subdirectory("DIR"), f.file("kind", "k"), subdirectory("KIND"), f.file("plain", "p"))
			f.directory("dir", f.file("a", "a"))
			f.directory("DIR", f.file("a", "b"))
			f.directory("KIND", f.file("a", "b"))
			target := filepath.Join(caselessDir(t, noReplace), "target")
			_, obs := f.restore(Options{Target: target})
			if len(obs.problems) != 6 {
				t.Errorf("%d problems, want one of each pair: %v", len(obs.problems), obs.problems)
			}
			for _, p := range obs.problems {
				obs.wantText(t, p.Path, sharedName)
			}
			before := allNames(t, target)
			// KIND is a file, or a directory that contains a file.
			if len(before) != 9 && len(before) != 10 {
				t.Errorf("%q", before)
			}

			for _, o := range []Options{{}, {Delete: true}, {Overwrite: Always}, {Overwrite: Never}, {DryRun: true}} {
				o.Target = target
				_, obs := f.restore(o)
				if len(obs.problems) != 6 {
					t.Errorf("%+v: %d problems, want one of each pair: %v", o, len(obs.problems), obs.problems)
				}
				for _, p := range obs.problems {
					obs.wantText(t, p.Path, otherCase)
				}
				if after := allNames(t, target); strings.Join(after, " ") != strings.Join(before, " ") {
					t.Errorf("%+v: %q, was %q", o, after, before)
				}
			}
		})
	}
}

// An existing name that differs only in case is neither replaced nor deleted. A name that the
// snapshot has in no case is deleted.
func TestDeleteWhereCaseIsIgnored(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("readme", "r"), f.file("other", "o"), subdirectory("dir"))
	f.directory("dir", f.file("in", "i"))
	target := caselessDir(t, true)
	tree(t, target, "README", "other", "UNKNOWN", "Dir/precious")
	_, obs := f.restore(Options{Target: target, Delete: true})
	obs.wantProblems(t, "readme", "dir")
	obs.wantText(t, "readme", otherCase)
	obs.wantText(t, "dir", otherCase)
	wantNames(t, target, "README", "other", "Dir")
	wantFile(t, filepath.Join(target, "README"), "README")
	wantFile(t, filepath.Join(target, "other"), "o")

	// Hard links whose names differ in case are two names if case is significant.
	f = newFixture(t)
	one, two := f.file("file", "f"), f.file("FILE", "f")
	one.Nlink, two.Nlink = 2, 2
	f.directory("", one, two)
	target = t.TempDir()
	f.restore(Options{Target: target})
	check(t, os.Link(filepath.Join(target, "file"), filepath.Join(target, "File")))
	_, obs = f.restore(Options{Target: target, Delete: true})
	obs.wantProblems(t)
	wantNames(t, target, "file", "FILE")
}
