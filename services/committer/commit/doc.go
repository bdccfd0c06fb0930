// Package commit is the committer: it hands out work, applies results to the
// index, and commits snapshots. It is the only writer of results.
//
// The files follow the data: dispatch.go claims open work of the index and sends it
// to walkers and readers, apply.go applies what they answer, finish.go commits a snapshot all of whose work is
// settled.
//
// # Recovery is the normal path
//
// There is no code that recovers. Work is handed out because it is open in the
// index and nobody has a lease on it: new work, and work whose worker died or
// whose message was lost, alike. A snapshot is committed because all
// its work is settled, whether that was seen just now or is found later. Any
// number of committers do this at once; transactions of the index arbitrate.
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
//	before Commit                 as above
//	after Commit                  nothing: the snapshot is committed
package commit
