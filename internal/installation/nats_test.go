package installation

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/testenv"
)

// within is how long a test waits for an event that must occur.
const within = 60 * time.Second

// made creates an installation for these NATS servers, with the sites paris and oslo.
func made(t *testing.T, nats ...string) *Installation {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fleet")
	if err := Init(dir, testPlan(dir, nats...), time.Now()); err != nil {
		t.Fatal(err)
	}
	return opened(t, dir)
}

func testPlan(dir string, nats ...string) Plan {
	return Plan{
		Name: "bctl", NATS: nats, Sites: []string{"paris", "oslo"}, Days: 30, InPlace: dir,
		Postgres: Database{Host: "127.0.0.1", Port: 5432, Name: "bctl"},
		Store:    Store{URL: "s3://bctl/repo", Endpoint: "https://127.0.0.1:7070", Kind: VersityGW},
	}
}

func opened(t *testing.T, dir string) *Installation {
	t.Helper()
	i, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() }) // a test may have closed it
	return i
}

// options returns the options with which the service of a folder connects.
func (i *Installation) options(folder string) flow.Options {
	file := func(name string) string { return filepath.Join(i.dir, folder, name) }
	return flow.Options{
		URL: i.Plan.natsURL(), Name: folder, CAFile: file("ca.pem"), CertFile: file("cert.pem"), KeyFile: file("key.pem"),
		Log: slog.Default(), InboxPrefix: "_INBOX_" + folder, Replicas: i.Plan.natsReplicas(),
	}
}

func (i *Installation) connect(t *testing.T, folder string) *flow.Conn {
	t.Helper()
	c, err := flow.Connect(i.options(folder))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Ready(); err != nil {
		t.Fatal(err)
	}
	return c
}

// On a cluster of three each role does its work: work that a committer assigns at a site is taken
// there, the results return, and an operator receives the reports.
func TestRolesDoTheirWork(t *testing.T) {
	i := made(t, testenv.FreeNATS(t, 3)...)
	testenv.LockNATS(t, i.dir)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	committer, walker, reader, operator := i.connect(t, "committer"), i.connect(t, "walker@paris"), i.connect(t, "reader@paris"), i.connect(t, "operator")

	for {
		if _, err := committer.EnsureStreams(ctx, []string{"paris", "oslo", "gone"}); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	// The queues of a removed site are deleted.
	if lost, err := committer.EnsureStreams(ctx, []string{"paris", "oslo"}); lost || err != nil {
		t.Fatal(lost, err)
	}
	if err := errors.Join(committer.HaveStreams(ctx), operator.HaveStreams(ctx)); err != nil {
		t.Error(err)
	}
	if depths, err := committer.Depths(ctx, []string{"paris", "oslo", "gone"}); err != nil || len(depths) != 5 {
		t.Errorf("%v, %v", depths, err)
	}

	heard := make(chan string, 1)
	stop, err := operator.SubscribeProgress(func(p *backup.Progress) { heard <- p.Worker })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// A result may be taken before its sender gets the acknowledgement.
	working, stopWork := context.WithCancel(ctx)
	done := make(chan string, 16)
	for _, run := range []func(){
		func() {
			walker.ConsumeWalk(working, "paris", 1, func(task *backup.WalkTask, d *flow.Delivery) {
				d.Ack()
				done <- fmt.Sprint("walk ", task.ID)
				if err := flow.Publish(ctx, walker, flow.Slices, &backup.SliceWalked{Snapshot: task.Job.Snapshot, Task: task.ID, Attempt: 1}); err != nil {
					t.Error(err)
				}
				if err := walker.PublishProgress(&backup.Progress{Worker: "w"}); err != nil {
					t.Error(err)
				}
			})
		},
		func() {
			reader.ConsumeRead(working, "paris", 1, func(b *backup.ReadBatch, d *flow.Delivery) {
				d.Ack()
				done <- fmt.Sprint("read ", b.ID)
				if err := errors.Join(flow.Publish(ctx, reader, flow.Packs, &backup.PackStored{Snapshot: b.Job.Snapshot, Pack: backup.PackID{1}, StoredBytes: 100, FrameBytes: []uint32{80}, Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{1}, Length: 1}}}), flow.Publish(ctx, reader, flow.Batches, &backup.BatchStored{Snapshot: b.Job.Snapshot, Batch: b.ID, Attempt: 1})); err != nil {
					t.Error(err)
				}
			})
		},
		func() {
			committer.ConsumeResults(working, working, 1, func(r flow.Received) {
				r.Delivery.Ack()
				done <- fmt.Sprint("slice ", r.Slice != nil, " pack ", r.Pack != nil)
			})
		},
	} {
		ended := make(chan struct{})
		go func() { defer close(ended); run() }()
		defer func() { <-ended }()
	}
	defer stopWork()
	for n, site := range []string{"paris", "oslo"} {
		job := backup.Job{Snapshot: backup.SnapshotID{1}, Number: 1, Site: site}
		task := backup.WalkTask{Job: job, ID: backup.TaskID(n + 1), Attempt: 1, Directories: []string{"usr"}}
		batch := backup.ReadBatch{Job: job, ID: backup.BatchID(n + 1), Attempt: 1}
		if err := errors.Join(flow.Publish(ctx, committer, flow.Walk, &task), flow.Publish(ctx, committer, flow.Read, &batch)); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	for range 5 { // and none of oslo's
		select {
		case what := <-done:
			all = append(all, what)
		case <-ctx.Done():
			t.Fatalf("only %q", all)
		}
	}
	slices.Sort(all)
	if want := []string{"read 1", "slice false pack false", "slice false pack true", "slice true pack false", "walk 1"}; !slices.Equal(all, want) {
		t.Errorf("%q, want %q", all, want)
	}
	select {
	case <-heard:
	case <-ctx.Done():
		t.Error("the operator hears no report")
	}
}

