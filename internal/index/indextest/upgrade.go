package indextest

import (
	"database/sql"
	"io/fs"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// fleetVersion is the migration that brought sites, limits and claims by filer.
const fleetVersion = 3

// Upgrade tests that an index from before fleets, with a snapshot that runs, goes on after the migration; and
// that the migration can be undone.
func Upgrade(t *testing.T, dialect goose.Dialect, files fs.FS, db *sql.DB, open func() index.Index) {
	provider, err := goose.NewProvider(dialect, db, files, goose.WithDisableGlobalRegistry(true))
	f := &fixture{TB: t, ctx: t.Context(), now: time.Date(2026, 3, 1, 2, 3, 4, 0, time.UTC)}
	f.must(err)
	_, err = provider.UpTo(f.ctx, fleetVersion-1)
	f.must(err)
	exec := func(query string, args ...any) {
		_, err := db.ExecContext(f.ctx, query, args...)
		f.must(err)
	}
	exec("INSERT INTO filers (id, name) VALUES (7, 'old'), (8, 'idle')")
	exec("INSERT INTO shards (id, filer_id, name, source, last_number) VALUES (9, 7, 'home', 'posix:///home', 3), (10, 8, 'home', 'posix:///home', 0)")
	ids := []backup.SnapshotID{{1}, {2}, {3}, {4}}
	for i, state := range []backup.State{backup.Committed, backup.Committed, backup.Failed, backup.Running} {
		exec("INSERT INTO snapshots (id, shard_id, number, base, state, started, selection, tasks_announced, batches_announced, files, bytes) VALUES ($1, 9, $2, $3, $4, $5, '{}', 1, 1, $6, 70)",
			uuid.UUID(ids[i]).String(), i+1, min(i, 2), string(state), f.now.Add(time.Duration(i)*time.Hour), 7+i)
	}
	exec("INSERT INTO walk_tasks (snapshot_id, generation, lease_until, directories) VALUES ($1, 0, $2, $3)", uuid.UUID(ids[3]).String(), f.now, []byte{1, 1, 0})
	exec("INSERT INTO read_batches (snapshot_id, lease_until, names, pages) VALUES ($1, $2, $3, $4)", uuid.UUID(ids[3]).String(), f.now, []byte{}, []byte{1, 0})

	f.x = open()
	_, _, err = f.x.Migrate(f.ctx)
	f.must(err)
	shards := f.listShards(index.ShardFilter{Filer: "old"})
	if len(shards) != 1 || shards[0].LastGood != ids[1] || shards[0].Number != 2 || shards[0].Files != 8 || shards[0].Bytes != 70 ||
		!shards[0].Time.Equal(f.now.Add(time.Hour)) || shards[0].Running != ids[3] {
		t.Fatalf("%+v, want the newest committed snapshot as the last good one", shards)
	}
	if idle := f.listShards(index.ShardFilter{Filer: "idle"}); len(idle) != 1 || idle[0].LastGood != (backup.SnapshotID{}) || idle[0].Filer.Site != backup.DefaultSite {
		t.Fatalf("%+v, want a shard without a snapshot", idle)
	}
	if found, err := f.x.Snapshots(f.ctx, index.SnapshotFilter{Filer: "old"}); err != nil || len(found) != 4 || found[0].Source != "posix:///home" {
		t.Fatalf("%+v, %v; want the filer's four", found, err)
	}
	f.now = f.now.Add(time.Hour)
	running := f.snapshot(ids[3])
	task, batch := f.claimTask(running), f.claimBatch(running)
	if task.Job.Filer != 7 || task.Job.Source != "posix:///home" || batch.Job.Filer != 7 {
		t.Fatalf("claimed %+v and %+v", task, batch)
	}
	f.must(f.x.Close())

	_, err = provider.DownTo(f.ctx, fleetVersion-1)
	f.must(err)
	exec("INSERT INTO filers (name) VALUES ('after')")
	_, err = provider.Up(f.ctx)
	f.must(err)
}
