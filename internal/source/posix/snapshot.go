//go:build linux

package posix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	stdpath "path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A snapshot is a source snapshot: a directory below the one that the operator named. The inode and
// the times of its root distinguish it from another that is later at the same path.
type snapshot struct {
	path         string // relative
	inode        uint64
	mtime, ctime backup.Time
}

// The query of a source snapshot's URL:
// posix:///srv/home?ctime=…&inode=…&mtime=…&snapshot=.snapshot%2Fhourly.0
const (
	querySnapshot = "snapshot"
	queryInode    = "inode"
	queryMtime    = "mtime"
	queryCtime    = "ctime"
)

func (n *snapshot) url(top string) string {
	return top + "?" + url.Values{
		querySnapshot: {n.path},
		queryInode:    {strconv.FormatUint(n.inode, 10)},
		queryMtime:    {formatTime(n.mtime)},
		queryCtime:    {formatTime(n.ctime)},
	}.Encode()
}

// cutSnapshot splits a URL into that of the tree and the snapshot in it; n is nil if there is none.
func cutSnapshot(rawURL string) (top string, n *snapshot, err error) {
	top, query, ok := strings.Cut(rawURL, "?")
	if !ok {
		return rawURL, nil, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil || len(values) != 4 {
		return "", nil, fmt.Errorf("source %q: invalid query of a source snapshot: %w", rawURL, backup.ErrInvalid)
	}
	n = &snapshot{path: values.Get(querySnapshot)}
	var errs [3]error
	n.inode, errs[0] = strconv.ParseUint(values.Get(queryInode), 10, 64)
	n.mtime, errs[1] = parseTime(values.Get(queryMtime))
	n.ctime, errs[2] = parseTime(values.Get(queryCtime))
	if err := errors.Join(errs[:]...); err != nil {
		return "", nil, fmt.Errorf("source %q: %w: %w", rawURL, err, backup.ErrInvalid)
	}
	if err := checkPath(n.path); err != nil || n.path == "" {
		return "", nil, fmt.Errorf("source %q: invalid path of a source snapshot: %w", rawURL, backup.ErrInvalid)
	}
	return top, n, nil
}

func formatTime(t backup.Time) string { return fmt.Sprintf("%d.%09d", t.Sec, t.Nsec) }

func parseTime(text string) (t backup.Time, err error) {
	sec, nsec, _ := strings.Cut(text, ".")
	if t.Sec, err = strconv.ParseInt(sec, 10, 64); err != nil {
		return t, err
	}
	n, err := strconv.ParseUint(nsec, 10, 32)
	t.Nsec = uint32(n)
	return t, err
}

// openSnapshot opens a source snapshot in t. The directory that the operator named may be reached
// through symlinks; the snapshot below it may not.
func (t *tree) openSnapshot(n *snapshot) (source.Tree, error) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	fd, err := t.openDirectory(s, n.path, directoryFlags)
	if err != nil {
		return nil, t.snapshotError(n.path, err)
	}
	if err := t.compare(s, fd, n); err != nil {
		unix.Close(fd)
		return nil, err
	}
	found := &tree{path: t.path, snapshot: n, root: fd, options: t.options, noOpenat2: t.noOpenat2, readFor: t.readFor}
	if err := found.identify(fd); err != nil {
		unix.Close(fd)
		return nil, t.snapshotError(n.path, err)
	}
	// The URL identifies the snapshot; each snapshot has a root of its own.
	found.identity = t.identity
	return found, nil
}

// compare fails with ErrExpired unless the directory is the root of n. It leaves the current
// attributes, as the file server reports them, in s.st.
func (t *tree) compare(s *scratch, fd int, n *snapshot) error {
	if errno := statx(fd, emptyName, unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, &s.st); errno != 0 {
		return t.snapshotError(n.path, asError(errno))
	}
	if now := snapshotOf(n.path, &s.st); *now != *n {
		return fmt.Errorf("%q in %q was replaced by another source snapshot: %w", n.path, t.path, source.ErrExpired)
	}
	return nil
}

func snapshotOf(path string, st *unix.Statx_t) *snapshot {
	var root backup.Entry
	setAttributes(&root, st)
	return &snapshot{path: path, inode: root.Inode, mtime: root.Mtime, ctime: root.Ctime}
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
	at, err := top.openDirectory(s, t.snapshot.path, stepFlags)
	if err != nil {
		return t.snapshotError(t.snapshot.path, err)
	}
	defer unix.Close(at)
	return t.compare(s, at, t.snapshot)
}

func (t *tree) compareRoot(s *scratch) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.root < 0 {
		return t.snapshotError(t.snapshot.path, fs.ErrClosed)
	}
	return t.compare(s, t.root, t.snapshot)
}

const (
	// resolveTries is the number of lookups for a snapshot that a rotation removes meanwhile.
	resolveTries = 3
	// maxSnapshots bounds the matching names that are compared. A name may have 255 bytes.
	maxSnapshots = 64 << 10
)

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
	for range resolveTries {
		var n *snapshot
		if n, err = t.newest(ctx, pattern); err == nil {
			return n.url(rawURL), nil
		}
		if !isGone(err) {
			return "", resolveError(pattern, t.path, err)
		}
	}
	return "", fmt.Errorf("no source snapshot %q in %q: %w: %w", pattern, t.path, err, backup.ErrNotFound)
}

func resolveError(pattern, path string, err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, backup.ErrInvalid) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("source snapshot %q in %q: %w", pattern, path, err)
	}
	return fmt.Errorf("source snapshot %q in %q: %w: %w", pattern, path, err, backup.ErrUnavailable)
}

// newest finds the snapshot that the pattern currently matches.
func (t *tree) newest(ctx context.Context, pattern string) (*snapshot, error) {
	path := ""
	for component := range strings.SplitSeq(pattern, "/") {
		if source.IsPattern(component) {
			names, err := t.matching(ctx, path, component)
			if err != nil {
				return nil, err
			}
			if len(names) == 0 {
				return nil, fmt.Errorf("no directory in %q matches %q: %w", stdpath.Join(t.path, path), component, fs.ErrNotExist)
			}
			component = source.Newest(names)
		}
		path = backup.Join(path, component)
	}
	d, err := t.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	root := d.Self()
	return &snapshot{path: path, inode: root.Inode, mtime: root.Mtime, ctime: root.Ctime}, nil
}

// matching returns the names of the subdirectories of path that match.
func (t *tree) matching(ctx context.Context, path, pattern string) (names []string, err error) {
	d, err := t.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var entries []backup.Entry
	for {
		// An entry whose stat fails is not a directory, so problems are ignored.
		entries, _, err = d.Read(ctx, entries[:0], func(string, string, error) {})
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		for i := range entries {
			if entries[i].Kind != backup.Directory {
				continue
			}
			if match, err := stdpath.Match(pattern, entries[i].Name); err == nil && match {
				// The names of one Read share their memory.
				names = append(names, strings.Clone(entries[i].Name))
			}
		}
		if len(names) > maxSnapshots {
			return nil, fmt.Errorf("more than %d directories match %q: %w", maxSnapshots, pattern, backup.ErrInvalid)
		}
	}
}
