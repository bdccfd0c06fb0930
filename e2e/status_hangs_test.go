package e2e_test

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
)

// While Postgres hangs, bctl status lists the services, which answer over NATS, and says why it
// does not list the snapshots. When Postgres answers, it shows the rest.
func TestStatusWhilePostgresHangs(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1, OwnPostgres: true})
	fleet.Await(t, "all services to be ready", func() bool {
		return strings.Count(f.Must("worker", "ls", "--json").Stdout, `"state":"ready"`) == 3
	})
	f.Postgres.Pause()
	status := f.Start("status")
	fleet.Await(t, "the note that the index does not answer", func() bool {
		return strings.Contains(status.Stderr(), "the index does not answer: running snapshots are not known")
	})
	fleet.Await(t, "the services to be listed", func() bool {
		return strings.Contains(status.Stdout(), f.Walkers[0].Name) && strings.Contains(status.Stdout(), f.Committers[0].Name)
	})
	if status.Ended() {
		t.Errorf("it has ended while Postgres hangs: %s", status.Wait())
	}
	f.Postgres.Resume()
	printed(t, status.Wait(), "No snapshot is running")

	silent := *f.Client // the store accepts connections, and does not answer
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	silent.Env = append(slices.Clip(f.Env), "BCTL_STORE=s3://bucket/repo", "BCTL_STORE_ENDPOINT=http://"+listener.Addr().String(), "BCTL_STORE_REGION=us-east-1",
		"BCTL_STORE_ACCESS_KEY=key", "BCTL_STORE_SECRET_KEY=secret")
	out := silent.Run("status")
	printed(t, out, "No snapshot is running")
	if strings.Contains(out.Stderr, "the index does not answer") || !strings.Contains(out.Stderr, "cannot check whether the index is older than the store") {
		t.Errorf("the store does not answer: %s", out)
	}

	away := *f.Client // Postgres refuses connections
	away.Env = append(slices.Clip(f.Env), "BCTL_INDEX=postgres://127.0.0.1:1/none?sslmode=disable")
	out = away.Run("status")
	expect(t, out, 1, "the index does not answer: running snapshots are not known")
	if !strings.Contains(out.Stdout, f.Walkers[0].Name) {
		t.Errorf("the services are not listed: %s", out)
	}
}

// If Postgres refuses the operator, perhaps because it refuses everybody, bctl status and bctl
// worker ls list the services nevertheless, and say who refuses.
func TestServicesWhilePostgresRefuses(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1, OwnPostgres: true})
	fleet.Await(t, "all services to be ready", func() bool {
		return strings.Count(f.Must("worker", "ls", "--json").Stdout, `"state":"ready"`) == 3
	})
	dsn, err := url.Parse(f.Postgres.DSN())
	if err != nil {
		t.Fatal(err)
	}
	dsn.User = url.User("nobody")
	refused := *f.Client
	refused.Env = append(slices.Clip(f.Env), "BCTL_INDEX="+dsn.String())
	status := refused.Run("status")
	expect(t, status, 1, "the index refuses this client: running snapshots are not known")
	list := refused.Run("worker", "ls")
	expect(t, list, 0)
	if !strings.Contains(list.Stderr, "refuses this client") {
		t.Errorf("it does not say who refuses: %s", list)
	}
	for _, out := range []fleet.Output{status, list} {
		for _, s := range []*fleet.Service{f.Walkers[0], f.Readers[0], f.Committers[0]} {
			if !strings.Contains(out.Stdout, s.Name) {
				t.Errorf("%s is not listed: %s", s.Name, out)
			}
		}
	}
}