// A client is a raw client, for operations that bctl never uses.
type client struct{ *nats.Conn }

func (i *Installation) raw(t *testing.T, folder string) *client {
	t.Helper()
	o := i.options(folder)
	c, err := nats.Connect(o.URL, nats.RootCAs(o.CAFile), nats.ClientCert(o.CertFile, o.KeyFile), nats.CustomInboxPrefix(o.InboxPrefix),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &client{c}
}

// may tries an operation, and reports whether the server allows it.
func (c *client) may(t *testing.T, what string) bool {
	t.Helper()
	verb, subject, _ := strings.Cut(what, " ")
	refusal := fmt.Sprintf("Subscription to %q", subject)
	var err error
	if verb == "publish" {
		refusal = fmt.Sprintf("Publish to %q", subject)
		err = c.Publish(subject, []byte("{"))
	} else {
		_, err = c.SubscribeSync(subject)
	}
	// The server reports a refusal before it answers a ping, so the client has recorded it by then.
	if err := errors.Join(err, c.FlushTimeout(within)); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	last := c.LastError()
	return !errors.Is(last, nats.ErrPermissionViolation) || !strings.Contains(last.Error(), refusal)
}

// All operations that some role uses, and others that none uses.
var attempts = []string{
	"publish bctl.v1.walk.paris", "publish bctl.v1.walk.oslo", "publish bctl.v1.read.paris", "publish bctl.v1.read.oslo",
	"publish bctl.v1.commit.slice", "publish bctl.v1.commit.pack", "publish bctl.v1.commit.batch", "publish bctl.v1.commit.other",
	"publish bctl.v1.progress", "publish bctl.v1.present.x", "publish bctl.v1.other",
	"publish bctl.v1.ask", "publish bctl.v1.drain.x", "publish bctl.v1.roster", "publish bctl.v1.service.committer",
	"publish bctl.v1.service.walker.paris", "publish bctl.v1.service.walker.oslo", "publish bctl.v1.service.reader.paris", "publish bctl.v1.service.reader.oslo",
	"subscribe bctl.v1.ask", "subscribe bctl.v1.drain.x", "subscribe bctl.v1.roster", "subscribe bctl.v1.service.>",
	"publish anything",
	"publish _INBOX_committer.x.y", "publish _INBOX_walker@paris.x.y", "publish _INBOX_operator.x.y",
	"publish $JS.API.CONSUMER.MSG.NEXT.BCTL_WALK.walkers-paris", "publish $JS.API.CONSUMER.MSG.NEXT.BCTL_WALK.walkers-oslo",
	"publish $JS.API.CONSUMER.MSG.NEXT.BCTL_READ.readers-paris", "publish $JS.API.CONSUMER.MSG.NEXT.BCTL_READ.readers-oslo",
	"publish $JS.API.CONSUMER.MSG.NEXT.BCTL_COMMIT.committers",
	"publish $JS.ACK.BCTL_WALK.walkers-paris.1.1.1.1.1", "publish $JS.ACK.BCTL_WALK.walkers-oslo.1.1.1.1.1",
	"publish $JS.ACK.BCTL_READ.readers-paris.1.1.1.1.1", "publish $JS.ACK.BCTL_READ.readers-oslo.1.1.1.1.1",
	"publish $JS.ACK.BCTL_COMMIT.committers.1.1.1.1.1",
	"publish $JS.API.CONSUMER.INFO.BCTL_WALK.walkers-paris", "publish $JS.API.CONSUMER.INFO.BCTL_READ.readers-paris",
	"publish $JS.API.CONSUMER.LIST.BCTL_WALK", "publish $JS.API.CONSUMER.LIST.BCTL_COMMIT",
	"publish $JS.API.CONSUMER.CREATE.BCTL_WALK.walkers-lima.bctl.v1.walk.lima", "publish $JS.API.CONSUMER.CREATE.BCTL_WALK.mine.bctl.v1.>",
	"publish $JS.API.CONSUMER.CREATE.BCTL_COMMIT.mine", "publish $JS.API.CONSUMER.CREATE.BCTL_COMMIT.mine.bctl.v1.commit.slice",
	"publish $JS.API.CONSUMER.DURABLE.CREATE.BCTL_READ.mine",
	"publish $JS.API.CONSUMER.DELETE.BCTL_READ.readers-paris", "publish $JS.API.CONSUMER.DELETE.BCTL_COMMIT.committers",
	"publish $JS.API.CONSUMER.PAUSE.BCTL_WALK.walkers-paris",
	"publish $JS.API.STREAM.INFO.BCTL_READ", "publish $JS.API.STREAM.CREATE.BCTL_READ", "publish $JS.API.STREAM.CREATE.OTHER",
	"publish $JS.API.STREAM.UPDATE.BCTL_COMMIT", "publish $JS.API.STREAM.DELETE.BCTL_COMMIT", "publish $JS.API.STREAM.PURGE.BCTL_COMMIT",
	"publish $JS.API.STREAM.MSG.GET.BCTL_COMMIT", "publish $JS.API.STREAM.MSG.DELETE.BCTL_COMMIT", "publish $JS.API.DIRECT.GET.BCTL_READ",
	"publish $JS.API.STREAM.NAMES", "publish $JS.API.STREAM.LIST", "publish $JS.API.STREAM.SNAPSHOT.BCTL_WALK", "publish $JS.API.STREAM.LEADER.STEPDOWN.BCTL_WALK",
	"publish $JS.API.INFO", "publish $KV.mine.x", "publish $SYS.REQ.SERVER.PING", "publish $SYS.REQ.SERVER.PING.CONNZ",
	"subscribe >", "subscribe bctl.>", "subscribe bctl.v1.progress", "subscribe bctl.v1.present.x", "subscribe bctl.v1.commit.>", "subscribe bctl.v1.walk.paris",
	"subscribe _INBOX.>", "subscribe _INBOX_committer.>", "subscribe _INBOX_walker@paris.>", "subscribe _INBOX_walker@oslo.>",
	"subscribe _INBOX_reader@paris.>", "subscribe _INBOX_operator.>", "subscribe $JS.>", "subscribe $SYS.>", "subscribe $JS.EVENT.ADVISORY.>",
}

// Each role tries each operation. Those that are not listed here must be refused.
var allowed = map[string][]string{
	"committer": {
		"publish bctl.v1.walk.paris", "publish bctl.v1.walk.oslo", "publish bctl.v1.read.paris", "publish bctl.v1.read.oslo",
		"publish $JS.API.CONSUMER.MSG.NEXT.BCTL_COMMIT.committers", "publish $JS.ACK.BCTL_COMMIT.committers.1.1.1.1.1",
		"publish $JS.API.CONSUMER.LIST.BCTL_WALK", "publish $JS.API.CONSUMER.LIST.BCTL_COMMIT",
		"publish $JS.API.CONSUMER.CREATE.BCTL_WALK.walkers-lima.bctl.v1.walk.lima", "publish $JS.API.CONSUMER.DELETE.BCTL_READ.readers-paris",
		"publish $JS.API.STREAM.INFO.BCTL_READ", "publish $JS.API.STREAM.CREATE.BCTL_READ", "publish $JS.API.STREAM.UPDATE.BCTL_COMMIT",
		"publish bctl.v1.present.x", "subscribe bctl.v1.progress", "subscribe _INBOX_committer.>", "subscribe bctl.v1.present.x",
		"publish bctl.v1.service.committer", "publish bctl.v1.roster", "publish bctl.v1.ask", "subscribe bctl.v1.ask", "subscribe bctl.v1.service.>",
	},
	"walker@paris": {
		"publish bctl.v1.commit.slice", "publish bctl.v1.progress", "publish $JS.API.CONSUMER.MSG.NEXT.BCTL_WALK.walkers-paris",
		"publish $JS.ACK.BCTL_WALK.walkers-paris.1.1.1.1.1", "publish $JS.API.CONSUMER.INFO.BCTL_WALK.walkers-paris",
		"subscribe _INBOX_walker@paris.>", "subscribe bctl.v1.present.x",
		"publish bctl.v1.service.walker.paris", "subscribe bctl.v1.ask", "subscribe bctl.v1.drain.x",
	},
	"reader@paris": {
		"publish bctl.v1.commit.pack", "publish bctl.v1.commit.batch", "publish bctl.v1.progress",
		"publish $JS.API.CONSUMER.MSG.NEXT.BCTL_READ.readers-paris", "publish $JS.ACK.BCTL_READ.readers-paris.1.1.1.1.1",
		"publish $JS.API.CONSUMER.INFO.BCTL_READ.readers-paris", "subscribe _INBOX_reader@paris.>", "subscribe bctl.v1.present.x",
		"publish bctl.v1.service.reader.paris", "subscribe bctl.v1.ask", "subscribe bctl.v1.drain.x",
	},
	"operator": {
		"publish $JS.API.CONSUMER.LIST.BCTL_WALK", "publish $JS.API.CONSUMER.LIST.BCTL_COMMIT", "publish $JS.API.STREAM.INFO.BCTL_READ",
		"subscribe bctl.v1.progress", "subscribe _INBOX_operator.>",
		"publish bctl.v1.ask", "publish bctl.v1.drain.x", "subscribe bctl.v1.roster", "subscribe bctl.v1.service.>",
	},
}

func TestWhatIsNotARolesIsRefused(t *testing.T) {
	i := made(t, testenv.FreeNATS(t, 1)...)
	testenv.LockNATS(t, i.dir)
	for folder, list := range allowed {
		c := i.raw(t, folder)
		for _, what := range attempts {
			if got, want := c.may(t, what), slices.Contains(list, what); got != want {
				t.Errorf("%s may %s: %v, want %v", folder, what, got, want)
			}
		}
	}
}

// The servers accept only connections over TLS with a certificate of this authority, for an
// identity that NATS knows.
func TestWhoIsNobodyIsRefused(t *testing.T) {
	i := made(t, testenv.FreeNATS(t, 3)...)
	testenv.LockNATS(t, i.dir)
	other := made(t, i.Plan.NATS...) // another authority with the same names
	ca := nats.RootCAs(filepath.Join(i.dir, "ca", "ca.pem"))
	node := i.Plan.natsNodes()[0]
	pair := func(i *Installation, folder, certificate, key string) nats.Option {
		return nats.ClientCert(filepath.Join(i.dir, folder, certificate), filepath.Join(i.dir, folder, key))
	}
	for _, test := range []struct {
		name    string
		options []nats.Option
		ok      bool
	}{
		{"a walker", []nats.Option{ca, pair(i, "walker@paris", "cert.pem", "key.pem")}, true},
		{"without a certificate", []nats.Option{ca}, false},
		{"with a name and a password", []nats.Option{ca, nats.UserInfo("CN=walker@paris/1", "")}, false},
		{"of another authority", []nats.Option{ca, pair(other, "walker@paris", "cert.pem", "key.pem")}, false},
		{"of an identity that has no business with NATS", []nats.Option{ca, pair(i, "admin", "cert.pem", "key.pem")}, false},
		{"of Prometheus", []nats.Option{ca, pair(i, "prometheus", "cert.pem", "key.pem")}, false},
		{"of Postgres", []nats.Option{ca, pair(i, "postgres", "server.pem", "server.key")}, false},
		{"of another NATS server, as a client", []nats.Option{ca, pair(i, "nats/127.0.0.2", "server.pem", "server.key")}, false},
	} {
		c, err := nats.Connect("tls://"+node.address(), test.options...)
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
		if err == nil {
			c.Close()
		}
	}
	if c, err := nats.Connect("nats://" + node.address()); err == nil {
		c.Close()
		t.Error("a client comes in without TLS")
	}
	if answer := asRoute(t, i, "walker@paris/cert.pem", "walker@paris/key.pem"); strings.HasPrefix(answer, "PONG") {
		t.Error("a walker comes in as a node of the cluster")
	}
	if answer := asRoute(t, i, "nats/127.0.0.2/server.pem", "nats/127.0.0.2/server.key"); !strings.HasPrefix(answer, "PONG") {
		t.Errorf("a node does not come in: %s", answer)
	}
	if answer := plaintext(t, node.address(), "PUB bctl.v1.commit.slice 0\r\n\r\nPING\r\n"); strings.Contains(answer, "PONG") {
		t.Errorf("a message without TLS is taken: %s", answer)
	}
}

// asRoute connects to the cluster's port as a node would. It returns the server's final message, or
// PONG.
func asRoute(t *testing.T, i *Installation, certificate, key string) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(i.dir, certificate), filepath.Join(i.dir, key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(i.dir, "ca", "ca.pem"))
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", i.Plan.natsNodes()[0].route(), &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS13})
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_, err = conn.Write([]byte(`CONNECT {"verbose":false,"pedantic":false,"tls_required":true,"name":"MINE","cluster":"bctl"}` + "\r\nPING\r\n"))
	if err != nil {
		return err.Error()
	}
	return lastAnswer(t, conn)
}

