package backup

import "errors"

// The errors that all parts of the system wrap. Callers test for them with errors.Is, and the
// command line maps them to exit statuses.
var (
	// ErrInvalid: the input is wrong. Retrying does not help.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: the requested object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: the object to create already exists.
	ErrExists = errors.New("already exists")
	// ErrNoRepository: there is no repository at this place.
	ErrNoRepository = errors.New("no repository")
	// ErrRunning: another snapshot of the shard is running.
	ErrRunning = errors.New("another snapshot of this shard is running")
	// ErrWrongKey: the identity or the worker key belongs to another repository.
	ErrWrongKey = errors.New("wrong key")
	// ErrCorrupt: stored bytes differ from what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrUnavailable: a dependency does not respond. Retrying later may help.
	ErrUnavailable = errors.New("unavailable")
	// ErrOutside: a name would have led outside its shard or target.
	ErrOutside = errors.New("leads outside")
)

// An Away is an ErrUnavailable that names the dependency. All failures that the dependency causes
// share this one reason, so the log reports it once.
type Away string

// The dependencies that can become unavailable to a process.
const (
	IndexAway Away = "index"
	NATSAway  Away = "nats"
	StoreAway Away = "store"
	StoreFull Away = "full store" // which answers, but accepts no content
	// StoreRefuses is a store that refuses this process's credentials. No error wraps it, because
	// it wraps ErrUnavailable, and a refused request must not be retried. The errors of stores have
	// a method Outage that returns it.
	StoreRefuses Away = "store that refuses"
)

// Dependency returns the name of the dependency. It is the same for the three outages of the store:
// away, full, and refusing.
func (a Away) Dependency() string {
	if a == StoreFull || a == StoreRefuses {
		a = StoreAway
	}
	return string(a)
}

func (Away) Error() string { return ErrUnavailable.Error() }

// Unwrap returns ErrUnavailable.
func (Away) Unwrap() error { return ErrUnavailable }
