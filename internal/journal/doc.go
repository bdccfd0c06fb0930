// Package journal implements the store's copy of the index. With it the index can be rebuilt from
// the store alone (I7), and a reader of the store can distinguish committed snapshots from others:
//
//	segment     the pages of its shard that one snapshot added and ended;
//	            or, as a checkpoint, all of its pages
//	commit      the record of how a snapshot ended, its content, and the
//	            attempt whose segment is valid
//	catalog     filers, shards, policies, marks and holds, written when they change
//	index copy  the SQLite file of a repository on one machine
//
// All are packs (package pack) of their own kinds: the first frame is the header in JSON, and
// further frames follow. All are sealed to the repository's recipients and signed by its
// committers, and none is trusted without that signature (I17). docs/formats/journal.md describes
// the bytes.
//
// # Files
//
//	object.go     seals and opens the objects of all four kinds
//	snapshot.go   describes a snapshot, in segments and records
//	segment.go    writes and reads segments
//	change.go     encodes the changes in a segment
//	commit.go     writes and reads commit records
//	catalog.go    writes and reads catalogs
//	hold.go       describes a hold in a catalog
//	settings.go   returns what catalogs and records describe
//	indexcopy.go  writes and reads copies of the index
package journal
