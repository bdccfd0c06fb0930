// Package schedule begins snapshots as policies say. It runs in every committer;
// one of them leads, and it alone begins anything.
//
// # A tick
//
// Every ten seconds a scheduler asks for the term of the role "scheduler", or renews
// it. Who has it then does five things, each of which starts from what the index says at that moment:
//
//	bind    each filer gets the policy that its labels choose; shards whose policy, or
//	        revision of it, is another than before lose their plans
//	unplan  plans that lie further in the future than any that is made now are dropped: a clock was ahead
//	plan    shards without a plan get one: when they are due, and until when they want a
//	        good snapshot
//	choose  of the shards that are due, whose policies are not paused and have a window now, those with
//	        the nearest deadlines, within the limits of running snapshots, which each site has to itself
//	begin   each, in a transaction of its own
//
// Nothing is remembered from tick to tick, but for schedules that were parsed: what a policy, a filer or a shard
// is changed to holds from the next tick on.
//
// # One leader
//
// All times are of the database's clock: no machine's own clock moves a plan. A committer whose clock is
// far from the database's does not lead (package clock).
//
// Each transaction checks the term by its epoch and the database's clock. A scheduler that was paused, for
// however long and between whichever two statements, finds its term over and changes nothing. Nor does what it has read by then
// do harm in a term that goes on: a plan is stored only where there is none, and a snapshot begun only for
// the plan that the shard still has.
//
// # What a crash leaves
//
//	while binding or planning   some shards planned, the rest at the next tick
//	while beginning             some snapshots begun; the rest are still due
//	between ticks               nobody leads until the term has run out; what was due meanwhile is due still
//
// A snapshot that ends, in whatever way, drops the plan of its shard in the same transaction. So a shard
// is never due twice for one occurrence, a run that was missed is run once, and a backup that an operator makes counts.
package schedule
