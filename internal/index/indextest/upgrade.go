package indextest

import (
	"database/sql"
	"io/fs"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Downgrade tests that each migration can be undone and applied again, that nothing is left when
// all are undone, and that an index can be created there again. tables returns the names of the
// existing tables.
func Downgrade(t *testing.T, dialect goose.Dialect, files fs.FS, db *sql.DB, tables func() []string, open func() index.Index) {
	f := &fixture{TB: t, ctx: t.Context(), now: time.Date(2026, 3, 1, 2, 3, 4, 0, time.UTC)}
	provider, err := goose.NewProvider(dialect, db, files, goose.WithDisableGlobalRegistry(true))
	f.must(err)
	for range provider.ListSources() {
		for _, step := range []func() error{
			func() error { _, err := provider.UpByOne(f.ctx); return err },
			func() error { _, err := provider.Down(f.ctx); return err },
			func() error { _, err := provider.UpByOne(f.ctx); return err },
		} {
			f.must(step())
		}
	}
	for range 2 {
		f.x = open()
		_, to, err := f.x.Migrate(f.ctx)
		f.must(err)
		sources := provider.ListSources()
		if want := sources[len(sources)-1].Version; to != want {
			t.Fatalf("migrated to %d, want %d", to, want)
		}
		f.must(f.x.CheckSchema(f.ctx))
		f.shard = f.newShard("filer", "home")
		s := f.walk(func(r *backup.SliceWalked) { r.Pages = []backup.PageVersion{pageOf("", "root")} })
		f.fail(s.ID, "")
		if s := f.commitPages(pageOf("", "root")); s.Number != 2 || s.Base != 0 {
			t.Fatalf("snapshot %d on %d, want 2 on none", s.Number, s.Base)
		}

		_, err = provider.DownTo(f.ctx, 0)
		f.must(err)
		f.wants(f.x.CheckSchema(f.ctx), index.ErrSchema)
		if left := tables(); len(left) != 1 || left[0] != "goose_db_version" {
			t.Fatalf("tables %q are left, want that of the migrations alone", left)
		}
		f.must(f.x.Close())
	}
}
