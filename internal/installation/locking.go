package installation

import (
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// switchLock changes the mode in which objects are locked. That is possible only at Amazon, whose
// buckets can have object lock enabled later, and only from no mode to one: a lock in one mode
// cannot be extended in the other one, and without a mode the pruner may bypass locks.
func (s *Store) switchLock(mode store.LockMode) error {
	var reason string
	switch {
	case mode == s.ObjectLock:
		return nil
	case s.ObjectLock != store.Unlocked && mode == store.Unlocked:
		reason = "the pruner would get the permission to bypass the locks that protect the stored backups"
	case s.ObjectLock != store.Unlocked:
		reason = fmt.Sprintf("locks in mode %s cannot be extended in mode %s", s.ObjectLock, mode)
	case s.Kind == VersityGW:
		reason = "the objects of this versitygw have the default lock of its bucket, and the pruner could never delete them without the permission to bypass that lock"
	case s.Kind == MinIO:
		reason = "at MinIO, object lock is enabled when the bucket is created"
	default:
		s.ObjectLock = mode
		return nil
	}
	return fmt.Errorf("object lock cannot change from %s to %s: %s. For another mode, create another installation (bctl deploy init --object-lock %s) with a new bucket, and keep this one while its backups are needed: %w",
		s.ObjectLock.Text(), mode.Text(), reason, mode.Text(), backup.ErrInvalid)
}
