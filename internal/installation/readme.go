package installation

import (
	"fmt"
	"strings"
)

// readme describes where each folder belongs.
func readme(p *Plan) File {
	var b strings.Builder
	line := func(folder, what string) { fmt.Fprintf(&b, "%-20s %s\n", folder, what) }
	b.WriteString("Written by bctl deploy. Each folder contains everything that machines of one kind need, and nothing else.\n\n")
	line("ca", "stays offline, in a safe: with ca.key, one can impersonate every identity")
	for _, n := range p.natsNodes() {
		line(n.folder(), "to "+n.host+", as "+natsEtc)
	}
	line("postgres", "to "+p.Postgres.Host+", as "+postgresEtc)
	if p.Store.Kind.Ours() {
		line("s3", "to "+p.Store.host()+", as "+storeEtc)
	} else {
		line("s3", "policies, for the administrator of the bucket")
	}
	for _, i := range p.newest() {
		switch i.Role {
		case Admin:
			line(i.home(), "to the machine on which you run bctl init and bctl migrate, as "+identityEtc)
		case Operator:
			line(i.home(), "to the machines of operators, below "+identityEtc)
		case Monitor:
			line(i.home(), "to Prometheus, as "+prometheusEtc)
		case Mirror:
			line(i.home(), "to the machine that copies the store to a second one (bctl mirror run), below "+identityEtc)
		case Committer, Walker, Reader, Pruner, Scrubber, Restorer:
			line(i.home(), "to each machine that runs this service, below "+identityEtc)
		}
	}
	line(planFile, "stays with ca: the requested configuration, and the accepted generations")
	b.WriteString("\nThe section \"Locked down\" of docs/deploy.md explains each step, and rotation.\n")
	return File{Path: "README", Data: []byte(b.String())}
}
