package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// Random trees on several file systems, random changes, and backups with random requests, faults
// and interruptions. In every combination, a committed snapshot equals the tree, except for
// requested exclusions and reported problems. Reported paths are as in the last snapshot, and the
// next snapshot without faults has them again. model_check_test.go defines the details.
//
//	go test -run TestModel ./services/bctl/embedded -rapid.checks 1000
func TestModel(t *testing.T) {
	switch {
	case testtarget.Runs(testtarget.Exhaustive):
	case testtarget.Runs(testtarget.Often):
		testtarget.Checks(t, "40")
	default:
		testtarget.Checks(t, "12")
	}
	r := newRepository(t)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		m := newModel(rt, r, filepath.Join(r.memory, fmt.Sprint("run-", runs)))
		defer os.RemoveAll(m.top)
		for range rapid.IntRange(1, 5).Draw(rt, "backups") {
			m.change()
			m.remount()
			m.backup(m.anyRequest(), m.anyFaults(), rapid.IntRange(0, 4).Draw(rt, "killed") == 0)
		}
		m.heal()
		m.restoreAgain()
	})
}

// mountPoints are the fixed places in the tree at which file systems begin.
var mountPoints = []string{"v0", "parent/v1"}

// A model is one tree and its snapshots.
type model struct {
	*rapid.T
	r       *repository
	volumes *volumes
	faults  *faultsource.Source
	top     string // contains everything that the model creates
	dir     string // the tree
	shard   backup.Shard
	seed    uint64  // of the next random content
	taken   []taken // the committed ones
}

// A taken is a snapshot, and the tree that was restored from it when it was new.
type taken struct {
	snap     backup.Snapshot
	restored string
	flawed   []string // paths that the restore reported
}

func newModel(rt *rapid.T, r *repository, top string) *model {
	m := &model{T: rt, r: r, top: top, dir: filepath.Join(top, "tree")}
	m.volumes = newVolumes(posix.New(posix.Options{}), mountPoints...)
	m.volumes.timeless = rapid.Bool().Draw(rt, "timeless")
	m.faults = faultsource.New(m.volumes)
	for _, at := range append([]string{"keep"}, mountPoints...) {
		m.must(os.MkdirAll(filepath.Join(m.dir, at), 0o755))
		file, same := filepath.Join(m.dir, at, "file"), filepath.Join(m.dir, at, "same size")
		m.write(at+"/same size", 100)
		m.must(errors.Join(os.WriteFile(file, []byte("the same on each file system, as its inode is"), 0o644), os.Chtimes(file, time.Time{}, time.Unix(1, 0))))
		_ = unix.Lsetxattr(file, "user.a", []byte("x"), 0) // if xattrs are supported
		m.must(errors.Join(os.Link(file, filepath.Join(m.dir, at, "link")), os.Link(same, filepath.Join(m.dir, at, "same link"))))
	}
	if rapid.IntRange(0, 3).Draw(rt, "large") == 0 {
		m.write("keep/large", 7<<20) // of more than four chunks, so that it has a list
	}
	m.shard = r.addShard(backup.Shard{Source: posix.URL(m.dir)})
	return m
}

func (m *model) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// write writes random content to a file. The content never repeats.
func (m *model) write(path string, sizeBytes int) {
	m.seed++
	data := make([]byte, sizeBytes)
	_, _ = rand.NewChaCha8([32]byte{byte(m.seed), byte(m.seed >> 8)}).Read(data)
	// The path may have another kind of entry, which is not changed.
	f, err := os.OpenFile(filepath.Join(m.dir, path), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return
	}
	_, err = f.Write(data)
	m.must(errors.Join(err, f.Close()))
}

// anyPath returns a path that may exist, on any of the file systems.
func (m *model) anyPath(label string) string {
	volume := rapid.SampledFrom([]string{"", "keep", "v0", "parent/v1"}).Draw(m.T, label+" on")
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d e", "file"}), 1, 3).Draw(m.T, label)
	return backup.Join(volume, strings.Join(names, "/"))
}

