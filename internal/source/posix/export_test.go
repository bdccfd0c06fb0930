//go:build linux

package posix

import "github.com/bctl/bctl/internal/source"

// What tests switch off, to meet the ways that older kernels and other file
// systems take.

func DisableOpenat2(t source.Tree)   { t.(*tree).noOpenat2 = true }
func DisableMountRoot(t source.Tree) { t.(*tree).noMountRoot = true }
func DisableXattrat(t source.Tree)   { t.(*tree).noXattrat.Store(true) }
func DisableCachestat(t source.Tree) { t.(*tree).noCachestat.Store(true) }
func ReadInPieces(t source.Tree)     { t.(*tree).readFor = 0 }
func DisableDontcache(t source.Tree) { t.(*tree).cached.add(t.RootDevice()) }
