package installation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/scrub"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/committer/schedule"
	reader "github.com/bctl/bctl/services/reader/read"
)

// Each method of the index is called by a role that uses it, throughout the conformance suite of
// the port. This detects each privilege that a role lacks.
func TestIndexByRoles(t *testing.T) {
	cluster := longCluster(t)
	var databases atomic.Int64
	newPlan := func(t testing.TB) *Plan {
		p := testPlan(t.TempDir())
		p.Postgres.Name = fmt.Sprint("roles_", databases.Add(1))
		return &p
	}
	opened := func(t testing.TB, p *Plan) indextest.Database {
		runRoles(t, p, cluster.DSN())
		owner, err := sql.Open("pgx", as(t, p, cluster.DSN(), Admin))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = owner.Close() }) // there are no writes by then
		return indextest.Database{Open: func() index.Index { return openByRoles(t, p, cluster.DSN()) }, SQL: owner, UUIDs: true}
	}
	fresh := func(t testing.TB) indextest.Database { return opened(t, newPlan(t)) }
	template := newPlan(t)
	runRoles(t, template, cluster.DSN())
	migrate(t, as(t, template, cluster.DSN(), Admin))
	// A copy takes a fraction of the time of all migrations.
	migrated := func(t testing.TB) indextest.Database {
		p := newPlan(t)
		testenv.CopyDatabase(t, cluster.DSN(), template.Postgres.Name, p.Postgres.Name)
		return opened(t, p)
	}
	if testtarget.Runs(testtarget.Often) {
		indextest.Run(t, fresh, migrated)
	} else {
		indextest.RunCalls(t, fresh, migrated)
	}
}

// longCluster returns a server of a test that only runs with the target Long.
func longCluster(t *testing.T) *testenv.Cluster {
	t.Helper()
	testtarget.Need(t, testtarget.Long)
	if testing.Short() {
		t.Skip("needs a real server: run without -short")
	}
	cluster, err := testenv.OpenCluster(testenv.Fast)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

// migrate makes the tables of an index.
func migrate(t testing.TB, dsn string) {
	t.Helper()
	x, err := pgindex.Open(t.Context(), dsn, pgindex.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = x.Migrate(t.Context())
	if err := errors.Join(err, x.Close()); err != nil {
		t.Fatal(err)
	}
}

// runRoles runs the roles.sql of a plan on a server.
func runRoles(t testing.TB, p *Plan, dsn string) {
	t.Helper()
	files, err := postgresFiles(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Path == "postgres/roles.sql" {
			path := filepath.Join(t.TempDir(), "roles.sql")
			if err := os.WriteFile(path, f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
			testenv.Psql(t, dsn, path)
		}
	}
}

// as returns a superuser's DSN for the plan's database, whose sessions start with the given role.
func as(t testing.TB, p *Plan, dsn string, role Role) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + p.Postgres.Name
	query := u.Query()
	query.Set("role", p.databaseRole(role))
	u.RawQuery = query.Encode()
	return u.String()
}

// committing has all calls that a committer makes on the index.
type committing interface {
	commit.Index
	schedule.Index
}

// These have all calls that the other services make.
type (
	walking   interface{ index.Walking }
	reading   interface{ reader.Index }
	pruning   interface{ prune.Index }
	scrubbing interface{ scrub.Index }
	checking  interface{ check.IndexReader } // an operator's
)

// byRoles is an index with a connection per role. A method that two roles use is ambiguous and does
// not compile, so it is defined below, and calls both.
type byRoles struct {
	index.Admin
	index.Catalog
	walking
	reading
	committing
	index.Forgetting
	pruning
	index.PruneReports
	index.Purging    // by the admin: no role purges
	index.Recovering // likewise
	checking
	index.Repairing // by the admin: no role repairs
	scrubbing
	index.Drilling // by an operator with an identity
	restoring

	committer, operator, pruner, scrubber *pgindex.Index
	walker, reader                        *pgindex.Index
	all                                   []*pgindex.Index
	user                                  func(name string) *pgindex.Index // an operator with a name of its own
}

func openByRoles(t testing.TB, p *Plan, dsn string) *byRoles {
	t.Helper()
	open := func(role Role) *pgindex.Index {
		x, err := pgindex.Open(t.Context(), as(t, p, dsn, role), pgindex.Options{MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.Close() })
		return x
	}
	admin, committer, walker, reader, operator, pruner, scrubber := open(Admin), open(Committer), open(Walker), open(Reader), open(Operator), open(Pruner), open(Scrubber)
	restorer := open(Restorer)
	return &byRoles{
		admin, operator, walker, reader, committer, operator, pruner, pruner, admin, admin, operator, admin, proving{scrubber, operator}, operator, restoring{restorer, operator}, committer, operator, pruner, scrubber, walker, reader,
		[]*pgindex.Index{admin, committer, walker, reader, operator, pruner, scrubber, restorer},
		func(name string) *pgindex.Index { return openAs(t, p, dsn, name) },
	}
}

// proving is the index of a scrubber, of which operators change the settings.
type proving struct {
	*pgindex.Index
	operator *pgindex.Index
}

func (p proving) SetScrub(ctx context.Context, s index.ScrubSettings, by string) error {
	return p.operator.SetScrub(ctx, s, by)
}

// byEach makes a call as each of some roles, and returns what the last one returns.
func byEach[T any](call func(*pgindex.Index) (T, error), roles ...*pgindex.Index) (result T, err error) {
	for _, x := range roles {
		if result, err = call(x); err != nil {
			return result, err
		}
	}
	return result, nil
}

// Walkers and readers read pages.
func (x *byRoles) Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error) {
	return byEach(func(x *pgindex.Index) ([][]byte, error) { return x.Listings(ctx, shard, base, pages) }, x.walker, x.reader)
}

func (x *byRoles) PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error) {
	return byEach(func(x *pgindex.Index) ([]backup.PageKey, error) { return x.PageKeys(ctx, shard, base, path) }, x.walker, x.reader)
}

