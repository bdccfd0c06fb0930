// Package schedule begins snapshots as policies require. It runs in each committer; one of them
// leads, and only that one begins snapshots.
//
// # A tick
//
// Every two seconds a scheduler requests or renews the term of the role "scheduler", also during a
// tick. A tick comes at the beginning of a term, every ten seconds, and when a snapshot has begun
// or ended anywhere, which the index announces: an end frees a slot. In a tick, the holder of the
// term does six steps, each of which starts from the state of the index at that moment:
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
//	forget  snapshots that the rules of their policies do not keep: of each shard after a new
//	        snapshot, after a change of its policy, and once a day
//
// Parsed schedules are remembered between ticks, and to which shards rules were applied: changes of
// a policy, a filer or a shard take effect at the next tick.
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
// If a scheduler dies, the shards that it has not planned or begun are planned and begun by the
// next one ("When something fails" in docs/architecture.md).
//
// The end of a snapshot, successful or not, drops the plan of its shard in the same transaction. So
// a shard is never due twice for one occurrence, a missed run is made up for once, and a backup
// made by an operator counts.
package schedule