func plaintext(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(text)); err != nil {
		return err.Error()
	}
	return lastAnswer(t, conn)
}

// lastAnswer reads until the server closes the connection or answers a ping.
func lastAnswer(t *testing.T, conn net.Conn) (last string) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		last = lines.Text()
		if strings.HasPrefix(last, "PONG") {
			return last
		}
	}
	return last
}

// A rotation closes no connections. A retirement closes those of the old generation: services that
// have the new certificate reconnect with it, without a restart, and others cannot.
func TestRotationAtNATS(t *testing.T) {
	i := made(t, testenv.FreeNATS(t, 1)...)
	nodes := testenv.LockNATS(t, i.dir)
	old := i.options("walker@paris")
	for _, file := range []*string{&old.CertFile, &old.KeyFile} {
		data, err := os.ReadFile(*file)
		if err == nil {
			*file = filepath.Join(t.TempDir(), filepath.Base(*file))
			err = os.WriteFile(*file, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	late, err := flow.Connect(old)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	ended, again := make(chan struct{}, 8), make(chan struct{}, 8)
	o := i.options("walker@paris")
	walker, err := nats.Connect(o.URL, nats.RootCAs(o.CAFile), nats.ClientCert(o.CertFile, o.KeyFile), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { ended <- struct{}{} }), nats.ReconnectHandler(func(*nats.Conn) { again <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer walker.Close()

	if err := i.Rotate(time.Now()); err != nil {
		t.Fatal(err)
	}
	nodes.Reload(t)
	if err := errors.Join(walker.FlushTimeout(within), late.Ready()); err != nil || len(ended) > 0 {
		t.Fatalf("a rotation has ended a connection: %v", err)
	}
	if err := i.Retire(); err != nil {
		t.Fatal(err)
	}
	nodes.Reload(t)
	for what, signal := range map[string]chan struct{}{"the connection ends": ended, "the walker is back": again} {
		select {
		case <-signal:
		case <-time.After(within):
			t.Fatalf("waited in vain: %s", what)
		}
	}
	if c, err := nats.Connect(o.URL, nats.RootCAs(o.CAFile), nats.ClientCert(old.CertFile, old.KeyFile)); err == nil {
		c.Close()
		t.Error("a retired certificate is accepted")
	}
	await(t, "a client with the retired certificate is disconnected, and tries again and again", func() bool {
		log, err := os.ReadFile(nodes[0].LogFile())
		return err == nil && late.Ready() != nil && strings.Count(string(log), "authentication error") > 4
	})
	for _, file := range []string{old.CertFile, old.KeyFile} {
		data, err := os.ReadFile(filepath.Join(i.dir, "walker@paris", filepath.Base(file)))
		if err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	await(t, "a machine that gets its new certificate late is back", func() bool { return late.Ready() == nil })
}

// A client that may request messages from JetStream can have them delivered to subjects to which it
// must not publish, such as those of another stage. But a message keeps its original subject, and
// no consumer takes it from there.
func TestAnswersArePassedOnToNobody(t *testing.T) {
	i := made(t, testenv.FreeNATS(t, 1)...)
	testenv.LockNATS(t, i.dir)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	committer, reader, walker := i.connect(t, "committer"), i.raw(t, "reader@paris"), i.connect(t, "walker@oslo")
	sites := []string{"oslo", "paris"}
	if _, err := committer.EnsureStreams(ctx, sites); err != nil {
		t.Fatal(err)
	}
	job := backup.Job{Snapshot: backup.SnapshotID{1}, Number: 1, Site: "paris"}
	if err := flow.Publish(ctx, committer, flow.Read, &backup.ReadBatch{Job: job, ID: 1, Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	if err := reader.PublishMsg(&nats.Msg{Subject: "$JS.API.CONSUMER.MSG.NEXT.BCTL_READ.readers-paris", Reply: "bctl.v1.walk.oslo"}); err != nil {
		t.Fatal(err)
	}
	for sent := uint64(0); sent == 0; {
		depths, err := committer.Depths(ctx, sites)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range depths {
			if d.Name == "read" && d.Site == "paris" {
				sent = d.Unacknowledged
			}
		}
	}
	job.Site = "oslo"
	if err := flow.Publish(ctx, committer, flow.Walk, &backup.WalkTask{Job: job, ID: 7, Attempt: 1, Directories: []string{"usr"}}); err != nil {
		t.Fatal(err)
	}
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	walker.ConsumeWalk(consuming, "oslo", 1, func(task *backup.WalkTask, d *flow.Delivery) {
		d.Ack()
		stop()
		if task.ID != 7 {
			t.Errorf("task %d of site %q is taken for one of ours", task.ID, task.Job.Site)
		}
	})
	if ctx.Err() != nil {
		t.Error("no task came")
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(within); !done(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// A trial on one machine is not reachable from others.
func TestTrialListensOnThisMachineOnly(t *testing.T) {
	const everywhere = "0.0.0.0:4222"
	for _, test := range []struct{ inPlace, host, nats, postgres, http string }{
		{"/trial", "127.0.0.1", "127.0.0.1:4222", "127.0.0.1", "127.0.0.1:9464"},
		{"/trial", "::1", "[::1]:4222", "::1", "127.0.0.1:9464"},
		{"/trial", "10.0.0.1", everywhere, "*", "127.0.0.1:9464"},
		{"/trial", "nats1", everywhere, "*", "127.0.0.1:9464"},
		{"", "127.0.0.1", everywhere, "*", ":9464"},
	} {
		p := &Plan{Name: "bctl", InPlace: test.inPlace, Postgres: Database{Host: test.host, Port: 5432, Name: "bctl"}}
		files, err := postgresFiles(p)
		if err != nil {
			t.Fatal(err)
		}
		listens := "\nlisten_addresses = '" + test.postgres + "'\n"
		if !slices.ContainsFunc(files, func(f File) bool {
			return f.Path == "postgres/postgresql.conf" && strings.Contains(string(f.Data), listens)
		}) {
			t.Errorf("Postgres of %+v does not have %q", test, listens)
		}
		if got := p.listen(test.host, 4222); got != test.nats {
			t.Errorf("NATS of %+v listens on %s", test, got)
		}
		if got := p.settings(Identity{Role: Committer})["http"].(group)["listen"]; got != test.http {
			t.Errorf("a service of %+v listens on %v", test, got)
		}
	}
}
