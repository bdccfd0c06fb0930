package containers

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
)

// networksOf is who reaches whom: a walker has no way to the store, and nobody has one out.
var networksOf = map[string][]string{
	"walker": {"control"}, "reader": {"control", "data"}, "committer": {"control", "data"}, "pruner": {"control", "data"}, "scrubber": {"control", "data"},
	"postgres": {"control"}, "versitygw": {"data"},
	"nats1": {"control", "routes"}, "nats2": {"control", "routes"}, "nats3": {"control", "routes"},
}

// volumesOf is what each can read and (rw) write, beside the tree that is backed up: its own folder
// of the installation, and nothing of another's. The installation itself, and the identity that
// opens backups, are in nothing that lasts.
var volumesOf = map[string][]string{
	"walker": {"etc-walker"}, "reader": {"etc-reader", "keys"}, "committer": {"committer-keys", "etc-committer"}, "pruner": {"etc-pruner"}, "scrubber": {"etc-scrubber"},
	"postgres": {"etc-postgres", "postgres rw", "postgres-socket rw"}, "versitygw": {"etc-store", "store rw"},
	"nats1": {"etc-nats1", "nats1 rw"}, "nats2": {"etc-nats2", "nats2 rw"}, "nats3": {"etc-nats3", "nats3 rw"},
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
				var volumes []string
				for _, m := range seen.Mounts {
					switch name := strings.TrimPrefix(m.Name, p.name+"_"); {
					case m.RW:
						volumes = append(volumes, name+" rw")
					case m.Destination != "/data":
						volumes = append(volumes, name)
					}
				}
				slices.Sort(volumes)
				if !slices.Equal(volumes, volumesOf[service]) {
					t.Errorf("%s has the volumes %q", c, volumes)
				}
				host := seen.HostConfig
				if !host.ReadonlyRootfs || !slices.Equal(host.CapDrop, []string{"ALL"}) || !slices.Contains(host.SecurityOpt, "no-new-privileges:true") {
					t.Errorf("%s: read-only %v, drops %v, %v", c, host.ReadonlyRootfs, host.CapDrop, host.SecurityOpt)
				}
				if len(host.PortBindings) > 0 {
					t.Errorf("%s has ports on this machine: %v", c, host.PortBindings)
				}
				if slices.Contains([]string{"walker", "reader", "committer", "pruner", "scrubber"}, service) && seen.Config.User != "65532:65532" {
					t.Errorf("%s runs as %q", c, seen.Config.User)
				}
			}
		}
		if endpoints < 18 || len(addresses) != endpoints {
			t.Errorf("%d addresses of %d endpoints", len(addresses), endpoints)
		}
	})
}

// refuses checks that no server of the project takes a connection without TLS, or one that shows no
// certificate.
func (p *project) refuses(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		nobody := p.tls(t, "nats1")
		nobody.Certificates = nil
		for what, options := range map[string][]nats.Option{"in plain text": nil, "without a certificate": {nats.Secure(nobody)}} {
			if nc, err := nats.Connect("nats://"+p.nats1, options...); err == nil {
				nc.Close()
				t.Errorf("NATS takes a connection %s", what)
			}
		}
		postgres := p.relay(t, "postgres", "control", 5432)
		for what, mode := range map[string]string{"in plain text": "disable", "without a certificate": "require"} {
			conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://bctl_admin@%s/bctl?sslmode=%s", postgres, mode))
			if err == nil {
				err = conn.Close(t.Context())
				t.Errorf("Postgres takes a connection %s (%v)", what, err)
			}
		}
		walker, err := p.all(t, "walker")[0].address(t.Context(), "control", 9464)
		if err != nil {
			t.Fatal(err)
		}
		store := p.relay(t, "versitygw", "data", 7070)
		for _, c := range []struct {
			url, server string
			want        int // 0: the connection ends
		}{
			{"http://" + walker + "/healthz", "", http.StatusBadRequest}, // "client sent an HTTP request to an HTTPS server"
			{"https://" + walker + "/healthz", "walker.bctl", http.StatusOK},
			{"https://" + walker + "/metrics", "walker.bctl", http.StatusUnauthorized},
			{"http://" + store + "/bctl", "", 0},
			{"https://" + store + "/bctl/repo/repository", "versitygw", http.StatusForbidden},
		} {
			nobody.ServerName = c.server
			if got := status(t, c.url, nobody); got != c.want {
				t.Errorf("%s as %q answers %d, not %d", c.url, c.server, got, c.want)
			}
		}
	})
}

// doctor has bctl find out, as each role and from its own container, whether all that it needs is
// there and allowed, and nothing else is.
func (p *project) doctor(t *testing.T) {
	t.Run("doctor", func(t *testing.T) {
		for service, role := range map[string]string{"bctl": "operator", "walker": "walker", "reader": "reader", "committer": "committer", "pruner": "pruner", "scrubber": "scrubber"} {
			p.compose(t, "run", "--rm", "--no-deps", "--no-TTY", service, "doctor", "--as", role)
		}
	})
}

// status is what a server answers to a GET; 0 when it answers nothing.
func status(t *testing.T, url string, config *tls.Config) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Logf("%s: %v", url, err)
		return 0
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	return response.StatusCode
}
