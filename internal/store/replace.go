package store

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/bctl/bctl/internal/backup"
)

// Replace puts an object in the place of a damaged one, or of none. A store refuses to replace an
// object, so it is deleted first. If the process is killed between these two, what only the old
// object had is lost. If the store does not take the new one, it is written to a file of this
// machine, which the error names.
func Replace(ctx context.Context, s Store, name string, data []byte) error {
	if err := s.Delete(ctx, name); err != nil && !errors.Is(err, backup.ErrNotFound) {
		return err
	}
	if err := s.Put(ctx, name, data); err != nil {
		return rescue(name, data, err)
	}
	return nil
}

func rescue(name string, data []byte, cause error) error {
	file, err := os.CreateTemp("", "bctl-mended-*") // mode 0600
	if err != nil {
		return errors.Join(cause, err)
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(cause, err, os.Remove(file.Name()))
	}
	return fmt.Errorf("%w; no other place has all that is sound of %s: put %s into the store under this name", cause, name, file.Name())
}
