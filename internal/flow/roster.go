package flow

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/nats-io/nats.go"

	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// A roster is what a committer remembers of the services that it has heard of. All committers keep
// one while they run, so that another can lead at once; only the keeper publishes it on request.

const (
	// forgetAfter is how long a silent service is remembered.
	forgetAfter = time.Hour
	// silentAfter is how long a service with an open connection may be silent before it counts as
	// lost.
	silentAfter = 25 * time.Second
	// sameNameFor is how long after its last description a lost service is shown of whose name,
	// role and site another is present.
	sameNameFor = 30 * time.Second
	// introduceWithin is how long the services have to describe themselves to a committer that has
	// just started.
	introduceWithin = 2 * time.Second
	// lookWithin is how long NATS may take to report which services are present.
	lookWithin = time.Second
	// rosterPart is the number of services per message. A service takes at most maxServiceBytes,
	// and a few hundred bytes in practice.
	rosterPart = MaxMessageBytes / maxServiceBytes
)

// who identifies one instance. A worker that claims the instance of another role or site is a
// different one with the same name.
type who struct {
	role     Role
	site, id string
}

type roster struct {
	conn     *Conn
	leads    func() bool
	services map[who]*known
	since    time.Time

	unseenSince map[unseenBy]time.Time
}

// A known is a service that a roster has heard of.
type known struct {
	Instance
	first time.Time // when it was first heard
}

// KeepRoster remembers the services of the fleet until ctx is done. While leads returns true, it
// also answers requests with the roster, and sends to unseen, if that has room, the snapshots whose
// trees no worker sees, each again as long as that is so.
func (c *Conn) KeepRoster(ctx context.Context, leads func() bool, unseen chan<- []Unseen) {
	r := &roster{conn: c, leads: leads, services: map[who]*known{}, since: time.Now()}
	heard, asked := make(chan *nats.Msg, 1024), make(chan struct{}, 1)
	defer c.listen(serviceSubject+".>", func(m *nats.Msg) {
		select {
		case heard <- m:
		case <-ctx.Done():
		}
	})()
	defer c.listen(askSubject, func(m *nats.Msg) {
		if len(m.Data) == 0 {
			loop.Wake(asked)
		}
	})()
	// If it is lost, all services announce themselves before long.
	_ = c.nc.PublishMsg(c.message(askSubject, nil))
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	look := time.NewTicker(unseenEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-heard:
			r.hear(m, time.Now())
		case now := <-look.C:
			if !leads() {
				r.unseenSince = nil
				continue
			}
			if list := r.unseen(now); len(list) > 0 {
				select {
				case unseen <- list:
				default:
				}
			}
		case now := <-tick.C:
			r.forget(now)
		case <-asked:
			if leads() {
				r.send(ctx)
			}
		}
	}
}

func (r *roster) hear(m *nats.Msg, now time.Time) {
	w, i, stops, err := heardService(m, now)
	if err != nil {
		return
	}
	if stops {
		delete(r.services, w)
		return
	}
	before := r.services[w]
	switch {
	case before != nil:
		r.services[w] = &known{i, before.first}
	case len(r.services) < maxInstances:
		r.services[w] = &known{i, now}
		r.replace(&i, func(k *known) bool { return now.Sub(k.Heard) > announceEvery })
	}
}

// heardService decodes the description that a service has published, and reports whether the
// service stops. Its role and site are those of the subject, which NATS checks.
func heardService(m *nats.Msg, now time.Time) (w who, i Instance, stops bool, err error) {
	role, site, err := roleOf(m.Subject)
	if err != nil {
		return w, i, false, err
	}
	said, i, err := decodeService(m.Data)
	if err != nil {
		return w, i, false, err
	}
	i.Role, i.Site, i.Heard = role, site, now
	return who{role, site, i.ID}, i, said.GetStops(), nil
}

// maxInstances bounds the number of instances that are remembered.
const maxInstances = 1 << 14

// replace forgets the predecessors of an instance, which have the same name and are gone: the
// service was restarted.
func (r *roster) replace(by *Instance, gone func(*known) bool) {
	for w, k := range r.services {
		if w.role == by.Role && w.site == by.Site && k.Name == by.Name && k.ID != by.ID && gone(k) {
			delete(r.services, w)
		}
	}
}

// replaceAbsent is replace for services whose connections have ended. It forgets predecessors at
// once: they were last heard before their successor was first heard. Others are processes that were
// given the same name, and one of them lives: the loss of the other is shown for sameNameFor.
func (r *roster) replaceAbsent(absent map[string]bool, now time.Time) {
	for _, by := range r.services {
		if absent[by.ID] {
			continue
		}
		r.replace(&by.Instance, func(k *known) bool {
			return absent[k.ID] && (k.Heard.Before(by.first) || now.Sub(k.Heard) > sameNameFor)
		})
	}
}

func (r *roster) forget(now time.Time) {
	for w, k := range r.services {
		if now.Sub(k.Heard) > forgetAfter {
			delete(r.services, w)
		}
	}
}

// send publishes the roster. A committer that has just started does not know all services, and
// does not mark its roster as complete.
func (r *roster) send(ctx context.Context) {
	var ids []string
	for w := range r.services {
		ids = append(ids, w.id)
	}
	looking, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	absent, err := r.conn.Absent(looking, ids)
	if err != nil {
		absent = nil // unknown: those that are present answer themselves
	}
	now := time.Now()
	r.replaceAbsent(absent, now)
	part, kept := &bctlv1.Roster{}, now.Sub(r.since)
	for w, k := range r.services {
		m := serviceToWire(&k.Instance)
		m.Reading, m.HandBacks = nil, nil // the service may have read on, or have gone
		m.Role, m.Site, m.SilentSeconds, m.Gone = string(w.role), w.site, max(now.Sub(k.Heard).Seconds(), 0), absent[w.id]
		if part.Services = append(part.Services, m); len(part.Services) == rosterPart {
			r.publish(part)
			part = &bctlv1.Roster{}
		}
	}
	part.Last, part.KeptSeconds = kept >= introduceWithin, kept.Seconds()
	r.publish(part)
}

func (r *roster) publish(part *bctlv1.Roster) {
	if data, err := marshal(part); err == nil {
		// The requester waits for it only for a limited time.
		_ = r.conn.nc.PublishMsg(r.conn.message(rosterSubject, data))
	}
}
