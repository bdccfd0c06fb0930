// Package walk is the walker: it takes walk tasks, lists and stats every entry
// of a slice of the tree exactly once, compares what it finds with the last
// snapshot, and tells the committer what differs.
//
// The files follow the data: service.go takes a task, hold.go watches how its filer answers, slice.go walks down from
// its directories within a budget, directory.go lists one directory and cuts it into
// pages, marks.go has the fingerprints of the last snapshot, compare.go works on the
// pages that differ, result.go makes messages of it.
//
// # What an unchanged directory costs
//
// One open, one stat of its own, one getdents a buffer, one stat an entry, one
// close. Its pages' fingerprints are equal, so there is no row, no message and
// no listing decoded for it.
//
// # A filer that hangs
//
// A call that waits for a file server may be in the kernel for ever, and no context ends it. So each
// task counts its calls of the source, and notes when one was last answered; one watchdog looks at all of them. A task
// that has waited for StallAfter is stalled: its message is acknowledged, its place is
// another task's, and the reports that it is waited for keep its lease, so that no other walker
// gets stuck in it as well. When the filer answers it goes on as if nothing had been. What is read at a time is bounded
// by a lane for each filer: the directories that hang take no other filer's place.
//
// Calls of the source are timed, a Read as a whole: that and the number of
// stats is what the governor goes by. Waiting for the lane and our own work are not in it.
//
// # Stop
//
// A walker that is told to stop takes nothing new. Slices end at the next directory, send what they have, and leave
// the rest as child tasks. What has not ended within StopTimeout is handed back, and Run returns
// without the goroutines that hang.
//
// # What counts as unchanged
//
// Job.Compare names what must be equal for a file not to be read again, beside
// kind and size; pages' fingerprints leave out the rest. What each choice risks:
//
//	mtime,ctime,inode  nothing: the default
//	mtime,ctime        nothing where a rename sets the ctime, as Linux does; for file servers whose inode
//	                   numbers change (some FUSE and SMB servers). A directory that moved is read again
//	mtime,inode        a change of content that puts the mtime back, or falls into the clock's grain, is
//	                   not seen, nor is one of extended attributes and ACLs alone; for file servers where something
//	                   else sets the ctime (other backups, replication, tiering)
//	mtime              the same, and a file that was replaced by another of its size and mtime
//	ctime, ctime,inode nothing; ctime alone has more to read than mtime where something else sets it
//
// Without ctime, a file whose mtime is in the future is read for each snapshot. The inode of an entry that has several links
// is in the fingerprint always, since it tells which names are one file.
//
// # Source snapshots
//
// The root task of a shard that names source snapshots finds the newest, walks that, and says in the last part of
// its result which it was; all others are told. Before each message that says what was seen, the
// tree is checked: where the source snapshot is gone, or another in its place, the snapshot fails, so that what
// vanished with it never looks deleted. The directory that holds the source snapshots is left out where the root lists it.
//
// # Failure
//
//	a walker dies          the message is delivered again when its time runs out, or the lease in
//	                       the index does: another attempt walks the same slice; nothing of the
//	                       first counts, or everything, if its last message had been sent
//	the filer hangs        the task is stalled, as above
//	a source snapshot      the snapshot fails, and says so
//	expires
//	index, NATS away       the task is handed back and tried again; where a part of a large result
//	                       has been sent, as another attempt, when the lease runs out
//	an entry cannot be     it is a problem; the last snapshot's entry is carried forward, flagged.
//	looked at              Where there is none, its name is listed alone, as of a file without copy
//	a page of the last     it is a problem; its files are read again, and the page is made anew. What is
//	snapshot is damaged    gone of its subdirectories is found among all that the index has below it
//	a directory is gone    it is left out, and what the last snapshot has of it is ended
//	a directory cannot     it is a problem; what the last snapshot has of it is carried forward
//	be read
//	the root is gone       the snapshot fails, and says why
package walk
