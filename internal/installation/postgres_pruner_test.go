package installation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// forgetting is an index with roles, and a shard with three committed snapshots.
type forgetting struct {
	*byRoles
	snapshots []backup.SnapshotID
	shard     backup.Shard
	conns     map[Role]*pgx.Conn
}

func withSnapshots(t *testing.T) *forgetting {
	t.Helper()
	cluster := longCluster(t)
	p := testPlan(t.TempDir())
	p.Postgres.Name = "roles_forgetting"
	runRoles(t, &p, cluster.DSN())
	owner, err := pgindex.Open(t.Context(), as(t, &p, cluster.DSN(), Admin), pgindex.Options{MaxConns: 1})
	if err == nil {
		_, _, err = owner.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close() })
	f := &forgetting{byRoles: openByRoles(t, &p, cluster.DSN()), conns: map[Role]*pgx.Conn{}}
	for _, role := range databaseRoles {
		if f.conns[role], err = pgx.Connect(t.Context(), as(t, &p, cluster.DSN(), role)); err != nil {
			t.Fatal(err)
		}
		conn := f.conns[role]
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	filer, err := f.EnsureFiler(t.Context(), "filer")
	if err == nil {
		f.shard, err = f.EnsureShard(t.Context(), filer.ID, "shard", "/srv")
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s, err := f.BeginSnapshot(t.Context(), f.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		f.must(t, Admin, "UPDATE snapshots SET state = 'committed', committed = started, ended = started, recorded = true WHERE id = '"+s.ID.String()+"'")
		f.must(t, Admin, "DELETE FROM walk_tasks")
		f.must(t, Admin, "UPDATE shards SET last_good = '"+s.ID.String()+"', last_good_started = (SELECT started FROM snapshots WHERE id = '"+s.ID.String()+"'), last_good_number = last_number")
		f.snapshots = append(f.snapshots, s.ID)
	}
	return f
}

func (f *forgetting) must(t *testing.T, role Role, statement string) {
	t.Helper()
	if _, err := f.conns[role].Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %s: %v", role, statement, err)
	}
}

// refused fails the test unless the server refuses a statement for lack of a privilege.
func (f *forgetting) refused(t *testing.T, role Role, statement string) {
	t.Helper()
	_, err := f.conns[role].Exec(t.Context(), statement)
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != "42501" {
		t.Errorf("%s: %s: %v", role, statement, err)
	}
}

// Only the pruner deletes, and only what is forgotten or condemned. Nobody changes the log.
func TestOnlyThePrunerDeletes(t *testing.T) {
	f := withSnapshots(t)
	for role := range f.conns {
		if role == Admin {
			continue // it owns the tables
		}
		for _, table := range []string{"snapshots", "packs", "chunks", "chunk_copies", "chunk_lists"} {
			if role != Pruner {
				f.refused(t, role, "DELETE FROM "+table)
			}
			f.refused(t, role, "TRUNCATE "+table)
		}
		for _, statement := range []string{"DELETE FROM log", "UPDATE log SET reason = 'none'", "TRUNCATE log"} {
			f.refused(t, role, statement)
		}
		f.refused(t, role, "INSERT INTO log (time, by, action, subject, reason, login) VALUES (0, 'me', 'forget', 'x', '', 'another')")
		if role != Pruner && role != Committer { // a trigger refuses the scrubber
			f.refused(t, role, "INSERT INTO leaders (role, holder, epoch, until) VALUES ('pruner', 'me', 1, 1)")
		}
		if role != Operator {
			f.refused(t, role, "DELETE FROM holds")
		}
	}
	f.must(t, Admin, `INSERT INTO packs (pack, snapshot, object, object_offset, stored_bytes, frame_bytes, chunks)
		SELECT id, id, id, 0, 1, '', 1 FROM snapshots`)
	for _, statement := range []string{
		"DELETE FROM snapshots", "DELETE FROM packs", "UPDATE snapshots SET state = 'deleting'", "UPDATE snapshots SET forgotten = now()",
		"INSERT INTO leaders (role, holder, epoch, until) VALUES ('keeper', 'me', 1, 1)", "UPDATE packs SET object_offset = 7",
		"INSERT INTO pages (shard) VALUES (1)", "UPDATE shards SET retired = true", "UPDATE snapshots SET bad = 'x'",
	} {
		f.refused(t, Pruner, statement)
	}
	f.must(t, Pruner, "UPDATE packs SET condemned = true")
	f.refused(t, Pruner, "DELETE FROM packs")
	f.must(t, Pruner, "UPDATE packs SET deleted = 1")
	f.must(t, Pruner, "DELETE FROM packs")
	if err := f.Forgetting.Forget(t.Context(), f.snapshots[0], "me", "old"); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(t.Context(), f.snapshots[0]); err != nil {
		t.Error(err)
	}
}

