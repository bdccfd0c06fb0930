//go:build linux

package drill

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A fixture is a repository on one machine with one snapshot of a tree.
type fixture struct {
	*testing.T
	tree, store, temp string
	index             *sqliteindex.Index
	deps              restore.Deps
	snapshot          backup.Snapshot
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// exampleTree has every kind of entry.
func exampleTree() treetest.Tree {
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	tree := treetest.Tree{
		"file":         treetest.File("content").WithMtime(old).WithXattr("user.a", "b"),
		"dir/sub/one":  treetest.File(strings.Repeat("1", 100_000)).WithMode(0o600),
		"dir/sub/twin": treetest.File(""),
		"dir/sub/two":  treetest.File(""),
		"dir/empty":    treetest.Dir(),
		"dir/same":     treetest.HardLink("file"),
		"link":         treetest.Symlink("../outside"),
		"fifo":         treetest.FIFO().WithMode(0o620),
		"sparse":       treetest.Sparse(20<<20, treetest.Extent{Offset: 6 << 20, Data: strings.Repeat("data", 3<<20)}),
		"we\xffird":    treetest.File("a name that is not UTF-8"),
	}
	if os.Geteuid() == 0 {
		tree["owned"] = treetest.File("owned").WithOwner(1234, 77).WithMode(0o4750)
		tree["device"] = treetest.CharDev(1, 3)
	}
	return tree
}

func newFixture(t *testing.T, tree treetest.Tree) *fixture {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	treetest.Make(t, path, tree)
	return newFixtureOf(t, path)
}

// newFixtureOf backs up the tree at a path.
func newFixtureOf(t *testing.T, tree string) *fixture {
	f := &fixture{T: t, tree: tree, store: filepath.Join(t.TempDir(), "store"), temp: t.TempDir()}
	identity, recipient, err := seal.GenerateIdentity()
	f.must(err)
	opener, err := seal.NewOpener([]byte(identity))
	f.must(err)
	sealer, err := seal.NewSealer([]string{recipient})
	f.must(err)
	signing, id := seal.NewSigningKey(), backup.NewRepositoryID()
	worker := seal.WorkerKey{Repository: id, Dedup: seal.NewDedupKey(), Recipients: []string{recipient}, Signer: signing.Signer()}
	f.index, err = sqliteindex.Open(t.Context(), filepath.Join(t.TempDir(), "index.db"))
	f.must(err)
	t.Cleanup(func() { _ = f.index.Close() })
	_, _, err = f.index.Migrate(t.Context())
	f.must(err)
	s, err := dirstore.Create(f.store)
	f.must(err)
	t.Cleanup(func() { _ = s.Close() })
	filer, err := f.index.EnsureFiler(t.Context(), "here")
	f.must(err)
	shard, err := f.index.EnsureShard(t.Context(), filer.ID, "tree", posix.URL(f.tree))
	f.must(err)
	f.deps = restore.Deps{Catalog: f.index, Store: s, Repository: id, Opener: opener, HashKey: worker.Dedup}
	made, err := embedded.Backup(t.Context(), embedded.Options{
		Index: f.index, Store: s, Source: posix.New(posix.Options{}), LockDir: t.TempDir(), WorkerKey: worker,
		Keys:       journal.Keys{Repository: id, Sealer: sealer, Signing: signing},
		Repository: backup.Repository{ID: id, Chunker: chunk.DefaultCutter, Codec: "zstd-1", Recipients: worker.Recipients, Signer: signing.Signer()},
	}, shard, backup.Snapshot{}, nil)
	f.must(err)
	if made.State != backup.Committed {
		t.Fatalf("%s: %s", made.State, made.Reason)
	}
	f.snapshot, err = f.index.Snapshot(t.Context(), made.ID)
	f.must(err)
	return f
}

func (f *fixture) options() Options {
	return Options{
		Snapshot: f.snapshot, Started: time.Now(), By: "me@here", TempDir: f.temp, Seed: 1, MaxFiles: 1000, MaxBytes: 1 << 30,
		Progress: func(string, restore.Progress) {},
	}
}

// drill makes a drill, which leaves nothing behind.
func (f *fixture) drill(o Options) *Report {
	f.Helper()
	r, err := Run(f.Context(), f.deps, o)
	f.must(err)
	left, err := os.ReadDir(f.temp)
	f.must(err)
	if len(left) > 0 {
		f.Errorf("%s is left", left[0])
	}
	return r
}

// A drill of a sound repository passes, with and without its files on the file server.
func TestDrill(t *testing.T) {
	f := newFixture(t, exampleTree())
	r := f.drill(f.options())
	entries := int64(len(exampleTree()))
	// The directory is the whole shard: the root, dir, dir/sub, and what is not a directory.
	if !r.Passed || r.Failures > 0 || r.Sample.Entries != entries-1 || !r.Directory.Chosen || r.Directory.Path != "" || r.Directory.Entries != entries+3 {
		t.Errorf("%+v", r)
	}
	if r.Directory.Bytes < 12<<20 || r.Directory.Seconds <= 0 || r.Seconds < r.Directory.Seconds || r.Flawed != 0 || r.TooLarge != 0 || len(r.NotCarried) > 0 {
		t.Errorf("%+v", r)
	}
	o := f.options()
	o.MaxBytes = 200_000
	if r := f.drill(o); !r.Passed || r.TooLarge != 1 || r.Directory.Path == "" {
		t.Errorf("%+v", r)
	}
}

// A drill that restores no file of a snapshot with files is not one that passed. A snapshot without
// files is proven by its listings.
func TestNothingToRestore(t *testing.T) {
	large := newFixture(t, treetest.Tree{"large": treetest.File("0123456789"), "dir": treetest.Dir()})
	for name, limits := range map[string]struct {
		files int
		bytes int64
	}{"no file is small enough": {1000, 9}, "no file is asked for": {0, 9}, "both are none": {0, 0}} {
		o := large.options()
		o.MaxFiles, o.MaxBytes = limits.files, limits.bytes
		if r, err := Run(t.Context(), large.deps, o); !errors.Is(err, ErrNothing) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	empty := newFixture(t, treetest.Tree{"dir": treetest.Dir()})
	if r := empty.drill(empty.options()); !r.Passed || r.Failures != 0 {
		t.Errorf("of no files: %+v", r)
	}
	c := choice{tally: tally{files: 2, missing: 2}}
	if err := c.provesNothing(&Options{MaxFiles: 1, MaxBytes: 1}); !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), "lacks the content") {
		t.Errorf("without content: %v", err)
	}
}

