package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/stdin"
)

// Spool copies a stream into a directory in lockDir, and returns a source of the tree with one file
// of this name and content. remove removes the directory. If the process is killed before, the next
// Spool for the shard removes it. The error is backup.ErrRunning if another process holds a copy
// for the shard.
func Spool(ctx context.Context, lockDir string, shard backup.Shard, from *posix.Source, name string, in io.Reader) (s *stdin.Source, remove func(), err error) {
	dir := filepath.Join(lockDir, fmt.Sprintf("stdin-%d", shard.ID))
	unlock, err := lockFile(dir + ".lock")
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil, fmt.Errorf("shard %s: %w (another process holds %s.lock)", shard.Name, backup.ErrRunning, dir)
	}
	if err != nil {
		return nil, nil, err
	}
	remove = func() {
		_ = os.RemoveAll(dir) // the next Spool tries again
		unlock()
	}
	if err = os.RemoveAll(dir); err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		s, err = stdin.Spool(ctx, from, dir, name, in)
	}
	if err != nil {
		remove()
		return nil, nil, fmt.Errorf("copy standard input: %w", err)
	}
	return s, remove, nil
}
