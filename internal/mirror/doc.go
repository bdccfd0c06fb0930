// Package mirror keeps a second copy of a repository in another store: the mirror. It needs no key
// and no index, only the two stores.
//
// # A pass
//
// Run makes one pass. Each object is read once from the store, proven, and put into the mirror
// under its own name. So the mirror is a store like any other: bctl restores from it, and rebuilds
// an index from it.
//
//	begin     the repository object, which never changes, must be the same in both
//	records   the commit records and index copies of the store are listed, but not yet copied
//	content   packs, keys and segments are listed and copied, in rounds, until nothing that was
//	          listed is gone when it is read
//	catalogs  are listed and copied
//	records   those of the first list are copied, if the store still has them
//	copies    so are the index copies
//	gone      what the store has no longer is noted as gone; nothing else happens to it
//	delete    what was gone for longer than Options.KeepDeleted is deleted, if the brake allows it
//	lock      the locks of what the store still has are extended
//
// # Order
//
// A record is copied only after the content that it refers to. The content of a listed record was
// in the store at that moment. If the pruner moves a chunk meanwhile, it puts the new pack before
// it deletes the old one. So the first round either finds the old pack, or a later round the new
// one. A record that was amended since is left to the next pass, because its segments may be gone.
// What the pruner deletes because it is forgotten is named in a catalog first, and catalogs are
// listed after the content and written before the records. So at every moment, also after kill -9,
// the mirror is a repository that can be restored.
//
// Deleting goes the other way: first what refers to others.
//
// # Proof
//
// Everything but packs is signed. Of a pack, headers, trailers and lengths are proven, and what the
// server's checksum says of its bytes; only an identity proves more. The mirror therefore notes the
// SHA-256 of each object that it has copied (sums). From then on, each change on either side is
// found by reading, and the sum says on which side it was.
//
// # What a crash leaves
//
//	objects without a note      the next pass reads them on both sides, compares them, and notes
//	                            them; it puts nothing again
//	notes without an object     it is copied again
//	a gone note without object  the next pass removes the note
//	a gone note for an object that the store has: likewise
//
// # Memory
//
// A pass takes about 300 bytes for each object of the mirror, and Options.Workers objects of up to
// 48 MiB.
package mirror
