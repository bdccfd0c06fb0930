package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/testenv"
)

// Options say what a fleet is made of.
type Options struct {
	Walkers, Readers, Committers int  // 0: two; negative: none
	OwnPostgres                  bool // a server that the test may kill, and that loses nothing then
	Proxy                        bool // S3 requests go through a FaultProxy
	Settings                     string
}

// A Fleet is bctl's services with their servers. Its Client runs commands with
// the same settings.
type Fleet struct {
	*Client
	NATS     *testenv.NATSServer
	Postgres *testenv.ClusterServer // nil unless OwnPostgres
	S3       *testenv.S3Server
	Proxy    *FaultProxy // nil unless Options.Proxy
	Index    *Index

	Walkers, Readers, Committers []*Service
	Config                       string // the services' settings file
}

// A Service is a walker, reader or committer.
type Service struct {
	*testenv.Process
	kind string
	dead bool // killed by the test
}

// Kill ends the service as kill -9 does.
func (s *Service) Kill() {
	s.dead = true
	s.Process.Kill()
}

// Restart starts it again, after killing it if it runs.
func (s *Service) Restart() {
	s.Process.Restart()
	s.dead = false
}

// LeaseSeconds is how long the fleet's work waits for a worker that died.
const LeaseSeconds = 3

// New starts a fleet with a new repository.
func New(t testing.TB, o Options) *Fleet {
	t.Helper()
	f := &Fleet{Client: NewClient(t), NATS: testenv.NATS(t), S3: testenv.VersityGW(t)}
	var dsn string
	if o.OwnPostgres {
		f.Postgres = testenv.PostgresServer(t)
		dsn = f.Postgres.DSN()
	} else {
		dsn = testenv.Postgres(t)
	}
	endpoint := "http://" + f.S3.Endpoint
	if o.Proxy {
		f.Proxy = newFaultProxy(t, endpoint)
		endpoint = f.Proxy.URL
	}
	f.Config = filepath.Join(f.Home, "fleet.yaml")
	f.writeConfig(dsn, endpoint, o.Settings)
	f.Env = append(f.Env, "BCTL_CONFIG="+f.Config)
	f.Must("init")
	f.Index = OpenPostgres(t, dsn)
	f.Walkers = f.services("walker", o.Walkers)
	f.Readers = f.services("reader", o.Readers)
	f.Committers = f.services("committer", o.Committers)
	return f
}

func (f *Fleet) writeConfig(dsn, endpoint, more string) {
	f.t.Helper()
	text := fmt.Sprintf(`index: {url: %q, max_connections: 8}
store: {url: "s3://%s/repo", endpoint: %q, region: %s, access_key: %q, secret_key: %q, retry: 60s}
nats: {url: %q}
worker_key: %q
identity: %q
worker: {lease: %ds, queue_lease: %ds, poll: 50ms}
log: {level: debug, format: text}
%s
`, dsn, f.S3.Bucket, endpoint, f.S3.Region, f.S3.AccessKey, f.S3.SecretKey, f.NATS.URL(),
		filepath.Join(f.Home, "worker.key"), filepath.Join(f.Home, "identity.txt"), LeaseSeconds, LeaseSeconds, more)
	if err := os.WriteFile(f.Config, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
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

// Service starts one more service of a kind. It is told to stop when the test
// ends, and has to do so; one that ended without having been told fails the test.
func (f *Fleet) Service(kind string) *Service {
	f.t.Helper()
	s := &Service{kind: kind, Process: testenv.Start(f.t, testenv.Command{
		Name: kind, Path: Binary(f.t), Args: []string{kind, "--config", f.Config},
		Env: []string{"HOME=" + f.Home, "GORACE=halt_on_error=1"},
	})}
	f.t.Cleanup(func() { s.checkStop(f.t) })
	return s
}

func (s *Service) checkStop(t testing.TB) {
	if s.dead {
		return
	}
	if !s.Running() {
		t.Errorf("a %s has ended by itself: %v", s.kind, s.Wait())
		return
	}
	s.Stop()
	if err := s.Wait(); err != nil {
		t.Errorf("a %s that was told to stop: %v", s.kind, err)
	}
}

// BackupArgs are the arguments that back a tree up.
func BackupArgs(tree string, more ...string) []string {
	return append([]string{"--filer", "filer", "--shard", tree}, more...)
}

// StartBackup starts a backup of a tree, and returns when the snapshot is running, with its id.
func (f *Fleet) StartBackup(tree string, more ...string) (*Running, string) {
	f.t.Helper()
	known := f.Index.Snapshots()
	r := f.Start(append([]string{"backup", "--json"}, BackupArgs(tree, more...)...)...)
	var id string
	Await(f.t, "a running snapshot", func() bool {
		if r.Ended() {
			f.t.Fatalf("the backup has ended: %s", r.Wait())
		}
		for snapshot := range f.Index.Snapshots() {
			if !known[snapshot] {
				id = snapshot
			}
		}
		return id != ""
	})
	return r, id
}
