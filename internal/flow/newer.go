package flow

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// Services of several versions take messages from the same queues while a fleet is upgraded. Fields that
// a service does not know it ignores. What it must not ignore, a kind of message, a value, or a field that changes
// what the others mean, is for a newer service: it hands the message back.

// errNewer: the message is for services of a newer version.
var errNewer = errors.New("it is for a newer bctl")

const (
	// needsHeader is the header of a message that only services may take which know at least that revision
	// of the messages: a number. A message without one is for all.
	needsHeader = "Bctl-Needs"
	// revision is what this binary knows. It is raised by a change that older services must not ignore, and then sent
	// with the messages that make use of it.
	revision = 1
)

// checkNeeds returns errNewer where the message is not for this binary.
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