// change makes some random changes. Changes that fail are ignored.
func (m *model) change() {
	makes := []func(path, at string){m.writeSome, m.sparse, m.makeDirectory, m.special}
	changes := []func(path, at string){m.sameSizeAndTime, m.link, m.rename, m.remove, m.attributes, m.xattr, m.xattr}
	for range rapid.IntRange(0, 15).Draw(m.T, "changes") {
		n := rapid.IntRange(0, len(makes)+len(changes)).Draw(m.T, "change")
		switch {
		case n == 0:
			m.editLarge()
		case n <= len(makes):
			path := m.anyPath("path")
			makes[n-1](path, filepath.Join(m.dir, path))
		default:
			path := rapid.SampledFrom(m.paths()).Draw(m.T, "path")
			changes[n-1-len(makes)](path, filepath.Join(m.dir, path))
		}
	}
}

// stays reports whether a path is always a directory.
func stays(path string) bool {
	return slices.Contains([]string{"", "keep", "v0", "parent", "parent/v1"}, path)
}

func (m *model) writeSome(path, at string) {
	_ = os.MkdirAll(filepath.Dir(at), 0o755)
	m.write(path, rapid.SampledFrom([]int{0, 1, 100, 5000}).Draw(m.T, "size"))
}

func (m *model) sparse(path, at string) {
	_ = os.MkdirAll(filepath.Dir(at), 0o755)
	m.write(path, 4096)
	_ = os.Truncate(at, rapid.Int64Range(0, 1<<20).Draw(m.T, "size"))
}

// sameSizeAndTime changes content so that only the ctime shows it.
func (m *model) sameSizeAndTime(path, at string) {
	if info, err := os.Lstat(at); err == nil && info.Mode().IsRegular() && info.Size() < 1<<20 {
		m.write(path, int(info.Size()))
		_ = os.Chtimes(at, time.Time{}, info.ModTime())
	}
}

func (m *model) makeDirectory(_, at string) { _ = os.MkdirAll(at, 0o755) }

func (m *model) special(path, at string) {
	_ = os.MkdirAll(filepath.Dir(at), 0o755)
	if rapid.Bool().Draw(m.T, "fifo") {
		_ = unix.Mkfifo(at, 0o600)
	} else {
		_ = os.Symlink(path, at)
	}
}

// link creates another name of a file on the same file system.
func (m *model) link(path, at string) {
	to := m.anyPath("to")
	if m.volumes.mountPoint(path) == m.volumes.mountPoint(to) {
		_ = os.Link(at, filepath.Join(m.dir, to))
	}
}

func (m *model) rename(path, at string) {
	to := m.anyPath("to")
	if !stays(path) && m.volumes.mountPoint(path) == m.volumes.mountPoint(to) {
		_ = os.Rename(at, filepath.Join(m.dir, to))
	}
}

func (m *model) remove(path, at string) {
	if !stays(path) {
		_ = os.RemoveAll(at)
	}
}

func (m *model) attributes(_, at string) {
	mode := rapid.SampledFrom([]uint32{0o700, 0o755, 0o4755, 0o1777, 0o600}).Draw(m.T, "mode")
	uid := rapid.IntRange(0, 3).Draw(m.T, "uid")
	mtime := time.Unix(rapid.Int64Range(-1<<31, 1<<33).Draw(m.T, "mtime"), rapid.Int64Range(0, 999_999_999).Draw(m.T, "ns"))
	info, err := os.Lstat(at)
	if err != nil {
		return
	}
	if os.Geteuid() == 0 {
		_ = os.Lchown(at, uid, uid+1)
	} else {
		mode = mode&0o777 | 0o700 // this user must be able to read it, and cannot restore the other bits
	}
	if info.Mode()&os.ModeSymlink == 0 {
		_ = unix.Chmod(at, mode)
	}
	if ts, err := unix.TimeToTimespec(mtime); err == nil {
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, at, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, unix.AT_SYMLINK_NOFOLLOW)
	}
}

