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
	switch {
	case !p.Config.Fleet() && (p.Role == installation.Pruner || p.Role == installation.Scrubber || p.Role == installation.Restorer):
		return known("nats", skip("nats.url is not set: %s works without NATS, but bctl worker ls does not list it", p.whom()))
	case !p.Config.Fleet() && p.Role != "" && p.Role != installation.Operator:
		return known("nats", fail("set nats.url (BCTL_NATS)", "nats.url is not set, and %s is part of a fleet", p.whom()))
	case !p.Config.Fleet():
		return known("nats", skip("nats.url is not set: everything runs in one process"))
	}
	d := &natsDoctor{p: p, options: p.NATS()}
	g := Group{Name: "nats", Close: func() {
		if d.i != nil {
			d.i.Close()
		}
	}}
	servers := flow.Servers(p.Config.NATS.URL)
	for n, server := range servers {
		g.add(fmt.Sprintf("nats.server.%d", n+1), func(ctx context.Context) Finding { return d.server(ctx, server) })
	}
	const connection = "nats.connection"
	g.add(connection, func(context.Context) Finding { return d.connection(len(servers)) })
	add := func(id string, run func(context.Context) Finding) { g.add(id, run, connection) }
	add("nats.identity", d.identity)
	add("nats.payload", d.payload)
	add("nats.latency", d.latency)
	for _, stream := range flow.Streams() {
		add("nats.stream."+stream, func(ctx context.Context) Finding { return d.stream(ctx, stream) })
	}
	for _, stream := range d.inboxes() {
		add("nats.queue."+stream, func(ctx context.Context) Finding { return d.queue(ctx, stream) })
	}
	add("nats.clock", d.clock)
	access := d.access()
	for _, right := range access.Rights() {
		add("nats.may "+right.What, func(ctx context.Context) Finding { return d.may(ctx, right) })
	}
	if p.Role != "" {
		add("nats.may not", func(ctx context.Context) Finding { return d.mayNot(ctx, access) })
	}
	return g
}

// server connects to one server, and keeps the connection if it is the first.
func (d *natsDoctor) server(ctx context.Context, at flow.Server) Finding {
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
	return v.finding()
}

func (d *natsDoctor) unreachable(err error) Finding {
	r := unreachable(err, "the NATS server", "nats.ca_file")
	switch text := strings.ToLower(r.Seen); {
	case strings.Contains(text, "authorization violation"), strings.Contains(text, "authentication"):
		r.Advice = "correct nats.user and nats.password, nats.credentials_file, or nats.cert_file: the server does not know this client"
		if d.options.CertFile != "" {
			r.Advice += "; check with bctl deploy show that its generation is not retired"
		}
	}
	return r
}

// connection reports whether there is a connection for the following checks.
func (d *natsDoctor) connection(of int) Finding {
	if d.i == nil {
		return fail("start one of the servers, or correct nats.url", "none of %s can be used", plural(of, "server"))
	}
	clusters := map[string]bool{}
	for _, f := range d.servers {
		clusters[f.Cluster] = true
	}
	replicas := max(d.p.Config.NATS.Replicas, 1)
	switch {
	case len(clusters) > 1:
		return fail("name only servers of one cluster in nats.url", "the servers belong to different clusters")
	case replicas > 1 && clusters[""]:
		return fail("configure the servers as a cluster, or set nats.replicas to 1", "nats.replicas is %d, but the server is not part of a cluster", replicas)
	case of > 1 && len(d.servers) < of:
		return warn("repair the others: bctl works only while a majority of the servers is available", "%d of %s can be used", len(d.servers), plural(of, "server"))
	case of == 1 && replicas > 1:
		return warn("name all servers in nats.url: a service cannot start while this one is down", "only one server of a cluster is named")
	}
	return ok("%d of %s can be used", len(d.servers), plural(of, "server"))
}

func (d *natsDoctor) identity(context.Context) Finding {
	switch f := d.servers[0]; {
	case f.Open:
		return warn("give each service an identity (bctl deploy init creates them)", "the server does not authenticate clients: anyone who can reach it has all permissions of bctl")
	case d.options.CertFile != "":
		return ok("authenticated by the certificate %s", d.options.CertFile)
	case d.options.Credentials != "":
		return ok("authenticated by the credentials %s", d.options.Credentials)
	case d.options.User != "":
		return ok("authenticated as %s, by a password", d.options.User)
	}
	return ok("authenticated by nats.url")
}

// maxSensiblePayload is the limit above which the NATS documentation advises against larger
// payloads.
const maxSensiblePayload = 8 << 20

func (d *natsDoctor) payload(context.Context) Finding {
	smallest, largest := d.servers[0].MaxPayloadBytes, int64(0)
	for _, f := range d.servers {
		smallest, largest = min(smallest, f.MaxPayloadBytes), max(largest, f.MaxPayloadBytes)
	}
	switch {
	case smallest < flow.MaxMessageBytes+4096:
		return fail("set max_payload to 1MB, the default", "max_payload is %s, and bctl's messages have up to %s", size(smallest), size(flow.MaxMessageBytes))
	case largest > maxSensiblePayload:
		return warn("set max_payload to 1MB, the default: bctl needs no more", "max_payload is %s", size(largest))
	}
	return ok("max_payload is %s", size(smallest))
}

// slowRoundTrip is the limit for servers that distribute work: each task takes a few round trips.
const slowRoundTrip = 100 * time.Millisecond

func (d *natsDoctor) latency(context.Context) Finding {
	took, err := d.i.RoundTrip(9)
	if err != nil {
		return failWith("check the network", err)
	}
	return roundTrip(took, slowRoundTrip)
}

