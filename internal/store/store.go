// Package store is the port to where packs, segments and keys are kept: an
// S3-compatible object store (s3store) or a directory (dirstore). Both pass
// the suite in storetest.
package store

import (
	"context"
	"fmt"
	"iter"

	"github.com/bctl/bctl/internal/backup"
)

// A Store keeps immutable objects by name. Names are slash-separated, of
// letters, digits, '.', '-' and '_'. All methods may be called concurrently.
//
// Errors are *Error: they name the store and the object, and wrap
// backup.ErrNotFound, backup.ErrExists, backup.ErrCorrupt, backup.ErrInvalid,
// fs.ErrPermission (the store refuses this user or these credentials),
// backup.ErrNoRepository (the bucket or the directory itself is not there),
// backup.ErrUnavailable (after retries for as long as the store is configured
// to try), ErrFull, or the error of a context that ended.
type Store interface {
	// Put writes an object. When it returns nil the object is durable: it
	// survives the loss of power at the store. A Put that fails may have
	// written the object all the same; a reader never sees a part of one.
	// Nobody puts a name twice, except that the same bytes may be put again.
	// data is the caller's again on return.
	Put(ctx context.Context, name string, data []byte) error

	// PutNew is Put, but fails with backup.ErrExists where the name is taken.
	PutNew(ctx context.Context, name string, data []byte) error

	// GetRange appends length bytes of the object from offset to dst. An
	// object that ends before offset+length is backup.ErrCorrupt. A negative offset
	// counts from the end, and then length is at most -offset.
	GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error)

	// Get returns the whole object; one of more than maxBytes is backup.ErrInvalid.
	Get(ctx context.Context, name string, maxBytes int64) ([]byte, error)

	// Stat returns the object's size in bytes.
	Stat(ctx context.Context, name string) (int64, error)

	// List yields the objects whose names begin with prefix, in no order that
	// is promised. It stops after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Delete removes an object; that it is not there is no error.
	Delete(ctx context.Context, name string) error

	// String says where the store is, for messages; it has no secrets.
	String() string

	// Close gives back what the store holds open.
	Close() error
}

// An Object is one entry of a List.
type Object struct {
	Name      string
	SizeBytes int64
}

// ErrFull: the store has no space left for the object. It wraps
// backup.ErrUnavailable, since somebody can make space.
var ErrFull error = fullError{}

type fullError struct{}

func (fullError) Error() string { return "disk full" }
func (fullError) Unwrap() error { return backup.ErrUnavailable }

// An Error says which operation failed at which store, on which object, and why.
type Error struct {
	Store string // as Store.String
	Op    string // put, get, stat, list, delete
	Name  string // of the object, or the prefix of a list
	Kind  error  // one of the errors that a Store promises; nil where Err says it
	Err   error  // the cause; may be nil
}

// Error implements error: store, operation, name, kind and cause, without what is empty.
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

// Unwrap lets errors.Is and errors.As find both the kind and the cause.
func (e *Error) Unwrap() []error {
	var wrapped []error
	for _, err := range []error{e.Kind, e.Err} {
		if err != nil {
			wrapped = append(wrapped, err)
		}
	}
	return wrapped
}
