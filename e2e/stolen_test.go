package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/e2e/fleet"
)

// A stolen credential is a folder of an installation in the wrong hands: certificate, key, S3 keys.
type stolen struct {
	*fleet.Fleet
	folder string
	role   string // of Postgres: walker
}

func steal(f *fleet.Fleet, identity string) stolen {
	role, _, _ := strings.Cut(identity, "@")
	return stolen{f, filepath.Join(f.Machines, identity), role}
}

func (s stolen) file(name string) string { return filepath.Join(s.folder, name) }

// errRefused: a server refused what was asked of it, and not the connection or the question.
var errRefused = errors.New("refused")

// connect connects to NATS; its replies come to subjects that the identity may listen to.
func (s stolen) connect() (*nats.Conn, error) {
	return nats.Connect(s.NATSURL(), nats.RootCAs(s.file("ca.pem")), nats.ClientCert(s.file("cert.pem"), s.file("key.pem")),
		nats.CustomInboxPrefix("_INBOX_"+filepath.Base(s.folder)), nats.NoReconnect(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// over does something over a connection to NATS of its own, and returns what the server says to it.
func (s stolen) over(do func(*nats.Conn) error) error {
	nc, err := s.connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := errors.Join(do(nc), nc.FlushTimeout(10*time.Second)); err != nil {
		return err
	}
	if err := nc.LastError(); err != nil { // it comes before the answer to Flush
		if errors.Is(err, nats.ErrPermissionViolation) {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		return err
	}
	return nil
}

func (s stolen) publish(subject string) func() error {
	return func() error {
		return s.over(func(nc *nats.Conn) error { return nc.Publish(subject, []byte("forged")) })
	}
}

func (s stolen) subscribe(subject string) func() error {
	return func() error {
		return s.over(func(nc *nats.Conn) error {
			_, err := nc.SubscribeSync(subject)
			return err
		})
	}
}

// dsn is how the identity gets at the index, as this user.
func (s stolen) dsn(user string) string {
	host, port := s.Postgres.Address()
	return fmt.Sprintf("postgres://bctl_%s@%s:%d/bctl?sslmode=verify-full&sslrootcert=%s&sslcert=%s&sslkey=%s",
		user, host, port, url.QueryEscape(s.file("ca.pem")), url.QueryEscape(s.file("cert.pem")), url.QueryEscape(s.file("key.pem")))
}

func execute(dsn, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err == nil {
		_, err = conn.Exec(ctx, statement)
		err = errors.Join(err, conn.Close(ctx))
	}
	var answer *pgconn.PgError
	// insufficient_privilege; invalid_authorization_specification, for who is not let in at all.
	if errors.As(err, &answer) && (answer.Code == "42501" || answer.Code == "28000") {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

func (s stolen) sql(statement string) func() error {
	return func() error { return execute(s.dsn(s.role), statement) }
}

// store is a client of the store with the identity's keys.
func (s stolen) store() (*minio.Client, error) {
	secret, err := os.ReadFile(s.file("s3-secret-key"))
	if err != nil {
		return nil, err
	}
	settings, err := os.ReadFile(s.file("bctl.yaml"))
	if err != nil {
		return nil, err
	}
	access := regexp.MustCompile(`access_key: (\S+)`).FindSubmatch(settings)
	if access == nil {
		return nil, errors.New("bctl.yaml has no access key")
	}
	return storeClient(s.Fleet, credentials.NewStaticV4(string(access[1]), strings.TrimSpace(string(secret)), ""), true)
}

func storeClient(f *fleet.Fleet, keys *credentials.Credentials, secure bool) (*minio.Client, error) {
	pool, err := authority(f)
	if err != nil {
		return nil, err
	}
	return minio.New(f.S3.Endpoint, &minio.Options{
		Creds: keys, Secure: secure, Region: f.S3.Region, MaxRetries: 1,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true},
	})
}

func authority(f *fleet.Fleet) (*x509.CertPool, error) {
	text, err := os.ReadFile(filepath.Join(f.Installation, "ca", "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("ca.pem has no certificate")
	}
	return pool, nil
}

// s3 does something to the store.
func (s stolen) s3(do func(context.Context, *minio.Client, string) error) func() error {
	return func() error {
		client, err := s.store()
		if err != nil {
			return err
		}
		return refusedByStore(do(context.Background(), client, s.S3.Bucket))
	}
}

func refusedByStore(err error) error {
	if err != nil && minio.ToErrorResponse(err).StatusCode == http.StatusForbidden {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

func put(name string) func(context.Context, *minio.Client, string) error {
	return func(ctx context.Context, c *minio.Client, bucket string) error {
		_, err := c.PutObject(ctx, bucket, "repo/"+name, strings.NewReader("forged"), 6, minio.PutObjectOptions{DisableMultipart: true, SendContentMd5: true})
		return err
	}
}

func remove(name string) func(context.Context, *minio.Client, string) error {
	return func(ctx context.Context, c *minio.Client, bucket string) error {
		return c.RemoveObject(ctx, bucket, "repo/"+name, minio.RemoveObjectOptions{GovernanceBypass: true})
	}
}

func read(name string) func(context.Context, *minio.Client, string) error {
	return func(ctx context.Context, c *minio.Client, bucket string) error {
		object, err := c.GetObject(ctx, bucket, "repo/"+name, minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		defer object.Close()
		_, err = io.Copy(io.Discard, object)
		return err
	}
}

func list(ctx context.Context, c *minio.Client, bucket string) error {
	for object := range c.ListObjects(ctx, bucket, minio.ListObjectsOptions{Prefix: "repo/packs/", Recursive: true}) {
		if object.Err != nil {
			return object.Err
		}
	}
	return nil
}

// A try is one thing that somebody does with what he has stolen.
type try struct {
	name string
	do   func() error
}

func refuse(t *testing.T, tries ...try) {
	t.Helper()
	for _, try := range tries {
		t.Run(try.name, func(t *testing.T) {
			if err := try.do(); !errors.Is(err, errRefused) {
				t.Errorf("it was not refused: %v", err)
			}
		})
	}
}

// allow shows that what is refused is refused for what it is: with the same credential, other
// things are done.
func allow(t *testing.T, tries ...try) {
	t.Helper()
	for _, try := range tries {
		t.Run(try.name, func(t *testing.T) {
			if err := try.do(); err != nil {
				t.Error(err)
			}
		})
	}
}

// aPack is the name of an object that a backup has made.
func aPack(t *testing.T, f *fleet.Fleet) string {
	t.Helper()
	for name := range f.Index.Packs() {
		return name
	}
	t.Fatal("there is no pack")
	return ""
}

// An attacker with the folder of one role can do only what the table in docs/security.md lists.
func TestStolenCredentials(t *testing.T) {
	t.Parallel()
	f, tree := fleet.NewLocked(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1}, "--site", "default", "--site", "paris"), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 26, shape{directories: 20, files: 5, meanBytes: 2000})
	settle(t)
	t.Run("nothing is stolen", func(t *testing.T) { backsUpOverTLS(t, f, tree) })
	pack := aPack(t, f)
	before, err := os.ReadFile(filepath.Join(f.StoreDir(), pack))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("walker", func(t *testing.T) { stolenWalker(t, steal(f, "walker@default")) })
	t.Run("reader", func(t *testing.T) { stolenReader(t, steal(f, "reader@default"), pack) })
	t.Run("committer", func(t *testing.T) { stolenCommitter(t, steal(f, "committer"), pack) })
	t.Run("operator", func(t *testing.T) { stolenOperator(t, steal(f, "operator"), pack) })
	t.Run("pruner", func(t *testing.T) { stolenPruner(t, steal(f, "pruner"), pack) })
	t.Run("scrubber", func(t *testing.T) { stolenScrubber(t, steal(f, "scrubber"), pack) })
	t.Run("restorer", func(t *testing.T) { stolenRestorer(t, steal(f, "restorer"), pack) })
	t.Run("monitor", func(t *testing.T) {
		stolenMonitor(t, stolen{f, filepath.Join(f.Installation, "prometheus"), "monitor"})
	})
	t.Run("nobody", func(t *testing.T) { strangers(t, f, pack) })
	t.Run("retired", func(t *testing.T) { retired(t, f, pack) })
	if after, err := os.ReadFile(filepath.Join(f.StoreDir(), pack)); err != nil || string(after) != string(before) {
		t.Errorf("a pack is not what it was: %v", err)
	}
	backup, _ := f.StartBackup(tree)
	check(t, f, backup.Wait(), tree)
	keysAreNotShown(t, f)
}

// keysAreNotShown looks for the keys of all identities in what services have logged, at level
// debug, and in what bctl deploy shows.
func keysAreNotShown(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	e := &evidence{t: t, said: map[string][]byte{}, secrets: keysOf(t, f)}
	for _, s := range []*fleet.Service{f.Walkers[0], f.Readers[0], f.Committers[0]} {
		log, err := os.ReadFile(s.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		e.heard(s.Name+": log", log)
	}
	for _, args := range [][]string{{"deploy", "show", f.Installation}, {"deploy", "show", f.Installation, "--json"}, {"status", "--json"}} {
		out := f.Must(args...)
		e.heard(strings.Join(args[:2], " "), []byte(out.Stdout+out.Stderr))
	}
	e.check()
}

// keysOf are the keys of all identities, by line.
func keysOf(t *testing.T, f *fleet.Fleet) map[string]string {
	t.Helper()
	secrets := map[string]string{}
	for _, pattern := range []string{"key.pem", "s3-secret-key", "worker.key", "identity.txt"} {
		files, err := filepath.Glob(filepath.Join(f.Machines, "*", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("there is no %s: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSpace(strings.TrimPrefix(line, "dedup "))
				public := strings.HasPrefix(line, "-----") || strings.HasPrefix(line, "#") || strings.Contains(line, " ") // of PEM, identity, worker key
				if len(line) >= 20 && !public {
					secrets[file+" "+line[:4]] = line
				}
			}
		}
	}
	if len(secrets) < 10 {
		t.Errorf("only %d secrets are known", len(secrets))
	}
	return secrets
}

// backsUpOverTLS makes a backup and restores it, each role with its own credential and no other,
// and all connections with TLS.
func backsUpOverTLS(t *testing.T, f *fleet.Fleet, tree string) {
	backup, _ := f.StartBackup(tree)
	out := backup.Wait()
	check(t, f, out, tree)
	plain := f.Index.Count("SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.datname = 'bctl' AND a.usename <> 'bctl' AND NOT s.ssl")
	users := f.Index.Count("SELECT count(DISTINCT a.usename) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.usename LIKE 'bctl\\_%' AND s.client_dn IS NOT NULL")
	if plain != 0 || users < 3 { // walker, reader, committer; perhaps the operator still
		t.Errorf("%d connections to Postgres without TLS; %d users with a certificate", plain, users)
	}
}

func stolenWalker(t *testing.T, s stolen) {
	allow(t, try{"sends a slice", s.publish("bctl.v1.commit.slice")}, try{"reads listings", s.sql("SELECT count(*) FROM pages")})
	refuse(t,
		try{"publishes a batch result", s.publish("bctl.v1.commit.batch")},
		try{"registers a pack", s.publish("bctl.v1.commit.pack")},
		try{"hands out a task", s.publish("bctl.v1.walk.default")},
		try{"hands out a batch", s.publish("bctl.v1.read.default")},
		try{"takes work of another site", s.publish("$JS.API.CONSUMER.MSG.NEXT.BCTL_WALK.walkers-paris")},
		try{"acknowledges work of another site", s.publish("$JS.ACK.BCTL_WALK.walkers-paris.1.1.1.1.1")},
		try{"takes batches", s.publish("$JS.API.CONSUMER.MSG.NEXT.BCTL_READ.readers-default")},
		try{"takes results", s.publish("$JS.API.CONSUMER.MSG.NEXT.BCTL_COMMIT.committers")},
		try{"drains a worker", s.publish("bctl.v1.drain.x")},
		try{"passes for a committer", s.publish("bctl.v1.service.committer")},
		try{"passes for the keeper", s.publish("bctl.v1.roster")},
		try{"makes a consumer", s.publish("$JS.API.CONSUMER.CREATE.BCTL_WALK.mine")},
		try{"deletes a stream", s.publish("$JS.API.STREAM.DELETE.BCTL_WALK")},
		try{"purges a stream", s.publish("$JS.API.STREAM.PURGE.BCTL_COMMIT")},
		try{"listens to everything", s.subscribe(">")},
		try{"listens to tasks", s.subscribe("bctl.v1.walk.>")},
		try{"listens to reports", s.subscribe("bctl.v1.progress")},
		try{"listens to the replies of others", s.subscribe("_INBOX_committer.>")},
		try{"writes a page", s.sql("INSERT INTO pages SELECT * FROM pages LIMIT 1")},
		try{"changes a page", s.sql("UPDATE pages SET listing = ''")},
		try{"sees snapshots", s.sql("SELECT * FROM snapshots")},
		try{"sees tasks", s.sql("SELECT * FROM walk_tasks")},
		try{"sees where chunks are", s.sql("SELECT * FROM chunks")},
		try{"makes a table", s.sql("CREATE TABLE mine (x int)")},
		try{"becomes a committer in the index", s.sql("SET ROLE bctl_committer")},
		try{"connects as a committer", func() error { return execute(s.dsn("committer"), "SELECT 1") }},
		try{"connects as the administrator", func() error { return execute(s.dsn("admin"), "SELECT 1") }},
	)
	t.Run("has no key of the store", func(t *testing.T) {
		if _, err := os.Stat(s.file("s3-secret-key")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it has one: %v", err)
		}
	})
	t.Run("has neither the worker key nor an identity", func(t *testing.T) { hasNoKeys(t, s) })
}

func hasNoKeys(t *testing.T, s stolen) {
	t.Helper()
	for _, name := range []string{"worker.key", "identity.txt"} {
		if _, err := os.Stat(s.file(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func stolenReader(t *testing.T, s stolen, pack string) {
	allow(t,
		try{"sends a result", s.publish("bctl.v1.commit.batch")}, try{"finds chunks", s.sql("SELECT count(*) FROM chunks")},
		try{"stores a pack", s.s3(put(filepath.Dir(pack) + "/00000000000000000000000000000001"))}, // an orphan
		try{"reads a sealed pack", s.s3(read(pack))},
	)
	refuse(t,
		try{"publishes a slice", s.publish("bctl.v1.commit.slice")},
		try{"drains a worker", s.publish("bctl.v1.drain.x")},
		try{"passes for a walker", s.publish("bctl.v1.service.walker.default")},
		try{"hands out a batch", s.publish("bctl.v1.read.default")},
		try{"takes work of another site", s.publish("$JS.API.CONSUMER.MSG.NEXT.BCTL_READ.readers-paris")},
		try{"takes walk tasks", s.publish("$JS.API.CONSUMER.MSG.NEXT.BCTL_WALK.walkers-default")},
		try{"deletes a stream", s.publish("$JS.API.STREAM.DELETE.BCTL_READ")},
		try{"listens to everything", s.subscribe(">")},
		try{"writes the index", s.sql("INSERT INTO chunks SELECT * FROM chunks LIMIT 1")},
		try{"moves a chunk", s.sql("UPDATE chunks SET frame = 0")},
		try{"registers a pack in the index", s.sql("INSERT INTO packs (pack, snapshot, stored_bytes, chunks) VALUES (gen_random_uuid(), gen_random_uuid(), 1, 1)")},
		try{"condemns a pack", s.sql("UPDATE packs SET condemned = true")},
		try{"deletes a snapshot in the index", s.sql("DELETE FROM snapshots")},
		try{"sees snapshots", s.sql("SELECT * FROM snapshots")},
		try{"connects as a committer", func() error { return execute(s.dsn("committer"), "SELECT 1") }},
		try{"deletes a pack", s.s3(remove(pack))},
		try{"overwrites a pack", s.s3(put(pack))},
		try{"overwrites the repository's keys", s.s3(put("repository"))},
		try{"writes a segment", s.s3(put("segments/00000000000000000000000000000000/forged"))},
		try{"reads segments", s.s3(read("segments/00000000000000000000000000000000/forged"))},
		try{"lists the store", s.s3(list)},
	)
	t.Run("restores nothing", func(t *testing.T) {
		out := s.As("reader@default").Run("restore", "latest", "--target", filepath.Join(t.TempDir(), "x"))
		if out.Status == 0 || out.Status == 3 {
			t.Errorf("%s", out)
		}
	})
	t.Run("opens nothing with the worker key", func(t *testing.T) {
		out := s.Run("restore", "latest", "--target", filepath.Join(t.TempDir(), "x"), "--identity", s.file("worker.key"))
		if out.Status == 0 || out.Status == 3 {
			t.Errorf("%s", out)
		}
	})
}

func stolenCommitter(t *testing.T, s stolen, pack string) {
	allow(t, try{"hands out a task", s.publish("bctl.v1.walk.default")}, try{"sees snapshots", s.sql("SELECT count(*) FROM snapshots")})
	refuse(t,
		try{"publishes a slice", s.publish("bctl.v1.commit.slice")},
		try{"publishes a batch result", s.publish("bctl.v1.commit.batch")},
		try{"drains a worker", s.publish("bctl.v1.drain.x")},
		try{"listens to everything", s.subscribe(">")},
		try{"deletes a stream", s.publish("$JS.API.STREAM.DELETE.BCTL_COMMIT")},
		try{"deletes a snapshot in the index", s.sql("DELETE FROM snapshots")},
		try{"deletes a pack in the index", s.sql("DELETE FROM packs")},
		try{"deletes chunks", s.sql("DELETE FROM chunks")},
		try{"changes the repository's recipients", s.sql("UPDATE repositories SET recipients = '[]'")},
		try{"registers a filer", s.sql("INSERT INTO filers (name) VALUES ('mine')")},
		try{"makes another role", s.sql("CREATE ROLE mine")},
		try{"drops a table", s.sql("DROP TABLE pages")},
		try{"deletes a pack", s.s3(remove(pack))},
		try{"overwrites a pack", s.s3(put(pack))},
		try{"stores a pack", s.s3(put("packs/00000000000000000000000000000000/00000000000000000000000000000002"))},
		try{"overwrites the repository's keys", s.s3(put("repository"))},
	)
	t.Run("restores nothing", func(t *testing.T) {
		out := s.As("committer").Run("restore", "latest", "--target", filepath.Join(t.TempDir(), "x"))
		if out.Status == 0 || out.Status == 3 {
			t.Errorf("%s", out)
		}
	})
}

func stolenOperator(t *testing.T, s stolen, pack string) {
	allow(t, try{"listens to reports", s.subscribe("bctl.v1.progress")}, try{"sees snapshots", s.sql("SELECT count(*) FROM snapshots")}, try{"reads a sealed pack", s.s3(read(pack))})
	refuse(t,
		try{"publishes a task", s.publish("bctl.v1.walk.default")},
		try{"publishes a batch", s.publish("bctl.v1.read.default")},
		try{"publishes a slice", s.publish("bctl.v1.commit.slice")},
		try{"publishes a pack", s.publish("bctl.v1.commit.pack")},
		try{"publishes a batch result", s.publish("bctl.v1.commit.batch")},
		try{"publishes reports", s.publish("bctl.v1.progress")},
		try{"passes for a committer", s.publish("bctl.v1.service.committer")},
		try{"takes work", s.publish("$JS.API.CONSUMER.MSG.NEXT.BCTL_WALK.walkers-default")},
		try{"listens to everything", s.subscribe(">")},
		try{"deletes a stream", s.publish("$JS.API.STREAM.DELETE.BCTL_COMMIT")},
		try{"changes a page", s.sql("UPDATE pages SET listing = ''")},
		try{"moves a chunk", s.sql("UPDATE chunks SET frame = 0")},
		try{"registers a pack in the index", s.sql("INSERT INTO packs (pack, snapshot, stored_bytes, chunks) VALUES (gen_random_uuid(), gen_random_uuid(), 1, 1)")},
		try{"commits a snapshot", s.sql("UPDATE snapshots SET state = 'committed'")},
		try{"deletes a snapshot in the index", s.sql("DELETE FROM snapshots")},
		try{"changes the repository's recipients", s.sql("UPDATE repositories SET recipients = '[]'")},
		try{"becomes a committer in the index", s.sql("SET ROLE bctl_committer")},
		try{"deletes a pack", s.s3(remove(pack))},
		try{"overwrites a pack", s.s3(put(pack))},
		try{"stores a pack", s.s3(put("packs/00000000000000000000000000000000/00000000000000000000000000000003"))},
	)
	t.Run("reads content without an identity", func(t *testing.T) {
		target := filepath.Join(t.TempDir(), "x")
		out := s.Run("restore", "latest", "--target", target, "--identity", s.file("missing.txt"))
		expect(t, out, 12, "missing.txt", "does not exist")
		if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something was restored: %v", err)
		}
	})
}

// A stolen pruner can delete packs; an object of its own shows that.
func stolenPruner(t *testing.T, s stolen, pack string) {
	own := filepath.Dir(pack) + "/00000000000000000000000000000004"
	allow(t,
		try{"sees snapshots", s.sql("SELECT count(*) FROM snapshots")}, try{"reads a sealed pack", s.s3(read(pack))}, try{"lists the store", s.s3(list)},
		try{"stores a pack", s.s3(put(own))}, try{"overwrites an object of a versitygw", s.s3(put(own))}, try{"deletes an object", s.s3(remove(own))},
	)
	refuse(t,
		try{"publishes a slice", s.publishOrEnter("bctl.v1.commit.slice")},
		try{"drains a worker", s.publishOrEnter("bctl.v1.drain.x")},
		try{"forgets a snapshot", s.sql("UPDATE snapshots SET forgotten = now()")},
		try{"marks a snapshot as bad", s.sql("UPDATE snapshots SET bad = 'x'")},
		try{"deletes a snapshot that is not forgotten", s.sql("DELETE FROM snapshots")},
		try{"deletes a pack that is not condemned", s.sql("DELETE FROM packs")},
		try{"removes a hold", s.sql("DELETE FROM holds")},
		try{"retires a shard", s.sql("UPDATE shards SET retired = true")},
		try{"changes the brake", s.sql("UPDATE brake SET bytes = 100")},
		try{"changes the log", s.sql("UPDATE log SET reason = 'none'")},
		try{"deletes from the log", s.sql("DELETE FROM log")},
		try{"changes the repository's recipients", s.sql("UPDATE repositories SET recipients = '[]'")},
		try{"becomes a committer in the index", s.sql("SET ROLE bctl_committer")},
		try{"connects as an operator", func() error { return execute(s.dsn("operator"), "SELECT 1") }},
		try{"writes a segment", s.s3(put("segments/00000000000000000000000000000000/forged"))},
		try{"overwrites the repository's keys", s.s3(put("repository"))},
		try{"deletes the repository's keys", s.s3(remove("repository"))},
	)
	t.Run("restores nothing", func(t *testing.T) {
		out := s.As("pruner").Run("restore", "latest", "--target", filepath.Join(t.TempDir(), "x"))
		if out.Status == 0 || out.Status == 3 {
			t.Errorf("%s", out)
		}
	})
}

// A stolen scrubber reads what is sealed, and can call packs sound or damaged.
func stolenScrubber(t *testing.T, s stolen, pack string) {
	allow(t,
		try{"sees packs", s.sql("SELECT count(*) FROM packs")}, try{"reads a sealed pack", s.s3(read(pack))}, try{"lists the store", s.s3(list)},
		try{"notes a proof", s.sql("UPDATE packs SET proven = proven")}, try{"notes a proof of parity", s.sql("UPDATE parity_groups SET proven = proven")},
	)
	refuse(t,
		try{"publishes a slice", s.publishOrEnter("bctl.v1.commit.slice")},
		try{"drains a worker", s.publishOrEnter("bctl.v1.drain.x")},
		try{"reads listings", s.sql("SELECT * FROM pages")},
		try{"reads names of filers", s.sql("SELECT * FROM filers")},
		try{"reads names of shards", s.sql("SELECT * FROM shards")},
		try{"reads snapshots", s.sql("SELECT * FROM snapshots")},
		try{"reads the log", s.sql("SELECT * FROM log")},
		try{"condemns a pack", s.sql("UPDATE packs SET condemned = true")},
		try{"deletes a pack in the index", s.sql("DELETE FROM packs")},
		try{"moves a chunk", s.sql("UPDATE chunks SET frame = 0")},
		try{"changes its limits", s.sql("UPDATE scrub SET bytes = 0")},
		try{"changes what is undated", s.sql("UPDATE scrub SET forgotten = 0")},
		try{"changes a parity group", s.sql("UPDATE parity_groups SET description = ''")},
		try{"changes what was put back", s.sql("UPDATE put_back SET objects = 1")},
		try{"leads as the pruner", s.sql("INSERT INTO leaders (role, holder, epoch, until) VALUES ('pruner', 'me', 1, 1)")},
		try{"becomes a committer in the index", s.sql("SET ROLE bctl_committer")},
		try{"connects as an operator", func() error { return execute(s.dsn("operator"), "SELECT 1") }},
		try{"deletes a pack", s.s3(remove(pack))},
		try{"overwrites a pack", s.s3(put(pack))},
		try{"stores a pack", s.s3(put("packs/00000000000000000000000000000000/00000000000000000000000000000005"))},
		try{"makes parity", s.s3(put("parity/00000000000000000000000000000000-00"))},
		try{"writes a segment", s.s3(put("segments/00000000000000000000000000000000/forged"))},
		try{"overwrites the repository's keys", s.s3(put("repository"))},
	)
	for _, args := range [][]string{{"restore", "latest", "--target", filepath.Join(t.TempDir(), "x")}, {"ls", "latest"}, {"check"}, {"drill"}, {"repair", "--yes"}, {"repair", "--from-parity"}, {"prune"}, {"forget", "--keep-last", "1"}} {
		if out := s.As("scrubber").Run(args...); out.Status == 0 || out.Status == 3 {
			t.Errorf("bctl %s: %s", args[0], out)
		}
	}
}

func stolenMonitor(t *testing.T, s stolen) {
	refuse(t,
		try{"publishes a slice", s.publishOrEnter("bctl.v1.commit.slice")},
		try{"reads listings", s.sql("SELECT * FROM pages")},
		try{"connects as an operator", func() error { return execute(s.dsn("operator"), "SELECT * FROM snapshots") }},
	)
}

// publishOrEnter is publish for who is not even let in.
func (s stolen) publishOrEnter(subject string) func() error {
	return func() error {
		err := s.publish(subject)()
		if errors.Is(err, nats.ErrAuthorization) {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		return err
	}
}