// Everything that a restore could have done wrong is found, and named.
func TestDifferences(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change owners and make devices")
	}
	f := newFixture(t, exampleTree())
	flip := func(path string, at int64, b byte) error {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = file.WriteAt([]byte{b}, at)
		return err
	}
	// fill writes zeros.
	fill := func(path string, from, to int64) error {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = file.WriteAt(make([]byte, to-from), from)
		return errors.Join(err, file.Sync())
	}
	// keeping keeps the times of a file that is changed.
	keeping := func(change func(path string) error) func(string) error {
		return func(path string) error {
			info, err := os.Lstat(path)
			if err != nil {
				return err
			}
			return errors.Join(change(path), os.Chtimes(path, time.Time{}, info.ModTime()))
		}
	}
	for _, test := range []struct {
		path, what string
		change     func(path string) error
	}{
		{"file", "content", keeping(func(path string) error { return flip(path, 3, 'X') })},
		{"sparse", "content", keeping(func(path string) error { return flip(path, 9<<20, 'X') })},
		{"sparse", "content", keeping(func(path string) error { return flip(path, 1<<20, 'X') })}, // in a hole
		{"sparse", "content", keeping(func(path string) error { return flip(path, 20<<20-1, 'X') })},
		{"file", "size", keeping(func(path string) error { return os.Truncate(path, 3) })},
		{"dir/sub/two", "size", keeping(func(path string) error { return os.WriteFile(path, []byte("x"), 0o644) })},
		{"dir/sub/one", "missing", os.Remove},
		{"dir/sub", "directory", os.RemoveAll},
		{"dir/empty", "names", keeping(func(path string) error { return os.WriteFile(filepath.Join(path, "further"), nil, 0o644) })},
		{"dir/sub/one", "mode", func(path string) error { return os.Chmod(path, 0o640) }},
		{"dir", "mode", func(path string) error { return os.Chmod(path, 0o700) }},
		{"", "mode", func(path string) error { return os.Chmod(path, 0o700) }},
		{"owned", "mode", func(path string) error { return os.Chmod(path, 0o750) }},
		{"owned", "owner", func(path string) error {
			return errors.Join(os.Lchown(path, 1234, 78), unix.Chmod(path, 0o4750))
		}},
		{"link", "owner", func(path string) error { return os.Lchown(path, 5, 5) }},
		{"file", "mtime", func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) }},
		{"dir/sub", "mtime", func(path string) error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) }},
		{"file", "xattr", func(path string) error { return unix.Removexattr(path, "user.a") }},
		{"file", "xattr", func(path string) error { return unix.Setxattr(path, "user.a", []byte("c"), 0) }},
		{"dir/sub/two", "xattr", func(path string) error { return unix.Setxattr(path, "user.more", []byte("c"), 0) }},
		{"link", "target", func(path string) error { return errors.Join(os.Remove(path), os.Symlink("elsewhere", path)) }},
		{"fifo", "kind", func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o620)) }},
		{"device", "device", func(path string) error {
			return errors.Join(os.Remove(path), unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
		}},
		{"we\xffird", "missing", os.Remove},
		{"dir/same", "link", func(path string) error { // a copy
			return exec.Command("sh", "-c", `cp -a "$0" "$0.new" && mv "$0.new" "$0"`, path).Run()
		}},
		{"dir/sub/two", "link", func(path string) error {
			return errors.Join(os.Remove(path), os.Link(filepath.Join(filepath.Dir(path), "twin"), path))
		}},
		{"sparse", "hole", keeping(func(path string) error { return fill(path, 1<<20, 2<<20) })},
		{"sparse", "hole", keeping(func(path string) error { return fill(path, 19<<20, 20<<20) })},
	} {
		o := f.options()
		o.MaxFiles = 0
		o.restored = func(root string) {
			if _, err := os.Lstat(root); err == nil {
				f.must(test.change(filepath.Join(root, test.path)))
			}
		}
		r := f.drill(o)
		if r.Passed || !slices.ContainsFunc(r.Failed, func(f Failure) bool { return f.Path == test.path && f.What == test.what }) {
			t.Errorf("%q, %s: %+v", test.path, test.what, r.Failed)
		}
		// Whatever changes a name in a directory changes the mtime of the directory.
		dir := filepath.Dir("/" + test.path)[1:]
		for _, other := range r.Failed {
			if other.Path != test.path && other.Path != dir && !strings.HasPrefix(other.Path, test.path+"/") && other.Path != "dir/same" {
				t.Errorf("%q, %s: also %+v", test.path, test.what, other)
			}
		}
	}
}

