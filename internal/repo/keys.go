package repo

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

// ReadWorkerKey reads a worker key file. It fails with backup.ErrWrongKey if there is none, or if
// it belongs to another repository.
func ReadWorkerKey(path string, id backup.RepositoryID) (key seal.WorkerKey, err error) {
	data, err := readKey("worker", "worker_key", path)
	if err != nil {
		return key, err
	}
	if key, err = seal.ParseWorkerKey(data); err != nil {
		return key, unusable(fmt.Errorf("%s: %w", path, err))
	}
	if key.Repository != id {
		return key, fmt.Errorf("worker key file %s belongs to repository %v, not %v: %w", path, key.Repository, id, backup.ErrWrongKey)
	}
	return key, nil
}

// ReadCommitterKey is ReadWorkerKey for committer keys.
func ReadCommitterKey(path string, id backup.RepositoryID) (key seal.CommitterKey, err error) {
	data, err := readKey("committer", "committer_key", path)
	if err != nil {
		return key, err
	}
	if key, err = seal.ParseCommitterKey(data); err != nil {
		return key, unusable(fmt.Errorf("%s: %w", path, err))
	}
	if key.Repository != id {
		return key, fmt.Errorf("committer key file %s belongs to repository %v, not %v: %w", path, key.Repository, id, backup.ErrWrongKey)
	}
	return key, nil
}

// readKey reads a key file. If it does not exist, the error is a keyError.
func readKey(kind, setting, path string) ([]byte, error) {
	if path == "" {
		return nil, &keyError{fmt.Sprintf("no %s key file is set (%s)", kind, setting)}
	}
	data, err := readKeyFile(path, seal.MaxKeyFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &keyError{fmt.Sprintf("%s key file %s does not exist (bctl init on a machine with the identity writes it again)", kind, path)}
	}
	if err != nil {
		return nil, unusable(fmt.Errorf("%s key: %w", kind, err))
	}
	return data, nil
}

// A keyError is a backup.ErrWrongKey whose message does not include "wrong key", because there is
// no key.
type keyError struct{ text string }

func (e *keyError) Error() string        { return e.text }
func (e *keyError) Is(target error) bool { return target == backup.ErrWrongKey }

// unusable turns err, for a file without a usable key, into a backup.ErrWrongKey whose message does
// not include "wrong key".
func unusable(err error) error { return &unusableError{err} }

type unusableError struct{ error }

func (e *unusableError) Unwrap() error        { return e.error }
func (e *unusableError) Is(target error) bool { return target == backup.ErrWrongKey }

func readKeyFile(path string, maxBytes int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(data)) > maxBytes {
		err = fmt.Errorf("%s is larger than any key file: %w", path, backup.ErrInvalid)
	}
	return data, err
}

// A textMarshaler is a key.
type textMarshaler interface{ MarshalText() ([]byte, error) }

// writeKey writes a key file, which must not exist, and returns its path. The default is below the
// user's configuration directory.
func writeKey(kind, path string, id backup.RepositoryID, key textMarshaler) (string, error) {
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return "", fmt.Errorf("find a directory for the %s key (the setting %[1]s_key names a file): %w", kind, err)
		}
		path = filepath.Join(dir, "bctl", kind+"-keys", id.String()+".key")
	}
	text, err := key.MarshalText()
	if err != nil {
		return path, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return path, err
	}
	if err := writeNew(path, text); err != nil {
		return path, fmt.Errorf("write %s key: %w", kind, err)
	}
	return path, nil
}

// ReplaceWorkerKey replaces the text of a worker key file, durably and atomically.
func ReplaceWorkerKey(path string, key seal.WorkerKey) error {
	text, err := key.MarshalText()
	if err != nil {
		return err
	}
	if err := ReplaceFile(path, text); err != nil {
		return fmt.Errorf("replace the worker key: %w", err)
	}
	return nil
}
