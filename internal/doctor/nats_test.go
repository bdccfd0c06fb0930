package doctor_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// natsServer starts a NATS server in this process, on its own port.
func natsServer(t testing.TB, change func(*server.Options)) string {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return strings.Replace(s.ClientURL(), "0.0.0.0", "127.0.0.1", 1)
}

// allowed returns the permissions of an Access.
func allowed(a flow.Access) *server.Permissions {
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: a.Publish}, Subscribe: &server.SubjectPermission{Allow: a.Subscribe}}
}

func users(list ...*server.User) func(*server.Options) {
	return func(o *server.Options) { o.Users = append(list, &server.User{Username: "keeper", Password: "keeper"}) }
}

func asKeeper(url string) flow.Options {
	return flow.Options{URL: url, User: "keeper", Password: "keeper"}
}

func natsAs(url, name string) settings {
	return settings{"BCTL_NATS": url, "BCTL_NATS_USER": name, "BCTL_NATS_PASSWORD": "secret-of-" + name}
}

// Each role has, with the permissions from an installation, exactly the permissions that it needs.
func TestNATSRolesAsInstalled(t *testing.T) {
	t.Parallel()
	roles := map[installation.Role]flow.Access{
		installation.Walker: flow.WalkerAccess("paris", "_INBOX"), installation.Reader: flow.ReaderAccess("paris", "_INBOX"),
		installation.Committer: flow.CommitterAccess("_INBOX"), installation.Operator: flow.FollowerAccess("_INBOX"),
	}
	var list []*server.User
	for role, access := range roles {
		list = append(list, &server.User{Username: string(role), Password: "secret-of-" + string(role), Permissions: allowed(access)})
	}
	url := natsServer(t, users(list...))
	makeStreams(t, asKeeper(url), "paris")
	for role := range roles {
		found := examine(t, natsAs(url, string(role)).with(settings{"BCTL_WORKER_SITE": "paris"}), role, "nats")
		found.onlyFails(t)
		found.want(t, "nats.may not", doctor.OK, "are refused")
		found.want(t, "nats.identity", doctor.OK, string(role))
		found.want(t, "nats.clock", doctor.OK)
		found.hides(t, "secret-of-")
	}
}

