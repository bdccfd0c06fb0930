package store

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A LockMode is the mode in which a store keeps objects from being deleted or replaced until a time
// (S3's object lock).
type LockMode string

// The modes. In both, nobody can delete a locked object with the permissions that bctl's roles
// have.
const (
	Unlocked   LockMode = ""           // objects are not locked
	Governance LockMode = "governance" // administrators of the store can remove locks
	Compliance LockMode = "compliance" // nobody can
)

// ParseLockMode reads a mode: "off", "governance" or "compliance".
func ParseLockMode(text string) (LockMode, error) {
	switch mode := LockMode(text); mode {
	case Governance, Compliance:
		return mode, nil
	case Unlocked, "off":
		return Unlocked, nil
	}
	return "", fmt.Errorf("%q is not off, governance or compliance: %w", text, backup.ErrInvalid)
}

// Text returns the mode as ParseLockMode reads it.
func (m LockMode) Text() string {
	if m == Unlocked {
		return "off"
	}
	return string(m)
}

// InitialLock is the time for which a new object is locked. Within this time, the pruner extends
// the lock if a kept snapshot needs the object for longer. It exceeds a day a little, so that
// hourly snapshots that are kept for a day cause no further request.
const InitialLock = 26 * time.Hour

// Lockable reports whether objects of this name are locked. Copies of a SQLite index are not,
// because each replaces the one before, and neither are test objects.
func Lockable(name string) bool {
	for _, prefix := range []string{PacksPrefix, SegmentsPrefix, CommitsPrefix} {
		if strings.HasPrefix(name, prefix) {
			return !IsTest(name)
		}
	}
	return name == ConfigName || strings.HasPrefix(name, CatalogPrefix) || strings.HasPrefix(name, ParityPrefix) || strings.HasPrefix(name, KeysPrefix)
}

// A LockedError reports the objects that a Delete has left because they are locked.
type LockedError struct {
	Names []string
	Err   error // the store's answer for one of them; may be nil
}

// IsLocked reports whether a Delete has left objects because they are locked.
func IsLocked(err error) bool {
	_, is := errors.AsType[*LockedError](err)
	return is
}

// Error names one of the objects.
func (e *LockedError) Error() string {
	text := fmt.Sprintf("%d objects are locked", len(e.Names))
	if len(e.Names) > 0 {
		text += ", such as " + e.Names[0]
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the store's answer.
func (e *LockedError) Unwrap() error { return e.Err }
