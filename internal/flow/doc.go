// Package flow is the map of bctl: every hop that data takes, once, in order,
// and the typed publishing and consuming of what is carried over it.
//
//	committer ── WalkTask ──────► walker     Walk     bctl.v1.walk.<site>
//	walker ───── SliceWalked ───► committer  Slices   bctl.v1.commit.slice
//	committer ── ReadBatch ─────► reader     Read     bctl.v1.read.<site>
//	reader ───── PackStored ────► committer  Packs    bctl.v1.commit.pack
//	reader ───── ListsStored ───► committer  Lists    bctl.v1.commit.list
//	reader ───── BatchStored ───► committer  Batches  bctl.v1.commit.batch
//	workers ──── Progress ──────► everyone            bctl.v1.progress (not kept)
//	services ◄── (presence) ───── committer           bctl.v1.present.<instance> (nobody answers)
//	services ◄── (ask) ────────── operator            bctl.v1.ask
//	services ─── Service ───────► operator, committer bctl.v1.service.<role>.<site> (not kept)
//	committer ── Roster ────────► operator            bctl.v1.roster (not kept)
//	workers ◄─── Drain ────────── operator            bctl.v1.drain.<instance> (not kept)
//
// To follow one file: services/walker/walk finds it, services/reader/read
// stores its content, services/committer/commit makes both part of the index.
//
// The three streams are work queues of JetStream, and they only spread work:
// the truth is in the index (I2). A message may be lost, come twice, late or
// out of order, and a stream may be deleted with all that is in it; work that was not
// settled when its lease in the index runs out is sent again, as a new attempt.
// Nothing here is relied on for correctness, only for speed.
//
// # Delivery
//
// Whoever takes a message gets a Delivery with it, and ends it: Ack when the
// work is done, Retry to have it delivered again after a delay, to anyone,
// RetryLater after one that grows with each failure, Drop
// when the message can never be handled, and that was recorded. Stalled gives its place
// to other work while it waits for its filer. Until then the server is told, three times in every ackWait, that the message is worked
// on, and does not deliver it again. A message that cannot be decoded is
// dropped and logged; the lease brings back the work that it was about. One that is for services of
// a newer version is handed back (RetryLater), for one of those may be there.
//
//	what fails                        what becomes of the message
//	handler's process dies            delivered to another once ackWait has passed
//	handler's connection is lost      the same; the client reconnects for ever, and asks again
//	acknowledgement is lost           delivered again; the index refuses the second result (I3)
//	filer does not answer             acknowledged once it has stalled: the lease holds the work
//	handler is not ready           it asks for none (Options.MayTake)
//	handler fails again and again     delivered five times, then acknowledged: the lease runs out
//	server restarts                   kept, unless power fails with it: then as a stream that is deleted
//	stream is deleted                 lost: EnsureStreams makes it again and says so; the leases bring the work back
//	queue is another repository's     nothing is taken and nothing handed out; Ready says so (owner.go)
//	message is another repository's   handed back, as one for newer services
//	nobody takes it                dropped by the server after WorkAge: its lease has run out
//	stream is full (maxQueued)        Publish fails with backup.ErrUnavailable; the sender tries again
//	consumer's ctx is done            what still comes is handed back; what is in hand is still the handler's to end
//
// A worker has one request for a message waiting at a time, which the server
// answers in their order: a burst is spread evenly over the workers that wait. A
// request that a server or a consumer's leader has taken with it is made again after nextWait.
//
// # Ownership
//
// Streams and consumers, the latter for each site, are made and repaired by
// one committer, the keeper (Conn.EnsureStreams); all others wait until they are there.
package flow
