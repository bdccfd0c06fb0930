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
	g, err := c.gather(ctx)
	if err != nil {
		return nil, err
	}
	return g.all(), nil
}

// gatherAgain is the pause of AwaitInstances between two requests.
const gatherAgain = 250 * time.Millisecond

// AwaitInstances is Instances for a caller that draws conclusions from the absence of services.
// While the fleet starts, it asks again until enough returns true: some services may not be
// connected yet. The fleet has started when the keeper has listened for announceEvery, in which
// each service that is connected describes itself. A fleet without a committer does not start. If
// ctx leaves no time for another request, AwaitInstances returns the last answer.
func (c *Conn) AwaitInstances(ctx context.Context, enough func([]Instance) bool) ([]Instance, error) {
	for {
		g, err := c.gather(ctx)
		if err != nil {
			return nil, err
		}
		all := g.all()
		until, bounded := ctx.Deadline()
		if enough(all) || !g.starts() || bounded && time.Until(until) < answerWithin+gatherAgain {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return all, nil
		case <-time.After(gatherAgain):
		}
	}
}

// gather collects the answers to one request.
func (c *Conn) gather(ctx context.Context) (*gathering, error) {
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
			return g, nil
		}
	}
	return g, nil
}

// A gathering collects the answers to one request.
type gathering struct {
	answered map[who]Instance
	missing  map[who]Instance // in the roster, but without an answer
	awaited  bool             // the roster is complete
	kept     time.Duration    // for how long the keeper has listened
}

// starts reports whether the fleet is starting: a committer has answered, and either none leads or
// the keeper has not listened for long. If the keeper is of an earlier version, which does not
// report how long it has listened, the fleet counts as started.
func (g *gathering) starts() bool {
	if g.awaited && g.kept == 0 || g.kept >= announceEvery {
		return false
	}
	for w := range g.answered {
		if w.role == RoleCommitter {
			return true
		}
	}
	return false
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
		silent := duration(m.GetSilentSeconds())
		i.Heard, i.Silent, i.Lost = now.Add(-silent), true, m.GetGone() || silent >= silentAfter
		w := who{i.Role, i.Site, i.ID}
		if _, ok := g.answered[w]; !ok && len(g.missing) < maxInstances {
			g.missing[w] = i
		}
	}
	g.awaited = g.awaited || part.GetLast()
	if kept := part.GetKeptSeconds(); kept > 0 {
		g.kept = max(g.kept, duration(min(kept, maxSilence)))
	}
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
