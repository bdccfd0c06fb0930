// Package drill proves that a snapshot can be restored. It restores a random sample of a snapshot's
// entries, and one whole directory, into a temporary directory, and compares what is there with the
// listings of the snapshot. The report is signed.
//
// The files follow the data:
//
//	drill.go    one drill: choose, restore, compare, report
//	choose.go   reads the listings once, and chooses entries and a directory by their hashes
//	place.go    the temporary directory: free space, and its removal
//	compare.go  compares restored entries with their listings
//	content.go  compares the content of files, chunk by chunk
//	holes.go    compares the holes of files
//	links.go    compares which names are one file
//	probe.go    finds out which attributes the file system and this user cannot have
//	source.go   compares with the files of the file server
//	report.go   the report: its form, its signature, and who may believe it
//
// # What is proven
//
// The restore is that of package restore, with all that it needs: the index, the store, an
// identity. Files are then read from the target again, and each chunk is compared with its keyed
// hash in the listing. Attributes are compared one by one. A difference is a failure, unless the
// target cannot have the attribute: an empty file there that is given the same one has not got it
// either. These are counted, by attribute.
//
// An entry that the snapshot does not hold as the file server had it (backup.Flawed) is compared
// with what the snapshot has, and counted. Of the attributes that a restore sets, all are compared.
// It cannot set ctimes, birth times and inode numbers: these are new.
//
// # What is chosen
//
// The choice depends on the seed, the paths and the sizes, and on nothing else: a drill can be
// repeated. Each entry that is not a directory has the same chance to be in the sample. The
// directory is the largest one around a random entry that does not exceed the maximum size; of a
// small shard, that is all of it.
package drill
