// Package stdin makes trees of one file, whose content is a stream: the standard input of bctl. A
// stream can be read only once and has no known size, but workers open, size and re-read a file as
// they need. So the whole stream is first copied to a directory, from which package posix reads it.
package stdin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
)

const scheme = "stdin:"

// URL returns the URL of the tree with one file of the given name: "stdin:db.sql".
func URL(name string) string { return scheme + url.PathEscape(name) }

// IsURL reports whether a source is a stream, which exists only while it is backed up.
func IsURL(source string) bool { return strings.HasPrefix(source, scheme) }

// CheckName returns an error that wraps backup.ErrInvalid unless a file can have the name.
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q is not the name of a file: want 1 to 255 bytes without a slash: %w", name, backup.ErrInvalid)
	}
	return nil
}

// A Source opens the tree of one stream.
type Source struct {
	*posix.Source
	url, dir string
}

var _ source.Source = (*Source)(nil)

// Spool copies a stream to a file called name in dir, which must be empty, and returns a Source of
// the tree with this file. The caller removes dir after use. If the stream cannot be read to its
// end, there is no Source. When ctx is done, Spool returns at once, even if a read hangs.
func Spool(ctx context.Context, from *posix.Source, dir, name string, in io.Reader) (*Source, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(f, in)
		copied <- errors.Join(err, f.Close())
	}()
	select {
	case err = <-copied:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &Source{Source: from, url: URL(name), dir: dir}, nil
}

// Open implements source.Source for the URL of the stream.
func (s *Source) Open(ctx context.Context, rawURL string) (source.Tree, error) {
	if rawURL != s.url {
		return nil, fmt.Errorf("source %q: this process reads only %s: %w", rawURL, s.url, backup.ErrNotFound)
	}
	t, err := s.Source.Open(ctx, posix.URL(s.dir))
	if err != nil {
		return nil, err
	}
	return tree{Tree: t, url: rawURL}, nil
}

// A tree is the directory of a stream.
type tree struct {
	source.Tree
	url string
}

// Root implements source.Tree. All streams of one name are the same tree, even if each is copied to
// another directory.
func (t tree) Root() backup.Root { return backup.Root{FileSystem: "stdin", ID: t.url} }