// Operators forget with bctl and without it, but not what is kept, and not without an entry of the
// log.
func TestOperatorsForget(t *testing.T) {
	began := time.Now().Add(-time.Hour) // the clock of the server is this one
	f := withSnapshots(t)
	ctx := t.Context()
	set := func(n int) string {
		return fmt.Sprintf("UPDATE snapshots SET forgotten = now() WHERE id = '%s'", f.snapshots[n])
	}
	f.refused(t, Operator, set(0)) // nobody logged it
	f.refused(t, Operator, set(2)) // the last good one
	f.must(t, Operator, fmt.Sprintf("BEGIN; INSERT INTO log (time, by, action, subject, reason) VALUES (0, 'me', 'forget', '%s', ''); %s; COMMIT", f.snapshots[0], set(0)))
	f.refused(t, Operator, fmt.Sprintf("UPDATE snapshots SET forgotten = NULL WHERE id = '%s'", f.snapshots[0]))
	hold, err := f.AddHold(ctx, index.Hold{Snapshot: f.snapshots[1], By: "me", Reason: "audit"})
	if err != nil {
		t.Fatal(err)
	}
	f.refused(t, Operator, set(1))
	f.refused(t, Committer, set(1))
	f.refused(t, Operator, "DELETE FROM holds")
	f.refused(t, Operator, "UPDATE holds SET snapshot = NULL, shard = 1")
	if err := f.RemoveHold(ctx, hold.ID, "me", "done"); err != nil {
		t.Fatal(err)
	}
	reading := backup.NewPackID()
	if err := f.BeginReading(ctx, reading, f.snapshots[1], time.Minute); err != nil {
		t.Fatal(err)
	}
	f.refused(t, Operator, set(1))
	if err := f.EndReading(ctx, reading); err != nil {
		t.Fatal(err)
	}
	if err := f.committer.Forget(ctx, f.snapshots[1], "policy daily", "keep-last 1"); err != nil {
		t.Error(err)
	}
	if err := f.Forgetting.Forget(ctx, f.snapshots[2], "me", ""); !errors.Is(err, index.ErrKept) {
		t.Errorf("the last good snapshot: %v", err)
	}
	var log strings.Builder
	for e, err := range f.Log(ctx, began) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Login == "" {
			t.Errorf("entry %d has no user of the database", e.ID)
		}
		fmt.Fprintln(&log, e.Action, e.By)
	}
	if want := "forget me\nhold me\nrelease me\nforget policy daily\n"; log.String() != want {
		t.Errorf("log:\n%swant:\n%s", log.String(), want)
	}
}

