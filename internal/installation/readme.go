package installation

import (
	"fmt"
	"strings"
)

// readme describes where each folder belongs.
func readme(p *Plan) File {
	var b strings.Builder
	line := func(folder, what string) { fmt.Fprintf(&b, "%-20s %s\n", folder, what) }
	b.WriteString("Made by bctl deploy. Each folder has all that one kind of machine gets, and nothing of another's.\n\n")
	line("ca", "stays offline, in a safe: whoever has ca.key is everybody")
	for _, n := range p.natsNodes() {
		line(n.folder(), "to "+n.host+", as "+natsEtc)
	}
	line("postgres", "to "+p.Postgres.Host+", as "+postgresEtc)
	if p.Store.Kind.Ours() {
		line("s3", "to "+p.Store.host()+", as "+storeEtc)
	} else {
		line("s3", "policies, for whoever administers the bucket")
	}
	for _, i := range p.newest() {
		switch i.Role {
		case Admin:
			line(i.home(), "to where bctl init and bctl migrate are run, as "+identityEtc)
		case Operator:
			line(i.home(), "to where people use bctl, as "+identityEtc)
		case Monitor:
			line(i.home(), "to Prometheus, as "+prometheusEtc)
		case Committer, Walker, Reader:
			line(i.home(), "to each machine with such a service, as "+identityEtc)
		}
	}
	line(planFile, "stays with ca: what was asked for, and which generations are accepted")
	b.WriteString("\nThe part \"Locked down\" of docs/deploy.md goes through it, and through rotation.\n")
	return File{Path: "README", Data: []byte(b.String())}
}
