package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/installation"
)

// A natsDoctor checks NATS. Its connection is to the first server that responds.
type natsDoctor struct {
	p       *Parts
	options flow.Options
	i       *flow.Inspection
	servers []flow.ServerFacts
	asked   asked // a clock reading

	// mine is the repository under test; "" if it cannot be determined. It is nil until it is first
	// needed.
	mine *string
}

// An asked is a reading of another machine's clock, with this machine's times of the request and
// the response.
type asked struct{ clock, sent, received time.Time }

func natsGroup(p *Parts) Group {
	g := Group{Name: "nats"}
	if !p.Config.Fleet() {
		why := "nats.url is not set: everything runs in one process"
		if p.Role != "" && p.Role != installation.Operator {
			g.Checks = []Check{failed("nats", fail("set nats.url (BCTL_NATS)", "nats.url is not set, and %s is part of a fleet", p.whom()))}
		} else {
			g.Checks = []Check{nothing("nats", why)}
		}
		return g
	}
	d := &natsDoctor{p: p, options: p.NATS()}
	g.Close = func() {
		if d.i != nil {
			d.i.Close()
		}
	}
	var reached []string
	for n, server := range flow.Servers(p.Config.NATS.URL) {
		id := fmt.Sprintf("nats.server.%d", n+1)
		reached = append(reached, id)
		g.Checks = append(g.Checks, Check{ID: id, Run: func(ctx context.Context) Result { return d.server(ctx, server) }})
	}
	g.Checks = append(g.Checks, Check{ID: "nats.connection", Run: func(ctx context.Context) Result { return d.connection(len(reached)) }})
	need := []string{"nats.connection"}
	add := func(id string, run func(context.Context) Result) {
		g.Checks = append(g.Checks, Check{ID: id, Needs: need, Run: run})
	}
	add("nats.identity", d.identity)
	add("nats.payload", d.payload)
	add("nats.latency", d.latency)
	for _, stream := range flow.Streams() {
		add("nats.stream."+stream, func(ctx context.Context) Result { return d.stream(ctx, stream) })
	}
	for _, stream := range d.inboxes() {
		add("nats.queue."+stream, func(ctx context.Context) Result { return d.queue(ctx, stream) })
	}
	add("nats.clock", d.clock)
	access := d.access()
	for _, right := range access.Rights() {
		add("nats.may "+right.What, func(ctx context.Context) Result { return d.may(ctx, right) })
	}
	if p.Role != "" {
		add("nats.may not", func(ctx context.Context) Result { return d.mayNot(ctx, access) })
	}
	return g
}

// server connects to one server, and keeps the connection if it is the first.
func (d *natsDoctor) server(ctx context.Context, at flow.Server) Result {
	begin := time.Now()
	i, err := flow.Inspect(ctx, d.options, at)
	if err != nil {
		return d.unreachable(err)
	}
	took := time.Since(begin)
	f := i.Facts()
	d.servers = append(d.servers, f)
	if d.i == nil {
		d.i = i
	} else {
		i.Close()
	}
	var v verdict
	if f.Enough() {
		v.ok("%s is %s, version %s, connected in %s", at.Name, f.Name, f.Version, duration(took))
	} else {
		v.add(fail("update the server", "%s has version %s, and bctl needs %s", at.Name, f.Version, flow.MinServer))
	}
	v.add(secured(f.TLS, f.Local, time.Now()))
	return v.result()
}

func (d *natsDoctor) unreachable(err error) Result {
	r := unreachable(err, "the NATS server", "nats.ca_file")
	switch text := strings.ToLower(r.Seen); {
	case strings.Contains(text, "authorization violation"), strings.Contains(text, "authentication"):
		r.Advice = "correct nats.user and nats.password, nats.credentials_file, or nats.cert_file: the server does not know this client"
		if d.options.CertFile != "" {
			r.Advice += "; has its generation been retired? bctl deploy show tells"
		}
	}
	return r
}

// connection reports whether there is a connection for the following checks.
func (d *natsDoctor) connection(of int) Result {
	if d.i == nil {
		return fail("let one of the servers answer", "none of %s can be used", plural(of, "server"))
	}
	clusters := map[string]bool{}
	for _, f := range d.servers {
		clusters[f.Cluster] = true
	}
	replicas := max(d.p.Config.NATS.Replicas, 1)
	switch {
	case len(clusters) > 1:
		return fail("name servers of one cluster only in nats.url", "the servers are of different clusters")
	case replicas > 1 && clusters[""]:
		return fail("let the servers be a cluster, or set nats.replicas to 1", "nats.replicas is %d, but the server is alone", replicas)
	case of > 1 && len(d.servers) < of:
		return warn("mend the others: bctl goes on as long as most of them are up", "%d of %s can be used", len(d.servers), plural(of, "server"))
	case of == 1 && replicas > 1:
		return warn("name all servers in nats.url: with this one away, a service cannot start", "one server of a cluster is named")
	}
	return ok("%d of %s can be used", len(d.servers), plural(of, "server"))
}

