// Package flow is the map of bctl: it lists each hop that data takes once, in order, and publishes
// and consumes the typed messages that the hops carry.
//
//	committer ── WalkTask ──────► walker     Walk     bctl.v1.walk.<site>
//	walker ───── SliceWalked ───► committer  Slices   bctl.v1.commit.slice
//	committer ── ReadBatch ─────► reader     Read     bctl.v1.read.<site>
//	reader ───── PackStored ────► committer  Packs    bctl.v1.commit.pack
//	reader ───── ListsStored ───► committer  Lists    bctl.v1.commit.list
//	reader ───── BatchStored ───► committer  Batches  bctl.v1.commit.batch
//	workers ──── Progress ──────► everyone            bctl.v1.progress (not stored)
//	services ◄── (presence) ───── committer           bctl.v1.present.<instance> (nobody answers)
//	services ◄── (ask) ────────── operator            bctl.v1.ask
//	services ─── Service ───────► operator, committer bctl.v1.service.<role>.<site> (not stored)
//	committer ── Roster ────────► operator            bctl.v1.roster (not stored)
//	workers ◄─── Drain ────────── operator            bctl.v1.drain.<instance> (not stored)
//
// To follow one file of 10 MiB through a backup, read the functions behind the arrows, in order,
// and in them what happens if nothing fails. Pass over the branches for errors, for filers that do
// not answer, and for special files, and take the functions in parentheses on trust. The file's
// name reaches the index first:
//
//	services/bctl/cli          parses bctl backup. On one machine, the command does all the work
//	                           (backUpOne). In a fleet, it begins the snapshot and follows it
//	                           (backUpInFleet)
//	services/bctl/embedded     begins the snapshot: the index inserts its row and the row of its
//	                           first walk task. Runs the services of a fleet in this process
//	                           (runServices)
//	                           → embedded.go: Backup
//	services/committer/commit  claims the task in the index, and sends it to a walker
//	                           → dispatch.go: handOutTasks, handOut
//	services/walker/walk       lists the file's directory, cuts it into pages, and compares their
//	                           fingerprints with the last snapshot's. It sends nothing of equal
//	                           pages, whose rows stay valid (package index)
//	                           → task.go: walk; visit.go: visit; compare.go: comparePage
//	                           in a page that differs, flags the changed files as Wanted, and adds
//	                           the page to a batch, which it sends with the result of the task
//	                           → differences.go: takeOver, addPages; findings.go: addToBatch
//	services/committer/commit  receives the result (receive), and passes it to the index
//	                           → apply.go: apply
//	internal/index/entindex    settles the task and inserts the batch, in one transaction
//	                           → apply.go: run, judgeSlice, accept
//	services/committer/commit  claims the batch, and sends it to a reader (handOutBatches)
//
// The file's bytes follow:
//
//	services/reader/read       opens and reads the file, through internal/source/posix
//	                           → batch.go: attempt; page.go: read; file.go: readFile, content
//	                           cuts it into about ten chunks, names them, and collects them in a
//	                           buffer. More than four chunks get a list chunk, which names them
//	                           → split.go: extent, finish; buffer.go: addChunk
//	                           compresses the chunks that are not stored yet
//	                           → store.go: storeBuffer, storeFrame
//	                           seals them into a pack. When nothing is left to read (flushLoop),
//	                           puts the pack into the store (internal/store/dirstore, s3store), full
//	                           or not
//	                           → packer.go: add, put; internal/pack/writer.go: Add
//	                           reports the batch when its packs are durable
//	                           → answer.go: answer
//	services/committer/commit  receives PackStored, ListsStored and BatchStored in the same way
//	internal/index/entindex    registers the pack, settles the batch, and puts the page's row
//	                           → packs.go: registerPacks; apply.go: judgeBatch
//	services/committer/commit  writes the segment to the store when all work is settled
//	                           (writeSegment)
//	                           → finish.go: finish, commit
//	internal/index/entindex    makes the snapshot visible: the commit point
//	                           → snapshots.go: Commit
//	services/committer/commit  writes the commit record to the store (writeRecord)
//
// The way back, bctl restore SNAPSHOT:FILE, needs no services:
//
//	services/bctl/cli          finds the snapshot and the file in the index
//	                           → restore.go: run
//	internal/restore           plans the file, and asks for its chunks: first for the list chunk,
//	                           then for those that it names
//	                           → restore.go: Restore; plan.go: plan, planEntry
//	                           → bundle.go: flush, gather
//	internal/fetch             finds the packs of the chunks, reads ranges of them from the store,
//	                           and opens, decompresses and verifies their frames
//	                           → fetch.go: Get, locate; pack.go: getPack, getRange, deliver
//	internal/restore           writes each chunk into the file, and finishes the file after the last
//	                           → file.go: Chunk, write, finish
//
// I1 to I19 are the invariants in docs/invariants.md.
//
// The three streams are work queues of JetStream, and they only distribute work: the index is
// authoritative (I2). A message may be lost, duplicated, delayed or reordered, and a stream may be
// deleted with its contents. Work that is not settled when its lease in the index expires is sent
// again, as a new attempt. Correctness does not depend on this package; only speed does.
//
// # Delivery
//
// A consumer receives each message with a Delivery, and ends it: Ack when the work is done; Retry
// to have the message delivered again after a delay, to any consumer; RetryLater for a delay that
// grows with each failure; Drop when the message can never be handled, and that was recorded.
// Stalled makes room for other work while the delivery waits for its filer. Until the delivery
// ends, it is reported to the server as in progress four times per ackWait, and the server does
// not deliver the message again. A message that cannot be decoded is dropped and logged; the lease
// brings its work back. A message for services of a newer version is handed back (RetryLater),
// because such a service may be running.
//
//	failure                           effect on the message
//	handler's process dies            delivered to another after ackWait, which is short for
//	                                  results; the keeper has work assigned again earlier
//	                                  (decisions 23 and 48)
//	handler's connection is lost      the same; the client reconnects, and asks again
//	acknowledgement is lost           delivered again; the index refuses the second result (I3)
//	filer does not answer             acknowledged once it has stalled: the lease holds the work
//	handler is not ready              it requests none (Options.MayTake)
//	handler fails repeatedly          delivered five times, then acknowledged: the lease expires
//	server restarts                   kept, unless power fails too: then as for a deleted stream
//	stream is deleted                 lost: EnsureStreams recreates and logs it; the leases bring
//	                                  the work back
//	queue is another repository's     nothing is taken or sent; Ready reports it (owner.go)
//	message is another repository's   handed back, as one for newer services
//	no consumer takes it              dropped by the server after WorkAge: its lease has expired
//	stream is full (maxQueued)        Publish fails with backup.ErrUnavailable; the sender retries
//	consumer's ctx is done            messages that still arrive are handed back; the handler
//	                                  still ends those in progress
//
// A worker has one request for a message waiting at a time. The server answers requests in order,
// so a burst is spread evenly over the waiting workers. A request that is lost with a server or a
// consumer's leader is repeated after nextWait.
//
// # Ownership
//
// One committer, the keeper, makes and repairs the streams and the consumers of each site
// (Conn.EnsureStreams). All other services wait until they exist.
//
// # Files
//
//	hops.go      the hops and their subjects
//	wire.go      the wire form of messages: jobs, pages and results
//	wirework.go  the wire form of reports and announcements
//	newer.go     hands back messages of newer versions
//	trace.go     carries the trace of a message in its header
//	conn.go      connects to NATS
//	access.go    the subjects that each role may use
//	rights.go    tests these permissions
//	owner.go     recognizes queues of other repositories
//	streams.go   makes and repairs streams and consumers
//	publish.go   sends a message
//	storing.go   notices that a server stores no message
//	consume.go   takes messages, as fast as they are handled
//	delivery.go  ends a message, or keeps it in progress
//	depth.go     counts the messages in the queues
//	served.go    finds out whether anybody takes the work of a site
//	reporter.go  reports work in progress
//	recent.go    what a worker did in the last minute
//	instance.go  describes a service
//	announce.go  publishes these descriptions, and drains workers
//	gather.go    requests and collects them
//	presence.go  finds out whether the process of a worker is connected
//	roster.go    remembers the services, and those that are gone
//	handback.go  what a worker has handed back
//	unseen.go    finds snapshots whose trees no worker sees
//	inspect.go   examines a server, for bctl doctor
package flow
