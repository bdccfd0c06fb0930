package walk

import (
	"context"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A damagedIndex returns corrupt bytes for the pages of a directory.
type damagedIndex struct {
	index.Walking
	path string
}

func (x damagedIndex) Listings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName) ([][]byte, error) {
	listings, err := x.Walking.Listings(ctx, shard, base, pages)
	for i := range listings {
		if pages[i].Path == x.path {
			listings[i] = []byte("no listing")
		}
	}
	return listings, err
}

// A damaged page is rewritten, and removed subdirectories that it listed are found nevertheless.
// That is reported once per page.
func TestDamagedPage(t *testing.T) {
	inMemoryAndSpilled(t, func(t *testing.T, spillEntries int) {
		f := newFixture(t, treetest.Tree{
			"d/a": treetest.File("a"), "d/b": treetest.File("b"), "d/gone/deep/file": treetest.File("x"), "d/gone2/file": treetest.File("x"),
			"d/stays/deep/file": treetest.File("x"), "dx/file": treetest.File("x"),
		})
		f.svc.spillEntries = spillEntries
		f.snapshot()
		f.remove("d/gone")
		f.remove("d/gone2")
		f.remove("d/b")
		whole := f.svc.index
		f.svc.index = damagedIndex{whole, "d"}
		w := f.snapshot()
		w.wantRemoved(t, "d/gone", "d/gone2")
		w.wantProblems(t, "d: compare")
		if got := w.wanted(t); !slices.Equal(got, []string{"d/a"}) {
			t.Errorf("to read: %q", got)
		}
		f.svc.index = whole
		f.wantTree(w)
		again := f.snapshot()
		again.wantProblems(t)
		f.wantTree(again)
	})
}
