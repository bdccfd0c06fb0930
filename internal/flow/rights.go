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

// ErrDenied: the server does not allow it to this client.
var ErrDenied = errors.New("not allowed")

// A Right is something that a client may do at NATS, or not.
type Right struct {
	What      string // "publish bctl.v1.commit.slice"
	subject   string
	subscribe bool
	header    nats.Header
	data      []byte
}

// Rights returns all of an Access, one by one.
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

// Others returns what a client with this Access should not be allowed: what would let it do another's work. It
// leaves out what only looks.
func (a Access) Others() []Right {
	const elsewhere = "bctl-doctor" // a site that is not this client's
	all := Access{Subscribe: []string{"bctl.v1.commit.>"}}
	for _, other := range []Access{WalkerAccess(backup.DefaultSite, ""), ReaderAccess(backup.DefaultSite, ""), WalkerAccess(elsewhere, ""), ReaderAccess(elsewhere, ""), CommitterAccess(""), FollowerAccess("")} {
		all.Publish = append(all.Publish, other.Publish...)
	}
	for _, stream := range Streams() {
		all.Publish = append(all.Publish, jsAPI+"STREAM.DELETE."+stream, jsAPI+"STREAM.PURGE."+stream)
	}
	slices.Sort(all.Publish)
	all.Publish = slices.DeleteFunc(slices.Compact(all.Publish), func(subject string) bool {
		looks := strings.Contains(subject, ".INFO.") || strings.Contains(subject, ".LIST.")
		// Of acknowledgements one form is enough: they come with messages, which nobody gets who may not ask for them.
		return looks || strings.HasPrefix(subject, jsACK) || subject == progressSubject || subject == askSubject || slices.Contains(a.Publish, subject)
	})
	return all.Rights()
}

// publishing is the right to publish to a subject. What asks for it is a message that the server refuses for another
// reason, or that means nothing, once it is let in:
//
//	to a stream         it says that it is for another stream
//	progress, a service, a roster, a drain
//	                    it cannot be decoded, and whoever listens drops it
//	ask                 it is not empty, and whoever listens drops it
//	request to the API  half a JSON object, where one must be a whole one, or be empty
//	request for work    the same: it is answered with "bad request", and with no message
//	acknowledgement     "in progress", of a message that does not exist
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

// Has reports whether the server allows it: nil, ErrDenied, or an error that
// wraps backup.ErrUnavailable. Nothing comes of what is asked for.
func (i *Inspection) Has(ctx context.Context, r Right) error {
	err := i.try(r)
	if err == nil {
		// What the server refuses it says before it answers a ping, and the client notes it before it has the answer.
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
		// There is an answer only for somebody who waits for one; that nobody does is nothing to the server.
		return i.nc.PublishMsg(&nats.Msg{Subject: r.subject, Reply: i.nc.NewRespInbox(), Header: r.header, Data: r.data})
	}
	sub, err := i.nc.SubscribeSync(r.subject)
	if err != nil {
		return err
	}
	// The server takes both in their order, and has said by then what it thinks of the first.
	return sub.Unsubscribe()
}
