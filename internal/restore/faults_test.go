package restore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// The result of a restore if a call that changes the target fails each time. The run ends if the
// table says so and the error means that nothing else can be written. Otherwise, each entry that
// differs from the snapshot is named.
var faultTable = []struct {
	call    target.Call
	ends    bool     // the run, if the target is full or read-only
	missing []string // entries that do not exist
	old     []string // entries that are unchanged
	lacks   []string // entries that exist but lack an attribute
}{
	{call: target.CallCreate, ends: true, old: []string{"replaced"}, missing: []string{
		"chunks", "dir/in", "empty", "existing/in", "file", "hole", "inherit/in", "link1", "link2", "xattr"}},
	{call: target.CallMkdir, ends: true, missing: []string{"dir", "inherit/sub"}}, // with content
	{call: target.CallWrite, ends: true, old: []string{"replaced"}, missing: []string{
		"chunks", "dir/in", "existing/in", "file", "inherit/in", "link1", "link2", "xattr"}},
	{call: target.CallTruncate, ends: true, missing: []string{"chunks", "hole"}},
	{call: target.CallRename, ends: true, old: []string{"replaced"}, missing: []string{"chunks"}},
	{call: target.CallLink, ends: true, missing: []string{"link2"}},
	{call: target.CallSymlink, ends: true, missing: []string{"symlink"}},
	{call: target.CallMknod, ends: true, missing: []string{"fifo"}},
	{call: target.CallClose, ends: true, old: []string{"replaced"}, missing: []string{
		"chunks", "dir/in", "empty", "existing/in", "file", "hole", "inherit/in", "link1", "link2", "xattr"}},
	// The directory that contains it stays as well.
	{call: target.CallUnlink, ends: true, old: []string{"existing/foreign/1"}},
	{call: target.CallChown, lacks: []string{"dir", "file", "kept", "symlink"}},
	{call: target.CallChmod, lacks: []string{"dir", "existing", "fifo", "file", "inherit", "inherit/in", "inherit/sub", "kept", "xattr"}},
	{call: target.CallSetXattr, lacks: []string{"dir", "kept", "xattr"}},
	{call: target.CallRemoveXattr, lacks: []string{"existing", "inherit", "inherit/in", "inherit/sub", "kept"}},
	{call: target.CallSetTime, lacks: []string{".", "chunks", "dir", "dir/in", "empty", "existing", "existing/in", "fifo", "file", "hole",
		"inherit", "inherit/in", "inherit/sub", "link1", "replaced", "symlink", "xattr"}},
	{call: target.CallSync}, // ends the run with any error
}

var fullErrors = []syscall.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS}

// faultTree is a snapshot whose restore into prepareFaults makes every call.
func faultTree(t *testing.T) *fixture {
	f := newFixture(t)
	with := func(e backup.Entry, change func(*backup.Entry)) backup.Entry {
		change(&e)
		return e
	}
	link := func(e *backup.Entry) { e.Nlink, e.Inode = 2, 99 }
	theirs := func(e *backup.Entry) { e.UID, e.Mode = 1000, 0o640 }
	blue := func(e *backup.Entry) { e.Xattrs = []backup.Xattr{xattr("user.a", "blue")} }
	chunks := entry("chunks", backup.File)
	chunks.Size = 1 << 20
	chunks.Content.Refs = []backup.Ref{f.chunk([]byte("one"), 0), f.chunk([]byte("two"), 100_000)}
	hole := entry("hole", backup.File)
	hole.Size = 1 << 20
	self := entry("", backup.Directory)
	self.Mode = 0o755
	dir := self
	dir.Mode, dir.UID, dir.Xattrs = 0o750, 1, []backup.Xattr{xattr("user.d", "d")}
	f.page(backup.Page{Self: &self, Entries: []backup.Entry{
		chunks, hole, f.file("empty", ""), f.file("replaced", "new"), with(f.file("file", "file"), theirs), with(f.file("xattr", "xattr"), blue),
		with(with(f.file("kept", "kept"), theirs), blue), with(f.file("link1", "linked"), link), with(f.file("link2", "linked"), link),
		with(symlink("symlink", "/no/where"), func(e *backup.Entry) { e.UID = 7 }), entry("fifo", backup.FIFO),
		subdirectory("dir"), subdirectory("existing"), subdirectory("inherit"),
	}})
	f.page(backup.Page{Path: "dir", Self: &dir, Entries: []backup.Entry{f.file("in", "in")}})
	f.page(backup.Page{Path: "existing", Self: &self, Entries: []backup.Entry{f.file("in", "in")}})
	f.page(backup.Page{Path: "inherit", Self: &self, Entries: []backup.Entry{f.file("in", "in"), subdirectory("sub")}})
	f.page(backup.Page{Path: "inherit/sub", Self: &self})
	f.newPack()
	return f
}

