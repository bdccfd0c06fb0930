package dirstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

const (
	directoryMode = 0o700
	fileMode      = 0o600

	tempDirectory = "tmp~"
	tempKeep      = 24 * time.Hour // longer than any Put takes
)

var _ store.Store = (*Store)(nil)

// A Store keeps objects in a directory. Several Stores, of several processes, may use one directory
// at the same time.
type Store struct {
	path string
	root *os.Root // everything below is opened through it: no name or symlink leads outside
	ops  operations

	mu sync.Mutex // also held while directories are created, so none counts as durable too early
	// durable contains the directories whose entries, and those of all their parents, are known to
	// be on disk.
	durable map[string]struct{}
}

// maxDurable bounds Store.durable. A process writes to one or two directories per snapshot.
const maxDurable = 4096

// operations are the durable steps. They are separate so that tests can make them fail.
type operations struct {
	syncFile      func(*os.File) error
	publish       func(from, to *os.File, temp, name string, exclusive bool) error
	syncDirectory func(*os.File) error
}

// Open opens the store in the directory dir. An error wraps backup.ErrNoRepository if there is
// none.
func Open(dir string) (*Store, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, failure(dir, "open", "", err)
	}
	root, err := os.OpenRoot(absolute)
	if err != nil {
		return nil, openFailure(absolute, err)
	}
	s := &Store{
		path:    absolute,
		root:    root,
		ops:     operations{syncFile: (*os.File).Sync, publish: publish, syncDirectory: (*os.File).Sync},
		durable: map[string]struct{}{".": {}},
	}
	s.sweep(time.Now().Add(-tempKeep))
	return s, nil
}

// Create creates the directory dir and its missing parents, durably, and opens the store in it. An
// existing directory is not an error; the caller determines whether it contains a repository.
func Create(dir string) (*Store, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, failure(dir, "create", "", err)
	}
	if err := makeDurable(absolute); err != nil {
		return nil, failure(absolute, "create", "", err)
	}
	return Open(absolute)
}

// makeDurable creates the directory and its missing parents, and syncs the parent of each that it
// created.
func makeDurable(dir string) error {
	err := os.Mkdir(dir, directoryMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDurable(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, directoryMode)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // Open checks that it is a directory
	}
	if err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

// sweep removes temporary files that were last written before the given time. It ignores errors,
// such as those of a store on a read-only mount, because it only tidies up.
func (s *Store) sweep(before time.Time) {
	dir, err := s.root.Open(tempDirectory)
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(readDirEntries)
		for _, e := range entries {
			name := path.Join(tempDirectory, e.Name())
			if info, err := s.root.Lstat(name); err == nil && info.Mode().IsRegular() && info.ModTime().Before(before) {
				_ = s.root.Remove(name)
			}
		}
		if err != nil {
			return
		}
	}
}

// Delete implements store.Store. It also removes the directories that become empty, except those of
// the first level.
func (s *Store) Delete(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := store.CheckName(name); err != nil {
			return s.fail("delete", name, err)
		}
	}
	for _, name := range names {
		if err := s.delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Lock implements store.Store: a directory has no locks.
func (s *Store) Lock(_ context.Context, name string, _ time.Time) error {
	return s.fail("lock", name, fmt.Errorf("a directory cannot lock objects: %w", backup.ErrInvalid))
}

func (s *Store) delete(ctx context.Context, name string) error {
	if err := s.check(ctx, name); err != nil {
		return s.fail("delete", name, err)
	}
	parent := path.Dir(name)
	dir, err := s.root.Open(parent)
	if err == nil {
		defer dir.Close()
		err = unix.Unlinkat(int(dir.Fd()), path.Base(name), 0)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR):
		return nil
	case err != nil:
		return s.fail("delete", name, err)
	}
	for path.Dir(parent) != "." {
		if s.root.Remove(parent) != nil { // usually because it is not empty
			break
		}
		s.forget(parent)
		parent = path.Dir(parent)
	}
	return nil
}

// String returns "directory" and the store's absolute path.
func (s *Store) String() string { return describe(s.path) }

// Close implements store.Store.
func (s *Store) Close() error { return s.root.Close() }

func (s *Store) check(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (s *Store) fail(op, name string, err error) error { return failure(s.path, op, name, err) }

func describe(dir string) string { return "directory " + dir }

func openFailure(dir string, err error) error {
	// os.OpenRoot has no specific error for a file that is not a directory.
	info, statErr := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) || statErr == nil && !info.IsDir() {
		return &store.Error{Store: describe(dir), Op: "open", Kind: backup.ErrNoRepository, Err: cause(err)}
	}
	return failure(dir, "open", "", err)
}

// failure returns the *store.Error for err. All errors of the package pass through it.
func failure(dir, op, name string, err error) error {
	e := &store.Error{Store: describe(dir), Op: op, Name: name, Err: cause(err)}
	known := false
	for _, kind := range []error{
		backup.ErrInvalid, backup.ErrCorrupt, backup.ErrUnavailable,
		fs.ErrPermission, context.Canceled, context.DeadlineExceeded,
	} {
		known = known || errors.Is(err, kind)
	}
	switch {
	case known: // err wraps its kind
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Kind = store.ErrFull
	case errors.Is(err, syscall.EXDEV):
		e.Kind = backup.ErrInvalid
		e.Err = fmt.Errorf("all of the store must be on one file system: %w", e.Err)
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		e.Kind = backup.ErrInvalid
	case errors.Is(err, fs.ErrNotExist):
		e.Kind = backup.ErrNotFound
	case errors.Is(err, fs.ErrExist):
		e.Kind = backup.ErrExists
	default:
		e.Kind = backup.ErrUnavailable
	}
	return e
}

// cause returns the operating system's error without the wrapper of package os, whose path is that
// of a temporary file, or relative to a descriptor.
func cause(err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return failed.Err
	}
	if failed, ok := errors.AsType[*os.LinkError](err); ok {
		return failed.Err
	}
	if failed, ok := errors.AsType[*os.SyscallError](err); ok {
		return failed.Err
	}
	return err
}
