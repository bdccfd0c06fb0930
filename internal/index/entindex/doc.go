// Package entindex is what pgindex and sqliteindex have in common: the whole
// of index.Index, over a Backend. A Backend gives transactions, and
// does the bulk work on the hot tables (pages, chunks) in its own dialect; the small
// tables are ent's.
//
// # Rows are states
//
//	walk_tasks, read_batches   a row is open work; settling it deletes it, and
//	                           late results find nothing. lease_until in the
//	                           past (1970 where nobody ever had it): can be claimed.
//	                           Until then worker and path say who has it (none: it is
//	                           in a queue), and stalled since when it waits for its filer.
//	slice_parts                parts of a result whose last has not come
//	snapshots                  state, and the counters of announced and settled work (I4)
//	shards                     due: 0 where the scheduler has to plan it; a snapshot's end and another policy make it so
//	packs                      registered; condemned
//	chunks, chunk_copies       the first place of each chunk, and further ones; a chunk
//	                           that has copies has a first place
//	chunk_lists                what list chunks refer to: known for ever
//	interrupted_pages          what failed snapshots have left, until a commit of the shard
//
// # Apply
//
// One transaction, in this order: validate in memory; lock the snapshots, by id;
// register the packs and their chunks, and then lists; read the open work; lock the packs that
// batches rely on, by id, and see which lists are known; judge each result, in memory, in the order of the call; write in bulk. What
// a result is refused for is known before anything of it is written, so that results
// of one call do not disturb each other.
//
// Locks are always taken in the order leader, filer, shard, snapshots, packs, chunks, copies, lists, work, and in
// each table by key; only
// Commit and Fail write how the shard does after they have locked the snapshot, for which nobody who holds a shard waits. What
// claims and extends work passes locked rows by, so it waits for nobody but, a claim, for the
// claim of that kind before it: what it has counted must stay true. Where two transactions
// wait for each other all the same (two calls that register the same packs), the
// database ends one, and Update runs it again.
//
// # What a crash leaves
//
//	in Apply, Commit, Fail, BeginSnapshot   all of it or nothing
//	after Apply, before its acknowledgement the results come again: late, or registered already
//	between a part and its last             the parts, until the task is settled or the snapshot ends
//	after a claim, before its dispatch      a lease that runs out: the work is claimed again
//	after PackStored, before BatchStored    a registered pack that nothing relies on: garbage
package entindex
