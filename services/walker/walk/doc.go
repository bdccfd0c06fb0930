// Package walk is the walker: it takes walk tasks, lists and stats each entry of a slice of the
// tree exactly once, compares the result with the last snapshot, and sends the differences to the
// committer.
//
// The files follow the data:
//
//	service.go      takes tasks, until the walker is stopped
//	task.go         makes one attempt at a task: opens its tree, and ends its delivery; sets the
//	                task apart while its filer does not answer
//	slice.go        walks down from the task's directories within a budget
//	visit.go        processes one directory, in the steps that the next files have
//	list.go         lists it: entries that are selected, each with one stat
//	recognize.go    refuses a root that has nothing of the last snapshot's
//	marks.go        fetches the fingerprints of the last snapshot
//	compare.go      cuts the entries into pages, and keeps those whose fingerprints differ
//	last.go         fetches what the last snapshot has of the pages that differ
//	damaged.go      does without pages of the last snapshot that are damaged
//	mounts.go       keeps what was mounted, and is not mounted now
//	absent.go       settles directories that are missing or cannot be read
//	carry.go        carries the last good copy forward, of an entry or of a directory
//	differences.go  completes and encodes the pages that differ
//	spill.go        sorts a directory that is too large for memory, in a file
//	spilled.go      compares and adds such a directory, page by page
//	findings.go     makes messages, read batches and child tasks of what was found
//	survey.go       walks a tree and counts what it finds, for a dry run
//
// What findings.go sends goes to the committer (admit.go of package commit), which makes the read
// batches and child tasks. The batches go to package read.
//
// # Cost of an unchanged directory
//
// One open, one stat of the directory, one getdents per buffer, one stat per entry, one close. The
// fingerprints of its pages are equal, so no row is written, no message is sent, and no listing is
// decoded.
//
// # A filer that hangs
//
// A call that waits for a file server may stay in the kernel for ever, and no context ends it;
// package stall finds such calls. A task that has waited for StallAfter is stalled: its message is
// acknowledged, its slot goes to another task, and reports that it is waiting renew its lease, so
// that no other walker hangs on it as well. When the filer answers, the task continues normally.
// Slots per filer bound the directories that are read at a time, so directories that hang take no
// other filer's slot.
//
// The source's time to open and list directories is reported with the number of stats, for the
// governor. Waiting for a slot and the walker's own work are not included.
//
// # Stop
//
// A walker that is stopped takes nothing new. Slices end at the next directory, send their results,
// and leave the rest as child tasks. Tasks that have not ended within StopTimeout are handed back,
// and Run returns without the goroutines that hang.
//
// # What counts as unchanged
//
// Job.Compare names the attributes that must be equal, in addition to kind and size, for a file not
// to be read again; page fingerprints leave out the others. The risks of each choice:
//
//	mtime,ctime,inode  none: the default
//	mtime,ctime        none where a rename sets the ctime, as on Linux; for file servers whose
//	                inode numbers change (some FUSE and SMB servers). A directory that
//	                moved is read again
//	mtime,inode        misses a change of content that resets the mtime, or falls into the
//	                clock's granularity, and changes of only extended attributes or ACLs;
//	                for file servers where something else sets the ctime (other backups,
//	                replication, tiering)
//	mtime              the same, and misses a file replaced by one of equal size and mtime
//	ctime, ctime,inode none; ctime alone reads more than mtime where something else sets it
//
// Without ctime, a file whose mtime is in the future is read for each snapshot. The inode of an
// entry with several links is always part of the fingerprint, because it determines which names are
// one file.
//
// # Source snapshots
//
// The root task of a shard that names source snapshots finds the newest, walks it, and names it in
// the last part of its result; all other tasks receive that name. Before each message with results,
// the tree is checked: if the source snapshot is gone or replaced by another, the snapshot fails,
// so that files that vanished with it never look deleted. The directory that holds the source
// snapshots is left out if the root lists it.
//
// # Failure
//
// "When something fails" in docs/architecture.md describes failures of processes, filers and
// servers. In the tree,
//
//	an entry cannot be     it is a problem; the last snapshot's entry is carried forward, flagged.
//	read with stat         If there is none, only its name is listed, as a file without a copy
//	a page of the last     it is a problem; its files are read again, and the page is rewritten.
//	snapshot is damaged    Removed subdirectories are found among all that the index has below it
//	a directory is gone    it is left out, and its pages of the last snapshot are ended
//	a directory cannot     it is a problem; its content in the last snapshot is carried forward
//	be read
//	the root is gone       the snapshot fails with the reason
package walk
