//go:build linux

package posix

import "github.com/bctl/bctl/internal/source"

// Tests switch these features off to take the code paths of older kernels and other file systems.

func DisableOpenat2(t source.Tree)   { t.(*tree).noOpenat2 = true }
func DisableMountRoot(t source.Tree) { t.(*tree).noMountRoot = true }
func DisableXattrat(t source.Tree)   { t.(*tree).noXattrat.Store(true) }
func DisableCachestat(t source.Tree) { t.(*tree).noCachestat.Store(true) }
func ReadInPieces(t source.Tree)     { t.(*tree).readFor = 0 }
func DisableDontcache(t source.Tree) { t.(*tree).cached.add(t.RootDevice()) }
