package fleet

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/testenv"
)

// Options say what a fleet is made of.
type Options struct {
	Walkers, Readers, Committers int    // 0: two; negative: none
	Pruners                      int    // 0: none
	OwnPostgres                  bool   // a server that the test may kill, and that loses nothing then
	NATSURL                      string // of a server that is there already, for several fleets; "": one of its own
	NATSNodes                    int    // 0: one server; else a cluster of so many, and streams with as many replicas
	S3                           bool   // the store is an S3 server; else it is a directory, unless Proxy or Links need one
	Proxy                        bool   // S3 requests go through a FaultProxy
	Links                        bool   // each service reaches its servers over Links of its own
	DefaultLeases                bool   // the services' own, not LeaseSeconds
	DefaultSettings              bool   // the services' own leases, and their own poll
	Worker                       string // more settings of worker, as YAML: "stall_after: 1s"
	Program                      string // what services and commands run, until Fleet.Program is changed; "": Binary
}

// A Fleet is bctl's services with their servers. Its Client runs commands with
// the same settings.
type Fleet struct {
	*Client
	NATS     *testenv.NATSServer    // nil with NATSNodes and NATSURL
	Nodes    testenv.NATSNodes      // nil without
	Postgres *testenv.ClusterServer // nil unless OwnPostgres
	S3       *testenv.S3Server      // nil without Options.S3, Proxy and Links
	Proxy    *FaultProxy            // nil unless Options.Proxy
	Index    *Index

	Walkers, Readers, Committers []*Service
	Pruners                      []*Service
	Config                       string // the services' settings file

	*Locked // nil unless it is NewLocked's

	options       Options
	dsn, endpoint string
	registered    map[string]bool // filers, and shards as filer and name
	started       int             // services
	all           []*Service
}

// LeaseSeconds is how long the fleet's work waits for a worker that died.
const LeaseSeconds = 3

// New starts a fleet with a new repository.
func New(t testing.TB, o Options) *Fleet {
	t.Helper()
	f := &Fleet{Client: NewClient(t), options: o, registered: map[string]bool{}}
	f.Program = o.Program
	if o.S3 || o.Proxy || o.Links {
		f.S3 = testenv.VersityGW(t)
		f.endpoint = "http://" + f.S3.Endpoint
	}
	switch {
	case o.NATSURL != "":
	case o.NATSNodes > 0:
		f.Nodes = testenv.NATSCluster(t, o.NATSNodes)
	default:
		f.NATS = testenv.NATS(t)
	}
	if o.OwnPostgres {
		f.Postgres = testenv.PostgresServer(t)
		f.dsn = f.Postgres.DSN()
	} else {
		f.dsn = testenv.Postgres(t)
	}
	if o.Proxy {
		f.Proxy = newFaultProxy(t, f.endpoint)
		f.endpoint = f.Proxy.URL
	}
	f.Config = filepath.Join(f.Home, "fleet.yaml")
	f.writeConfig()
	f.Env = append(f.Env, "BCTL_CONFIG="+f.Config)
	f.Must("init")
	f.Index = OpenPostgres(t, f.dsn)
	f.Walkers = f.services("walker", o.Walkers)
	f.Readers = f.services("reader", o.Readers)
	f.Committers = f.services("committer", o.Committers)
	for range o.Pruners {
		f.Pruners = append(f.Pruners, f.Service("pruner"))
	}
	return f
}

// NATSURL returns where clients connect.
func (f *Fleet) NATSURL() string {
	if f.options.NATSURL != "" {
		return f.options.NATSURL
	}
	if f.Nodes != nil {
		return f.Nodes.URL()
	}
	return f.NATS.URL()
}

