//go:build linux

package posix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// Scheme is the scheme of the URLs that this source opens.
const Scheme = "posix"

// Options tune a Source. The zero Options are the defaults.
type Options struct {
	// SortByInode reads and returns the entries of each getdents64 buffer in the order of their
	// inodes. This is faster on spinning disks.
	SortByInode bool
	// Grain is the maximum granularity of the clocks of file systems; 0: DefaultGrain.
	Grain time.Duration
	// Skew is by how much the clock of another machine may be behind this machine's; 0:
	// DefaultSkew.
	Skew time.Duration
}

// Defaults of Options.
const (
	DefaultGrain = 20 * time.Millisecond
	DefaultSkew  = 5 * time.Second
)

// A Source opens trees of this machine. It may be used concurrently.
type Source struct {
	options Options
}

var _ source.Source = (*Source)(nil)

// New returns a Source.
func New(options Options) *Source {
	options.Grain = cmp.Or(max(options.Grain, 0), DefaultGrain)
	options.Skew = cmp.Or(max(options.Skew, 0), DefaultSkew)
	return &Source{options: options}
}

// URL returns the URL of an absolute path of any bytes: "/srv/a b" is "posix:///srv/a%20b".
func URL(path string) string {
	return (&url.URL{Scheme: Scheme, Path: path}).String()
}

// Path is the reverse of URL. Its error wraps backup.ErrInvalid.
func Path(rawURL string) (string, error) {
	escaped, ok := strings.CutPrefix(rawURL, Scheme+"://")
	if !ok || !strings.HasPrefix(escaped, "/") || strings.ContainsAny(escaped, "?#") {
		return "", fmt.Errorf("source %q: want posix:///absolute/path: %w", rawURL, backup.ErrInvalid)
	}
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return "", fmt.Errorf("source %q: %w: %w", rawURL, err, backup.ErrInvalid)
	}
	if strings.IndexByte(path, 0) >= 0 {
		return "", fmt.Errorf("source %q: a path has no NUL: %w", rawURL, backup.ErrInvalid)
	}
	return path, nil
}

// Open implements source.Source.
func (s *Source) Open(ctx context.Context, rawURL string) (source.Tree, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	top, snapshot, err := source.CutSnapshot(rawURL)
	if err != nil {
		return nil, err
	}
	t, err := s.open(top)
	if err != nil {
		return nil, err
	}
	if snapshot == nil {
		return t, nil
	}
	defer t.Close()
	return t.openSnapshot(snapshot)
}

// open opens the tree at a URL without a source snapshot.
func (s *Source) open(rawURL string) (*tree, error) {
	path, err := Path(rawURL)
	if err != nil {
		return nil, err
	}
	fd, err := openRoot(path)
	if err != nil {
		return nil, rootError(path, err)
	}
	t := &tree{path: path, root: fd, options: s.options, noOpenat2: !hasOpenat2(fd), readFor: readFor}
	if err := t.identify(fd); err != nil {
		unix.Close(fd)
		return nil, rootError(path, err)
	}
	return t, nil
}

// openRoot follows symlinks, because the operator chose the path.
func openRoot(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func rootError(path string, err error) error {
	kind := backup.ErrUnavailable
	switch {
	case errors.Is(err, unix.ENOENT):
		kind = backup.ErrNotFound
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
		kind = backup.ErrInvalid
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("open %q: %w", path, err)
	}
	return fmt.Errorf("open %q: %w: %w", path, err, kind)
}
