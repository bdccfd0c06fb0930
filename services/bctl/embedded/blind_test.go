package embedded_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/reader/read"
	"github.com/bctl/bctl/services/walker/walk"
)

// A blindSource is the source of a machine on which another tree is at the place where the tree
// should be mounted.
type blindSource struct {
	source.Source
	dir string
}

func (s blindSource) Open(ctx context.Context, _ string) (source.Tree, error) {
	return s.Source.Open(ctx, posix.URL(s.dir))
}

// In a fleet one walker and one reader of two are blind. A committed snapshot has all files
// nevertheless, and no problem is reported for files that only these workers do not see.
func TestBlindWorkersAmongOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("what a blind worker hands back waits for seconds")
	}
	for name, seen := range map[string]treetest.Tree{
		"an empty directory": nil,
		"another tree":       {"d0/file-0": treetest.File("another"), "d1/file-1": treetest.File("another"), "other": treetest.File("x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newFaultyMachine(t)
			elsewhere := t.TempDir()
			treetest.Make(t, elsewhere, seen)
			m.newShard(false)
			m.grow(0)
			m.wantTree(m.backup()) // the root is known from here on
			m.startFleet(m.Source, blindSource{posix.New(posix.Options{}), elsewhere})
			for n := 1; n < 3; n++ {
				m.grow(n)
				m.wantTree(m.backupByFleet(), nil)
			}
		})
	}
}

// grow changes a file in each of many directories, and adds one.
func (m *faultyMachine) grow(n int) {
	m.Helper()
	for i := range 30 {
		dir := filepath.Join(m.dir, fmt.Sprint("d", i))
		m.must(os.MkdirAll(dir, 0o700))
		for _, name := range []string{"file-0", fmt.Sprint("file-", n)} {
			m.must(os.WriteFile(filepath.Join(dir, name), fmt.Append(nil, "content ", i, n, name), 0o600))
		}
	}
}

// startFleet runs a committer, and a walker and a reader for each source.
func (m *faultyMachine) startFleet(sources ...source.Source) {
	m.Helper()
	ns, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: m.TempDir()})
	m.must(err)
	ns.Start()
	m.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		m.Fatal("the server is not ready")
	}
	conn, err := flow.Connect(flow.Options{InProcess: ns, Memory: true})
	m.must(err)
	m.Cleanup(conn.Close)
	ctx, stop := context.WithCancel(context.Background())
	var services sync.WaitGroup
	m.Cleanup(func() { stop(); services.Wait() })
	committer := commit.New(commit.Parts{Conn: conn, Index: m.Index, Store: m.Store, Keys: m.Keys}, commit.Options{
		Worker: "committer", Poll: 20 * time.Millisecond, StopTimeout: time.Second,
	})
	services.Go(func() { committer.Run(ctx) })
	for i, src := range sources {
		name := fmt.Sprint("worker-", i)
		report := flow.NewReporter(conn, name)
		walker := walk.New(conn, m.Index, src, report, walk.Options{Worker: name, Tasks: 2, StopTimeout: time.Second})
		reader, err := read.New(read.Parts{
			Conn: conn, Index: m.Index, Source: src, Store: m.Store, Repository: m.Repository, Key: m.WorkerKey, Report: report,
		}, read.Options{Worker: name, Linger: time.Millisecond, StopTimeout: time.Second})
		m.must(err)
		services.Go(func() { walker.Run(ctx) })
		services.Go(func() { reader.Run(ctx) })
		services.Go(func() { report.Run(ctx, 100*time.Millisecond) })
	}
}

// backupByFleet starts a snapshot and waits until the fleet has ended it.
func (m *faultyMachine) backupByFleet() backup.Snapshot {
	m.Helper()
	snap, err := m.Index.BeginSnapshot(m.Context(), m.shard.ID, backup.Snapshot{}, time.Now())
	m.must(err)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(m.Context(), 5*time.Minute)
	defer cancel()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.Fatalf("the snapshot has not ended: %+v", snap)
		}
		snap, err = m.Index.Snapshot(m.Context(), snap.ID)
		m.must(err)
		if snap.State != backup.Running {
			return snap
		}
	}
}
