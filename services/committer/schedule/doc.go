// Package schedule begins snapshots as policies require. It runs in each committer; one of them
// leads, and only that one begins snapshots.
//
// # A tick
//
// Every ten seconds a scheduler requests or renews the term of the role "scheduler". The holder of
// the term also does so when a snapshot has begun or ended anywhere, which the index announces: an
// end makes a place free. The holder then does five steps, each of which starts from the state of the index at that moment:
//
//	bind    each filer gets the policy that its labels select; shards whose policy, or its
//	        revision, has changed lose their plans
//	unplan  plans that lie further in the future than any that is made now are dropped: a
//	        clock was ahead
//	plan    shards without a plan get one: when they are due, and until when they want a
//	        good snapshot
//	choose  of the shards that are due, whose policies are not paused and have a window now,
//	        those with the nearest deadlines, within the limits of running snapshots, which
//	        apply per site
//	begin   each, in a transaction of its own
//
// Only parsed schedules are remembered between ticks: changes of a policy, a filer or a shard take
// effect at the next tick.
//
// # One leader
//
// All times are of the database's clock: no machine's own clock moves a plan. A committer whose
// clock is far from the database's does not lead (package clock).
//
// Each transaction checks the term by its epoch and the database's clock. A scheduler that was
// paused, for however long and between any two statements, finds its term expired and changes
// nothing. In a term that continues, outdated reads do no harm: a plan is stored only if there is
// none, and a snapshot is begun only for the plan that the shard still has.
//
// # Effects of a crash
//
//	while binding or planning   some shards are planned, the others at the next tick
//	while beginning             some snapshots are begun; the others are still due
//	between ticks               no scheduler leads until the term has expired; shards that
//	                            became due meanwhile are still due
//
// The end of a snapshot, successful or not, drops the plan of its shard in the same transaction. So
// a shard is never due twice for one occurrence, a missed run is made up for once, and a backup
// made by an operator counts.
package schedule
