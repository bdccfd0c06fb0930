// Package store is the port to the place at which packs, segments and keys are kept: an
// S3-compatible object store (s3store) or a directory (dirstore). Both pass the suite in storetest.
package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Store keeps immutable objects by name. Names are slash-separated and consist of letters,
// digits, '.', '-' and '_'. All methods may be called concurrently.
//
// Errors are *Error. They name the store and the object, and wrap backup.ErrNotFound,
// backup.ErrExists, backup.ErrCorrupt, backup.ErrInvalid, fs.ErrPermission (the store refuses this
// user or these credentials), backup.ErrNoRepository (the bucket or the directory itself does not
// exist), backup.ErrUnavailable (after retries for as long as the store is configured to retry),
// ErrFull, or the error of a canceled context.
type Store interface {
	// Put writes an object. When it returns nil, the object is durable: it survives a loss of power
	// at the store. A Put that fails may nevertheless have written the object; a reader never sees
	// a part of one. A name is never put twice, except that the same bytes may be put again. After
	// the return, the caller may reuse data.
	Put(ctx context.Context, name string, data []byte) error

	// PutNew is Put, but it fails with backup.ErrExists if the name is taken.
	PutNew(ctx context.Context, name string, data []byte) error

	// GetRange appends length bytes of the object from offset to dst. If the object ends before
	// offset+length, the error is backup.ErrCorrupt. A negative offset counts from the end; length
	// is then at most -offset.
	GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error)

	// Get returns the whole object. If it is larger than maxBytes, the error is backup.ErrInvalid.
	Get(ctx context.Context, name string, maxBytes int64) ([]byte, error)

	// Stat returns the object's size in bytes.
	Stat(ctx context.Context, name string) (int64, error)

	// List yields the objects whose names begin with prefix, in no particular order. It stops after
	// the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Delete removes objects, many with one request if the store can. A missing object is not an
	// error. After an error, some of the objects may be gone. If the error is a *LockedError, all
	// of the others are.
	Delete(ctx context.Context, names ...string) error

	// Lock keeps an object from being deleted or replaced until a time, which is in whole seconds.
	// An object that is locked for longer stays so: nothing shortens a lock. The error is
	// backup.ErrInvalid if the store has no locks, or was opened without a LockMode.
	Lock(ctx context.Context, name string, until time.Time) error

	// String returns the location of the store, for messages. It contains no secrets.
	String() string

	// Close releases all resources of the store.
	Close() error
}

// An Object is one entry of a List.
type Object struct {
	Name      string
	SizeBytes int64
	Modified  time.Time // when it was put, by the store's clock; zero: the store does not know
}

// ErrFull reports that the store has no space left for the object. It wraps backup.StoreFull, and
// so backup.ErrUnavailable, because space can be freed.
var ErrFull error = fullError{}

type fullError struct{}

func (fullError) Error() string { return "disk full" }
func (fullError) Unwrap() error { return backup.StoreFull }

// An Error describes a failed operation: the store, the object and the cause.
type Error struct {
	Store string // as Store.String
	Op    string // put, get, stat, list, delete, lock
	Name  string // of the object, or the prefix of a list
	Kind  error  // one of the errors that a Store promises; nil if Err wraps it
	Err   error  // the cause; may be nil
}

// Error implements error. It returns store, operation, name, kind and cause, as far as they are
// set.
func (e *Error) Error() string {
	what := e.Op
	if e.Name != "" {
		what += " " + e.Name
	}
	switch {
	case e.Kind == nil:
		return fmt.Sprintf("%s: %s: %v", e.Store, what, e.Err)
	case e.Err == nil:
		return fmt.Sprintf("%s: %s: %v", e.Store, what, e.Kind)
	}
	return fmt.Sprintf("%s: %s: %v: %v", e.Store, what, e.Kind, e.Err)
}

// Outage returns backup.StoreRefuses if the store refused the request's credentials, otherwise "".
// The log then counts all such errors as one failure.
func (e *Error) Outage() backup.Away {
	if errors.Is(e.Kind, fs.ErrPermission) {
		return backup.StoreRefuses
	}
	return ""
}

// Unwrap returns both the kind and the cause for errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	var wrapped []error
	for _, err := range []error{e.Kind, e.Err} {
		if err != nil {
			wrapped = append(wrapped, err)
		}
	}
	return wrapped
}
