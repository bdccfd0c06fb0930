//go:build linux

package e2e_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
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
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs FUSE: ", err)
	}
	backing, at := t.TempDir(), t.TempDir()
	root, err := fs.NewLoopbackRoot(backing)
	if err != nil {
		t.Fatal(err)
	}
	raw := &caseless{
		RawFileSystem: fs.NewNodeFS(root, &fs.Options{}), noReplace: noReplace,
		paths: map[uint64]string{fuse.FUSE_ROOT_ID: backing},
	}
	server, err := fuse.NewServer(raw, at, &fuse.MountOptions{FsName: "caseless", DirectMountStrict: true, DisableReadDirPlus: true})
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs the right to mount: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve() // until it is unmounted
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	return at
}

const (
	sharedName = "the target ignores case, and another file of the snapshot already has this name there"
	otherCase  = "the target ignores case, and has an entry whose name differs only in case"
)

// wantProblems checks that a restore reports the same problem for each of the paths, and no other.
func wantProblems(t *testing.T, out fleet.Output, want string, paths int) {
	t.Helper()
	problems := out.Problems(t)
	if out.Status != 3 || len(problems) != paths {
		t.Errorf("%d problems, want %d: %s", len(problems), paths, out)
	}
	for _, p := range problems {
		if !strings.Contains(p.Error, want) {
			t.Errorf("%s: %q, want %q", p.Path, p.Error, want)
		}
	}
}

// contents returns the content of the files in a directory tree, and "/" for its directories, by
// path.
func contents(t *testing.T, directory string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(directory, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		found[name] = "/"
		if d.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found[name] = string(content)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Names of a snapshot that a target considers equal are never confused.
func TestTargetThatIgnoresCase(t *testing.T) {
	repo, tree := fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{
		"file": treetest.File("f"), "FILE": treetest.File("F"), "big": treetest.File(strings.Repeat("b", 3<<20)), "BIG": treetest.File(strings.Repeat("B", 3<<20)),
		"linked": treetest.File("l"), "LINKED": treetest.HardLink("linked"), "link": treetest.Symlink("a"), "LINK": treetest.Symlink("b"),
		"dir": treetest.Dir(), "dir/a": treetest.File("a"), "DIR": treetest.Dir(), "DIR/a": treetest.File("b"),
		"kind": treetest.File("k"), "KIND": treetest.Dir(), "KIND/a": treetest.File("b"), "plain": treetest.File("p"),
	})
	settle(t)
	repo.Backup(tree)
	for what, noReplace := range map[string]bool{"renames without replacing": true, "no such renames": false} {
		t.Run(what, func(t *testing.T) {
			target := filepath.Join(caselessDir(t, noReplace), "target")
			first := repo.Run("restore", "latest", "--json", "--target", target)
			wantProblems(t, first, sharedName, 6)
			before := contents(t, target)
			for name, content := range before {
				if want, err := os.ReadFile(filepath.Join(tree, name)); err == nil && string(want) != content {
					t.Errorf("%s has %d bytes of another file", name, len(content))
				}
			}
			for _, flags := range [][]string{{}, {"--delete"}, {"--overwrite", "always"}, {"--overwrite", "never"}, {"--dry-run"}} {
				again := repo.Run(append([]string{"restore", "latest", "--json", "--target", target}, flags...)...)
				wantProblems(t, again, otherCase, 6)
				if after := contents(t, target); !maps.Equal(after, before) {
					t.Errorf("%q: there was\n%q\nand now there is\n%q", flags, before, after)
				}
			}
		})
	}
}

// An existing name that differs only in case is neither replaced nor deleted. A name that the
// snapshot has in no case is deleted.
func TestDeleteWhereCaseIsIgnored(t *testing.T) {
	repo, tree := fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{
		"readme": treetest.File("r"), "other": treetest.File("o"), "dir": treetest.Dir(), "dir/in": treetest.File("i"),
	})
	settle(t)
	repo.Backup(tree)
	target := filepath.Join(caselessDir(t, true), "target")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	treetest.Make(t, target, treetest.Tree{
		"README": treetest.File("mine"), "other": treetest.File("mine"), "UNKNOWN": treetest.File("mine"),
		"Dir": treetest.Dir(), "Dir/precious": treetest.File("mine"),
	})
	wantProblems(t, repo.Run("restore", "latest", "--json", "--target", target, "--delete"), otherCase, 2)
	want := map[string]string{".": "/", "README": "mine", "other": "o", "Dir": "/", "Dir/precious": "mine"}
	if found := contents(t, target); !maps.Equal(found, want) {
		t.Errorf("there is %q, want %q", found, want)
	}
}