// prepareFaults creates the existing content of the target.
func prepareFaults(t *testing.T, dir string) {
	t.Helper()
	check(t, os.Mkdir(dir, 0o711))
	tree(t, dir, "existing/foreign/1")
	for _, name := range []string{"existing", "inherit"} {
		check(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		check(t, os.Chmod(filepath.Join(dir, name), 0o700))
	}
	setXattr(t, filepath.Join(dir, "existing"), "user.theirs", "x")
	setXattr(t, filepath.Join(dir, "inherit"), "system.posix_acl_default", testACL)
	write(t, filepath.Join(dir, "replaced"), "old", backup.Time{Sec: 1})
	write(t, filepath.Join(dir, "kept"), "kept", testTime)
	setXattr(t, filepath.Join(dir, "kept"), "user.theirs", "x")
	check(t, os.Chtimes(dir, time.Time{}, time.Unix(1_500_000_000, 0)))
}

// A faultRun is one restore with a fault.
type faultRun struct {
	t      *testing.T
	f      *fixture
	model  string // the result of a restore without faults
	dir    string
	there  []string // existing directories at the target
	call   target.Call
	errno  syscall.Errno
	always bool

	applied bool // the call succeeds but returns an error
}

func (r *faultRun) run() (*observer, error) {
	r.t.Helper()
	var failed atomic.Bool
	fault := func(c target.Call, name string, done bool) error {
		there := c == target.CallMkdir && slices.Contains(r.there, name) // EEXIST comes first
		applied := r.applied || c == target.CallClose                    // a file is always closed
		if c == r.call && done == applied && !there && (r.always || !failed.Swap(true)) {
			return r.errno
		}
		return nil
	}
	obs := &observer{}
	_, err := Restore(r.t.Context(), r.f.deps(), Options{Snapshot: r.f.snapshot, Target: r.dir, Delete: true, fault: fault}, obs)
	return obs, err
}

// differences returns the paths that differ from the model.
func (r *faultRun) differences() (paths []string) {
	for _, line := range treetest.Compare(r.model, r.dir) {
		path, _, _ := strings.Cut(line, ": ")
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// named reports whether a problem names the path, another name of its file, a directory that
// contains it, or a path below it.
func named(path string, problems []backup.Problem) bool {
	return slices.ContainsFunc(problems, func(p backup.Problem) bool {
		return p.Path == path || p.Path == "" && (path == "." || target.IsMark(path)) || path == "link2" && p.Path == "link1" || strings.HasPrefix(path, p.Path+"/") || strings.HasPrefix(p.Path, path+"/")
	})
}

// check checks the conditions that hold for every fault of the table.
func (r *faultRun) check(obs *observer, err error) {
	r.t.Helper()
	if err != nil && (!errors.Is(err, r.errno) || !strings.Contains(err.Error(), r.dir)) {
		r.t.Errorf("the run ends with %v, which does not name target and cause", err)
	}
	for _, p := range obs.problems {
		if !strings.Contains(p.Err, r.errno.Error()) && !strings.Contains(p.Err, "the first name of this file could not be restored") {
			r.t.Errorf("problem %v does not name its cause", p)
		}
	}
	if err == nil {
		for _, path := range r.differences() {
			if !named(path, obs.problems) {
				r.t.Errorf("%s is not as in the snapshot, and was not named: %v", path, obs.problems)
			}
		}
	}
	// A file that has the snapshot's mtime has its content.
	for _, path := range allNames(r.t, r.model) {
		want := stat(r.t, filepath.Join(r.model, path))
		var got unix.Stat_t
		if want.Mode&unix.S_IFMT == unix.S_IFREG && unix.Lstat(filepath.Join(r.dir, path), &got) == nil && got.Mtim == want.Mtim {
			data, err := os.ReadFile(filepath.Join(r.model, path))
			check(r.t, err)
			wantFile(r.t, filepath.Join(r.dir, path), string(data))
		}
	}
}

// heals runs again, without the fault.
func (r *faultRun) heals() {
	r.t.Helper()
	call := r.call
	r.call = ""
	obs, err := r.run()
	if err != nil || len(obs.problems) > 0 {
		r.t.Errorf("the next run: %v, %v", err, obs.problems)
	}
	paths := r.differences()
	if len(r.there) > 0 { // attributes of an existing target that could not be put back are lost
		paths = slices.DeleteFunc(paths, func(path string) bool { return path == "." && call == target.CallSetTime })
	}
	if len(paths) > 0 {
		r.t.Errorf("after the next run: %v", treetest.Compare(r.model, r.dir))
	}
}

func (r *faultRun) name() string {
	how := "once"
	if r.always {
		how = "always"
	}
	if r.applied {
		how += ", but done"
	}
	return fmt.Sprintf("%s/%s/%s", r.call, unix.ErrnoName(r.errno), how)
}

// callsInPlace are made only for files that are updated in place: TestInPlaceFails tests them.
var callsInPlace = []target.Call{target.CallPunch, target.CallFsync}

// Every Call is in the table.
func TestFaultTableIsComplete(t *testing.T) {
	source, err := os.ReadFile("target/calls.go")
	check(t, err)
	calls := regexp.MustCompile(`Call\w+ +Call += "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if want := len(faultTable) + len(callsInPlace); len(calls) != want {
		t.Errorf("%d calls, %d are tested", len(calls), want)
	}
	for _, row := range faultTable {
		if !slices.ContainsFunc(calls, func(call []string) bool { return call[1] == string(row.call) }) {
			t.Errorf("%s is no call", row.call)
		}
	}
}

// The target is on a read-only mount.
func TestReadOnlyTarget(t *testing.T) {
	f := faultTree(t)
	dir := filepath.Join(t.TempDir(), "mount")
	check(t, os.Mkdir(dir, 0o755))
	mount(t, dir, "size=4m,mode=755")
	readOnly := func(flags uintptr) { check(t, unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "")) }
	readOnly(unix.MS_RDONLY)
	_, obs, err := f.tryRestore(t.Context(), Options{Target: dir})
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), dir) || len(obs.problems) > 0 {
		t.Errorf("a read-only target: %v, %v", err, obs.problems)
	}
	wantNames(t, dir)
	readOnly(0)
	f.restore(Options{Target: dir})
	readOnly(unix.MS_RDONLY)
	sum, obs, err := f.tryRestore(t.Context(), Options{Target: dir, Verify: true, Include: patterns(t, "/file", "/link*", "/symlink", "/kept")})
	if err != nil || len(obs.problems) > 0 || sum.Kept != 5 {
		t.Errorf("there was nothing to do: %v, %v, %+v", err, obs.problems, sum)
	}
}

// A target on a read-only mount that is equal to the snapshot is left alone, and that is not a
// problem.
func TestReadOnlyTargetThatIsComplete(t *testing.T) {
	f := newFixture(t)
	color := []backup.Xattr{xattr("user.color", "blue"), xattr("trusted.color", "red")}
	shared := entry("", backup.Directory)
	shared.Mode, shared.Xattrs = 0o2775, append([]backup.Xattr{xattr("system.posix_acl_access", testACLOf775), xattr("system.posix_acl_default", testACL)}, color...)
	locked := entry("", backup.Directory)
	locked.Mode, locked.XattrChunk = 0o500, f.xattrs(color...)
	file := f.file("file", "f")
	file.Xattrs = color
	f.page(backup.Page{Self: &shared, Entries: []backup.Entry{
		file, symlink("link", "x"), entry("fifo", backup.FIFO), subdirectory("locked"), subdirectory("shared"),
	}})
	f.page(backup.Page{Path: "locked", Self: &locked, Entries: []backup.Entry{f.file("in", "i")}})
	f.page(backup.Page{Path: "shared", Self: &shared, Entries: []backup.Entry{f.file("in", "i")}})
	dir := filepath.Join(t.TempDir(), "mount")
	check(t, os.Mkdir(dir, 0o755))
	mount(t, dir, "size=4m,mode=755")
	_, obs := f.restore(Options{Target: dir, TargetAttributes: true})
	obs.wantProblems(t)
	check(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	for _, o := range []Options{{}, {TargetAttributes: true}, {Delete: true, Verify: true}, {Overwrite: Never}, {DryRun: true, TargetAttributes: true}} {
		o.Target = dir
		sum, obs, err := f.tryRestore(t.Context(), o)
		if err != nil || len(obs.problems) > 0 || sum.Kept != 5 || sum.Attributes != 0 {
			t.Errorf("%+v: %v, %v, %+v, %q", o, err, obs.problems, sum, obs.actions())
		}
	}
}

// Every call that changes the target fails with every error that a full, failing or read-only
// target returns, once and always. The table above holds, each entry that differs from the snapshot
// is named, and the next restore repairs it.
func TestFaults(t *testing.T) {
	needRoot(t)
	f := faultTree(t)
	model := filepath.Join(t.TempDir(), "model")
	prepareFaults(t, model)
	_, obs := f.restore(Options{Target: model, Delete: true})
	obs.wantProblems(t)
	errnos := append([]syscall.Errno{unix.EPERM, unix.EIO}, fullErrors...)
	if !testtarget.Runs(testtarget.Often) {
		errnos = errnos[:3]
	}
	for _, row := range faultTable {
		for _, errno := range errnos {
			for _, always := range []bool{false, true} {
				r := &faultRun{f: f, model: model, there: []string{"existing", "inherit"}, call: row.call, errno: errno, always: always}
				t.Run(r.name(), func(t *testing.T) {
					r.t, r.dir = t, filepath.Join(t.TempDir(), "target")
					prepareFaults(t, r.dir)
					obs, err := r.run()
					ends := row.ends && slices.Contains(fullErrors, errno) || row.call == target.CallSync
					if (err != nil) != ends {
						t.Errorf("the run ends with %v", err)
					}
					r.check(obs, err)
					if always && !ends {
						paths := slices.Sorted(slices.Values(slices.Concat(row.missing, row.old, row.lacks)))
						obs.wantProblems(t, distinctPaths(obs, paths)...)
						r.wantState(row.missing, row.old, row.lacks)
					}
					r.heals()
				})
			}
		}
	}
}

// distinctPaths returns paths, with each path repeated once per problem that it has, because an
// entry may lack several attributes.
func distinctPaths(obs *observer, paths []string) (want []string) {
	counts := map[string]int{}
	for _, p := range obs.problems {
		counts[p.Path]++
	}
	for _, path := range paths {
		if path == "." {
			path = ""
		}
		for range max(counts[path], 1) {
			want = append(want, path)
		}
	}
	return want
}

// wantState checks that exactly the paths in the table differ from the snapshot.
func (r *faultRun) wantState(missing, old, lacks []string) {
	r.t.Helper()
	for _, path := range missing {
		wantNothing(r.t, filepath.Join(r.dir, path))
	}
	before := map[string]string{"replaced": "old", "existing/foreign/1": "1"}
	for _, path := range old {
		wantFile(r.t, filepath.Join(r.dir, path), before[path])
	}
	for _, path := range lacks {
		if info, err := os.Lstat(filepath.Join(r.model, path)); err == nil && info.Mode().IsRegular() {
			data, err := os.ReadFile(filepath.Join(r.model, path))
			check(r.t, err)
			wantFile(r.t, filepath.Join(r.dir, path), string(data))
		}
	}
	for _, path := range r.differences() {
		if !slices.ContainsFunc(slices.Concat(missing, old, lacks), func(p string) bool {
			return p == path || strings.HasPrefix(path, p+"/") || strings.HasPrefix(p, path+"/") || strings.HasPrefix(path, "link") && strings.HasPrefix(p, "link")
		}) {
			r.t.Errorf("%s is not as in the snapshot, and not in the table", path)
		}
	}
}

// Calls that succeed but return an error, as over a network, and the same faults if the restore
// creates the target: the attributes of the target itself may fail, too.
func TestOtherFaults(t *testing.T) {
	needRoot(t)
	f := faultTree(t)
	model, made := filepath.Join(t.TempDir(), "model"), filepath.Join(t.TempDir(), "made")
	prepareFaults(t, model)
	f.restore(Options{Target: model, Delete: true})
	f.restore(Options{Target: made, Delete: true})
	errnos := []syscall.Errno{unix.ENOSPC, unix.EIO}
	if !testtarget.Runs(testtarget.Often) {
		errnos = errnos[:1]
	}
	for _, row := range faultTable {
		for _, errno := range errnos {
			for _, r := range []*faultRun{
				{model: model, there: []string{"existing", "inherit"}, applied: true},
				{model: model, there: []string{"existing", "inherit"}, applied: true, always: true},
				{model: made}, {model: made, always: true}, {model: made, applied: true}, {model: made, applied: true, always: true},
			} {
				r.f, r.call, r.errno = f, row.call, errno
				name := r.name()
				if r.there == nil {
					name += ", to a new target"
				}
				t.Run(name, func(t *testing.T) {
					r.t, r.dir = t, filepath.Join(t.TempDir(), "target")
					if r.there != nil {
						prepareFaults(t, r.dir)
					}
					obs, err := r.run()
					if _, missing := os.Lstat(r.dir); missing == nil {
						r.check(obs, err)
					} else if err == nil {
						t.Error("there is no target, and no error")
					}
					r.heals()
				})
			}
		}
	}
}