func (x *byRoles) DirectoryByInode(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, inode uint64) (path string, ok bool, err error) {
	if path, ok, err = x.walker.DirectoryByInode(ctx, shard, base, inode); err != nil {
		return path, ok, err
	}
	return x.reader.DirectoryByInode(ctx, shard, base, inode)
}

func (x *byRoles) DamagedPacks(ctx context.Context) ([]index.PackToProve, error) {
	return byEach(func(x *pgindex.Index) ([]index.PackToProve, error) { return x.DamagedPacks(ctx) }, x.pruner, x.scrubber, x.operator)
}

func (x *byRoles) Places(ctx context.Context, rows []int64) iter.Seq2[index.PlaceOf, error] {
	return sequenceByEach(func(x *pgindex.Index) iter.Seq2[index.PlaceOf, error] { return x.Places(ctx, rows) }, x.scrubber, x.operator, x.pruner)
}

// sequenceByEach reads a sequence as each of some roles, and returns that of the last one.
func sequenceByEach[T any](call func(*pgindex.Index) iter.Seq2[T, error], roles ...*pgindex.Index) iter.Seq2[T, error] {
	last := len(roles) - 1
	for _, x := range roles[:last] {
		for _, err := range call(x) {
			if err != nil {
				return func(yield func(T, error) bool) { yield(*new(T), err) }
			}
		}
	}
	return call(roles[last])
}

// Checks are an operator's, and make many calls of pruners and committers.
func (x *byRoles) Needed(ctx context.Context, without []backup.SnapshotID) (map[backup.ShardID][]backup.SnapshotNumber, error) {
	return byEach(func(x *pgindex.Index) (map[backup.ShardID][]backup.SnapshotNumber, error) {
		return x.Needed(ctx, without)
	}, x.operator, x.pruner)
}

func (x *byRoles) ChunkLists(ctx context.Context) iter.Seq2[backup.ChunkList, error] {
	return sequenceByEach(func(x *pgindex.Index) iter.Seq2[backup.ChunkList, error] { return x.ChunkLists(ctx) }, x.operator, x.pruner)
}

func (x *byRoles) Packs(ctx context.Context) iter.Seq2[index.Pack, error] {
	return sequenceByEach(func(x *pgindex.Index) iter.Seq2[index.Pack, error] { return x.Packs(ctx) }, x.operator, x.pruner)
}

func (x *byRoles) PacksToProve(ctx context.Context, rows []int64) ([]index.PackToProve, error) {
	return byEach(func(x *pgindex.Index) ([]index.PackToProve, error) { return x.PacksToProve(ctx, rows) }, x.operator, x.pruner)
}

