//go:build linux

package target

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// maxIdleDirectories bounds the descriptors that are kept open for reuse.
const maxIdleDirectories = 256

// maxOpenPathBytes is the longest path that is passed to one system call. PATH_MAX is 4,096 with
// the NUL.
const maxOpenPathBytes = 3500

// Options of Open.
type Options struct {
	Path string
	Salt []byte // the snapshot's id: part of temporary names
	// Mark leaves a mark in a directory that Open creates, until Unmark. After an interrupted
	// restore, the next Open finds it.
	Mark bool
	// Joined, if not nil, opens a target in which several processes restore at a time.
	Joined *Joined
	// Fault, for tests, is called before a call that changes the target, and with done after one
	// that has succeeded. An error that it returns becomes the call's error. name is the name that
	// the call changes, or that of the attribute; it is empty if the call takes only a descriptor.
	Fault func(c Call, name string, done bool) error
}

// A Root is an open target. Its methods may be called concurrently.
type Root struct {
	o             Options
	own           string // prefix of the snapshot's temporary names
	fd            int
	euid          uint32
	egid          uint32
	created       bool
	makes         []string // the target and its parents, if Open creates them
	ours          bool
	marked        bool
	openat2       bool // false: the kernel has none
	noListxattrat atomic.Bool
	fileSystems   fileSystems
	mu            sync.Mutex
	open          map[string]*Dir
	idle          *list.List // of *Dir without users, most recently used first
}

