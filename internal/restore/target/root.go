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

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// maxIdleDirectories bounds the descriptors that are kept open for reuse.
const maxIdleDirectories = 256

// maxOpenPathBytes is the longest path given to one system call; PATH_MAX is
// 4,096 with the NUL.
const maxOpenPathBytes = 3500

// A Root is an open target. Its methods may be called concurrently.
type Root struct {
	path    string
	salt    []byte // of temporary names
	fd      int
	euid    uint32
	egid    uint32
	created bool
	openat2 bool // false: the kernel has none
	mu      sync.Mutex
	open    map[string]*Dir
	idle    *list.List // of *Dir without users, most recently used first
}

// Open opens the directory at path, which is made (mode 0700, with its
// parents) where it is not there. salt, the snapshot's id, is part of temporary names.
func Open(path string, salt []byte) (*Root, error) {
	r := &Root{
		path: path, salt: salt, openat2: true,
		euid: uint32(os.Geteuid()), egid: uint32(os.Getegid()),
		open: make(map[string]*Dir), idle: list.New(),
	}
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("make target: %w", err)
		}
		r.created = true
	case err != nil:
		return nil, fmt.Errorf("target: %w", err)
	}
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("target %s is not a directory: %w", path, backup.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("open target %s: %w", path, err)
	}
	r.fd = fd
	return r, nil
}

// Created reports whether Open made the directory.
func (r *Root) Created() bool { return r.created }

// Close closes all descriptors. No Dir may be in use any more.
func (r *Root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.open {
		unix.Close(d.fd)
	}
	r.open = nil
	return unix.Close(r.fd)
}

// A Dir is an open directory of the target. Its methods may be called
// concurrently, between Root.Dir and Release.
type Dir struct {
	root *Root
	path string
	fd   int
	refs int
	idle *list.Element
}

// Dir opens the directory at path, which is relative to the target and "" for
// the target itself. Errors wrap fs.ErrNotExist, backup.ErrOutside (a
// component is a symlink) or syscall.ENOTDIR.
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

// Release gives the directory back.
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

// openBeneath opens a directory of any depth, in steps that a system call
// takes. The caller closes the descriptor.
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
		return path, "" // a name that no file system has; the call fails
	}
	return path[:i], path[i+1:]
}

// openAt opens path below the directory at, following no symlink.
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

// openStepwise is openat2's resolution by hand, for kernels before 5.6.
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

func ignoringEINTR[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

func retryEINTR(call func() error) error {
	_, err := ignoringEINTR(func() (struct{}, error) { return struct{}{}, call() })
	return err
}
