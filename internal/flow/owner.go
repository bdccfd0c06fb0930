package flow

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// Streams and consumers belong to one repository, whose id the keeper writes into their metadata. A
// keeper does not touch those of another repository, and services neither take from them nor send
// to them. Each message names its repository in a header, because a stream may be older than this
// rule, or change its owner while a service is connected.
//
// Streams, consumers and messages that name no repository come from an older bctl. Any repository
// may use them, so that a fleet can be upgraded service by service. The first keeper of this
// version takes ownership of the streams and consumers.

// ErrOtherRepository means that the queues, or a message, belong to another repository.
var ErrOtherRepository = errors.New("another repository's")

const (
	repositoryKey    = "bctl.repository" // in the metadata of streams and consumers
	repositoryHeader = "Bctl-Repository"
)

// repository returns the id as written to NATS; "" if the client belongs to no repository.
func (o *Options) repository() string {
	if o.Repository == (backup.RepositoryID{}) {
		return ""
	}
	return o.Repository.String()
}

// checkOwner returns ErrOtherRepository if a stream or consumer with this metadata belongs to
// another repository.
func (o *Options) checkOwner(what string, metadata map[string]string) error {
	owner, mine := metadata[repositoryKey], o.repository()
	if owner == "" || mine == "" || owner == mine {
		return nil
	}
	return fmt.Errorf("nats %s: %s is %w: it belongs to %s, and this is %s; each fleet needs a NATS account of its own (docs/operations.md, One NATS, several fleets)",
		o.URL, what, ErrOtherRepository, owner, mine)
}

// owned returns the metadata of the streams and consumers that this client makes.
func (o *Options) owned() map[string]string {
	if mine := o.repository(); mine != "" {
		return map[string]string{repositoryKey: mine}
	}
	return nil
}

// own sets the owner in the metadata of a stream or consumer that has none.
func own(changed *[]string, have *map[string]string, want map[string]string) {
	owner := want[repositoryKey]
	if owner == "" || (*have)[repositoryKey] == owner {
		return
	}
	next := map[string]string{repositoryKey: owner}
	for key, value := range *have {
		if key != repositoryKey {
			next[key] = value
		}
	}
	*changed = append(*changed, "repository to "+owner)
	*have = next
}

// addRepository adds the repository to a message's header, which may be nil.
func (o *Options) addRepository(h nats.Header) nats.Header {
	mine := o.repository()
	if mine == "" {
		return h
	}
	if h == nil {
		h = nats.Header{}
	}
	h.Set(repositoryHeader, mine)
	return h
}

// checkRepository returns ErrOtherRepository for a message of another repository.
func (o *Options) checkRepository(h nats.Header) error {
	from, mine := h.Get(repositoryHeader), o.repository()
	if from == "" || mine == "" || from == mine {
		return nil
	}
	return fmt.Errorf("it is %w: it belongs to %s, and this is %s", ErrOtherRepository, from, mine)
}

// others records what a connection has seen of other repositories.
type others struct {
	mu      sync.Mutex
	queues  error // why the queues must not be used; nil: they may be
	logged  time.Time
	refused int // messages since logged
}

// saw records whether the queues, as just found, are this client's, and returns err.
func (o *others) saw(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queues = nil
	if errors.Is(err, ErrOtherRepository) {
		o.queues = err
	}
	return err
}

// queuesRefused returns why the queues must not be used.
func (o *others) queuesRefused() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.queues
}

// refuse hands a message of another repository back, and logs that at intervals.
func (o *others) refuse(log *slog.Logger, msg jetstream.Msg, d *Delivery, why error) {
	d.RetryLater()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused++
	if time.Since(o.logged) < logEvery {
		return
	}
	log.Warn("message handed back", "subject", msg.Subject(), "messages", o.refused, "error", why)
	o.logged, o.refused = time.Now(), 0
}
