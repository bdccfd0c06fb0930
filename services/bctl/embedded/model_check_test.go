package embedded_test

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// An attempt is one backup, and the conditions when it was made.
type attempt struct {
	*model
	request backup.Snapshot
	faults  []*faultsource.Injected
	hidden  []string // mount points without a mount: everything below does not exist
	kept    []string // likewise, but the last snapshot has the mounted files
	last    *taken   // nil: there is none
}

// look determines the expected content of the snapshot.
func (a *attempt) look() {
	if n := len(a.taken); n > 0 {
		a.last = &a.taken[n-1]
	}
	for _, at := range mountPoints {
		switch {
		case a.volumes.mounts[at].mounted:
		case a.last != nil && !a.request.AllowShrink && a.wasMounted(at):
			a.kept = append(a.kept, at)
		default:
			a.hidden = append(a.hidden, at)
		}
	}
}

// wasMounted reports whether the last snapshot has a file system at a path.
func (a *attempt) wasMounted(at string) bool {
	for v, err := range a.r.Index.Pages(a.r.Context(), a.last.snap.ID, at) {
		a.must(err)
		p, err := listing.DecodePage(v)
		a.must(err)
		return p.Self != nil && p.Self.Flags&backup.Boundary != 0
	}
	return false
}

// happened returns how often a fault has occurred.
func (a *attempt) happened() (n int) {
	for _, f := range a.faults {
		n += f.Happened()
	}
	return n
}

// isWithin reports whether a path is equal to or below one of the others. Nothing counts as below
// the root: if it cannot be read, there is no snapshot.
func isWithin(path string, of []string) bool {
	return slices.ContainsFunc(of, func(at string) bool { return path == at || at != "" && strings.HasPrefix(path, at+"/") })
}

// faulty returns the paths at which a fault has occurred, and those of them that therefore appear
// not to exist.
func (a *attempt) faulty() (all, gone []string) {
	for _, f := range a.faults {
		if f.Happened() == 0 {
			continue
		}
		all = append(all, f.Path)
		if errors.Is(f.Err, syscall.ENOENT) || errors.Is(f.Err, syscall.ENOTDIR) || errors.Is(f.Err, syscall.ELOOP) {
			gone = append(gone, f.Path)
		}
	}
	return all, gone
}

// leftOut reports whether a path must not be in the snapshot.
func (a *attempt) leftOut(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if slices.Contains(a.request.Selection.Exclude, name) {
			return true
		}
	}
	return isWithin(path, a.hidden) && !slices.Contains(a.hidden, path)
}

func pathsOf(problems []backup.Problem) (paths []string) {
	for _, p := range problems {
		paths = append(paths, p.Path)
	}
	slices.Sort(paths)
	return paths
}

// check checks a committed snapshot.
func (a *attempt) check(snap *backup.Snapshot) {
	if !slices.Equal(snap.Tags, a.request.Tags) || !slices.Equal(snap.Selection.Exclude, a.request.Selection.Exclude) {
		a.Errorf("tags %q, selection %+v; asked for %+v", snap.Tags, snap.Selection, a.request)
	}
	var said []string
	for p, err := range a.r.Index.Problems(a.r.Context(), snap.ID) {
		a.must(err)
		said = append(said, p.Path)
	}
	if int64(len(said)) != snap.Counts.Errors {
		a.Errorf("%d problems, counted as %d", len(said), snap.Counts.Errors)
	}
	if found := a.r.check(check.Objects); len(found) > 0 {
		a.Errorf("a check finds %q", found)
	}
	now := taken{snap: *snap, restored: filepath.Join(a.top, fmt.Sprint("snapshot-", snap.Number))}
	reported, err := a.r.restore(a.r.Context(), snap, now.restored)
	a.must(err)
	now.flawed = pathsOf(reported)
	c := &verdict{attempt: a, taken: &now, said: said}
	c.reasons()
	c.differences()
	c.leftOutIsMissing()
	c.links()
	a.taken = append(a.taken, now)
	if a.Failed() {
		a.Fatalf("snapshot %d, asked for as %+v; faults %v; unmounted %q and %q; problems %q; restore reported %v; %+v",
			snap.Number, a.request.Selection, a.describeFaults(), a.hidden, a.kept, said, reported, snap.Counts)
	}
}

func (a *attempt) describeFaults() (text []string) {
	for _, f := range a.faults {
		text = append(text, fmt.Sprintf("%s %q: %v, %d times", f.Call, f.Path, cmp.Or(f.Err, errors.New("short")), f.Happened()))
	}
	return text
}

// A verdict compares the tree with its restored snapshot.
type verdict struct {
	*attempt
	*taken
	said []string // paths with problems in the snapshot
}

