// Package commit is the committer: it assigns work, applies results to the index, and commits
// snapshots. It is the only writer of results.
//
// The files follow the data: dispatch.go claims open work of the index and sends it to walkers and
// readers, reports.go receives reports of their work in progress, admit.go checks their results,
// apply.go applies them, finish.go commits a snapshot when all its work is settled, and lease.go
// makes one committer do that. One committer leads: keeper.go maintains the queues, and governor.go
// limits the load on filers.
//
// # Recovery is the normal path
//
// There is no separate recovery code. Work is assigned because it is open in the index and has no
// lease: new work, and work whose worker died or whose message was lost, alike. A snapshot is
// committed because all its work is settled, whether that is noticed at once or later. Any number
// of committers do this concurrently; transactions of the index arbitrate.
//
// The leader does only the tasks that are better done by one committer than by all: streams, leases
// and loads. While no committer leads, for at most ten seconds, work continues.
//
// While the queues cannot be reached nothing is claimed: an outage of NATS costs no attempts.
//
// # Effects of a crash
//
//	before a claim is sent        the lease expires, and the work is claimed again
//	after a result is applied,    the message comes again, and is late: the work is settled
//	before its acknowledgement
//	before the segment is         objects that no snapshot names: orphans; another committer
//	complete                      writes its own once the lease of the commit has expired
//	before Commit                 as above
//	as the leader                 its term expires, and another leads
//	after Commit                  none: the snapshot is committed
package commit
