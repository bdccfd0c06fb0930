package flow

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// answerWithin is how long services have to answer a request to describe themselves. A healthy
// fleet takes milliseconds.
const answerWithin = 2 * time.Second

// Instances returns the services of the fleet: those that answer, and those that do not answer but
// were heard by the keeper in the last hour. It waits the full answerWithin if a connected service
// does not answer, or if no committer leads. It fails with backup.ErrUnavailable if NATS is
// unavailable, and with ErrDenied if this client may not ask. An empty list without an error means
// that no service is running.
func (c *Conn) Instances(ctx context.Context) ([]Instance, error) {
	if err := c.Reach(ctx, answerWithin); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	g := &gathering{answered: map[who]Instance{}, missing: map[who]Instance{}}
	heard := make(chan *nats.Msg, maxInstances)
	stop, err := c.collect(heard, serviceSubject+".>", rosterSubject)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := c.nc.PublishMsg(c.message(askSubject, nil)); err != nil {
		return nil, fmt.Errorf("nats %s: %w: %w", c.opts.URL, err, backup.NATSAway)
	}
	if err := c.checkAllowed(ctx, serviceSubject+".>", rosterSubject, askSubject); err != nil {
		return nil, err
	}
	for !g.complete() {
		select {
		case m := <-heard:
			if c.opts.checkRepository(m.Header) == nil {
				g.hear(m, time.Now())
			}
		case <-ctx.Done():
			if err := c.Ready(); err != nil {
				return nil, err
			}
			return g.all(), nil
		}
	}
	return g.all(), nil
}

// A gathering collects the answers to one request.
type gathering struct {
	answered map[who]Instance
	missing  map[who]Instance // in the roster, but not answered
	awaited  bool             // the roster is complete
}

func (g *gathering) hear(m *nats.Msg, now time.Time) {
	if m.Subject == rosterSubject {
		g.hearRoster(m.Data, now)
		return
	}
	w, i, stops, err := heardService(m, now)
	if err != nil {
		return
	}
	delete(g.missing, w)
	if stops {
		delete(g.answered, w)
		return
	}
	if len(g.answered) < maxInstances {
		g.answered[w] = i
	}
}

func (g *gathering) hearRoster(data []byte, now time.Time) {
	var part bctlv1.Roster
	if unmarshal(data, &part) != nil {
		return
	}
	for _, m := range part.GetServices() {
		i, err := serviceFromWire(m)
		i.Role, i.Site = Role(m.GetRole()), m.GetSite()
		if err != nil || checkRole(i.Role, i.Site) != nil {
			continue
		}
		silent := seconds(m.GetSilentSeconds())
		i.Heard, i.Silent, i.Lost = now.Add(-silent), true, m.GetGone() || silent >= silentAfter
		w := who{i.Role, i.Site, i.ID}
		if _, ok := g.answered[w]; !ok && len(g.missing) < maxInstances {
			g.missing[w] = i
		}
	}
	g.awaited = g.awaited || part.GetLast()
}

// complete reports whether no further answer is expected.
func (g *gathering) complete() bool {
	if !g.awaited {
		return false
	}
	for _, i := range g.missing {
		if !i.Lost {
			return false
		}
	}
	return true
}

func (g *gathering) all() []Instance {
	var all []Instance
	for _, some := range []map[who]Instance{g.answered, g.missing} {
		for _, i := range some {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, compareInstances)
	return all
}