func (d *natsDoctor) identity(context.Context) Result {
	switch f := d.servers[0]; {
	case f.Open:
		return warn("give each service an identity (bctl deploy init makes them)", "the server does not ask who connects: whoever reaches it can do all that bctl does")
	case d.options.CertFile != "":
		return ok("known by its certificate %s", d.options.CertFile)
	case d.options.Credentials != "":
		return ok("known by its credentials %s", d.options.Credentials)
	case d.options.User != "":
		return ok("known as %s, by a password", d.options.User)
	}
	return ok("known by what nats.url says")
}

// maxSensiblePayload is the limit above which the NATS documentation advises against larger
// payloads.
const maxSensiblePayload = 8 << 20

func (d *natsDoctor) payload(context.Context) Result {
	smallest, largest := d.servers[0].MaxPayloadBytes, int64(0)
	for _, f := range d.servers {
		smallest, largest = min(smallest, f.MaxPayloadBytes), max(largest, f.MaxPayloadBytes)
	}
	switch {
	case smallest < flow.MaxMessageBytes+4096:
		return fail("set max_payload to 1MB, the default", "max_payload is %s, and bctl's messages have up to %s", size(uint64(max(smallest, 0))), size(flow.MaxMessageBytes))
	case largest > maxSensiblePayload:
		return warn("set max_payload to 1MB, the default: bctl needs no more", "max_payload is %s", size(uint64(largest)))
	}
	return ok("max_payload is %s", size(uint64(smallest)))
}

// slowRoundTrip is the limit for servers that distribute work: each task takes a few round trips.
const slowRoundTrip = 100 * time.Millisecond

func (d *natsDoctor) latency(context.Context) Result {
	took, err := d.i.RoundTrip(9)
	if err != nil {
		return fail("look at the network", "%s", oneLine(err))
	}
	return roundTrip(took, slowRoundTrip)
}

func roundTrip(took, slow time.Duration) Result {
	if took > slow {
		return warn("bring them closer together, or find out what delays packets", "a round trip takes %s (median)", duration(took))
	}
	return ok("a round trip takes %s (median)", duration(took))
}

// owner checks whether a stream or queue belongs to another repository.
func (d *natsDoctor) owner(ctx context.Context, v *verdict, owner string) {
	if owner == "" {
		return
	}
	if d.mine == nil {
		d.mine = new(string)
		if id, known := d.p.indexed(ctx); known {
			*d.mine = id.String()
		}
	}
	if *d.mine != "" && *d.mine != owner {
		v.add(fail("give each fleet a NATS account of its own; if that repository is no more, delete the streams (docs/operations.md, One NATS, several fleets)",
			"it belongs to another repository, %s, and this is %s: neither works for the other", owner, *d.mine))
	}
}

// makes reports whether the role creates missing streams and queues.
func (d *natsDoctor) makes() bool { return d.p.is(installation.Committer) }

func (d *natsDoctor) stream(ctx context.Context, name string) Result {
	s, err := d.i.Stream(ctx, name)
	if err != nil {
		return d.missing(err)
	}
	d.asked = asked{s.Clock, s.Sent, s.Received}
	var v verdict
	d.owner(ctx, &v, s.Owner)
	if s.Storage != "file" {
		v.add(warn("delete the stream while nothing runs: the keeper makes it again, in files", "it is kept in memory, and lost when its servers restart"))
	}
	for _, wrong := range s.Fixed {
		v.add(fail("delete the stream, and the keeper makes it again", "%s", wrong))
	}
	for _, wrong := range s.Wrong {
		v.add(warn(fmt.Sprintf("a running committer sets it back: start one, and see what it logs; nats.replicas is %d here, and must be the same everywhere",
			max(d.p.Config.NATS.Replicas, 1)), "differs: %s", wrong))
	}
	for _, behind := range s.Behind {
		v.add(warn("look at that server", "%s", behind))
	}
	v.ok("%s, %s, %s", s.Storage, plural(s.Replicas, "replica"), plural(int(s.Messages), "message")+ledBy(s.Leader))
	return v.result()
}

func ledBy(leader string) string {
	if leader == "" {
		return ""
	}
	return ", led by " + leader
}