// xattr sets or removes an attribute. The longest do not fit into the listings of a batch.
func (m *model) xattr(_, at string) {
	name := rapid.SampledFrom([]string{"user.a", "user.b", "trusted.a"}).Draw(m.T, "name")
	n := rapid.SampledFrom([]int{-1, 0, 10, 3000, 60_000}).Draw(m.T, "bytes")
	if n < 0 {
		_ = unix.Lremovexattr(at, name)
		return
	}
	m.seed++
	value := []byte(strings.Repeat(fmt.Sprintf("%09d.", m.seed), n/10))
	_ = unix.Lsetxattr(at, name, value, 0) // not supported for all kinds and users
}

func (m *model) editLarge() {
	at := filepath.Join(m.dir, "keep/large")
	info, err := os.Lstat(at)
	if err != nil {
		return
	}
	f, err := os.OpenFile(at, os.O_WRONLY, 0)
	m.must(err)
	defer f.Close()
	// Beyond the end, so that there is a hole.
	where := rapid.Int64Range(0, info.Size()+(1<<20)).Draw(m.T, "where")
	m.seed++
	_, err = f.WriteAt(fmt.Append(nil, "edit ", m.seed), where)
	m.must(err)
}

// remount gives the file systems new device numbers, and mounts or unmounts some.
func (m *model) remount() {
	devices := rapid.Permutation([]uint64{41, 42, 43}).Draw(m.T, "devices")
	m.volumes.mu.Lock()
	defer m.volumes.mu.Unlock()
	m.volumes.devices = devices
	for _, at := range mountPoints {
		m.volumes.mounts[at].mounted = rapid.IntRange(0, 3).Draw(m.T, "mounted "+at) > 0
	}
}

// anyRequest returns a random request. Exclusions are names, at any depth.
func (m *model) anyRequest() backup.Snapshot {
	return backup.Snapshot{
		AllowShrink: rapid.IntRange(0, 5).Draw(m.T, "allow shrink") == 0,
		Selection:   backup.Selection{Exclude: rapid.SampledFrom([][]string{nil, nil, {"c"}, {"b", "d e"}}).Draw(m.T, "exclude")},
		Tags:        rapid.SampledFrom([][]string{nil, {"x"}, {"y", "z"}}).Draw(m.T, "tags"),
	}
}

// callsOf are the calls of a source for each kind of entry.
var callsOf = map[backup.Kind][]faultsource.Call{
	backup.Directory: {faultsource.OpenDirectory, faultsource.StatDirectory, faultsource.List, faultsource.DirectoryXattrs},
	backup.File: {
		faultsource.StatEntry, faultsource.OpenFile, faultsource.StatFile, faultsource.Extent, faultsource.Read, faultsource.FileXattrs,
	},
	backup.Symlink: {faultsource.StatEntry, faultsource.ReadLink, faultsource.EntryXattrs},
	backup.FIFO:    {faultsource.StatEntry, faultsource.EntryXattrs},
}

// anyFaults returns random faults, or none.
func (m *model) anyFaults() (faults []faultsource.Fault) {
	if rapid.Bool().Draw(m.T, "no faults") {
		return nil
	}
	for range rapid.IntRange(1, 4).Draw(m.T, "faults") {
		f := m.anyCall("fault")
		if rapid.IntRange(0, 9).Draw(m.T, "of the root") == 0 {
			f = faultsource.Fault{Call: rapid.SampledFrom([]faultsource.Call{faultsource.OpenRoot, faultsource.Check}).Draw(m.T, "fault")}
		} else if rapid.Bool().Draw(m.T, "changed") { // otherwise most calls are not made
			m.disturb(f.Path)
		}
		if f.Call == faultsource.Read && rapid.Bool().Draw(m.T, "short") {
			f.Short = true
		} else {
			name := rapid.SampledFrom(errnoNames).Draw(m.T, "errno")
			f.Err = faultsource.Posix(f.Call, errnos[name])
		}
		f.After, f.Times = rapid.IntRange(0, 1).Draw(m.T, "after"), rapid.IntRange(0, 2).Draw(m.T, "times")
		faults = append(faults, f)
	}
	return faults
}

// disturb changes the entry at a path, so that it is read again.
func (m *model) disturb(path string) {
	at := filepath.Join(m.dir, path)
	m.seed++
	m.must(unix.UtimesNanoAt(unix.AT_FDCWD, at, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: int64(m.seed)}}, unix.AT_SYMLINK_NOFOLLOW))
	if info, err := os.Lstat(at); err == nil && info.Mode().IsRegular() {
		m.write(path, 50)
	}
	_ = unix.Lsetxattr(at, "user.a", fmt.Append(nil, m.seed), 0)
}