func roundTrip(took, slow time.Duration) Finding {
	if took > slow {
		return warn("shorten the distance between the machines, or find out what delays packets", "a round trip takes %s (median)", duration(took))
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
		v.add(fail("give each fleet its own NATS account; if that repository no longer exists, delete the streams (docs/operations.md, One NATS, several fleets)",
			"it belongs to repository %s, and this is %s: services of one do no work for the other", owner, *d.mine))
	}
}

// makes reports whether the role creates missing streams and queues.
func (d *natsDoctor) makes() bool { return d.p.is(installation.Committer) }

func (d *natsDoctor) stream(ctx context.Context, name string) Finding {
	s, err := d.i.Stream(ctx, name)
	if err != nil {
		return d.missing(err)
	}
	d.asked = asked{s.Clock, s.Sent, s.Received}
	var v verdict
	d.owner(ctx, &v, s.Owner)
	if s.Storage != "file" {
		v.add(warn("delete the stream while no service runs: the keeper creates it again, with file storage", "it is stored in memory, and lost when its servers restart"))
	}
	for _, wrong := range s.Fixed {
		v.add(fail("delete the stream: the keeper creates it again", "%s", wrong))
	}
	for _, wrong := range s.Wrong {
		v.add(warn(fmt.Sprintf("a running committer resets it: start one, and check its log; nats.replicas is %d here, and must be the same everywhere",
			max(d.p.Config.NATS.Replicas, 1)), "differs: %s", wrong))
	}
	for _, behind := range s.Behind {
		v.add(warn("check that server", "%s", behind))
	}
	v.ok("%s, %s, %s", s.Storage, plural(s.Replicas, "replica"), plural(int(s.Messages), "message")+ledBy(s.Leader))
	return v.finding()
}

func ledBy(leader string) string {
	if leader == "" {
		return ""
	}
	return ", led by " + leader
}

// missing reports a stream or queue that cannot be examined.
func (d *natsDoctor) missing(err error) Finding {
	const start = "start a committer, which creates streams and queues; if one runs, bctl status, its /readyz and the log of the NATS server say why it cannot"
	switch {
	case errors.Is(err, flow.ErrNoJetStream):
		return fail("enable JetStream at the servers (jetstream { store_dir: … }), and for this client's account", "JetStream is not enabled")
	case errors.Is(err, flow.ErrDenied):
		return skip("this client has no permission to examine it")
	case errors.Is(err, flow.ErrNoStream) && d.makes():
		return warn(start, "there is no such stream yet")
	case errors.Is(err, flow.ErrNoStream):
		return fail(start, "there is no such stream")
	case errors.Is(err, flow.ErrNoQueue):
		// A worker that is installed before the first filer of its site is not broken.
		site := d.p.Config.Worker.Site
		return warn(fmt.Sprintf("register its first filer (bctl filer add NAME --site %s), or correct worker.site; the committer creates the queue", site),
			"there is no queue for site %s: no filer has this site", site)
	}
	return failWith("read the server's log", err)
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

func (d *natsDoctor) queue(ctx context.Context, stream string) Finding {
	q, err := d.i.Queue(ctx, stream, d.p.Config.Worker.Site)
	if err != nil {
		return d.missing(err)
	}
	d.asked = asked{q.Clock, q.Sent, q.Received}
	var v verdict
	d.owner(ctx, &v, q.Owner)
	if q.Paused > 0 {
		v.add(warn("resume it (nats consumer resume), unless it is paused on purpose", "%s is paused for another %s", q.Name, duration(q.Paused)))
	}
	for _, wrong := range q.Wrong {
		v.add(warn("a running committer resets it: start one, and check its log", "%s differs: %s", q.Name, wrong))
	}
	for _, behind := range q.Behind {
		v.add(warn("check that server", "%s", behind))
	}
	v.ok("%s: %d waiting, %d delivered, %s", q.Name, q.Pending, q.InHand, plural(q.Waiting, "request")+ledBy(q.Leader))
	return v.finding()
}

func (d *natsDoctor) clock(context.Context) Finding {
	if d.asked.clock.IsZero() {
		return skip("no stream or queue reported the time")
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
		{installation.Committer, flow.CommitterAccess(inbox)}, {installation.Pruner, flow.HousekeeperAccess(flow.RolePruner, inbox)}, {installation.Scrubber, flow.HousekeeperAccess(flow.RoleScrubber, inbox)},
		{installation.Restorer, flow.HousekeeperAccess(flow.RoleRestorer, inbox)}, {installation.Operator, flow.FollowerAccess(inbox)},
	} {
		if d.p.is(of.role) {
			all.Publish, all.Subscribe = append(all.Publish, of.access.Publish...), append(all.Subscribe, of.access.Subscribe...)
		}
	}
	slices.Sort(all.Publish)
	slices.Sort(all.Subscribe)
	return flow.Access{Publish: slices.Compact(all.Publish), Subscribe: slices.Compact(all.Subscribe)}
}

func (d *natsDoctor) may(ctx context.Context, right flow.Right) Finding {
	err := d.i.Has(ctx, right)
	switch {
	case err == nil:
		return ok("allowed")
	case errors.Is(err, flow.ErrDenied):
		return fail("grant it to this client (bctl deploy refresh writes what the servers need)", "not allowed")
	case errors.Is(err, backup.ErrUnavailable):
		return skipWith(err)
	}
	return failWith("", err)
}

// mayNot tests requests that only other roles may make.
func (d *natsDoctor) mayNot(ctx context.Context, access flow.Access) Finding {
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
			return skipWith(err)
		}
	}
	if len(allowed) == 0 {
		return ok("%d operations of other roles are refused", refused)
	}
	return warn("restrict this client to the permissions of its role (bctl deploy init writes permissions)",
		"it may do %d of %d operations of other roles: %s", len(allowed), len(others), some(allowed))
}