// missing reports a stream or queue that cannot be examined.
func (d *natsDoctor) missing(err error) Result {
	const start = "start a committer: its keeper makes streams and queues"
	switch {
	case errors.Is(err, flow.ErrNoJetStream):
		return fail("enable JetStream at the servers (jetstream { store_dir: … }), and for this client's account", "JetStream is not enabled")
	case errors.Is(err, flow.ErrDenied):
		return skip("this client may not look at it")
	case errors.Is(err, flow.ErrNoStream) && d.makes():
		return warn(start, "there is no such stream yet")
	case errors.Is(err, flow.ErrNoStream):
		return fail(start, "there is no such stream")
	case errors.Is(err, flow.ErrNoQueue) && d.makes():
		return warn(start+" of sites that have filers", "there is no such queue yet")
	case errors.Is(err, flow.ErrNoQueue):
		return fail(start+"; and is there a filer at this site (worker.site)?", "there is no such queue")
	}
	return fail("look at the server's log", "%s", oneLine(err))
}

// inboxes returns the streams from which the role takes messages.
func (d *natsDoctor) inboxes() []string {
	all := flow.Streams()
	var list []string
	for n, role := range []installation.Role{installation.Walker, installation.Reader, installation.Committer} {
		if d.p.is(role) {
			list = append(list, all[n])
		}
	}
	return list
}

func (d *natsDoctor) queue(ctx context.Context, stream string) Result {
	q, err := d.i.Queue(ctx, stream, d.p.Config.Worker.Site)
	if err != nil {
		return d.missing(err)
	}
	d.asked = asked{q.Clock, q.Sent, q.Received}
	var v verdict
	d.owner(ctx, &v, q.Owner)
	if q.Paused > 0 {
		v.add(warn("resume it (nats consumer resume), unless somebody holds the site's work on purpose", "%s is paused for another %s", q.Name, duration(q.Paused)))
	}
	for _, wrong := range q.Wrong {
		v.add(warn("a running committer sets it back: start one, and see what it logs", "%s differs: %s", q.Name, wrong))
	}
	for _, behind := range q.Behind {
		v.add(warn("look at that server", "%s", behind))
	}
	v.ok("%s: %d waiting, %d in hand, %s", q.Name, q.Pending, q.InHand, plural(q.Waiting, "request")+ledBy(q.Leader))
	return v.result()
}

func (d *natsDoctor) clock(context.Context) Result {
	if d.asked.clock.IsZero() {
		return skip("no stream or queue has told the time")
	}
	return skew(d.asked.clock, d.asked.sent, d.asked.received, 0)
}

// access returns the permissions that the role, or all roles, need at NATS.
func (d *natsDoctor) access() flow.Access {
	inbox, site := d.options.InboxPrefix, d.p.Config.Worker.Site
	if inbox == "" {
		inbox = "_INBOX"
	}
	var all flow.Access
	for _, of := range []struct {
		role   installation.Role
		access flow.Access
	}{
		{installation.Walker, flow.WalkerAccess(site, inbox)}, {installation.Reader, flow.ReaderAccess(site, inbox)},
		{installation.Committer, flow.CommitterAccess(inbox)}, {installation.Operator, flow.FollowerAccess(inbox)},
	} {
		if d.p.is(of.role) {
			all.Publish, all.Subscribe = append(all.Publish, of.access.Publish...), append(all.Subscribe, of.access.Subscribe...)
		}
	}
	slices.Sort(all.Publish)
	slices.Sort(all.Subscribe)
	return flow.Access{Publish: slices.Compact(all.Publish), Subscribe: slices.Compact(all.Subscribe)}
}

func (d *natsDoctor) may(ctx context.Context, right flow.Right) Result {
	err := d.i.Has(ctx, right)
	switch {
	case err == nil:
		return ok("allowed")
	case errors.Is(err, flow.ErrDenied):
		return fail("allow it to this client (bctl deploy refresh writes what the servers need)", "not allowed")
	case errors.Is(err, backup.ErrUnavailable):
		return skip("%s", oneLine(err))
	}
	return fail("", "%s", oneLine(err))
}

// mayNot tests requests that only other roles may make.
func (d *natsDoctor) mayNot(ctx context.Context, access flow.Access) Result {
	refused := 0
	var allowed []string
	others := access.Others()
	for _, right := range others {
		switch err := d.i.Has(ctx, right); {
		case err == nil:
			allowed = append(allowed, right.What)
		case errors.Is(err, flow.ErrDenied):
			refused++
		default:
			return skip("%s", oneLine(err))
		}
	}
	if len(allowed) == 0 {
		return ok("%d things that other roles do are refused", refused)
	}
	return warn("restrict this client to what its role needs (bctl deploy init writes permissions)",
		"it may do %d of %d things that other roles do: %s", len(allowed), len(others), some(allowed))
}
