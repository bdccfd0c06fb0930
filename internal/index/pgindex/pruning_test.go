package pgindex_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/testenv"
)

// A transaction stores a further place of a chunk, or accepts a batch that needs a list, while
// garbage collection deletes the chunk's first place and lists without a place. It waits, and sees
// what the other has done.
func TestDropWhileStoring(t *testing.T) {
	dsn := testenv.Postgres(t)
	x, db := open(t, dsn), connect(t, dsn)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := x.Migrate(ctx)
	must(err)
	filer, err := x.AddFiler(ctx, backup.Filer{Name: "filer"})
	must(err)
	shard, err := x.EnsureShard(ctx, filer.ID, "home", "posix:///srv")
	must(err)
	s, err := x.BeginSnapshot(ctx, shard.ID, backup.Snapshot{}, time.Now())
	must(err)
	chunk, list := backup.ChunkID{1}, backup.ChunkID{2}
	accept := func(results ...index.Result) {
		t.Helper()
		outcomes, err := x.Apply(ctx, results)
		must(err)
		for _, o := range outcomes {
			must(o.Err)
		}
	}
	packOf := func(chunks ...backup.ChunkID) *backup.PackStored {
		p := &backup.PackStored{Snapshot: s.ID, Pack: backup.NewPackID(), StoredBytes: 1, FrameBytes: []uint32{1}}
		for _, id := range chunks {
			p.Chunks = append(p.Chunks, backup.ChunkPlace{ID: id, Length: 1})
		}
		return p
	}
	accept(index.Result{Pack: packOf(chunk)}) // it gets the first row
	accept(index.Result{Pack: packOf(backup.ChunkID{3})},
		index.Result{Lists: &backup.ListsStored{Snapshot: s.ID, Lists: []backup.ChunkList{{List: list}}}})
	var rows []int64
	for p, err := range x.Packs(ctx) {
		must(err)
		rows = append(rows, p.Row)
	}

	// What Apply does: it has a lock of the chunk's row, and of the list's.
	tx, err := db.BeginTx(ctx, nil)
	must(err)
	defer tx.Rollback()
	for _, statement := range []string{
		"INSERT INTO chunks AS c (id, pack, frame, frame_offset, length) SELECT id, $1, 0, 0, 1 FROM chunks WHERE pack = $2 ON CONFLICT (id) DO UPDATE SET pack = excluded.pack WHERE false",
		"INSERT INTO chunk_copies (id, pack, frame, frame_offset, length) SELECT id, $1, 0, 0, 1 FROM chunks WHERE pack = $2",
	} {
		_, err = tx.ExecContext(ctx, statement, rows[1], rows[0])
		must(err)
	}
	_, err = tx.ExecContext(ctx, "SELECT list FROM chunk_lists FOR SHARE")
	must(err)
	_, err = tx.ExecContext(ctx, "INSERT INTO chunks (id, pack, frame, frame_offset, length) SELECT list, $1, 0, 0, 1 FROM chunk_lists", rows[1])
	must(err)
	done := make(chan error)
	go func() { done <- x.DropPlaces(ctx, rows[:1], chunk[0]) }()
	go func() { done <- x.DropLists(ctx) }()
	waitForLocks(ctx, t, db, 2)
	must(tx.Commit())
	must(<-done)
	must(<-done)

	found, err := x.Locate(ctx, []backup.ChunkID{chunk, list})
	must(err)
	for i := range found {
		if found[i] == (index.Location{}) {
			t.Errorf("chunk %d has no place", i)
		}
	}
	known, err := x.HasLists(ctx, []backup.ChunkID{list})
	must(err)
	if !known {
		t.Error("the list is gone")
	}
}

// Contexts end at any moment of a transaction. Nothing but the transaction uses its connection
// then, which the race detector sees, and the index goes on.
func TestTransactionsEndWithTheirContexts(t *testing.T) {
	x := open(t, testenv.Postgres(t))
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := 0
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Microsecond)
		if err := x.DropLists(ctx); err != nil {
			ended++
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		cancel()
	}
	if ended == 0 {
		t.Fatal("no transaction was interrupted")
	}
	if err := x.DropLists(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// waitForLocks returns when so many transactions wait for a lock.
func waitForLocks(ctx context.Context, t *testing.T, db *sql.DB, want int) {
	t.Helper()
	for n := 0; n < want; {
		err := db.QueryRowContext(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		loop.Pause(ctx, 10*time.Millisecond)
	}
}
