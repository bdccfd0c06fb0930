// Package commit is the committer: it hands out work, applies results to the
// index, and commits snapshots. It is the only writer of results.
//
// The files follow the data: dispatch.go claims open work of the index and sends it
// to walkers and readers, reports.go hears what they have in hand, admit.go looks at what they answer, and apply.go
// applies it, finish.go commits a snapshot all of whose work is settled, and lease.go has one committer do that. One committer leads: keeper.go
// looks after the queues, and governor.go holds filers to what they can take.
//
// # Recovery is the normal path
//
// There is no code that recovers. Work is handed out because it is open in the
// index and nobody has a lease on it: new work, and work whose worker died or
// whose message was lost, alike. A snapshot is committed because all
// its work is settled, whether that was seen just now or is found later. Any
// number of committers do this at once; transactions of the index arbitrate.
//
// Only what is better done once than by all is for the leader: streams, leases and
// loads. While nobody leads, for ten seconds at most, work goes on.
//
// While the queues cannot be reached nothing is claimed: an outage of NATS
// costs no attempts.
//
// # What a crash leaves
//
//	before a claim is sent        the lease runs out, and the work is claimed again
//	after a result is applied,    the message comes again, and is late: the work is settled
//	before its acknowledgement
//	before the segment is whole   objects that no snapshot names: orphans; another committer writes its own
//	                              once the lease of the commit has run out
//	before Commit                 as above
//	as the leader                 its term runs out, and another leads
//	after Commit                  nothing: the snapshot is committed
package commit
