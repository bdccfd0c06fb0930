package write

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// errTarget reports that this restorer may not restore to a target.
var errTarget = errors.New("restorer.targets does not allow it")

// Targets are the directories in which, and below which, a restorer may restore.
type Targets []string

// ParseTargets checks the setting restorer.targets.
func ParseTargets(dirs []string) (Targets, error) {
	if len(dirs) == 0 {
		return nil, fmt.Errorf("a restorer needs restorer.targets, the directories into which it may restore: %w", backup.ErrInvalid)
	}
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return nil, fmt.Errorf("restorer.targets: %q is not an absolute path without .. and a slash at its end: %w", dir, backup.ErrInvalid)
		}
	}
	return dirs, nil
}

// resolve returns target without symlinks. Parts of it that do not exist yet stay as they are.
func (t Targets) resolve(target string) (string, error) {
	if !filepath.IsAbs(target) || filepath.Clean(target) != target {
		return "", fmt.Errorf("target %q is not an absolute path: %w", target, errTarget)
	}
	exists, rest := target, ""
	for {
		resolved, err := filepath.EvalSymlinks(exists)
		if err == nil {
			exists = resolved
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || exists == "/" {
			return "", fmt.Errorf("look at target %s: %w", target, err)
		}
		rest = filepath.Join(filepath.Base(exists), rest)
		exists = filepath.Dir(exists)
	}
	place := filepath.Join(exists, rest)
	for _, dir := range t {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil && isBelow(place, resolved) {
			return place, nil
		}
	}
	return "", fmt.Errorf("target %s: %w", target, errTarget)
}

func isBelow(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
