// Package walk is the walker: it takes walk tasks, lists and stats every entry
// of a slice of the tree exactly once, compares what it finds with the last
// snapshot, and tells the committer what differs.
//
// The files follow the data: service.go takes a task, slice.go walks down from
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
// # Failure
//
//	a walker dies          the message is delivered again when its time runs out, or the lease in
//	                       the index does: another attempt walks the same slice; nothing of the
//	                       first counts, or everything, if its last message had been sent
//	index, NATS away       the task is handed back and tried again; where a part of a large result
//	                       has been sent, as another attempt, when the lease runs out
//	an entry cannot be     it is a problem; the last snapshot's entry is carried forward, flagged
//	looked at
//	a directory is gone    it is left out, and what the last snapshot has of it is ended
//	a directory cannot     it is a problem; what the last snapshot has of it is carried forward
//	be read
//	the root is gone       the snapshot fails, and says why
package walk