// errnoNames are the columns of the matrix.
var errnoNames = []string{"ENOENT", "ENOTDIR", "ELOOP", "EACCES", "ENAMETOOLONG", "EIO", "ESTALE", "ETIMEDOUT", "ENOTCONN", "EMFILE", "ENOMEM"}

// anyCall returns a call that a backup may make.
func (m *model) anyCall(label string) faultsource.Fault {
	paths := m.paths()
	path := rapid.SampledFrom(paths).Draw(m.T, label+" at")
	var st unix.Stat_t
	m.must(unix.Lstat(filepath.Join(m.dir, path), &st))
	return faultsource.Fault{Path: path, Call: rapid.SampledFrom(callsOf[backup.KindOfMode(st.Mode)]).Draw(m.T, label)}
}

// paths returns all paths in the tree, in order.
func (m *model) paths() (paths []string) {
	m.must(filepath.WalkDir(m.dir, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, strings.TrimPrefix(strings.TrimPrefix(path, m.dir), "/"))
		return err
	}))
	slices.Sort(paths)
	return paths
}

// backup makes a backup and checks its result.
func (m *model) backup(request backup.Snapshot, faults []faultsource.Fault, killed bool) {
	ctx, kill := context.WithCancel(m.r.Context())
	defer kill()
	a := &attempt{model: m, request: request}
	for _, f := range faults {
		a.faults = append(a.faults, m.faults.Inject(f))
	}
	if killed {
		f := m.anyCall("killed at")
		f.Times, f.Do = 1, kill
		defer m.faults.Inject(f).Lift()
	}
	if rapid.Bool().Draw(m.T, "nothing is racy") {
		m.faults.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 })
	} else {
		m.faults.SetClock(nil)
	}
	a.look()
	o := m.r.Options
	o.Source = m.faults
	snap, err := embedded.Backup(ctx, o, m.shard, request, nil)
	for _, f := range a.faults {
		f.Lift()
	}
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
	case err != nil:
		if a.happened() == 0 {
			m.Fatal(err)
		}
	case snap.State == backup.Failed:
		if a.happened() == 0 && !m.shrank(&snap) {
			m.Fatalf("failed: %s; %+v", snap.Reason, snap.Counts)
		}
	default:
		a.check(&snap)
	}
}

// shrank reports whether a failed snapshot has far less than the last good one.
func (m *model) shrank(s *backup.Snapshot) bool {
	if !strings.Contains(s.Reason, "--allow-shrink") || s.AllowShrink {
		return false
	}
	var last backup.Counts
	if n := len(m.taken); n > 0 {
		last = m.taken[n-1].snap.Counts
	}
	return 2*s.Counts.Files < last.Files || 10*s.Counts.Bytes < last.Bytes || s.Counts.Vanished > s.Counts.Files
}

// heal makes a backup without faults, which must equal the tree again.
func (m *model) heal() {
	before := len(m.taken)
	m.backup(backup.Snapshot{}, nil, false)
	if len(m.taken) == before { // it has shrunk
		m.backup(backup.Snapshot{AllowShrink: true}, nil, false)
	}
	if len(m.taken) == before {
		m.Fatal("there is no snapshot without faults")
	}
}

// restoreAgain restores any snapshot, which must be the same as when it was new.
func (m *model) restoreAgain() {
	old := rapid.SampledFrom(m.taken).Draw(m.T, "restored again")
	to := filepath.Join(m.top, "again")
	reported, err := m.r.restore(m.r.Context(), &old.snap, to)
	m.must(err)
	if got := pathsOf(reported); !slices.Equal(got, old.flawed) {
		m.Errorf("reported %q, and %q when it was new", got, old.flawed)
	}
	if lines := treetest.Compare(old.restored, to); len(lines) > 0 && len(reported) == 0 {
		m.Errorf("snapshot %d is not what it was:\n  %s", old.snap.Number, strings.Join(lines, "\n  "))
	}
}
