package flow

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// While a fleet is upgraded, services of several versions take messages from the same queues. A
// service ignores fields that it does not know. A message kind, a value, or a field that changes
// the meaning of others must not be ignored: such a message is for a newer service, and an older
// one hands it back.

// errNewer means that the message is for services of a newer version.
var errNewer = errors.New("it is for a newer bctl")

const (
	// needsHeader is the header with the lowest revision (a number) that a service must know to
	// take the message. A message without the header is for all services.
	needsHeader = "Bctl-Needs"
	// revision is the revision that this binary knows. It is raised by a change that older services
	// must not ignore; messages that use the change then carry it.
	revision = 1
)

// checkNeeds returns errNewer if the message is not for this binary.
func checkNeeds(msg jetstream.Msg) error {
	needs := msg.Headers().Get(needsHeader)
	if needs == "" {
		return nil
	}
	n, err := strconv.ParseUint(needs, 10, 32)
	if err != nil {
		return fmt.Errorf("header %s %q: %w", needsHeader, needs, backup.ErrInvalid)
	}
	if n > revision {
		return fmt.Errorf("messages of revision %d, this bctl knows %d: %w", n, revision, errNewer)
	}
	return nil
}
