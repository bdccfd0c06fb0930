package source

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

	"github.com/bctl/bctl/internal/backup"
)

// A Snapshot is a source snapshot that was found: a directory below the one that the operator
// named. The inode and the times of its root distinguish it from another that is later at the same
// path.
type Snapshot struct {
	Path         string // relative
	Inode        uint64
	Mtime, Ctime backup.Time
}

// The query of a source snapshot's URL:
// posix:///srv/home?ctime=…&inode=…&mtime=…&snapshot=.snapshot%2Fhourly.0
const (
	querySnapshot = "snapshot"
	queryInode    = "inode"
	queryMtime    = "mtime"
	queryCtime    = "ctime"
)

// SnapshotAt returns the snapshot whose root, at path, has these attributes.
func SnapshotAt(path string, root *backup.Entry) *Snapshot {
	return &Snapshot{Path: path, Inode: root.Inode, Mtime: root.Mtime, Ctime: root.Ctime}
}

// URL returns the URL of a snapshot in the tree at top.
func (n *Snapshot) URL(top string) string {
	separator := "?"
	if strings.Contains(top, "?") {
		separator = "&"
	}
	return top + separator + url.Values{
		querySnapshot: {n.Path},
		queryInode:    {strconv.FormatUint(n.Inode, 10)},
		queryMtime:    {formatTime(n.Mtime)},
		queryCtime:    {formatTime(n.Ctime)},
	}.Encode()
}

// CutSnapshot splits a URL into that of the tree, with the rest of its query, and the snapshot in
// it; n is nil if there is none. Its error wraps backup.ErrInvalid.
func CutSnapshot(rawURL string) (top string, n *Snapshot, err error) {
	top, query, ok := strings.Cut(rawURL, "?")
	if !ok {
		return rawURL, nil, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", nil, fmt.Errorf("source %q: %w: %w", rawURL, err, backup.ErrInvalid)
	}
	n = &Snapshot{Path: values.Get(querySnapshot)}
	var errs [3]error
	n.Inode, errs[0] = strconv.ParseUint(values.Get(queryInode), 10, 64)
	n.Mtime, errs[1] = parseTime(values.Get(queryMtime))
	n.Ctime, errs[2] = parseTime(values.Get(queryCtime))
	found := 0
	for _, key := range []string{querySnapshot, queryInode, queryMtime, queryCtime} {
		found += len(values[key])
		delete(values, key)
	}
	if found == 0 {
		return rawURL, nil, nil
	}
	if err := errors.Join(errs[:]...); err != nil || found != 4 {
		return "", nil, fmt.Errorf("source %q: invalid query of a source snapshot: %w", rawURL, errors.Join(err, backup.ErrInvalid))
	}
	if err := CheckPath(n.Path); err != nil || n.Path == "" {
		return "", nil, fmt.Errorf("source %q: invalid path of a source snapshot: %w", rawURL, backup.ErrInvalid)
	}
	if len(values) > 0 {
		top += "?" + values.Encode()
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

// CheckPath refuses strings that cannot be a path below a root. Its error wraps backup.ErrOutside
// or backup.ErrInvalid.
func CheckPath(path string) error {
	if path == "" {
		return nil
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == ".." {
			return fmt.Errorf("path %q: %w", path, backup.ErrOutside)
		}
		if name == "" || name == "." || strings.IndexByte(name, 0) >= 0 {
			return fmt.Errorf("path %q: %w", path, backup.ErrInvalid)
		}
	}
	return nil
}

const (
	// resolveTries is the number of lookups for a snapshot that a rotation removes meanwhile.
	resolveTries = 3
	// maxSnapshots bounds the matching names that are compared. A name may have 255 bytes.
	maxSnapshots = 64 << 10
)

// FindSnapshot returns the newest source snapshot that the pattern matches in a tree. Errors are
// those of Source.Resolve; where is the tree's name in them.
func FindSnapshot(ctx context.Context, t Tree, where, pattern string) (n *Snapshot, err error) {
	for range resolveTries {
		if n, err = newest(ctx, t, where, pattern); err == nil {
			return n, nil
		}
		if !IsGone(err) && !errors.Is(err, ErrStale) {
			return nil, resolveError(pattern, where, err)
		}
	}
	return nil, fmt.Errorf("no source snapshot %q in %q: %w: %w", pattern, where, err, backup.ErrNotFound)
}

func resolveError(pattern, path string, err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, backup.ErrInvalid) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("source snapshot %q in %q: %w", pattern, path, err)
	}
	return fmt.Errorf("source snapshot %q in %q: %w: %w", pattern, path, err, backup.ErrUnavailable)
}

// newest finds the snapshot that the pattern currently matches.
func newest(ctx context.Context, t Tree, where, pattern string) (*Snapshot, error) {
	path := ""
	for component := range strings.SplitSeq(pattern, "/") {
		if IsPattern(component) {
			names, err := matching(ctx, t, path, component)
			if err != nil {
				return nil, err
			}
			if len(names) == 0 {
				return nil, fmt.Errorf("no directory in %q matches %q: %w", stdpath.Join(where, path), component, fs.ErrNotExist)
			}
			component = Newest(names)
		}
		path = backup.Join(path, component)
	}
	d, err := t.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	root := d.Self()
	return SnapshotAt(path, &root), d.Close()
}

// matching returns the names of the subdirectories of path that match.
func matching(ctx context.Context, t Tree, path, pattern string) (names []string, err error) {
	d, err := t.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // it was only read
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
