package prune_test

import (
	"testing"

	"github.com/bctl/bctl/internal/index/entindex"
)

// Versions are deleted page by page in some passes, in the order of snapshots in others, and by
// writing again what stays.
func TestMain(m *testing.M) {
	entindex.PageAtOnce, entindex.KeptPerDropped = 2, 1
	m.Run()
}