// The tests leave no trace: messages stay, and none is consumed.
func TestNATSIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	url := natsServer(t, nil)
	conn := makeStreams(t, flow.Options{URL: url})
	if err := flow.Publish(t.Context(), conn, flow.Walk, &backup.WalkTask{Job: backup.Job{Snapshot: backup.SnapshotID{1}, Number: 1}, ID: 1, Attempt: 1, Directories: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	heard := 0
	stop, err := conn.SubscribeProgress(func(*backup.Progress) { heard++ })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	before := state(t, url)
	for !strings.Contains(before, " 1 pending") { // the consumer learns of the message a moment after the stream
		before = state(t, url)
	}
	found := examine(t, settings{"BCTL_NATS": url}, installation.Operator, "nats")
	found.want(t, "nats.may not", doctor.Warning, "operations of other roles")
	found.want(t, "nats.identity", doctor.Warning, "does not authenticate")
	examine(t, settings{"BCTL_NATS": url}, "", "nats").onlyFails(t)
	if after := state(t, url); after != before {
		t.Errorf("before: %s\nafter:  %s", before, after)
	}
	stop()
	if heard > 0 {
		t.Errorf("%d reports of progress were heard", heard)
	}
}

// state describes everything in JetStream.
func state(t testing.TB, url string) string {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for streams := js.ListStreams(t.Context()); ; {
		info, more := <-streams.Info()
		if !more {
			break
		}
		fmt.Fprintf(&text, "%s %d messages, last %d;", info.Config.Name, info.State.Msgs, info.State.LastSeq)
		s, err := js.Stream(t.Context(), info.Config.Name)
		if err != nil {
			t.Fatal(err)
		}
		for c := range s.ListConsumers(t.Context()).Info() {
			fmt.Fprintf(&text, " %s %d pending %d delivered %d waiting;", c.Name, c.NumPending, c.Delivered.Consumer, c.NumWaiting)
		}
	}
	return text.String()
}

func TestNATSBroken(t *testing.T) {
	t.Parallel()
	t.Run("no JetStream", func(t *testing.T) {
		url := natsServer(t, func(o *server.Options) { o.JetStream = false })
		found := examine(t, settings{"BCTL_NATS": url}, installation.Walker, "nats")
		found.want(t, "nats.stream.BCTL_WALK", doctor.Failure, "JetStream is not enabled")
		found.want(t, "nats.connection", doctor.OK)
	})
	t.Run("nobody there, one of two", func(t *testing.T) {
		url := natsServer(t, nil)
		makeStreams(t, flow.Options{URL: url})
		found := examine(t, settings{"BCTL_NATS": "nats://127.0.0.1:1," + url}, "", "nats")
		found.want(t, "nats.server.1", doctor.Failure, "connection refused", "start the NATS server")
		found.want(t, "nats.server.2", doctor.Warning, "version", "no TLS, but the connection is to this machine")
		found.want(t, "nats.connection", doctor.Warning, "1 of 2 servers")
		found.onlyFails(t, "nats.server.1")
	})
	t.Run("wrong password", func(t *testing.T) {
		url := natsServer(t, users())
		found := examine(t, settings{"BCTL_NATS": url, "BCTL_NATS_USER": "keeper", "BCTL_NATS_PASSWORD": "tell-nobody"}, "", "nats")
		found.want(t, "nats.server.1", doctor.Failure, "uthorization", "nats.password")
		found.want(t, "nats.connection", doctor.Failure)
		found.want(t, "nats.latency", doctor.NotTested, "nats.connection")
		found.hides(t, "tell-nobody")
	})
	t.Run("password in the URL", func(t *testing.T) {
		found := examine(t, settings{"BCTL_NATS": "nats://someone:tell-nobody@127.0.0.1:1"}, "", "nats")
		found.want(t, "nats.server.1", doctor.Failure)
		found.hides(t, "tell-nobody")
	})
	t.Run("streams missing", func(t *testing.T) {
		url := natsServer(t, nil)
		examine(t, settings{"BCTL_NATS": url}, installation.Reader, "nats").want(t, "nats.stream.BCTL_READ", doctor.Failure, "start a committer")
		examine(t, settings{"BCTL_NATS": url}, installation.Committer, "nats").want(t, "nats.stream.BCTL_READ", doctor.Warning, "start a committer")
	})
	t.Run("no queue for the site", func(t *testing.T) {
		url := natsServer(t, nil)
		makeStreams(t, flow.Options{URL: url})
		found := examine(t, settings{"BCTL_NATS": url, "BCTL_WORKER_SITE": "elsewhere"}, installation.Walker, "nats")
		found.want(t, "nats.queue.BCTL_WALK", doctor.Warning, "bctl filer add NAME --site elsewhere", "worker.site")
		found.want(t, "nats.stream.BCTL_WALK", doctor.OK)
		found.onlyFails(t)
	})
	t.Run("replicas", func(t *testing.T) {
		url := natsServer(t, nil)
		makeStreams(t, flow.Options{URL: url})
		found := examine(t, settings{"BCTL_NATS": url, "BCTL_NATS_REPLICAS": "3"}, "", "nats")
		found.want(t, "nats.connection", doctor.Failure, "not part of a cluster")
	})
	t.Run("changed by hand", func(t *testing.T) {
		url := natsServer(t, nil)
		makeStreams(t, flow.Options{URL: url})
		change(t, url)
		found := examine(t, settings{"BCTL_NATS": url}, "", "nats")
		found.want(t, "nats.stream.BCTL_READ", doctor.Warning, "maximum messages from 5 to 100000")
		found.want(t, "nats.queue.BCTL_WALK", doctor.Warning, "maximum deliveries from 3 to -1")
		found.want(t, "nats.queue.BCTL_READ", doctor.Warning, "paused")
		found.onlyFails(t)
	})
	t.Run("in memory", func(t *testing.T) {
		url := natsServer(t, nil)
		makeStreams(t, flow.Options{URL: url, Memory: true})
		examine(t, settings{"BCTL_NATS": url}, "", "nats").want(t, "nats.stream.BCTL_WALK", doctor.Warning, "in memory")
	})
	t.Run("small payload", func(t *testing.T) {
		url := natsServer(t, func(o *server.Options) { o.MaxPayload = 65536 })
		examine(t, settings{"BCTL_NATS": url}, "", "nats").want(t, "nats.payload", doctor.Failure, "64 KiB", "set max_payload")
	})
	t.Run("a permission is missing", func(t *testing.T) {
		access := flow.ReaderAccess(backup.DefaultSite, "_INBOX")
		access.Publish = access.Publish[:len(access.Publish)-2] // results of batches, and progress
		url := natsServer(t, users(&server.User{Username: "reader", Password: "secret-of-reader", Permissions: allowed(access)}))
		makeStreams(t, asKeeper(url))
		found := examine(t, natsAs(url, "reader"), installation.Reader, "nats")
		found.want(t, "nats.may publish "+flow.Batches.Subject, doctor.Failure, "not allowed")
		found.want(t, "nats.may publish bctl.v1.progress", doctor.Failure, "not allowed")
		found.want(t, "nats.may publish "+flow.Packs.Subject, doctor.OK)
	})
	t.Run("a permission too many", func(t *testing.T) {
		access := flow.WalkerAccess(backup.DefaultSite, "_INBOX")
		access.Publish = append(access.Publish, "$JS.API.STREAM.DELETE.*", flow.Packs.Subject)
		url := natsServer(t, users(&server.User{Username: "walker", Password: "secret-of-walker", Permissions: allowed(access)}))
		makeStreams(t, asKeeper(url))
		found := examine(t, natsAs(url, "walker"), installation.Walker, "nats")
		found.want(t, "nats.may not", doctor.Warning, "it may do 4 of", "$JS.API.STREAM.DELETE.BCTL_COMMIT")
		found.onlyFails(t)
	})
}

// change makes changes to queues such as people make.
func change(t testing.TB, url string) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	read, err := js.Stream(t.Context(), "BCTL_READ")
	if err != nil {
		t.Fatal(err)
	}
	c := read.CachedInfo().Config
	c.MaxMsgs = 5
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := read.PauseConsumer(t.Context(), "readers-default", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	walkers, err := js.Consumer(t.Context(), "BCTL_WALK", "walkers-default")
	if err != nil {
		t.Fatal(err)
	}
	w := walkers.CachedInfo().Config
	w.MaxDeliver = 3
	if _, err := js.UpdateConsumer(t.Context(), "BCTL_WALK", w); err != nil {
		t.Fatal(err)
	}
}

func TestNATSOverTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	secure := func(left time.Duration) string {
		return natsServer(t, func(o *server.Options) { o.TLS, o.TLSTimeout, o.TLSConfig = true, 10, a.server(left) })
	}
	good := secure(year)
	makeStreams(t, flow.Options{URL: good, CAFile: a.File})
	trusting := settings{"BCTL_NATS_CA_FILE": a.File}
	found := examine(t, trusting.with(settings{"BCTL_NATS": good}), "", "nats")
	found.want(t, "nats.server.1", doctor.OK, "TLS 1.3", "certificate of a server by test authority, 364 days left")
	found.onlyFails(t)
	examine(t, settings{"BCTL_NATS": good}, "", "nats").want(t, "nats.server.1", doctor.Failure, "unknown authority", "nats.ca_file")
	examine(t, trusting.with(settings{"BCTL_NATS": secure(-time.Hour)}), "", "nats").want(t, "nats.server.1", doctor.Failure, "expired", "replace the server's certificate")
	examine(t, trusting.with(settings{"BCTL_NATS": secure(5 * 24 * time.Hour)}), "", "nats").want(t, "nats.server.1", doctor.Warning, "4 days left", "replace it")
	wants := natsServer(t, func(o *server.Options) {
		o.TLS, o.TLSTimeout, o.TLSConfig, o.TLSVerify = true, 10, a.server(year), true
		o.TLSConfig.ClientAuth, o.TLSConfig.ClientCAs = 4, pool(a) // RequireAndVerifyClientCert
	})
	examine(t, trusting.with(settings{"BCTL_NATS": wants}), "", "nats").want(t, "nats.server.1", doctor.Failure, "certificate", "set this client's certificate and key")
	cert, key := a.pair("walker@paris/1", year)
	examine(t, trusting.with(settings{"BCTL_NATS": wants, "BCTL_NATS_CERT_FILE": cert, "BCTL_NATS_KEY_FILE": key}), "", "nats").
		want(t, "nats.server.1", doctor.OK)
}