// The files of a lost pack are named, with the reason.
func TestLostPack(t *testing.T) {
	f := newFixture(t, exampleTree())
	f.must(exec.Command("sh", "-c", "rm $(find "+f.store+"/packs -type f)").Run())
	r := f.drill(f.options())
	if r.Passed || r.Failures == 0 || r.Failed[0].What != "missing" || !strings.Contains(r.Failed[0].Error, "packs/") {
		t.Errorf("%+v", r)
	}
	row, err := Sign(r, f.snapshot.Shard.ID, seal.CommitterKey{Repository: f.deps.Repository, Signing: seal.NewSigningKey()})
	f.must(err)
	f.must(f.index.AddDrill(t.Context(), row))
}

// A store that refuses a request, or does not answer it, lets nothing be proven.
func TestRefusingStore(t *testing.T) {
	f := newFixture(t, exampleTree())
	for _, why := range []error{backup.ErrUnavailable, backup.ErrInvalid, fs.ErrPermission} {
		d := f.deps
		d.Store = &refusingStore{Store: f.deps.Store, after: 1, why: why}
		r, err := Run(t.Context(), d, f.options())
		if !errors.Is(err, why) || r != nil {
			t.Errorf("%v: %+v, %v", why, r, err)
		}
	}
	f.drill(f.options())
}

// A refusingStore fails with why after some reads.
type refusingStore struct {
	store.Store
	after int64
	why   error
	reads atomic.Int64
}

func (s *refusingStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if s.reads.Add(1) > s.after {
		return nil, fmt.Errorf("get %s: %w", name, s.why)
	}
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// A snapshot of which the index has lost pages is not proven, whatever the sample is.
func TestMissingPages(t *testing.T) {
	f := newFixture(t, exampleTree())
	f.snapshot.Pages.Pages++
	o := f.options()
	o.MaxFiles, o.MaxBytes = 1, 10
	if r := f.drill(o); r.Passed || r.Failed[0].What != "listing" {
		t.Errorf("%+v", r)
	}
}

// A file that has changed since is not a failure; one that differs without a change is.
func TestLiveSource(t *testing.T) {
	f := newFixture(t, exampleTree())
	o := f.options()
	o.Source = posix.New(posix.Options{})
	files := int64(7)
	if os.Geteuid() == 0 {
		files++
	}
	both := 2 * files // the sample, and the whole shard
	r := f.drill(o)
	if !r.Passed || r.Source.Files != both || r.Source.Changed != 0 {
		t.Errorf("%+v", r.Source)
	}
	f.must(os.WriteFile(filepath.Join(f.tree, "dir/sub/two"), []byte("changed"), 0o644))
	f.must(os.RemoveAll(filepath.Join(f.tree, "sparse")))
	if r = f.drill(o); !r.Passed || r.Source.Files != both-4 || r.Source.Changed != 4 {
		t.Errorf("%+v, %+v", r.Source, r.Failed)
	}
	// The listing has the size and times of another content: the backup has missed a change.
	lie := &lyingSource{Source: posix.New(posix.Options{}), name: "we\xffird"}
	o.Source = lie
	if r = f.drill(o); r.Passed || r.Failures != 1 || r.Failed[0].What != "source" || r.Failed[0].Path != "we\xffird" {
		t.Errorf("%+v, %+v", r.Source, r.Failed)
	}
	f.must(os.Rename(f.tree, f.tree+".away"))
	f.must(os.Mkdir(f.tree, 0o755))
	o.Source = posix.New(posix.Options{})
	if _, err := Run(t.Context(), f.deps, o); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("another tree: %v", err)
	}
}

