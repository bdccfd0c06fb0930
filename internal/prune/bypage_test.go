package prune_test

import "github.com/bctl/bctl/internal/index/entindex"

// Versions are deleted page by page in some passes, and in the order of snapshots in others.
func init() { entindex.PageAtOnce = 2 }