func (f *Fleet) writeConfig() {
	f.t.Helper()
	leases, poll := fmt.Sprintf("lease: %ds, queue_lease: %ds,", LeaseSeconds, LeaseSeconds), "poll: 50ms,"
	if f.options.DefaultLeases || f.options.DefaultSettings {
		leases = ""
	}
	if f.options.DefaultSettings {
		poll = ""
	}
	pruner := "" // releases before it do not know the setting
	if f.options.Pruners > 0 {
		pruner = "pruner: {interval: 500ms}\n"
	}
	text := fmt.Sprintf(`index: {url: %q, max_connections: 8}
store: {%s, retry: 60s}
nats: {url: %q, replicas: %d}
worker_key: %q
committer_key: %q
identity: %q
worker: {%s %s %s}
%slog: {level: debug, format: text}
http: {listen: "127.0.0.1:0"}
`, f.dsn, f.storeSettings(), f.NATSURL(), max(f.options.NATSNodes, 1),
		filepath.Join(f.Home, "worker.key"), filepath.Join(f.Home, "committer.key"), filepath.Join(f.Home, "identity.txt"), leases, poll, f.options.Worker, pruner)
	if err := os.WriteFile(f.Config, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// ShiftClock shifts the clock of the index for services and commands that are started later.
func (f *Fleet) ShiftClock(by time.Duration) {
	f.t.Helper()
	testenv.ShiftClock(f.t, f.dsn, by)
}

// ClockAhead returns the setting of a service whose clock is ahead of that of the index. It shifts
// the clock that the index has for this service back.
func (f *Fleet) ClockAhead(by time.Duration) string {
	f.t.Helper()
	return "BCTL_INDEX=" + testenv.ShiftedClock(f.t, f.dsn, -by)
}

func (f *Fleet) storeSettings() string {
	if f.S3 == nil {
		return fmt.Sprintf("url: %q", f.StoreDir())
	}
	return fmt.Sprintf(`url: "s3://%s/repo", endpoint: %q, region: %s, access_key: %q, secret_key: %q`,
		f.S3.Bucket, f.endpoint, f.S3.Region, f.S3.AccessKey, f.S3.SecretKey)
}

// ProxyOf is Service for a service whose S3 requests go through a FaultProxy of its own.
func (f *Fleet) ProxyOf(kind string, env ...string) (*Service, *FaultProxy) {
	f.t.Helper()
	p := newFaultProxy(f.t, f.endpoint)
	return f.Service(kind, append(env, "BCTL_STORE_ENDPOINT="+p.URL)...), p
}

func (f *Fleet) services(kind string, n int) []*Service {
	f.t.Helper()
	if n == 0 {
		n = 2
	}
	list := make([]*Service, max(n, 0))
	for i := range list {
		list[i] = f.Service(kind)
	}
	return list
}

// link returns a link to the server of a URL, and the URL over it.
func (f *Fleet) link(address string) (*Link, string) {
	f.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		f.t.Fatal(err)
	}
	l := newLink(f.t, u.Host)
	u.Host = l.Address
	return l, u.String()
}

// Filer registers a filer, with flags of bctl filer add.
func (f *Fleet) Filer(name string, flags ...string) {
	f.t.Helper()
	f.Must(append([]string{"filer", "add", name}, flags...)...)
	f.registered[name] = true
}

// Shard registers a tree of this machine as a shard of its path's name, with flags of bctl shard
// add.
func (f *Fleet) Shard(filer, tree string, flags ...string) {
	f.t.Helper()
	f.Must(append([]string{"shard", "add", filer, tree}, flags...)...)
	f.registered[filer+" "+tree] = true
}

// theFiler is the filer of trees for which a test names no other filer.
const theFiler = "filer"

// Register registers a tree as a shard of the filer that BackupArgs names, unless it is one.
func (f *Fleet) Register(tree string) {
	f.t.Helper()
	if !f.registered[theFiler] {
		f.Filer(theFiler)
	}
	if !f.registered[theFiler+" "+tree] {
		f.Shard(theFiler, tree)
	}
}

// BackupArgs are the arguments that back a registered tree up.
func BackupArgs(tree string, more ...string) []string {
	return append([]string{"--filer", theFiler, "--shard", tree}, more...)
}

// StartBackup registers a tree if need be, starts a backup of it, and returns when the snapshot is
// running, with its id.
func (f *Fleet) StartBackup(tree string, more ...string) (*Running, string) {
	f.t.Helper()
	f.Register(tree)
	return f.StartBackupOf(BackupArgs(tree, more...)...)
}

// StartBackupOf is StartBackup with arguments that name one registered shard.
func (f *Fleet) StartBackupOf(args ...string) (*Running, string) {
	f.t.Helper()
	known := f.Index.Snapshots()
	r := f.Start(append([]string{"backup", "--json"}, args...)...)
	var id string
	Await(f.t, "a running snapshot", func() bool {
		if r.Ended() {
			f.t.Fatalf("the backup has ended: %s", r.Wait())
		}
		for snapshot := range f.Index.Snapshots() {
			if _, old := known[snapshot]; !old {
				id = snapshot
			}
		}
		return id != ""
	})
	return r, id
}
