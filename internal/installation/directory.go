package installation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// A change is written completely to nextDir, which is then renamed to changeDir. The rename makes
// the change effective, and the next process that opens the installation finishes it if necessary.
const (
	nextDir   = ".next"
	changeDir = ".change"
)

// writeFiles writes files durably below root.
func writeFiles(root string, files []File) error {
	for _, f := range files {
		path := filepath.Join(root, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if f.Secret {
			mode = 0o600
		}
		if err := writeFile(path, f.Data, mode); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, data []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

// create creates dir with these files atomically. dir may exist if it is empty.
func create(dir string, mode fs.FileMode, files []File) (err error) {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	made, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(made))
		}
	}()
	if err := errors.Join(writeFiles(made, files), os.Chmod(made, mode)); err != nil {
		return err
	}
	if err := os.Rename(made, dir); err != nil { // replaces an empty directory
		return err
	}
	return syncDir(parent)
}

// change atomically replaces files of dir, and adds files.
func change(dir string, files []File) error {
	next := filepath.Join(dir, nextDir)
	if err := os.RemoveAll(next); err != nil { // from an interrupted change
		return err
	}
	if err := os.Mkdir(next, 0o700); err != nil {
		return err
	}
	if err := writeFiles(next, files); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	// The change takes effect here.
	if err := errors.Join(os.Rename(next, filepath.Join(dir, changeDir)), syncDir(dir)); err != nil {
		return err
	}
	return finishChange(dir)
}

// accountsDir has a file per live generation. It is replaced as a whole, so that files of retired
// generations are removed.
var accountsDir = filepath.Join("s3", "accounts")

// finishChange moves the files of a change to their places. It is idempotent.
func finishChange(dir string) error {
	from := filepath.Join(dir, changeDir)
	if accounts := filepath.Join(from, accountsDir); exists(accounts) {
		to := filepath.Join(dir, accountsDir)
		if err := errors.Join(os.RemoveAll(to), os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(accounts, to)); err != nil {
			return err
		}
	}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.Rename(path, to)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(syncDir(dir), os.RemoveAll(from))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lock prevents other processes from changing dir until the returned file is closed, or the process
// ends.
func lock(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another process is changing %s: %w", dir, backup.ErrUnavailable), d.Close())
	}
	return d, nil
}
