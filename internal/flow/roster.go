package flow

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// A roster is what a committer remembers of the services that it has heard of, all of them while it runs. Each committer keeps one,
// so that another can lead at once; the keeper tells who asks.

const (
	// forgetAfter is for how long a service is remembered that is silent.
	forgetAfter = time.Hour
	// silentAfter is how long nothing is heard of a service before it is taken to be lost although its connection is open.
	silentAfter = 25 * time.Second
	// introduceWithin is how long all services have to introduce themselves to a committer that has just started.
	introduceWithin = 2 * time.Second
	// lookWithin is how long NATS may take to say who is there.
	lookWithin = time.Second
	// rosterPart is how many services one message has; they have at most maxServiceBytes each, and a few hundred bytes in practice.
	rosterPart = MaxMessageBytes / maxServiceBytes
)

// who is one instance. A worker that claims the instance of another role or site is none but a stranger with this name.
type who struct {
	role     Role
	site, id string
}

type known struct {
	Instance
	heard time.Time
}

type roster struct {
	conn     *Conn
	leads    func() bool
	services map[who]*known
	since    time.Time
}

// KeepRoster remembers the services of the fleet until ctx is done, and says who is missing to whoever asks, while leads returns true.
func (c *Conn) KeepRoster(ctx context.Context, leads func() bool) {
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
			wake(asked)
		}
	})()
	_ = c.nc.PublishMsg(c.message(askSubject, nil)) // if it is lost all introduce themselves before long
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-heard:
			r.hear(m, time.Now())
		case now := <-tick.C:
			r.forget(now)
		case <-asked:
			if leads() {
				r.tell(ctx)
			}
		}
	}
}

func (r *roster) hear(m *nats.Msg, now time.Time) {
	role, site, err := roleOf(m.Subject)
	if err != nil {
		return
	}
	said, i, err := decodeService(m.Data)
	if err != nil {
		return
	}
	i.Role, i.Site = role, site
	w := who{role, site, i.ID}
	if said.GetStops() {
		delete(r.services, w)
		return
	}
	if r.services[w] == nil {
		if len(r.services) >= maxInstances {
			return
		}
		r.replace(&i, now)
	}
	r.services[w] = &known{i, now}
}

// maxInstances bounds what is kept of those that say that they are there.
const maxInstances = 1 << 14

// replace forgets the silent predecessors of an instance that has their name: the service was started again.
func (r *roster) replace(by *Instance, now time.Time) {
	for w, k := range r.services {
		if w.role == by.Role && w.site == by.Site && k.Name == by.Name && now.Sub(k.heard) > announceEvery {
			delete(r.services, w)
		}
	}
}

func (r *roster) forget(now time.Time) {
	for w, k := range r.services {
		if now.Sub(k.heard) > forgetAfter {
			delete(r.services, w)
		}
	}
}

// tell publishes the roster. Who has just started does not know everybody, and does not say that this is all.
func (r *roster) tell(ctx context.Context) {
	var ids []string
	for w := range r.services {
		ids = append(ids, w.id)
	}
	looking, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	absent, err := r.conn.Absent(looking, ids)
	if err != nil {
		absent = nil // not known: those that are there answer
	}
	now := time.Now()
	part := &bctlv1.Roster{}
	for w, k := range r.services {
		m := serviceToWire(&k.Instance)
		m.Role, m.Site, m.SilentSeconds, m.Gone = string(w.role), w.site, max(now.Sub(k.heard).Seconds(), 0), absent[w.id]
		if part.Services = append(part.Services, m); len(part.Services) == rosterPart {
			r.publish(part)
			part = &bctlv1.Roster{}
		}
	}
	part.Last = now.Sub(r.since) >= introduceWithin
	r.publish(part)
}

func (r *roster) publish(part *bctlv1.Roster) {
	if data, err := marshal(part); err == nil {
		_ = r.conn.nc.PublishMsg(r.conn.message(rosterSubject, data)) // who asked waits for it only for a while
	}
}
