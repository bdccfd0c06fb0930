package sweep_test

import (
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/services/pruner/sweep"
)

// A pruner makes a pass first. When there is nothing to prune, it sweeps a section of the store,
// and then none until it is time to.
func TestSectionsBetweenPasses(t *testing.T) {
	ctx := t.Context()
	x, err := sqliteindex.Open(ctx, filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := dirstore.Create(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pruner := sweep.New(x, s, sweep.Options{Worker: "p"})
	for look, want := range []int{0, 1, 1} {
		if err := pruner.Look(ctx); err != nil {
			t.Fatal(err)
		}
		if section, err := x.NextSection(ctx); err != nil || section != want {
			t.Errorf("after look %d, section %d is next, %v; want %d", look, section, err, want)
		}
	}
}