// What the user of a drill cannot set is counted, and is no failure. Root could have set it.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() == 0 {
		tree := t.TempDir()
		treetest.Make(t, tree, treetest.Tree{
			"owned": treetest.File("owned").WithOwner(1234, 77).WithMode(0o4755), "device": treetest.CharDev(1, 3),
			"plain": treetest.File("plain").WithOwner(1234, 77), "dir/mine": treetest.File("mine").WithOwner(nobody, nobody),
		})
		asNobody(t, tree)
		f := newFixtureOf(t, tree)
		o := f.options()
		o.restored = func(root string) { f.must(os.Lchown(filepath.Join(root, "plain"), 0, 0)) }
		if r := f.drill(o); r.Passed || r.Failed[0].What != "owner" || len(r.NotCarried) > 0 {
			t.Errorf("%+v", r)
		}
		return
	}
	f := newFixtureOf(t, os.Getenv("DRILL_TEST_TREE"))
	r := f.drill(f.options())
	// The sample, and the whole shard with its two directories.
	want := map[string]int64{"owner": 6, "mode": 2, "chardev": 2}
	if !r.Passed || !maps.Equal(r.NotCarried, want) || r.Sample.Files != 3 {
		t.Errorf("%+v, want %v", r, want)
	}
}

// nobody is a user without rights.
const nobody = 65534

// asNobody runs the calling test again as another user, for a tree that root has made.
func asNobody(t *testing.T, tree string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tmp, err := os.MkdirTemp("", "bctl-nobody-") //nolint:usetesting // t.TempDir is below a directory that only its user may enter
	must(err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	must(os.Chmod(tmp, 0o777))
	copied := filepath.Join(tmp, "tree")
	must(exec.Command("cp", "-a", tree, copied).Run())
	must(os.Chmod(copied, 0o755))
	self, err := os.Executable()
	must(err)
	data, err := os.ReadFile(self)
	must(err)
	binary := filepath.Join(tmp, "test")
	must(os.WriteFile(binary, data, 0o755))
	cmd := exec.Command(binary, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp, "DRILL_TEST_TREE="+copied)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// A directory that a killed drill has left is removed; that of a running one is not.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	running, err := newPlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	killed := filepath.Join(dir, placePrefix+"killed")
	if err := os.MkdirAll(filepath.Join(killed, contentName, "restored", "secret"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(killed, markName), []byte(markText(killed)), 0o400); err != nil {
		t.Fatal(err)
	}
	next, err := newPlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(killed); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
	if _, err := os.Stat(running.below()); err != nil {
		t.Error(err)
	}
	if err := next.room(1 << 60); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "--temp-dir") {
		t.Errorf("room for an exbibyte: %v", err)
	}
	for _, p := range []*place{running, next} {
		if err := p.remove(); err != nil {
			t.Error(err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Error(fmt.Sprint(left), err)
	}
}

// What a drill has not made, a drill does not remove, whatever its name is.
func TestForeignDirectories(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var foreign []string
	add := func(name string, mark string) string {
		t.Helper()
		path := filepath.Join(dir, placePrefix+name)
		file := filepath.Join(path, contentName, "precious")
		must(os.MkdirAll(filepath.Dir(file), 0o700))
		must(os.WriteFile(file, []byte("mine"), 0o600))
		if mark != "" {
			must(os.WriteFile(filepath.Join(path, markName), []byte(mark), 0o400))
		}
		foreign = append(foreign, file)
		return path
	}
	add("notes", "")
	add("copy", markText(filepath.Join(dir, placePrefix+"original"))) // cp -a of a place
	add("empty-mark", "\n")
	beside := add("beside", markText(filepath.Join(dir, placePrefix+"beside")))
	must(os.WriteFile(filepath.Join(beside, "report"), []byte("mine"), 0o600))
	must(os.Mkdir(filepath.Join(dir, placePrefix+"empty"), 0o700))
	linked := add("linked", "")
	must(os.Symlink(filepath.Join(beside, markName), filepath.Join(linked, markName)))
	p, err := newPlace(dir)
	must(err)
	must(p.remove())
	for _, file := range append(foreign, filepath.Join(beside, "report"), filepath.Join(dir, placePrefix+"empty")) {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}
