package read

import (
	"testing"

	"github.com/bctl/bctl/internal/source/treetest"
)

// The names of a hardlinked file that are in one batch cost one read.
func TestHardlinkedFileIsReadOnce(t *testing.T) {
	const size = 10_000
	f := newFixture(t, treetest.Tree{
		"a/file":  treetest.File(random(1, size)),
		"a/other": treetest.HardLink("a/file"),
		"b/third": treetest.HardLink("a/file"),
		"b/alone": treetest.File(random(2, size)),
	})
	f.read(f.batchOf("a", "b"))
	f.commit()
	f.wantTree()
	if n := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t).Counts.ReadBytes; n != 2*size {
		t.Errorf("%d bytes were read, want %d", n, 2*size)
	}
}
