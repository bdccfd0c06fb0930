// Package rebuild makes an index what the store describes: an empty one from nothing, and one that
// was restored from an older copy from what it has. Both are the same work, of which the second
// needs less.
//
//	commits/    which snapshots there are, how they ended, which segments are valid
//	catalog/    filers, shards, policies, forgotten snapshots, marks and holds
//	packs/      which chunks are where
//	segments/   the pages of the snapshots
//	parity/     which objects of packs have parity
//
// It needs an identity, and believes only what the repository's signer has signed (I17). Packs are
// not signed: a forged one adds places of chunks that are refused when they are read, and hides
// none. Nor are parity groups: a forged one can restore a lost pack only as another one, which is
// refused likewise.
//
// # Order
//
// Run first opens all commit records, then the newest catalog, and looks for segments without a
// record. It stores filers, shards and policies, puts back packs that are missing and that parity
// has, then registers all packs, and then goes through the snapshots of each shard. The pages of a
// snapshot are written before the snapshot becomes visible. Holds come after that. Only if nothing
// is lost, or if the loss is accepted, the index drops what the store does not show.
//
// # Chains
//
// A snapshot's pages are those of its base with the changes of its segment
// (docs/formats/journal.md). Only chains of needed snapshots are replayed: of those that are
// committed and not forgotten, and of the newest committed one. A chain begins at a checkpoint, so
// the cost is in proportion to what is kept, and not to the history. A checkpoint after the first
// one is compared with the pages so far, so that a page that did not change remains one version.
//
// The changes of a segment are prepared while earlier ones are written. The next segment waits for
// both.
//
// After each segment, the digest of all pages must be the one that the commit record has (I12).
// Otherwise the snapshot's changes are undone, and it is lost with those that are based on it, up
// to the next checkpoint. The others are not affected.
//
// # An index that has something already
//
// If all committed snapshots of a shard in the index have the content that the store's records give
// them, the shard is continued after the newest. If not, because a purge has amended records since,
// it is replayed from the beginning. Snapshots that were running are failed. Packs whose objects
// are gone are dropped.
//
// # What an interruption leaves
//
// Everything that the index has is complete, and it lacks the rest: it is still older than its
// store, and refuses writes (I16). Pages of a snapshot that is not visible are undone when Run is
// called again.
//
// # Memory
//
// About 1 kB per snapshot, the parts of one segment that are read ahead, three times changesAtOnce
// pages, and placesAtOnce places of chunks.
//
// # Files
//
//	rebuild.go   the order, the options and the result
//	records.go   opens commit records, and the catalog
//	segments.go  finds segments without a record
//	settings.go  stores filers, shards, policies and holds
//	packs.go     registers packs, and drops those that are gone
//	parity.go    finds the parity groups
//	chains.go    decides which snapshots of a shard are replayed
//	shard.go     recovers the snapshots of a shard
//	replay.go    applies a segment to the pages
//	lists.go     reads list chunks
//	removed.go   forgets the snapshots that are gone from the store
package rebuild