// reasons checks that no problem is reported without a reason.
func (c *verdict) reasons() {
	faulty, gone := c.faulty()
	for _, path := range c.said {
		dir, _ := backup.Split(path) // the reader opens it for the files in it
		if !isWithin(path, faulty) && !slices.Contains(faulty, dir) && !slices.Contains(c.kept, path) {
			c.Errorf("%q: a problem without a reason", path)
		}
	}
	for _, path := range c.flawed {
		if !isWithin(path, c.said) && !isWithin(path, gone) {
			c.Errorf("%q: the restore reports what the snapshot does not", path)
		}
	}
	for _, at := range c.kept {
		if !isWithin(at, c.said) && !isWithin(at, gone) {
			c.Errorf("%q is not mounted any more, and nothing is said", at)
		}
	}
	if n := c.snap.Counts.Vanished; n > 0 && len(gone) == 0 {
		c.Errorf("%d have vanished of a tree that nobody changes", n)
	}
}

// A difference is one aspect in which a path differs.
type difference struct{ path, aspect string }

// compare returns the differences of two trees, except for hard links.
func compare(a, b string) map[difference]string {
	found := map[difference]string{}
	for _, line := range treetest.Compare(a, b, aspects()...) {
		path, what, _ := strings.Cut(line, ": ")
		path = strings.TrimPrefix(strings.Trim(path, `"`), ".")
		words := strings.Fields(what)
		aspect := words[0]
		switch aspect {
		case "hard":
			continue
		case "size":
			aspect = "content"
		case "xattr":
			aspect += " " + words[1]
		}
		found[difference{path, aspect}] = line
	}
	return found
}

// aspects returns the aspects that this user cannot restore.
func aspects() []treetest.Aspect {
	if os.Geteuid() == 0 {
		return nil
	}
	return []treetest.Aspect{treetest.Owner}
}

// differences checks that the snapshot equals the tree, except for exclusions, reported paths, and
// paths that appeared not to exist; and that reported paths are as in the last snapshot.
func (c *verdict) differences() {
	_, gone := c.faulty()
	var old map[difference]string
	if c.last != nil {
		old = compare(c.last.restored, c.restored)
	}
	for d, line := range compare(c.dir, c.restored) {
		switch {
		case d.aspect == "missing" && c.leftOut(d.path):
		case isWithin(d.path, gone):
			if c.snap.Counts.Vanished+c.snap.Counts.Errors == 0 {
				c.Errorf("%s, and nothing is counted", line)
			}
		case !isWithin(d.path, c.said):
			c.Errorf("%s, and nothing is said", line)
		case d.aspect != "missing" && !isWithin(d.path, c.flawed):
			c.Errorf("%s, and the restore does not say so", line)
		case old[d] != "" && c.hasGoodCopy(d.path):
			c.Errorf("%s, which is not the last good copy: %s", line, old[d])
		}
	}
}

// hasGoodCopy reports whether the last snapshot has the present entry of a path, and reported no
// problem for it.
func (c *verdict) hasGoodCopy(path string) bool {
	if isWithin(path, c.last.flawed) {
		return false
	}
	now, err := os.Lstat(filepath.Join(c.dir, path))
	if err != nil {
		return true
	}
	was, err := os.Lstat(filepath.Join(c.last.restored, path))
	return err == nil && was.Mode().Type() == now.Mode().Type()
}

// leftOutIsMissing checks that exclusions are left out, unless they are part of a directory that
// was kept as a whole.
func (c *verdict) leftOutIsMissing() {
	for _, path := range c.paths() {
		if !c.leftOut(path) || isWithin(path, c.said) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(c.restored, path)); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("%q is in the snapshot, and should have been left out (%v)", path, err)
		}
	}
}

// links checks that, of the unchanged names, those of one file are restored as one file.
func (c *verdict) links() {
	faulty, _ := c.faulty()
	type file struct {
		volume string
		inode  uint64
	}
	restored, names := map[uint64]file{}, map[file]string{}
	inodes := map[file]uint64{}
	for _, path := range c.paths() {
		var now, then unix.Stat_t
		c.must(unix.Lstat(filepath.Join(c.dir, path), &now))
		if now.Mode&unix.S_IFMT == unix.S_IFDIR || c.leftOut(path) || isWithin(path, c.said) || isWithin(path, faulty) || isWithin(path, c.kept) {
			continue
		}
		if err := unix.Lstat(filepath.Join(c.restored, path), &then); err != nil {
			continue // reported by differences
		}
		is := file{c.volumes.mountPoint(path), now.Ino}
		if other, known := restored[then.Ino]; known && other != is {
			c.Errorf("%q and %q are two files, and were restored as one", path, names[other])
		}
		if inode, known := inodes[is]; known && inode != then.Ino {
			c.Errorf("%q and %q are one file, and were restored as two", path, names[is])
		}
		restored[then.Ino], inodes[is], names[is] = is, then.Ino, path
	}
}
