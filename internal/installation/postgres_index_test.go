package installation

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testtarget"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/committer/schedule"
)

// Each method of the index is called by a role that uses it, throughout the conformance suite of
// the port. This detects each privilege that a role lacks.
func TestIndexByRoles(t *testing.T) {
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
	var databases atomic.Int64
	fresh := func(t testing.TB) indextest.Database {
		p := testPlan(t.TempDir())
		p.Postgres.Name = fmt.Sprint("roles_", databases.Add(1))
		runRoles(t, &p, cluster.DSN())
		owner, err := sql.Open("pgx", as(t, &p, cluster.DSN(), Admin))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = owner.Close() }) // there are no writes by then
		return indextest.Database{Open: func() index.Index { return openByRoles(t, &p, cluster.DSN()) }, SQL: owner, UUIDs: true}
	}
	indextest.Run(t, fresh, fresh)
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

// byRoles is an index with a connection per role. A method that two roles use is ambiguous and does
// not compile, so it is defined below, and calls both.
type byRoles struct {
	index.Admin
	index.Catalog
	index.Walking
	index.Dedup
	committing
	committer *pgindex.Index
	all       []*pgindex.Index
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
	admin, committer, walker, reader, operator := open(Admin), open(Committer), open(Walker), open(Reader), open(Operator)
	return &byRoles{
		admin, operator, walker, reader, committer, committer, []*pgindex.Index{admin, committer, walker, reader, operator},
	}
}

// ExpireLeases is called by a committer after a stream was lost.
func (x *byRoles) ExpireLeases(ctx context.Context, id backup.SnapshotID) error {
	return x.committer.ExpireLeases(ctx, id)
}

// Snapshot, Snapshots, ListFilers and ListShards are also called by committers.
func (x *byRoles) Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error) {
	if s, err := x.committer.Snapshot(ctx, id); err != nil {
		return s, err
	}
	return x.Catalog.Snapshot(ctx, id)
}

func (x *byRoles) Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error) {
	if s, err := x.committer.Snapshots(ctx, f); err != nil {
		return s, err
	}
	return x.Catalog.Snapshots(ctx, f)
}

func (x *byRoles) ListFilers(ctx context.Context, f index.FilerFilter) ([]index.FilerStatus, error) {
	if list, err := x.committer.ListFilers(ctx, f); err != nil {
		return list, err
	}
	return x.Catalog.ListFilers(ctx, f)
}

func (x *byRoles) ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error) {
	if list, err := x.committer.ListShards(ctx, f); err != nil {
		return list, err
	}
	return x.Catalog.ListShards(ctx, f)
}

func (x *byRoles) ListPolicies(ctx context.Context) ([]backup.Policy, error) {
	if list, err := x.committer.ListPolicies(ctx); err != nil {
		return list, err
	}
	return x.Catalog.ListPolicies(ctx)
}

// Problems is also called by committers, for commit records.
func (x *byRoles) Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error] {
	for _, err := range x.committer.Problems(ctx, id) {
		if err != nil {
			return func(yield func(backup.Problem, error) bool) { yield(backup.Problem{}, err) }
		}
	}
	return x.Catalog.Problems(ctx, id)
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
