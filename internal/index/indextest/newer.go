package indextest

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index"
)

// Newer tests that an index of a newer version is used if it declares itself compatible with this
// binary, and is refused otherwise.
func Newer(t *testing.T, db *sql.DB, open func() index.Index) {
	f := &fixture{TB: t, ctx: t.Context(), now: time.Date(2026, 3, 1, 2, 3, 4, 0, time.UTC), x: open()}
	_, version, err := f.x.Migrate(f.ctx)
	f.must(err)
	exec := func(query string, args ...any) {
		_, err := db.ExecContext(f.ctx, query, args...)
		f.must(err)
	}
	apply := func(version int64) {
		exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)", version)
	}
	declare := func(version, oldest int64) {
		exec("INSERT INTO schema_versions (version, oldest) VALUES ($1, $2)", version, oldest)
	}
	refused := func(says string) {
		t.Helper()
		x := open() // one that starts, and one that is running
		_, _, err := x.Migrate(f.ctx)
		for _, err := range []error{err, x.CheckSchema(f.ctx), f.x.CheckSchema(f.ctx)} {
			if !errors.Is(err, index.ErrSchema) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "bctl migrate") {
				t.Fatalf("error %v, want one of the schema that says %q", err, says)
			}
		}
	}

	apply(version + 1)
	refused("does not say")

	exec("ALTER TABLE shards ADD COLUMN of_the_next_version bigint NOT NULL DEFAULT 7")
	declare(version+1, version)
	f.x = open()
	f.must(f.x.CheckSchema(f.ctx))
	if from, to, err := f.x.Migrate(f.ctx); err != nil || from != version+1 || to != version+1 {
		t.Fatalf("migrated from %d to %d, %v; want nothing done to a newer index", from, to, err)
	}
	filer, err := f.x.EnsureFiler(f.ctx, "filer")
	f.must(err)
	f.shard, err = f.x.EnsureShard(f.ctx, filer.ID, "home", "posix:///home")
	f.must(err)
	f.commitPages()

	// What one version requires, all later versions require.
	apply(version + 2)
	declare(version+2, version+1)
	refused("use a newer bctl")
	apply(version + 3)
	declare(version+3, version)
	refused("use a newer bctl")
}
