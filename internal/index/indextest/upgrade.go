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

// ParityOfBefore tests that the parity groups of an index that had no proofs of them are undated
// after its upgrade, and not all due at one time.
func ParityOfBefore(t *testing.T, dialect goose.Dialect, files fs.FS, db *sql.DB, open func() index.Index) {
	const before = 24 // the last schema without proofs of parity
	f := &fixture{TB: t, ctx: t.Context(), now: time.Date(2026, 3, 1, 2, 3, 4, 0, time.UTC)}
	provider, err := goose.NewProvider(dialect, db, files, goose.WithDisableGlobalRegistry(true))
	f.must(err)
	f.x = open()
	_, _, err = f.x.Migrate(f.ctx)
	f.must(err)
	f.shard = f.newShard("filer", "home")
	s, _ := f.batchesOf("a")
	f.accept(index.Result{Pack: packOf(s, 1)})
	pruner, groups := f.lead("pruner", "first", time.Minute, true), make([]index.ParityGroup, 3)
	for i := range groups {
		groups[i] = index.ParityGroup{ID: backup.NewPackID(), State: index.ParityValid, Description: []byte{byte(i)}, Bytes: 100}
		f.must(f.x.PlanParity(f.ctx, pruner, groups[i].ID))
	}
	f.must(f.x.ReplaceParity(f.ctx, pruner, groups, nil))
	if p := f.scrubbed().Parity; p.Parts != 3 || p.Undated != 0 {
		t.Errorf("groups of this version: %+v", p)
	}
	_, err = provider.DownTo(f.ctx, before)
	f.must(err)
	_, err = provider.Up(f.ctx)
	f.must(err)
	if p := f.scrubbed().Parity; p.Parts != 3 || p.Undated != 3 || !p.Oldest.IsZero() {
		t.Errorf("groups of before: %+v", p)
	}
	times := 0
	f.must(db.QueryRowContext(f.ctx, "SELECT count(DISTINCT noted / 1000) FROM parity_groups").Scan(&times))
	if times != 3 {
		t.Errorf("3 groups are noted in %d milliseconds", times)
	}
	f.must(f.x.Close())
}
