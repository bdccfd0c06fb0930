// Package prune deletes what no snapshot needs: versions of pages, packs, and the journals of
// forgotten snapshots. Backups and restores continue meanwhile. It needs no lock, no clock and,
// except for Purge, no identity (I6, I15).
//
// # Order
//
// Run is one pass, in this order (prune.go):
//
//  1. It acquits the packs that an earlier pass left condemned, and finishes the deletions of that
//     pass. It removes list chunks that are in no pack from the index (DropLists).
//  2. It reads the fence: the numbers from which on new versions of pages may appear.
//  3. It marks the chunks to which needed versions refer (mark.go), and counts each pack's marked
//     chunks. Packs without any are candidates. If the pass would delete too large a share of the
//     stored bytes, it ends here until operators have confirmed the deletion (index.Braking).
//  4. It deletes unneeded versions of pages (journal.go), also those that refer to packs that stay,
//     and closes retired shards of which nothing can be read.
//  5. It condemns the candidates. From now on, no batch that relies on one is accepted.
//  6. It reads the references that have appeared since the fence. A batch that was accepted before
//     the condemnation is among them. It acquits the packs that they need.
//  7. It deletes the objects of the other candidates, then their rows in the index (delete.go).
//  8. If more than a share of what is stored is unused, in packs that are needed in part, it
//     condemns some of these, finds their needed frames as in steps 3 and 6, and copies the frames,
//     which stay sealed, into new objects (compact.go). The index knows the name of an object
//     before the store has the object. One transaction moves the chunks there, and then the old
//     packs are deleted.
//  9. If objects are locked in the store, it extends locks before step 4, and splits packs of which
//     a part is needed for longer (locks.go, split.go).
//     Before each deletion of objects, parity groups of which a member is going are made again for
//     the others (parity.go). At the end, objects without parity get groups, if that is wanted.
//  10. It deletes forgotten snapshots with their journals (journal.go), and catalogs that newer
//     ones have replaced (catalogs.go).
//
// A complete pass notes the state of the index as it was before. While the index has this state,
// another pass would find nothing (Idle). Run counts what it asks of the store (requests.go).
//
// If Options.Sweep is set, Run then sweeps the whole store (sweep.go). The service instead calls
// Sweep between passes, which sweeps one section of the store.
//
// ReadBacklog returns what waits for a pass, for operators (backlog.go).
//
// Purge deletes the chunks of a path that was removed from all snapshots (purge.go), or all that no
// snapshot needs (unneeded.go). Its order is that of step 8, but it opens packs with an identity,
// seals what is needed again, and leaves nothing of the old pack. It is the only part that needs a
// key.
//
// PutBack restores objects from parity (putback.go): the first part of a repair.
//
// Lose drops from the index what the store has lost (lose.go). It is the part of a repair (package
// repair) that changes packs.
//
// A pass that ends early leaves condemned packs, or rows of deleted ones. The next pass starts with
// these. Only the leading pruner makes a pass (lead.go): the transactions of steps 1, 5, 6, 7
// and 8 check its term.
//
// # Memory
//
// The marks are a hash table of 50 bits per chunk (set.go), which is as good as exact. If it would
// exceed half of the limit, they are a filter of 16 bits per chunk (filter.go). That may report a
// chunk that is not marked, and never misses one that is. If the filter would exceed the limit,
// too, the chunks are divided by their ids, and step 3 is done for each part of the chunks. If
// there is not enough memory for the chunks that step 6 finds, all candidates are acquitted, and
// the next pass marks these chunks.
//
// # Tests
//
// Each of these drives the transactions of the index, and compares everything that is kept with
// what is expected after each change. In the end, nothing else may remain.
//
// TestInterleavings explores nine small scenarios on both indexes (explore_test.go): the steps of a
// backup come between the calls of two passes, and one fault may strike: at each call that changes
// something, the process is killed after it, it fails, its answer is lost, or the process is paused
// before it while the second pass runs. Of two interleavings that differ only in the order of a
// call and a step that do not matter to each other, one is explored. make test-exhaustive explores
// all in which steps come between calls at up to two moments, or at one if a fault strikes: by an
// estimate (Knuth, 1975), some 20,000 for each index. It reports the exact number for each
// scenario. Other targets choose some at random, without these bounds.
//
// TestOrders takes and forgets four snapshots in each of 3,840 orders, on both indexes, and
// TestHistories makes long random histories with several passes at a time. TestRandomHistories in
// e2e does that with processes, kill -9, and a clock that moves.
package prune