// A server that does not respond is a failure within the time limit, and does not delay other
// checks.
func TestNATSThatHangs(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	found := examine(t, settings{"BCTL_NATS": "nats://" + silent.Addr().String()}, "", "nats", "index")
	found.want(t, "nats.server.1", doctor.Failure, "timeout")
	found.want(t, "index", doctor.Failure, "no index is named")
}

// Without NATS there is nothing to test, unless a service needs it.
func TestNoNATS(t *testing.T) {
	t.Parallel()
	examine(t, settings{}, "", "nats").want(t, "nats", doctor.NotTested)
	examine(t, settings{}, installation.Walker, "nats").want(t, "nats", doctor.Failure, "nats.url")
}

// In a cluster each server is reached, and each stream has its replicas. With one server
// unavailable the others work.
func TestNATSCluster(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	nodes := testenv.NATSCluster(t, 3)
	nodes.AwaitLeader(t)
	s := settings{"BCTL_NATS": nodes.URL(), "BCTL_NATS_REPLICAS": "3"}
	makeStreams(t, flow.Options{URL: nodes.URL(), Replicas: 3})
	found := examine(t, s, "", "nats")
	current := func() bool {
		return found["nats.stream.BCTL_COMMIT"].Status == doctor.OK && found["nats.queue.BCTL_COMMIT"].Status == doctor.OK
	}
	for begin := time.Now(); !current() && time.Since(begin) < time.Minute; {
		found = examine(t, s, "", "nats") // replicas that were just created may be behind
	}
	found.onlyFails(t)
	found.want(t, "nats.connection", doctor.OK, "3 of 3 servers")
	found.want(t, "nats.stream.BCTL_COMMIT", doctor.OK, "file, 3 replicas", "led by ")
	found.want(t, "nats.queue.BCTL_COMMIT", doctor.OK, "led by ")

	one := examine(t, s.with(settings{"BCTL_NATS": nodes[0].URL()}), "", "nats")
	one.want(t, "nats.connection", doctor.Warning, "only one server of a cluster is named")
	one = examine(t, s.with(settings{"BCTL_NATS_REPLICAS": "1"}), "", "nats")
	one.want(t, "nats.stream.BCTL_COMMIT", doctor.Warning, "replicas from 3 to 1", "nats.replicas is 1 here")

	nodes[2].Kill()
	found = examine(t, s, "", "nats")
	elected := func() bool {
		return found["nats.stream.BCTL_WALK"].Status != doctor.Failure && found["nats.stream.BCTL_READ"].Status != doctor.Failure && found["nats.stream.BCTL_COMMIT"].Status != doctor.Failure
	}
	for begin := time.Now(); !elected() && time.Since(begin) < time.Minute; {
		found = examine(t, s, "", "nats") // the others may still elect a leader
	}
	found.want(t, "nats.server.3", doctor.Failure, "connection refused")
	found.want(t, "nats.connection", doctor.Warning, "2 of 3 servers")
	found.onlyFails(t, "nats.server.3")
}

// Streams and queues of another repository are a failure; those without an owner are not.
func TestNATSOfAnotherRepository(t *testing.T) {
	t.Parallel()
	url := natsServer(t, nil)
	dir := t.TempDir()
	s := settings{
		"BCTL_NATS": url, "BCTL_REPO": filepath.Join(dir, "repo"), "BCTL_IDENTITY": filepath.Join(dir, "identity"),
		"BCTL_WORKER_KEY": filepath.Join(dir, "worker.key"), "BCTL_COMMITTER_KEY": filepath.Join(dir, "committer.key"),
	}
	initialize(t, s)
	makeStreams(t, flow.Options{URL: url})
	const stream, queue = "nats.stream.BCTL_COMMIT", "nats.queue.BCTL_WALK"
	nobody := examine(t, s, installation.Walker, "nats")
	nobody.want(t, stream, doctor.OK)
	nobody.want(t, queue, doctor.OK)
	makeStreams(t, flow.Options{URL: url, Repository: backup.RepositoryID{1}})
	other := examine(t, s, installation.Walker, "nats")
	for _, id := range []string{stream, queue} {
		other.want(t, id, doctor.Failure, "belongs to repository 01000000000000000000000000000000", "its own NATS account")
	}
}
