package installation

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/bctl/bctl/internal/flow"
)

const (
	natsPort = 4222
	// The difference between the cluster's route port (6222) and the client port.
	routesAbove = 2000
	// maxPayload exceeds all messages with their headers.
	maxPayload = flow.MaxMessageBytes + 4096
	// Each service has one connection, and so has each bctl backup.
	maxConnections   = 8192
	maxSubscriptions = 1024 // per connection
)

// splitHost returns host and port of an address, which need not have a port.
func splitHost(address string, standard int) (host string, port int, err error) {
	if !strings.Contains(address, ":") || net.ParseIP(address) != nil {
		return strings.Trim(address, "[]"), standard, nil
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("%q is not a port", text)
	}
	return host, port, nil
}

// natsNodes returns hosts and ports of the NATS servers.
func (p *Plan) natsNodes() (nodes []natsNode) {
	for _, address := range p.NATS {
		host, port, _ := splitHost(address, natsPort) // check has validated it
		nodes = append(nodes, natsNode{host, port})
	}
	return nodes
}

type natsNode struct {
	host string
	port int
}

func (n natsNode) folder() string  { return "nats/" + n.host }
func (n natsNode) address() string { return net.JoinHostPort(n.host, strconv.Itoa(n.port)) }
func (n natsNode) route() string   { return net.JoinHostPort(n.host, strconv.Itoa(n.port+routesAbove)) }

// natsURL returns the URL for clients.
func (p *Plan) natsURL() string {
	var urls []string
	for _, n := range p.natsNodes() {
		urls = append(urls, "tls://"+n.address())
	}
	return strings.Join(urls, ",")
}

// natsReplicas returns the number of replicas of each stream.
func (p *Plan) natsReplicas() int {
	switch n := len(p.NATS); {
	case n >= 5:
		return 5
	case n >= 3:
		return 3
	}
	return 1
}

// inbox returns the prefix of the subjects for replies to an identity, to which no other identity
// may subscribe.
func (i Identity) inbox() string { return "_INBOX_" + i.Folder() }

// access returns the permissions of an identity at NATS; ok is false for one without access.
func (i Identity) access() (a flow.Access, ok bool) {
	switch i.Role {
	case Walker:
		return flow.WalkerAccess(i.Site, i.inbox()), true
	case Reader:
		return flow.ReaderAccess(i.Site, i.inbox()), true
	case Committer:
		return flow.CommitterAccess(i.inbox()), true
	case Operator:
		return flow.FollowerAccess(i.inbox()), true
	case Pruner, Scrubber, Restorer:
		return flow.HousekeeperAccess(flow.Role(i.Role), i.inbox()), true
	case Admin, Monitor:
	}
	return a, false
}

func natsFiles(p *Plan) (files []File) {
	users := natsUsers(p)
	for _, n := range p.natsNodes() {
		files = append(files,
			File{Path: n.folder() + "/nats.conf", Data: []byte(natsConf(p, n))},
			File{Path: n.folder() + "/users.conf", Data: []byte(users)})
	}
	return files
}

// natsConf returns the configuration of one server. The configuration of JetStream's account comes
// from users.conf. There is no user of the system account, and no monitoring port, because that
// would not use TLS.
func natsConf(p *Plan, n natsNode) string {
	data := natsData
	if p.InPlace != "" {
		data = p.place(n.folder() + "/data")
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# Written by bctl deploy; bctl deploy refresh overwrites it.
server_name: %q
listen: %q

tls {
  cert_file: %q
  key_file: %q
  ca_file: %q
  verify_and_map: true # a client is authenticated as the user named in its certificate
  min_version: "1.3"
  timeout: 5
}

max_payload: %d
max_connections: %d
max_subscriptions: %d

jetstream {
  store_dir: %q
  # The queues are shallow, because Postgres is authoritative: they need far less than this.
  max_memory_store: 64MB
  max_file_store: 2GB
}

accounts {
  BCTL {
    jetstream: enabled
    include "./users.conf"
  }
}
`, n.host, p.listen(n.host, n.port), p.place(n.folder()+"/server.pem"), p.place(n.folder()+"/server.key"), p.place(n.folder()+"/ca.pem"),
		maxPayload, maxConnections, maxSubscriptions, data)
	if len(p.NATS) > 1 {
		writeCluster(&b, p, n)
	}
	return b.String()
}

// listen returns the address on which a server listens: all interfaces, except that a trial on one
// machine uses the loopback interface if the server's name is an address of it.
func (p *Plan) listen(host string, port int) string {
	ip := netip.IPv4Unspecified()
	if p.trial(host) {
		ip = netip.MustParseAddr(host)
	}
	return netip.AddrPortFrom(ip, uint16(port)).String()
}

// trial reports whether the installation is used on one machine, and host is an address of its
// loopback interface.
func (p *Plan) trial(host string) bool {
	ip, err := netip.ParseAddr(host)
	return p.InPlace != "" && err == nil && ip.IsLoopback()
}

func writeCluster(b *strings.Builder, p *Plan, n natsNode) {
	fmt.Fprintf(b, `
cluster {
  name: %q
  listen: %q
  # The name in the certificate, under which the other nodes find this one. Clients know all nodes from their settings.
  advertise: %q
  no_advertise: true
  # A node is authenticated by a certificate with this URI, which clients' certificates do not contain.
  authorization { user: %q }
  tls {
    cert_file: %q
    key_file: %q
    ca_file: %q
    verify_and_map: true
    min_version: "1.3"
    timeout: 5
  }
  routes: [
`, p.Name, p.listen(n.host, n.port+routesAbove), n.route(), routeName,
		p.place(n.folder()+"/server.pem"), p.place(n.folder()+"/server.key"), p.place(n.folder()+"/ca.pem"))
	for _, other := range p.natsNodes() {
		fmt.Fprintf(b, "    \"nats-route://%s\"\n", other.route())
	}
	b.WriteString("  ]\n}\n")
}

// natsUsers lists the live generations of all identities with their permissions.
func natsUsers(p *Plan) string {
	var b strings.Builder
	b.WriteString("# Written by bctl deploy: the permissions of each user. Everything else is refused.\nusers: [\n")
	for _, i := range p.Identities() {
		access, ok := i.access()
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "  {\n    user: %q\n    permissions: {\n      publish: { allow: [%s] }\n      subscribe: { allow: [%s] }\n    }\n  }\n",
			"CN="+i.Name(), quoted(access.Publish), quoted(access.Subscribe))
	}
	b.WriteString("]\n")
	return b.String()
}

func quoted(subjects []string) string {
	var b strings.Builder
	for _, s := range subjects {
		fmt.Fprintf(&b, "\n        %q", s)
	}
	b.WriteString("\n      ")
	return b.String()
}
