package containers

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// networksOf is who reaches whom: a walker has no way to the store, and nobody has one out.
var networksOf = map[string][]string{
	"walker": {"control"}, "reader": {"control", "data"}, "committer": {"control", "data"},
	"postgres": {"control"}, "versitygw": {"data"},
	"nats1": {"control", "routes"}, "nats2": {"control", "routes"}, "nats3": {"control", "routes"},
}

// contained checks what deploy/compose.yaml promises of each container.
func (p *project) contained(t *testing.T) {
	t.Run("contained", func(t *testing.T) {
		addresses, endpoints := map[netip.Addr]bool{}, 0
		for service, networks := range networksOf {
			for _, c := range p.all(t, service) {
				seen, err := c.Inspect(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				joined := slices.Sorted(maps.Keys(seen.NetworkSettings.Networks))
				for i := range joined {
					addresses[seen.NetworkSettings.Networks[joined[i]].IPAddress] = true
					endpoints++
					joined[i] = strings.TrimPrefix(joined[i], p.name+"_")
				}
				if !slices.Equal(joined, networks) {
					t.Errorf("%s is on the networks %v", c, joined)
				}
				host := seen.HostConfig
				if !host.ReadonlyRootfs || !slices.Equal(host.CapDrop, []string{"ALL"}) || !slices.Contains(host.SecurityOpt, "no-new-privileges:true") {
					t.Errorf("%s: read-only %v, drops %v, %v", c, host.ReadonlyRootfs, host.CapDrop, host.SecurityOpt)
				}
				if len(host.PortBindings) > 0 {
					t.Errorf("%s has ports on this machine: %v", c, host.PortBindings)
				}
				if slices.Contains([]string{"walker", "reader", "committer"}, service) && seen.Config.User != "65532:65532" {
					t.Errorf("%s runs as %q", c, seen.Config.User)
				}
			}
		}
		if endpoints < 18 || len(addresses) != endpoints {
			t.Errorf("%d addresses of %d endpoints", len(addresses), endpoints)
		}
	})
}
