//go:build linux

package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// openSnapshot opens a source snapshot in t. The directory that the operator named may be reached
// through symlinks; the snapshot below it may not.
func (t *tree) openSnapshot(n *source.Snapshot) (source.Tree, error) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	fd, err := t.openDirectory(s, n.Path, directoryFlags)
	if err != nil {
		return nil, t.snapshotError(n.Path, err)
	}
	if err := t.compare(s, fd, n); err != nil {
		unix.Close(fd)
		return nil, err
	}
	found := &tree{path: t.path, snapshot: n, root: fd, options: t.options, noOpenat2: t.noOpenat2, readFor: t.readFor}
	if err := found.identify(fd); err != nil {
		unix.Close(fd)
		return nil, t.snapshotError(n.Path, err)
	}
	// The URL identifies the snapshot; each snapshot has a root of its own.
	found.identity = t.identity
	return found, nil
}

// compare fails with ErrExpired unless the directory is the root of n. It leaves the current
// attributes, as the file server reports them, in s.st.
func (t *tree) compare(s *scratch, fd int, n *source.Snapshot) error {
	if errno := statx(fd, emptyName, unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, &s.st); errno != 0 {
		return t.snapshotError(n.Path, asError(errno))
	}
	if now := snapshotOf(n.Path, &s.st); *now != *n {
		return fmt.Errorf("%q in %q was replaced by another source snapshot: %w", n.Path, t.path, source.ErrExpired)
	}
	return nil
}

func snapshotOf(path string, st *unix.Statx_t) *source.Snapshot {
	var root backup.Entry
	setAttributes(&root, st)
	return source.SnapshotAt(path, &root)
}

// snapshotError is ErrExpired if a source snapshot no longer exists.
func (t *tree) snapshotError(path string, err error) error {
	switch {
	case isGone(err):
		return fmt.Errorf("%q in %q is gone (%w): %w", path, t.path, err, source.ErrExpired)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrClosed):
		return fmt.Errorf("open %q in %q: %w", path, t.path, err)
	}
	return fmt.Errorf("open %q in %q: %w: %w", path, t.path, err, backup.ErrUnavailable)
}

// isGone reports whether the error means that there is no such directory, or not at this path.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, source.ErrStale) || errors.Is(err, backup.ErrOutside)
}

// checkSnapshot is Check for a source snapshot. It checks the open root, which the server may have
// forgotten, and the directory at its path, resolved from the top.
func (t *tree) checkSnapshot() error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if err := t.compareRoot(s); err != nil {
		return err
	}
	fd, err := openRoot(t.path)
	if err != nil {
		return fmt.Errorf("%s can no longer be opened: %w: %w", t.path, err, backup.ErrUnavailable)
	}
	top := &tree{path: t.path, root: fd, noOpenat2: t.noOpenat2}
	defer top.Close()
	at, err := top.openDirectory(s, t.snapshot.Path, stepFlags)
	if err != nil {
		return t.snapshotError(t.snapshot.Path, err)
	}
	defer unix.Close(at)
	return t.compare(s, at, t.snapshot)
}

func (t *tree) compareRoot(s *scratch) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.root < 0 {
		return t.snapshotError(t.snapshot.Path, fs.ErrClosed)
	}
	return t.compare(s, t.root, t.snapshot)
}

// Resolve implements source.Source.
func (s *Source) Resolve(ctx context.Context, rawURL, pattern string) (string, error) {
	if err := source.CheckPattern(pattern); err != nil {
		return "", err
	}
	t, err := s.open(rawURL)
	if err != nil {
		return "", err
	}
	defer t.Close()
	n, err := source.FindSnapshot(ctx, t, t.path, pattern)
	if err != nil {
		return "", err
	}
	return n.URL(rawURL), nil
}
