package dirstore

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// writeBytes is the amount that is written before writeback starts, and between two checks of the
// context.
const writeBytes = 4 << 20

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, name string, data []byte) error {
	return s.put(ctx, name, data, false)
}

// PutNew implements store.Store.
func (s *Store) PutNew(ctx context.Context, name string, data []byte) error {
	return s.put(ctx, name, data, true)
}

func (s *Store) put(ctx context.Context, name string, data []byte, exclusive bool) error {
	if err := s.check(ctx, name); err != nil {
		return s.fail("put", name, err)
	}
	temp, err := s.writeTemp(ctx, data)
	if err != nil {
		return s.fail("put", name, err)
	}
	if err := s.place(temp, name, exclusive); err != nil {
		s.removeTemp(temp)
		return s.fail("put", name, err)
	}
	return nil
}

// writeTemp writes data durably to a new file in tempDirectory and returns its name there.
func (s *Store) writeTemp(ctx context.Context, data []byte) (string, error) {
	temp := rand.Text()
	file, err := s.createTemp(path.Join(tempDirectory, temp))
	if err != nil {
		return "", err
	}
	err = s.write(ctx, file, data)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		s.removeTemp(temp)
		return "", err
	}
	return temp, nil
}

// removeTemp removes a file after an error. If that fails, a later sweep removes it.
func (s *Store) removeTemp(temp string) { _ = s.root.Remove(path.Join(tempDirectory, temp)) }

// write writes data to the file durably, and drops it from the page cache.
func (s *Store) write(ctx context.Context, file *os.File, data []byte) error {
	fd := int(file.Fd())
	for written := 0; written < len(data); {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := file.Write(data[written:min(len(data), written+writeBytes)])
		if err != nil {
			return err
		}
		if len(data) > writeBytes {
			// A hint, so that the disk is already writing when the fsync begins. It fails
			// harmlessly on file systems that do not support it.
			_ = unix.SyncFileRange(fd, int64(written), int64(n), unix.SYNC_FILE_RANGE_WRITE)
		}
		written += n
	}
	if err := s.ops.syncFile(file); err != nil {
		return err
	}
	// A pack is not read soon, and the cache belongs to the machine's users. This is a hint as
	// well.
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
	return nil
}

func (s *Store) createTemp(name string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	file, err := s.root.OpenFile(name, flags, fileMode)
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if err := s.root.Mkdir(tempDirectory, directoryMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return s.root.OpenFile(name, flags, fileMode)
}

// place gives the temporary file its final name, durably.
func (s *Store) place(temp, name string, exclusive bool) error {
	from, err := s.root.Open(tempDirectory)
	if err != nil {
		return err
	}
	defer from.Close()
	// Repeat if a Delete removes the directory that it has emptied.
	for range 3 {
		if err = s.placeIn(path.Dir(name), from, temp, path.Base(name), exclusive); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.forget(path.Dir(name))
	}
	return err
}

func (s *Store) placeIn(parent string, from *os.File, temp, base string, exclusive bool) error {
	if err := s.makeDirectories(parent); err != nil {
		return err
	}
	to, err := s.root.Open(parent)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := s.ops.publish(from, to, temp, base, exclusive); err != nil {
		return err
	}
	return s.ops.syncDirectory(to)
}

// publish moves the file temp in the directory from to name in the directory to.
func publish(from, to *os.File, temp, name string, exclusive bool) error {
	fromFD, toFD := int(from.Fd()), int(to.Fd())
	if !exclusive {
		return unix.Renameat(fromFD, temp, toFD, name)
	}
	err := unix.Renameat2(fromFD, temp, toFD, name, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	return publishLink(fromFD, toFD, temp, name)
}

// publishLink is an exclusive publish for file systems without RENAME_NOREPLACE.
func publishLink(fromFD, toFD int, temp, name string) error {
	if err := unix.Linkat(fromFD, temp, toFD, name, 0); err != nil {
		// NFS may create the link, lose the answer, and fail on its own retry.
		var stat unix.Stat_t
		if unix.Fstatat(fromFD, temp, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil || stat.Nlink != 2 {
			return err
		}
	}
	_ = unix.Unlinkat(fromFD, temp, 0) // a file that stays is swept later
	return nil
}

// makeDirectories creates the directory and its missing parents, and ensures that their entries are
// durable.
func (s *Store) makeDirectories(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.durable[name]; ok {
		return nil
	}
	if len(s.durable) >= maxDurable {
		s.durable = map[string]struct{}{".": {}} // syncing them again does no harm
	}
	parent := "."
	for component := range strings.SplitSeq(name, "/") {
		directory := path.Join(parent, component)
		if _, ok := s.durable[directory]; !ok {
			if err := s.makeDirectory(parent, directory); err != nil {
				return err
			}
			s.durable[directory] = struct{}{}
		}
		parent = directory
	}
	return nil
}

func (s *Store) makeDirectory(parent, directory string) error {
	if err := s.root.Mkdir(directory, directoryMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	opened, err := s.root.Open(parent)
	if err != nil {
		return err
	}
	defer opened.Close()
	return s.ops.syncDirectory(opened)
}

// forget removes a directory and everything below it from the known durable directories.
func (s *Store) forget(directory string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for known := range s.durable {
		if known != "." && (known == directory || strings.HasPrefix(known, directory+"/")) {
			delete(s.durable, known)
		}
	}
}
