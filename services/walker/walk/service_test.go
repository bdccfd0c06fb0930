package walk

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source/posix"
)

// inProcess connects to a NATS server in this process.
func inProcess(t *testing.T) *flow.Conn {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true})
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(within) {
		t.Fatal("the server is not ready")
	}
	conn, err := flow.Connect(flow.Options{InProcess: s, Memory: true})
	must(t, err)
	t.Cleanup(conn.Close)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		if _, err = conn.EnsureStreams(ctx, []string{backup.DefaultSite}); err == nil {
			return conn
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// A running walker takes a task from its queue and answers; a task whose source is unavailable for
// a while is retried.
func TestRun(t *testing.T) {
	f := newFixture(t, home)
	conn := inProcess(t)
	retried := make(chan error, 100)
	svc := New(conn, f.index, &reluctantSource{Source: posix.New(posix.Options{})}, flow.NewReporter(conn, "walker"),
		Options{OnRetry: func(err error) { retried <- err }})
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan flow.Received, 100)
	ended := make(chan struct{}, 2)
	go func() { svc.Run(ctx); ended <- struct{}{} }()
	go func() {
		conn.ConsumeResults(ctx, ctx, 10, func(r flow.Received) { results <- r })
		ended <- struct{}{}
	}()
	defer func() { cancel(); <-ended; <-ended }()

	task := f.rootTask()
	must(t, flow.Publish(t.Context(), conn, flow.Walk, task))
	receive(t, "retry", retried)
	r := receive(t, "result", results)
	r.Delivery.Ack()
	if r.Slice == nil || !r.Slice.Last || r.Slice.Task != task.ID || r.Slice.Snapshot != task.Job.Snapshot {
		t.Fatalf("result %+v", r)
	}
	var w walked
	w.add(f.apply(r.Slice))
	f.wantEachOnce(w)
}

// receive returns the next value of a channel, and fails if none comes in time.
func receive[T any](t *testing.T, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(within):
		t.Fatalf("no %s within %v", what, within)
	}
	return v
}

// Run returns when its context is done, with no work left in progress.
func TestStop(t *testing.T) {
	f := newFixture(t, home)
	conn := inProcess(t)
	blocked := make(chan struct{})
	svc := New(conn, f.index, blockingSource{asked: blocked}, flow.NewReporter(conn, "walker"), Options{StopTimeout: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { svc.Run(ctx); close(ended) }()
	must(t, flow.Publish(t.Context(), conn, flow.Walk, &backup.WalkTask{
		Job: backup.Job{Snapshot: backup.NewSnapshotID(), Number: 1}, ID: 1, Attempt: 1, Directories: []string{""},
	}))
	receive(t, "task", blocked)
	cancel()
	receive(t, "end", ended)
}