func (x *byRoles) Frames(ctx context.Context) iter.Seq2[index.PackFrames, error] {
	return sequenceByEach(func(x *pgindex.Index) iter.Seq2[index.PackFrames, error] { return x.Frames(ctx) }, x.operator, x.pruner)
}

func (x *byRoles) Forgotten(ctx context.Context) ([]index.Forgotten, error) {
	return byEach(func(x *pgindex.Index) ([]index.Forgotten, error) { return x.Forgotten(ctx) }, x.operator, x.pruner)
}

func (x *byRoles) Unrecorded(ctx context.Context, only []backup.SnapshotID, limit int) ([]backup.Snapshot, error) {
	return byEach(func(x *pgindex.Index) ([]backup.Snapshot, error) { return x.Unrecorded(ctx, only, limit) }, x.operator, x.committer)
}

func (x *byRoles) Journals(ctx context.Context, shard backup.ShardID) ([]index.SnapshotJournal, error) {
	return byEach(func(x *pgindex.Index) ([]index.SnapshotJournal, error) { return x.Journals(ctx, shard) }, x.operator, x.all[0])
}

func (x *byRoles) LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	return x.operator.LocateReadable(ctx, ids)
}

func (x *byRoles) Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return x.operator.Pages(ctx, id, path)
}

func (x *byRoles) EachName(ctx context.Context, shard backup.ShardID, do func(page backup.PageName, names []string) error) error {
	return x.operator.EachName(ctx, shard, do)
}

func (x *byRoles) VersionsOf(ctx context.Context, shard backup.ShardID, pages []backup.PageName, do func(*index.PageSpan) error) error {
	return x.operator.VersionsOf(ctx, shard, pages, do)
}

func (x *byRoles) VersionsBelow(ctx context.Context, shard backup.ShardID, path string, only bool, do func(*index.PageSpan) error) error {
	return x.operator.VersionsBelow(ctx, shard, path, only, do)
}

func (x *byRoles) CollectNames(ctx context.Context, shard backup.ShardID) (bool, error) {
	return x.pruner.CollectNames(ctx, shard)
}

func (x *byRoles) ToReread(ctx context.Context) iter.Seq2[index.PageID, error] {
	return x.operator.ToReread(ctx)
}