// Open opens the directory at o.Path. If it does not exist, Open creates it with its parents (mode
// 0700).
func Open(o Options) (*Root, error) {
	r := &Root{
		o: o, own: ownPrefix(o.Salt), openat2: true,
		euid: uint32(os.Geteuid()), egid: uint32(os.Getegid()),
		open: make(map[string]*Dir), idle: list.New(),
	}
	switch _, err := os.Stat(o.Path); {
	case errors.Is(err, fs.ErrNotExist) && o.Joined != nil:
		return nil, fmt.Errorf("target %s does not exist: %w", o.Path, ErrOther)
	case errors.Is(err, fs.ErrNotExist):
		if err := r.makeTarget(); err != nil {
			r.removeTarget()
			return nil, fmt.Errorf("make target %s: %w", o.Path, err)
		}
		r.created = true
	case err != nil:
		return nil, fmt.Errorf("target: %w", err)
	}
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(o.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("target %s is not a directory: %w", o.Path, backup.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("open target %s: %w", o.Path, err)
	}
	r.fd = fd
	// Some file systems have no locks, so other errors are ignored.
	lock := unix.LOCK_EX
	if o.Joined != nil {
		lock = unix.LOCK_SH
	}
	if err := unix.Flock(fd, lock|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		unix.Close(fd)
		return nil, &runningError{o.Path}
	}
	if err := r.joins(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := r.mark(); err != nil {
		unix.Close(fd)
		r.removeTarget()
		return nil, fmt.Errorf("write to target %s: %w", o.Path, err)
	}
	return r, nil
}

// A runningError is backup.ErrRunning for a restore instead of a snapshot.
type runningError struct{ target string }

func (e *runningError) Error() string {
	return fmt.Sprintf("another restore to target %s is running", e.target)
}

func (e *runningError) Is(target error) bool { return target == backup.ErrRunning }

// markName is the same for all snapshots, because the next restore may be of a later one.
const markName = tempPrefix + "target"

// mark creates the mark in a directory that Open has created, or looks for one. A mark counts only
// if it belongs to the current user.
func (r *Root) mark() error {
	r.ours = r.created
	if !r.o.Mark {
		return nil
	}
	if r.created {
		fd, err := r.createAt(r.fd, markName, unix.S_IRUSR|unix.S_IWUSR)
		if err != nil {
			return err
		}
		r.marked = true
		return r.close(fd)
	}
	var st unix.Stat_t
	err := unix.Fstatat(r.fd, markName, &st, unix.AT_SYMLINK_NOFOLLOW)
	r.marked = err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Uid == r.euid && st.Nlink == 1 && st.Size == 0
	r.ours = r.marked
	return nil
}

// Unmark removes the mark, if there is one.
func (r *Root) Unmark() error {
	if !r.marked {
		return nil
	}
	r.marked = false
	return r.unlinkAt(r.fd, markName, 0)
}

// Abandon removes the target, and those of its parents that Open created, if Open created the
// target and it contains nothing but the mark.
func (r *Root) Abandon() error {
	if !r.created {
		return nil
	}
	d, err := r.Dir("")
	if err != nil {
		return err
	}
	defer d.Release()
	if used, err := d.HasName(func(name string) bool { return !IsMark(name) }); used || err != nil {
		return err
	}
	if err := r.Unmark(); err != nil {
		return err
	}
	r.removeTarget()
	return nil
}

// Marked reports whether the target has the mark.
func (r *Root) Marked() bool { return r.marked }

// IsMark reports whether a name in the target is that of the mark.
func IsMark(name string) bool { return name == markName }

// Ours reports whether the directory was created by Open, or by an interrupted restore.
func (r *Root) Ours() bool { return r.ours }

// Close closes all descriptors. No Dir may be in use any more.
func (r *Root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.open {
		unix.Close(d.fd)
	}
	r.open = nil
	r.fileSystems.close()
	return unix.Close(r.fd)
}

// A Dir is an open directory of the target. Its methods may be called concurrently, between
// Root.Dir and Release.
type Dir struct {
	root *Root
	path string
	fd   int
	refs int
	idle *list.Element

	renaming sync.Mutex
}

// Dir opens the directory at path, which is relative to the target and "" for the target itself.
// Errors wrap fs.ErrNotExist, backup.ErrOutside (a component is a symlink) or syscall.ENOTDIR.
func (r *Root) Dir(path string) (*Dir, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, ok := r.open[path]; ok {
		if d.idle != nil {
			r.idle.Remove(d.idle)
			d.idle = nil
		}
		d.refs++
		return d, nil
	}
	fd, err := r.openBeneath(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{root: r, path: path, fd: fd, refs: 1}
	r.open[path] = d
	return d, nil
}

// Release ends the use of the directory by one caller of Root.Dir.
func (d *Dir) Release() {
	r := d.root
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.refs--; d.refs > 0 {
		return
	}
	d.idle = r.idle.PushFront(d)
	for r.idle.Len() > maxIdleDirectories {
		oldest := r.idle.Remove(r.idle.Back()).(*Dir)
		delete(r.open, oldest.path)
		unix.Close(oldest.fd)
	}
}

// openBeneath opens a directory of any depth, in steps that fit into one system call. The caller
// closes the descriptor.
func (r *Root) openBeneath(path string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY
	at := r.fd
	if path == "" {
		return r.openAt(at, ".", flags)
	}
	for {
		step, rest := cutPath(path)
		fd, err := r.openAt(at, step, flags)
		if at != r.fd {
			unix.Close(at)
		}
		if err != nil || rest == "" {
			return fd, err
		}
		at, path = fd, rest
	}
}

// cutPath splits path after as many components as one call may have.
func cutPath(path string) (step, rest string) {
	if len(path) <= maxOpenPathBytes {
		return path, ""
	}
	i := strings.LastIndexByte(path[:maxOpenPathBytes], '/')
	if i < 0 {
		return path, "" // no file system has such a name; the call fails
	}
	return path[:i], path[i+1:]
}

// openAt opens path below the directory at. It follows no symlink.
func (r *Root) openAt(at int, path string, flags int) (int, error) {
	if r.openat2 {
		fd, err := ignoringEINTR(func() (int, error) {
			return unix.Openat2(at, path, &unix.OpenHow{
				Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC),
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
			})
		})
		if !errors.Is(err, unix.ENOSYS) {
			return fd, confined(path, err)
		}
		r.openat2 = false
	}
	return openStepwise(at, path, flags)
}

// openStepwise resolves the path as openat2 does, one component per call, for kernels before 5.6.
func openStepwise(at int, path string, flags int) (int, error) {
	names := strings.Split(path, "/")
	fd := at
	for i, name := range names {
		step := unix.O_PATH | unix.O_DIRECTORY
		if i == len(names)-1 {
			step = flags
		}
		if name == ".." {
			return -1, fmt.Errorf("%q: %w", path, backup.ErrOutside)
		}
		parent := fd
		next, err := ignoringEINTR(func() (int, error) {
			return unix.Openat(parent, name, step|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		})
		if fd != at {
			unix.Close(fd)
		}
		if err != nil {
			return -1, confined(path, err)
		}
		fd = next
	}
	return fd, nil
}

func confined(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%q: a symlink is in the way: %w (%w)", path, backup.ErrOutside, err)
	}
	return err
}
