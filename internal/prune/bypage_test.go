package prune_test

import (
	"testing"

	"github.com/bctl/bctl/internal/index/entindex"
)

// Versions are deleted page by page in some passes, and in the order of snapshots in others.
func TestMain(m *testing.M) {
	entindex.PageAtOnce = 2
	m.Run()
}
