package testenv_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/testenv"
)

func TestPostgresDatabasesAreFresh(t *testing.T) {
	t.Parallel()
	first, second := testenv.Postgres(t), testenv.Postgres(t)
	if first == second {
		t.Fatalf("both tests were given %s", first)
	}
	execute(t, first, "CREATE TABLE t AS SELECT 1 AS n")
	execute(t, second, "CREATE TABLE t AS SELECT 1 AS n")
}

func TestPostgresDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("user", func(t *testing.T) {
		dsn = testenv.Postgres(t)
		connect(t, dsn) // left open: the drop must not depend on the test's manners
	})
	if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("the database outlives its test")
	}
}

func TestPostgresServerKeepsCommitsOverACrash(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	execute(t, server.DSN(), "CREATE TABLE t AS SELECT 42 AS n")
	server.Kill()
	if _, err := pgx.Connect(t.Context(), server.DSN()); err == nil {
		t.Fatal("connected to a killed server")
	}
	server.Restart()
	var n int
	if err := connect(t, server.DSN()).QueryRow(t.Context(), "SELECT n FROM t").Scan(&n); err != nil || n != 42 {
		t.Fatalf("got %d, %v; want 42", n, err)
	}
	// All of its log: clients that come too early write much after the line.
	wrote, err := os.ReadFile(server.Process().LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(wrote), "not properly shut down") {
		t.Errorf("the server did not recover; it wrote:\n%s", server.Process().Output())
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func execute(t *testing.T, dsn, statement string) {
	t.Helper()
	conn := connect(t, dsn)
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// A stream of three replicas is there while two nodes are.
func TestNATSClusterWithoutANode(t *testing.T) {
	t.Parallel()
	nodes := testenv.NATSCluster(t, 3)
	nc, err := nats.Connect(nodes.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.DontRandomize())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	config := jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Replicas: 3}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s.one", nil); err != nil {
		t.Fatal(err)
	}
	nodes[0].Kill() // the one that we are connected to
	for {
		// The election of another leader takes a moment: what is asked for meanwhile fails.
		if _, err = js.Publish(t.Context(), "s.two", nil); err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	nodes[0].Restart()
	nodes.AwaitLeader(t)
	stream, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n < 2 {
		t.Errorf("%d messages of 2 are left", n)
	}
}

func TestNATSKeepsItsStreamsOverARestart(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t, "max_payload: 512KB")
	nc, err := nats.Connect(server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if nc.MaxPayload() != 512<<10 {
		t.Errorf("max_payload is %d: the test's own configuration is not in force", nc.MaxPayload())
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s.one", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if server.Running() {
		t.Fatal("a killed server runs")
	}
	server.Restart()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for { // the client finds the server again at its own pace
		message, err := stream.GetMsg(ctx, 1)
		if err == nil {
			if string(message.Data) != "kept" {
				t.Fatalf("got %q", message.Data)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func TestS3(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(testing.TB) *testenv.S3Server{
		"versitygw": testenv.VersityGW,
		"minio":     testenv.Minio,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t)
			client, err := minio.New(server.Endpoint, &minio.Options{
				Creds:  credentials.NewStaticV4(server.AccessKey, server.SecretKey, ""),
				Region: server.Region,
			})
			if err != nil {
				t.Fatal(err)
			}
			body := bytes.Repeat([]byte("pack"), 1<<16)
			if _, err := client.PutObject(t.Context(), server.Bucket, "a/b", bytes.NewReader(body), int64(len(body)),
				minio.PutObjectOptions{}); err != nil {
				t.Fatal(err)
			}
			server.Restart()
			object, err := client.GetObject(t.Context(), server.Bucket, "a/b", minio.GetObjectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer object.Close()
			got, err := io.ReadAll(object)
			if err != nil || !bytes.Equal(got, body) {
				t.Fatalf("got %d bytes, %v; want the %d that were put", len(got), err, len(body))
			}
			if _, err := os.Stat(server.Dir + "/" + server.Bucket); err != nil {
				t.Errorf("the bucket is not under Dir: %v", err)
			}
			if other := server.NewBucket(t); other == server.Bucket {
				t.Errorf("a second bucket has the name of the first, %s", other)
			}
		})
	}
}