// Operators measure what pruning would free, and delete nothing.
func TestOperatorsMeasureWhatPruningFrees(t *testing.T) {
	f := withSnapshots(t)
	f.must(t, Admin, `INSERT INTO packs (pack, snapshot, object, object_offset, stored_bytes, frame_bytes, chunks)
		SELECT id, id, id, 0, 11, '', 1 FROM snapshots`)
	operator := f.operator
	found, err := prune.Run(t.Context(), prune.Options{Index: operator, DryRun: true})
	if err != nil || found.Packs != 3 || found.Bytes != 33 {
		t.Errorf("%+v, %v", found, err)
	}
	for what, read := range map[string]func(context.Context) error{
		"forgotten snapshots": func(ctx context.Context) error { _, err := operator.Forgotten(ctx); return err },
		"work":                func(ctx context.Context) error { _, err := operator.PruneWork(ctx); return err },
		"prunes":              func(ctx context.Context) error { _, err := operator.Prunes(ctx); return err },
		"orphans": func(ctx context.Context) error {
			_, err := operator.Recognize(ctx, index.Term{}, []index.StoredObject{{Snapshot: f.snapshots[0]}})
			return err
		},
	} {
		if err := read(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = prune.Run(t.Context(), prune.Options{Index: operator, Holder: "operator"})
	if err == nil {
		t.Error("an operator prunes")
	}
}

// The scrubber notes what it has proven, and nothing else. Operators change the settings, and note
// no proof.
func TestScrubberNotesProofs(t *testing.T) {
	f := withSnapshots(t)
	ctx := t.Context()
	f.must(t, Admin, `INSERT INTO packs (pack, snapshot, object, object_offset, stored_bytes, frame_bytes, chunks)
		SELECT id, id, id, 0, 1, '\x01', 1 FROM snapshots`)
	settings := index.ScrubSettings{Within: time.Hour, PerDay: index.ScrubCost{Requests: 9}}
	if err := f.operator.SetScrub(ctx, settings, "me"); err != nil {
		t.Error(err)
	}
	term, ok, err := f.scrubber.Lead(ctx, "scrubber", "me", time.Minute)
	if err != nil || !ok {
		t.Fatalf("%t, %v", ok, err)
	}
	due, err := f.scrubber.ToProve(ctx, time.Now().Add(time.Hour), 9)
	if err != nil || len(due) != 3 {
		t.Fatalf("%+v, %v", due, err)
	}
	proofs := []index.Proof{{Row: due[0].Row}, {Row: due[1].Row, Adopt: []byte("0123456789abcdef")}, {Row: due[2].Row, Damage: "it is missing"}}
	if err := f.scrubber.NoteProofs(ctx, term, proofs, index.ScrubCost{Requests: 3, Bytes: 3}); err != nil {
		t.Error(err)
	}
	for _, err := range f.scrubber.Places(ctx, []int64{due[0].Row}) {
		if err != nil {
			t.Error(err)
		}
	}
	state, err := f.operator.Scrub(ctx)
	if err != nil || state.DamagedPacks != 1 || state.AdoptedPacks != 1 || state.UnprovenPacks != 2 || state.Today.Requests != 3 {
		t.Errorf("%+v, %v", state, err)
	}
	for _, statement := range []string{
		"UPDATE packs SET condemned = true", "UPDATE packs SET frame_bytes = ''", "UPDATE packs SET object_offset = 7", "DELETE FROM packs", "UPDATE chunks SET pack = 1",
		"INSERT INTO leaders (role, holder, epoch, until) VALUES ('pruner', 'me', 1, 1)", "INSERT INTO leaders (role, holder, epoch, until) VALUES ('keeper', 'me', 1, 1)",
		"UPDATE parity_groups SET description = ''", "DELETE FROM parity_groups", "UPDATE put_back SET objects = 1",
		"UPDATE scrub SET within = 1", "UPDATE scrub SET forgotten = 0", "SELECT * FROM pages", "SELECT * FROM shards", "SELECT * FROM snapshots", "INSERT INTO log (time, by, action, subject, reason) VALUES (0, 'me', 'forget', 'x', '')",
	} {
		f.refused(t, Scrubber, statement)
	}
	for _, role := range []Role{Operator, Committer, Pruner, Reader, Walker, Monitor} {
		f.refused(t, role, "UPDATE packs SET proven = 1")
		f.refused(t, role, "UPDATE packs SET damaged = 0")
		f.refused(t, role, "UPDATE parity_groups SET proven = 1")
		f.refused(t, role, "UPDATE scrub SET forgotten = 0")
		if role != Committer { // which leads anyway
			f.refused(t, role, "INSERT INTO leaders (role, holder, epoch, until) VALUES ('scrubber', 'me', 1, 1)")
		}
		if role != Operator {
			f.refused(t, role, "UPDATE scrub SET within = 1")
		}
	}
}

// Operators check the index. They change nothing by it, and cannot repair what they find.
func TestOperatorsCheck(t *testing.T) {
	f := withSnapshots(t)
	repository := backup.Repository{ID: backup.NewRepositoryID()}
	o := check.Options{Index: f.operator, Store: emptyStore{}, Repository: &repository, Level: check.Objects}
	report, err := check.Run(t.Context(), o)
	if err != nil || report.Snapshots != 3 || len(report.Findings) == 0 { // there are no records
		t.Errorf("%+v, %v", report, err)
	}
	for _, err := range f.operator.Locations(t.Context(), nil) {
		if err != nil {
			t.Error(err)
		}
	}
	for _, err := range f.operator.Frames(t.Context()) {
		if err != nil {
			t.Error(err)
		}
	}
	for what, write := range map[string]func(context.Context) error{
		"reread": func(ctx context.Context) error {
			return f.operator.Reread(ctx, []index.PageID{{Shard: f.shard.ID}})
		},
		"unrecord":   func(ctx context.Context) error { return f.operator.Unrecord(ctx, f.snapshots[0]) },
		"checkpoint": func(ctx context.Context) error { return f.operator.RequireCheckpoint(ctx, f.shard.ID) },
		"catalog":    func(ctx context.Context) error { return f.operator.LoseCatalog(ctx) },
	} {
		var refusal *pgconn.PgError
		if err := write(t.Context()); !errors.As(err, &refusal) || refusal.Code != "42501" {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An emptyStore has no objects. A check asks nothing else of a store.
type emptyStore struct{}

func (emptyStore) GetRange(context.Context, []byte, string, int64, int64) ([]byte, error) {
	return nil, backup.ErrNotFound
}
func (emptyStore) Get(context.Context, string, int64) ([]byte, error) { return nil, backup.ErrNotFound }
func (emptyStore) Stat(context.Context, string) (int64, error)        { return 0, backup.ErrNotFound }
func (emptyStore) List(context.Context, string) iter.Seq2[store.Object, error] {
	return func(func(store.Object, error) bool) {}
}