// openAs opens the index as an operator whom the database knows by another name than the others.
func openAs(t testing.TB, p *Plan, dsn, name string) *pgindex.Index {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN
		IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '%[1]s') THEN CREATE ROLE %[1]s LOGIN PASSWORD '%[1]s'; END IF;
		GRANT %[2]s TO %[1]s; END $$`, name, p.databaseRole(Operator)))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(as(t, p, dsn, Operator))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, name)
	x, err := pgindex.Open(t.Context(), u.String(), pgindex.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// SetBrake is also called by the admin, who alone changes the number of operators.
func (x *byRoles) SetBrake(ctx context.Context, b index.Brake, by string) error {
	if by == "admin" {
		return x.all[0].SetBrake(ctx, b, by)
	}
	return x.operator.SetBrake(ctx, b, by)
}

// Brake is called by operators.
func (x *byRoles) Brake(ctx context.Context) (index.Brake, error) { return x.operator.Brake(ctx) }

// Stops is called by operators, by committers for policies and metrics, and by the pruner.
func (x *byRoles) Stops(ctx context.Context) ([]index.Stop, error) {
	return byEach(func(x *pgindex.Index) ([]index.Stop, error) { return x.Stops(ctx) }, x.committer, x.pruner, x.operator)
}

// deleting returns the role that deletes.
func (x *byRoles) deleting(d *index.Deletion) *pgindex.Index {
	switch {
	case d.Shard == 0:
		return x.pruner
	case d.By == "policy nightly":
		return x.committer
	}
	return x.operator
}

func (x *byRoles) MayDelete(ctx context.Context, d index.Deletion) error {
	return x.deleting(&d).MayDelete(ctx, d)
}

func (x *byRoles) Deleted(ctx context.Context, d index.Deletion, complete bool) error {
	return x.deleting(&d).Deleted(ctx, d, complete)
}

// Confirm and Reject are called by operators.
func (x *byRoles) Confirm(ctx context.Context, id int64, by, reason string) (index.Stop, error) {
	if !regexp.MustCompile("^[a-z]+$").MatchString(by) { // it is refused
		return x.operator.Confirm(ctx, id, by, reason)
	}
	return x.user(by).Confirm(ctx, id, by, reason)
}

func (x *byRoles) Reject(ctx context.Context, id int64, by, reason string) error {
	if !regexp.MustCompile("^[a-z]+$").MatchString(by) { // it is refused
		return x.operator.Reject(ctx, id, by, reason)
	}
	return x.user(by).Reject(ctx, id, by, reason)
}

// Lead and Resign are also called by the pruner, which leads in a role of its own.
func (x *byRoles) Lead(ctx context.Context, role, holder string, ttl time.Duration) (index.Term, bool, error) {
	if role == "pruner" {
		return x.pruner.Lead(ctx, role, holder, ttl)
	}
	return x.committer.Lead(ctx, role, holder, ttl)
}

func (x *byRoles) Resign(ctx context.Context, t index.Term) error {
	if t.Role == "pruner" {
		return x.pruner.Resign(ctx, t)
	}
	return x.committer.Resign(ctx, t)
}

// Forget is called by operators, and by committers for policies.
func (x *byRoles) Forget(ctx context.Context, id backup.SnapshotID, by, reason string) error {
	if id[0]%2 == 0 {
		return x.committer.Forget(ctx, id, by, reason)
	}
	return x.Forgetting.Forget(ctx, id, by, reason)
}

// ExpireLeases is called by a committer after a stream was lost.
func (x *byRoles) ExpireLeases(ctx context.Context, id backup.SnapshotID) error {
	return x.committer.ExpireLeases(ctx, id)
}

// InHand is also called by the keeper, which looks for work that is in no queue.
func (x *byRoles) InHand(ctx context.Context, now time.Time, limit int) ([]index.Work, error) {
	if work, err := x.committer.InHand(ctx, now, limit); err != nil {
		return work, err
	}
	return x.Catalog.InHand(ctx, now, limit)
}

// Holds is also called by committers, which forget what the rules of policies do not keep.
func (x *byRoles) HeldByPaths(ctx context.Context, shard backup.ShardID) (map[backup.SnapshotID]int64, error) {
	return byEach(func(x *pgindex.Index) (map[backup.SnapshotID]int64, error) { return x.HeldByPaths(ctx, shard) }, x.committer, x.pruner, x.operator)
}

func (x *byRoles) Holds(ctx context.Context) ([]index.Hold, error) {
	return byEach(func(x *pgindex.Index) ([]index.Hold, error) { return x.Holds(ctx) }, x.committer, x.pruner, x.operator)
}

// Snapshot, Snapshots, ListFilers and ListShards are also called by committers.
func (x *byRoles) Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error) {
	return byEach(func(x *pgindex.Index) (backup.Snapshot, error) { return x.Snapshot(ctx, id) }, x.committer, x.operator)
}

func (x *byRoles) Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error) {
	return byEach(func(x *pgindex.Index) ([]backup.Snapshot, error) { return x.Snapshots(ctx, f) }, x.committer, x.pruner, x.operator)
}

func (x *byRoles) ListFilers(ctx context.Context, f index.FilerFilter) ([]index.FilerStatus, error) {
	return byEach(func(x *pgindex.Index) ([]index.FilerStatus, error) { return x.ListFilers(ctx, f) }, x.committer, x.operator)
}

func (x *byRoles) ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error) {
	return byEach(func(x *pgindex.Index) ([]index.ShardStatus, error) { return x.ListShards(ctx, f) }, x.committer, x.pruner, x.operator)
}

func (x *byRoles) ListPolicies(ctx context.Context) ([]backup.Policy, error) {
	return byEach(func(x *pgindex.Index) ([]backup.Policy, error) { return x.ListPolicies(ctx) }, x.committer, x.pruner, x.operator)
}

// Problems is also called by committers, for commit records.
func (x *byRoles) Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error] {
	return sequenceByEach(func(x *pgindex.Index) iter.Seq2[backup.Problem, error] { return x.Problems(ctx, id) }, x.committer, x.operator)
}

// Move is called by the pruner, and by the admin with what a purge has sealed anew: no role purges.
func (x *byRoles) Move(ctx context.Context, t index.Term, m index.Move) error {
	if len(m.New) > 0 {
		return x.all[0].Move(ctx, t, m)
	}
	return x.pruner.Move(ctx, t, m)
}

// PurgeStates is called by operators.
func (x *byRoles) PurgeStates(ctx context.Context) ([]index.PurgeState, error) {
	return x.operator.PurgeStates(ctx)
}

// Each role that writes compares the index with its store. The pruner announces deletions, the
// committer reads that, and the pruner waits for the committer's catalog. The admin brings the
// index up to date, and accepts a loss.
func (x *byRoles) Unended(ctx context.Context, ids []backup.SnapshotID) (unended []backup.SnapshotID, err error) {
	for _, each := range []*pgindex.Index{x.committer, x.operator, x.pruner} {
		if unended, err = each.Unended(ctx, ids); err != nil {
			return nil, err
		}
	}
	return unended, nil
}

func (x *byRoles) LastCatalog(ctx context.Context) (last int64, err error) {
	for _, each := range []*pgindex.Index{x.committer, x.operator, x.pruner} {
		if last, err = each.LastCatalog(ctx); err != nil {
			return 0, err
		}
	}
	return last, nil
}

func (x *byRoles) Incarnation(ctx context.Context) (string, error) {
	return byEach(func(x *pgindex.Index) (string, error) { return x.Incarnation(ctx) }, x.committer, x.pruner, x.reader)
}

func (x *byRoles) AnnounceDeletion(ctx context.Context) (int64, error) {
	return x.pruner.AnnounceDeletion(ctx)
}

func (x *byRoles) MarkOld(ctx context.Context, catalog int64) error {
	return x.all[0].MarkOld(ctx, catalog)
}

func (x *byRoles) AcceptLoss(ctx context.Context, lost []index.LostSnapshot, catalog int64, by, reason string) error {
	return x.all[0].AcceptLoss(ctx, lost, catalog, by, reason)
}

func (x *byRoles) WrittenCatalog(ctx context.Context) (index.WrittenCatalog, error) {
	return byEach(func(x *pgindex.Index) (index.WrittenCatalog, error) { return x.WrittenCatalog(ctx) }, x.pruner, x.operator, x.committer)
}

// Clock, Repository and CheckSchema are called by all roles.
func (x *byRoles) Clock(ctx context.Context) (now time.Time, err error) {
	for _, each := range x.all {
		if now, err = each.Clock(ctx); err != nil {
			return now, err
		}
	}
	return now, nil
}

func (x *byRoles) Repository(ctx context.Context) (r backup.Repository, err error) {
	for _, each := range x.all {
		if r, err = each.Repository(ctx); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (x *byRoles) ParityGroups(ctx context.Context) iter.Seq2[index.ParityGroup, error] {
	return sequenceByEach(func(x *pgindex.Index) iter.Seq2[index.ParityGroup, error] { return x.ParityGroups(ctx) }, x.scrubber, x.pruner, x.operator)
}

func (x *byRoles) PlanParity(ctx context.Context, t index.Term, id backup.PackID) error {
	return x.pruner.PlanParity(ctx, t, id)
}

func (x *byRoles) ReplaceParity(ctx context.Context, t index.Term, made []index.ParityGroup, ended []backup.PackID) error {
	return x.pruner.ReplaceParity(ctx, t, made, ended)
}

func (x *byRoles) DropParity(ctx context.Context, t index.Term, groups []backup.PackID) error {
	return x.pruner.DropParity(ctx, t, groups)
}

// RecoverParity is called by the admin, who rebuilds.
func (x *byRoles) RecoverParity(ctx context.Context, groups []index.ParityGroup) error {
	return x.all[0].RecoverParity(ctx, groups)
}

func (x *byRoles) NotePutBack(ctx context.Context, from index.PutBackSource, objects int, bytes int64) error {
	return x.pruner.NotePutBack(ctx, from, objects, bytes)
}

func (x *byRoles) ScrubSettings(ctx context.Context) (index.ScrubSettings, error) {
	return x.committer.ScrubSettings(ctx) // for the catalog
}

func (x *byRoles) CheckSchema(ctx context.Context) (err error) {
	for _, each := range x.all {
		if err = each.CheckSchema(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (x *byRoles) Close() (err error) {
	for _, each := range x.all {
		if e := each.Close(); e != nil {
			err = e
		}
	}
	return err
}

var _ index.Index = (*byRoles)(nil)
