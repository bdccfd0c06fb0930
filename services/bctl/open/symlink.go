package open

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/bctl/bctl/internal/backup"
)

// deadLink returns an error if path does not exist because it, or a directory above it, is a
// symlink to a missing target, perhaps on a disk that is not mounted. The error wraps
// backup.ErrNoRepository.
func deadLink(path string) error {
	for {
		info, err := os.Lstat(path)
		if above := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && above != path {
			path = above
			continue
		}
		isLink := err == nil && info.Mode()&fs.ModeSymlink != 0
		if !isLink {
			return nil
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		to, _ := os.Readlink(path) // an unreadable target does not matter
		return fmt.Errorf("%w: %s is a symlink to %s, which is not there", backup.ErrNoRepository, path, to)
	}
}
