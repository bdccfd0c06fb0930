// Package journal is what the store keeps of the index, so that the store alone
// is enough to make the index again (I7), and so that a reader of the store can
// tell committed snapshots from others:
//
//	segment     what one snapshot added to and ended in the pages of its
//	            shard; or, as a checkpoint, all of its pages
//	commit      the record that says how a snapshot ended, what it consists of,
//	            and which attempt's segment holds
//	catalog     filers, shards and policies, whenever they have changed
//	index copy  the SQLite file of a repository on one machine
//
// All are packs (package pack) of kinds of their own: a first frame of JSON, the
// header, and further frames. All are sealed to the repository's recipients and
// signed by its committers, and none is believed without that signature (I17).
// docs/formats/journal.md describes the bytes.
package journal
