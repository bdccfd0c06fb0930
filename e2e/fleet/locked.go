package fleet

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// Locked is the part of a Fleet that only NewLocked makes: it uses TLS everywhere, with an
// installation that bctl deploy made.
type Locked struct {
	Installation string          // its directory; the servers use their folders in it where they are
	Machines     string          // copies of the identities' folders, which services and commands use
	Database     *testenv.Locked // the Postgres server
	Store        *testenv.LockedS3
}

// NewLocked is New with servers that accept only TLS, and only the identities of an installation.
// flags are further flags of bctl deploy init. Each service runs as its role, and the Client's
// commands run as the operator. Links and proxies cannot be used: no certificate has their names.
func NewLocked(t testing.TB, o Options, flags ...string) *Fleet {
	t.Helper()
	f := lockedServers(t, o, flags...)
	f.As("admin").Must("init")
	f.GiveKeys("reader@default", "committer", "operator")
	f.Walkers = f.services("walker", o.Walkers)
	f.Readers = f.services("reader", o.Readers)
	f.Committers = f.services("committer", o.Committers)
	for range o.Pruners {
		f.Pruners = append(f.Pruners, f.Service("pruner"))
	}
	return f
}

// Elsewhere returns the servers of a new installation, whose bucket has the objects of this fleet's
// store. The index is empty, and no service runs. The store of this fleet must be stopped.
func (f *Fleet) Elsewhere(t testing.TB) *Fleet {
	t.Helper()
	e := lockedServers(t, Options{})
	for _, part := range []string{"data", "sidecar"} { // the latter where files have no attributes
		from := filepath.Join(filepath.Dir(f.Store.Dir), part, f.S3.Bucket, "repo")
		if _, err := os.Stat(from); err != nil {
			continue
		}
		if err := os.Rename(from, filepath.Join(filepath.Dir(e.Store.Dir), part, e.S3.Bucket, "repo")); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// lockedServers makes an installation and its servers, without a repository.
func lockedServers(t testing.TB, o Options, flags ...string) *Fleet {
	t.Helper()
	testtarget.Need(t, testtarget.S3)
	f := &Fleet{Client: NewClient(t), Postgres: testenv.PostgresServer(t), options: o, registered: map[string]bool{}, Locked: &Locked{}}
	if o.Links || o.Proxy {
		t.Fatal("a locked fleet has no links and no proxy")
	}
	f.Program = o.Program
	f.Installation, f.Machines = filepath.Join(f.Home, "installation"), filepath.Join(f.Home, "machines")
	host, port := f.Postgres.Address()
	storePort, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	const bucket = "bctl"
	f.endpoint = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(storePort))
	f.Must(append([]string{"deploy", "init", f.Installation, "--in-place", "--nats", strings.Join(testenv.FreeNATS(t, max(o.NATSNodes, 1)), ","),
		"--postgres", fmt.Sprintf("%s/bctl", net.JoinHostPort(host, strconv.Itoa(int(port)))),
		"--store", "s3://" + bucket + "/repo", "--store-kind", "versitygw", "--store-endpoint", f.endpoint}, flags...)...)
	f.Nodes = testenv.LockNATS(t, f.Installation)
	f.Database = f.Postgres.Lock(t, filepath.Join(f.Installation, "postgres"))
	f.Store = testenv.LockVersityGW(t, filepath.Join(f.Installation, "s3"), storePort)
	f.S3 = &testenv.S3Server{
		Process: f.Store.Process, Endpoint: f.Store.Endpoint, AccessKey: f.Store.AccessKey, SecretKey: f.Store.SecretKey,
		Region: f.Store.Region, Bucket: bucket, Dir: f.Store.Dir,
	}
	f.Distribute()
	f.Config = f.Settings("operator")
	f.Env = append(f.Env, "BCTL_CONFIG="+f.Config)
	f.dsn = f.superuser()
	f.Index = OpenPostgres(t, f.dsn)
	return f
}

// Settings is the settings file of an identity: "walker@default", "committer", "operator", "admin".
func (l *Locked) Settings(identity string) string {
	return filepath.Join(l.Machines, identity, "bctl.yaml")
}

// As returns a Client whose commands run as an identity.
func (f *Fleet) As(identity string, env ...string) *Client {
	c := *f.Client
	c.Env = append(append([]string{}, c.Env...), append(env, "BCTL_CONFIG="+f.Settings(identity))...)
	return &c
}

// GiveKeys copies keys that init has made from the admin's folder, as an administrator would: the
// worker key to readers, the committer key to committers, the identity that opens backups to
// operators.
func (f *Fleet) GiveKeys(identities ...string) {
	f.t.Helper()
	for _, identity := range identities {
		name := "worker.key"
		switch identity {
		case "operator":
			name = "identity.txt"
		case "committer":
			name = "committer.key"
		}
		f.copyFile(filepath.Join(f.Machines, "admin", name), filepath.Join(f.Machines, identity, name))
	}
}

// Distribute gives the machines of all identities their folders, as they are now. Each file is
// replaced at once.
func (f *Fleet) Distribute() {
	f.t.Helper()
	files, err := filepath.Glob(filepath.Join(f.Installation, "*", "*"))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, file := range files {
		folder, name := filepath.Split(file)
		if _, err := os.Stat(filepath.Join(folder, "bctl.yaml")); err == nil {
			f.copyFile(file, filepath.Join(f.Machines, filepath.Base(folder), name))
		}
	}
}

func (f *Fleet) copyFile(from, to string) {
	f.t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		f.t.Fatal(err)
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to+".new", data, 0o600), os.Rename(to+".new", to))
	if err != nil {
		f.t.Fatal(err)
	}
}

// ServersTakeOver makes all servers read the files that bctl deploy has changed.
func (f *Fleet) ServersTakeOver() {
	f.t.Helper()
	f.Nodes.Reload(f.t)
	f.Database.Reload(f.t)
	f.Database.Roles(f.t) // ends sessions of certificates that are retired
	f.Store.Apply(f.t)
}

// Replace makes a rolling restart: for each service, it starts another one, and stops the old one.
func (f *Fleet) Replace(lists ...[]*Service) {
	f.t.Helper()
	for _, list := range lists {
		for i, old := range list {
			list[i] = f.Service(old.kind)
			old.Retire()
		}
	}
}

// superuser is the index's database, as the test's own superuser.
func (f *Fleet) superuser() string {
	f.t.Helper()
	u, err := url.Parse(f.Database.Superuser())
	if err != nil {
		f.t.Fatal(err)
	}
	u.Path = "/bctl"
	return u.String()
}

// identity is whom a kind of services runs as.
func (f *Fleet) identity(kind string) string {
	if kind == "committer" || kind == "pruner" {
		return kind
	}
	return kind + "@default"
}

// tuned returns the settings of services that differ between tests and production.
func (f *Fleet) tuned() []string {
	return []string{
		fmt.Sprintf("BCTL_WORKER_LEASE=%ds", LeaseSeconds), fmt.Sprintf("BCTL_WORKER_QUEUE_LEASE=%ds", LeaseSeconds), "BCTL_WORKER_POLL=50ms",
		"BCTL_PRUNER_INTERVAL=500ms", "BCTL_STORE_RETRY=60s", "BCTL_LOG_LEVEL=debug", "BCTL_LOG_FORMAT=text", "BCTL_HTTP_LISTEN=127.0.0.1:0",
	}
}
