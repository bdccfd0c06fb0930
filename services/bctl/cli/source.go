package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/nfs"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/stdin"
)

// sourceURL is the source of an absolute path of this machine.
func sourceURL(path string) string { return posix.URL(path) }

// isNFS reports whether a source is the export of an NFS server, and not a path of this machine.
func isNFS(text string) bool { return strings.HasPrefix(text, nfs.Scheme+"://") }

// parseSource parses a URL, or an absolute path that stands for one.
func parseSource(text string) (string, error) {
	switch {
	case filepath.IsAbs(text):
		return sourceURL(filepath.Clean(text)), nil
	case stdin.IsURL(text): // as bctl export prints it
		return text, nil
	case !strings.Contains(text, "://"):
		return "", fmt.Errorf("source %q is not an absolute path: %w", text, backup.ErrInvalid)
	}
	if _, _, err := treeAt(text); err != nil {
		return "", err
	}
	return text, nil
}

// treeAt returns the place of a tree: the server, "" for this machine, and the absolute path there.
// The error wraps backup.ErrInvalid. A stream has no place.
func treeAt(sourceURL string) (server, path string, err error) {
	if isNFS(sourceURL) {
		return nfs.Place(sourceURL)
	}
	path, err = posix.Path(sourceURL)
	return "", path, err
}

// nfsShard returns the shard that an nfs:// URL stands for: its name is the path on the server.
func nfsShard(url string) (backup.Shard, error) {
	_, path, err := nfs.Place(url)
	return backup.Shard{Name: path, Source: url}, err
}
