// Package commit is the committer: it assigns work, applies results to the index, and commits
// snapshots. It is the only writer of results.
//
// The files follow the data:
//
//	service.go     runs the loops of a committer, until it is stopped
//	churn.go       judges whether files look encrypted
//	dispatch.go    claims open work of the index, and sends it to walkers and readers
//	reports.go     receives reports of work in progress, and renews its leases
//	presence.go    reassigns the work of workers that are gone
//	cutoff.go      gives the work of workers that are not ready to others
//	admit.go       checks results, before they reach a transaction
//	apply.go       applies results, a batch of them per transaction
//	finish.go      commits a snapshot when all its work is settled
//	lease.go       keeps other committers from writing the same segment meanwhile
//	record.go      writes records of ended snapshots, and the catalog, to the store
//
// apply.go and finish.go call package entindex, which implements Index (apply.go and snapshots.go
// there). finish.go and record.go write objects of package journal.
//
// One committer leads:
//
//	keeper.go      maintains queues, leases and loads while it leads
//	stray.go       reassigns work whose committer died before it sent the messages
//	unreported.go  reassigns work whose worker died before it reported it
//	unseen.go      fails snapshots whose trees no worker sees
//	governor.go    limits the load on filers
//	succession.go  ends the term of a leader that is gone
//
// One file observes all of them:
//
//	observe.go     logs, measures and traces results, snapshots and the fleet
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
// While the queues cannot be reached nothing is claimed: an outage of NATS costs no attempts. "When
// something fails" in docs/architecture.md describes what a crash at each step leaves.
package commit
