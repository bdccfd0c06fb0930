package dirstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// readDirEntries is the number of entries of a directory in memory at once.
const readDirEntries = 512

// GetRange implements store.Store.
func (s *Store) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if err := store.CheckRange(offset, length); err != nil {
		return nil, s.fail("get", name, err)
	}
	file, sizeBytes, err := s.open(ctx, name)
	if err != nil {
		return nil, s.fail("get", name, err)
	}
	defer file.Close()
	start := offset
	if offset < 0 {
		start += sizeBytes
	}
	if start < 0 || start > sizeBytes || length > sizeBytes-start {
		err := fmt.Errorf("a range of %d bytes from %d exceeds its %d bytes: %w", length, offset, sizeBytes, backup.ErrCorrupt)
		return nil, s.fail("get", name, err)
	}
	dst, err = readAt(dst, file, start, length)
	if err != nil {
		return nil, s.fail("get", name, err)
	}
	return dst, nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	file, sizeBytes, err := s.open(ctx, name)
	if err != nil {
		return nil, s.fail("get", name, err)
	}
	defer file.Close()
	if sizeBytes > maxBytes {
		err := fmt.Errorf("it has %d bytes, more than %d: %w", sizeBytes, maxBytes, backup.ErrInvalid)
		return nil, s.fail("get", name, err)
	}
	data, err := readAt(nil, file, 0, sizeBytes)
	if err != nil {
		return nil, s.fail("get", name, err)
	}
	return data, nil
}

// Stat implements store.Store.
func (s *Store) Stat(ctx context.Context, name string) (int64, error) {
	if err := s.check(ctx, name); err != nil {
		return 0, s.fail("stat", name, err)
	}
	info, err := s.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() || errors.Is(err, syscall.ENOTDIR) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, s.fail("stat", name, err)
	}
	return info.Size(), nil
}

// open opens an object and returns its size.
func (s *Store) open(ctx context.Context, name string) (*os.File, int64, error) {
	if err := s.check(ctx, name); err != nil {
		return nil, 0, err
	}
	// O_NONBLOCK, because the open of a fifo or a device could block.
	file, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) { // a part of the name is another object
			err = fs.ErrNotExist
		}
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// readAt appends length bytes of the file to dst.
func readAt(dst []byte, file *os.File, start, length int64) ([]byte, error) {
	begin := len(dst)
	dst = slices.Grow(dst, int(length))[:begin+int(length)]
	n, err := file.ReadAt(dst[begin:], start)
	if n == int(length) {
		return dst, nil
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("it became shorter while it was read: %w", backup.ErrCorrupt)
	}
	return nil, err
}

// List implements store.Store. It reads only the directories that can contain names with the
// prefix.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(store.Object{}, s.fail("list", prefix, err))
			return
		}
		directory, begin := path.Split(prefix)
		l := lister{ctx: ctx, root: s.root, yield: yield}
		if err := l.list(path.Clean(directory), begin); err != nil && !errors.Is(err, errStopped) {
			yield(store.Object{}, s.fail("list", prefix, err))
		}
	}
}

// errStopped reports that the consumer of a List has stopped.
var errStopped = errors.New("stopped")

type lister struct {
	ctx   context.Context
	root  *os.Root
	yield func(store.Object, error) bool
}

// list yields the objects in the directory and below it, restricted to entries that begin with
// begin.
func (l *lister) list(directory, begin string) error {
	dir, err := l.root.OpenFile(directory, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil // it never existed, or was deleted meanwhile
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		if err := context.Cause(l.ctx); err != nil {
			return err
		}
		entries, err := dir.ReadDir(readDirEntries)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), begin) {
				continue
			}
			if err := l.entry(dir, path.Join(directory, e.Name()), e); err != nil {
				return err
			}
		}
		if err == io.EOF || errors.Is(err, fs.ErrNotExist) { // deleted while it is read
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *lister) entry(dir *os.File, name string, e fs.DirEntry) error {
	if store.CheckName(name) != nil {
		return nil //nolint:nilerr // not an object, but a temporary file or a file of another program
	}
	if e.IsDir() {
		return l.list(name, "")
	}
	var stat unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), e.Name(), &stat, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return nil // deleted meanwhile
	}
	if err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFREG && !l.yield(store.Object{Name: name, SizeBytes: stat.Size, Modified: time.Unix(stat.Mtim.Unix())}, nil) {
		return errStopped
	}
	return nil
}
