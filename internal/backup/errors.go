package backup

import "errors"

// Every part of the system wraps these; errors.Is finds them, and the command
// line turns them into its exit status.
var (
	// ErrInvalid: the input is wrong, and will be however often it is tried.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: the thing asked for does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: the thing to make is there already.
	ErrExists = errors.New("already exists")
	// ErrNoRepository: there is no repository at this place.
	ErrNoRepository = errors.New("no repository")
	// ErrRunning: another snapshot of the shard is running.
	ErrRunning = errors.New("another snapshot of this shard is running")
	// ErrWrongKey: the identity or the worker key is not this repository's.
	ErrWrongKey = errors.New("wrong key")
	// ErrCorrupt: stored bytes are not what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrUnavailable: a dependency does not answer now, and may later.
	ErrUnavailable = errors.New("unavailable")
	// ErrShrunk: the shard has far fewer files than its last snapshot.
	ErrShrunk = errors.New("the shard has far fewer files than its last snapshot")
	// ErrOutside: a name would have led outside its shard or target.
	ErrOutside = errors.New("leads outside")
)

// An Away is ErrUnavailable of one dependency, which the string names. All that
// fails because of it fails for one reason, and the log says that reason once.
type Away string

// The dependencies of a process that can be away.
const (
	IndexAway Away = "index"
	NATSAway  Away = "nats"
	StoreAway Away = "store"
)

func (Away) Error() string { return ErrUnavailable.Error() }

// Unwrap makes every Away an ErrUnavailable.
func (Away) Unwrap() error { return ErrUnavailable }
