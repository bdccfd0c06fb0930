package flow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
)

// ErrDenied means that the server does not allow the operation to this client.
var ErrDenied = errors.New("not allowed")

// A Right is an operation at NATS that a client may be allowed.
type Right struct {
	What      string // "publish bctl.v1.commit.slice"
	subject   string
	subscribe bool
	header    nats.Header
	data      []byte
}

// Rights returns the parts of an Access one by one.
func (a Access) Rights() []Right {
	var list []Right
	for _, subject := range a.Publish {
		list = append(list, publishing(subject))
	}
	for _, subject := range a.Subscribe {
		list = append(list, Right{What: "subscribe " + subject, subject: subject, subscribe: true})
	}
	return list
}

// Others returns the operations that a client with this Access should not be allowed, because they
// would let it do another client's work. It leaves out operations that only inspect.
func (a Access) Others() []Right {
	const elsewhere = "bctl-doctor" // a site that is not this client's
	all := Access{Subscribe: []string{"bctl.v1.commit.>"}}
	for _, other := range []Access{WalkerAccess(backup.DefaultSite, ""), ReaderAccess(backup.DefaultSite, ""), WalkerAccess(elsewhere, ""), ReaderAccess(elsewhere, ""), CommitterAccess(""), HousekeeperAccess(RolePruner, ""), HousekeeperAccess(RoleScrubber, ""), HousekeeperAccess(RoleRestorer, ""), FollowerAccess("")} {
		all.Publish = append(all.Publish, other.Publish...)
	}
	for _, stream := range Streams() {
		all.Publish = append(all.Publish, jsAPI+"STREAM.DELETE."+stream, jsAPI+"STREAM.PURGE."+stream)
	}
	slices.Sort(all.Publish)
	all.Publish = slices.DeleteFunc(slices.Compact(all.Publish), func(subject string) bool {
		looks := strings.Contains(subject, ".INFO.") || strings.Contains(subject, ".LIST.")
		// One form of acknowledgement is enough: acknowledgements need a message, and a client that
		// may not request messages gets none.
		return looks || strings.HasPrefix(subject, jsACK) || subject == progressSubject || subject == askSubject || slices.Contains(a.Publish, subject)
	})
	return all.Rights()
}

// publishing returns the right to publish to a subject. The message that tests the right is a
// message that has no effect once it is permitted: the server refuses it for another reason, or it
// means nothing.
//
//	to a stream         it is marked as meant for another stream
//	progress, a service, a roster, a drain
//	                    it cannot be decoded, and listeners drop it
//	ask                 it is not empty, and listeners drop it
//	request to the API  half a JSON object, where a whole one, or nothing, is required
//	request for work    the same: the answer is "bad request", without a message
//	acknowledgement     "in progress", for a message that does not exist
func publishing(subject string) Right {
	r := Right{What: "publish " + subject}
	rest, everything := strings.CutSuffix(strings.ReplaceAll(subject, "*", "bctl-doctor"), ".>")
	r.subject = rest
	switch {
	case strings.HasPrefix(subject, jsACK) && everything:
		r.subject += ".1.9007199254740991.9007199254740991.1.0"
		r.data = []byte("+WPI")
	case strings.HasPrefix(subject, jsAPI):
		if everything {
			r.subject += ".bctl-doctor"
		}
		r.data = []byte("{")
	case subject == progressSubject, subject == askSubject, subject == rosterSubject,
		strings.HasPrefix(subject, serviceSubject+"."), strings.HasPrefix(subject, drainSubject+"."):
		r.data = []byte{0xff}
	default:
		r.header = nats.Header{"Nats-Expected-Stream": []string{"bctl-doctor"}}
		r.data = []byte("bctl doctor")
	}
	return r
}

// Has tests whether the server allows a right, without any other effect. It returns nil, ErrDenied,
// or an error that wraps backup.ErrUnavailable.
func (i *Inspection) Has(ctx context.Context, r Right) error {
	err := i.try(r)
	if err == nil {
		// The server reports a refusal before it answers a ping, and the client records it before
		// it receives the answer.
		err = i.nc.FlushWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("nats %s: %s: %w: %w", i.opts.URL, r.What, err, backup.ErrUnavailable)
	}
	refused := i.nc.LastError()
	if errors.Is(refused, nats.ErrPermissionViolation) && strings.Contains(refused.Error(), `"`+r.subject+`"`) {
		return fmt.Errorf("nats %s: %s: %w", i.opts.URL, r.What, ErrDenied)
	}
	return nil
}

func (i *Inspection) try(r Right) error {
	if !r.subscribe {
		// The server answers only if the message has a reply subject. That no one waits for the
		// answer does not matter to the server.
		return i.nc.PublishMsg(&nats.Msg{Subject: r.subject, Reply: i.nc.NewRespInbox(), Header: r.header, Data: r.data})
	}
	sub, err := i.nc.SubscribeSync(r.subject)
	if err != nil {
		return err
	}
	// The server handles both requests in order, and has then reported any refusal of the first.
	return sub.Unsubscribe()
}
