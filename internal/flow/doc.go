// Package flow is the map of bctl: every hop that data takes, once, in order,
// and the typed publishing and consuming of what is carried over it.
//
//	committer ── WalkTask ──────► walker     Walk     bctl.v1.walk
//	walker ───── SliceWalked ───► committer  Slices   bctl.v1.commit.slice
//	committer ── ReadBatch ─────► reader     Read     bctl.v1.read
//	reader ───── PackStored ────► committer  Packs    bctl.v1.commit.pack
//	reader ───── BatchStored ───► committer  Batches  bctl.v1.commit.batch
//	workers ──── Progress ──────► everyone            bctl.v1.progress (not kept)
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
// A handler that returns nil has its message acknowledged. ErrRetry (or any
// other error) has it delivered again after a delay, to anyone. ErrDrop ends it: the message
// can never be handled, and was recorded. A message that cannot be decoded is dropped
// and logged; the lease brings back the work that it was about. While
// a handler runs the server is told so, and does not deliver the message again.
//
// # Ownership
//
// Streams and consumers are made and repaired by committers
// (Conn.EnsureStreams); walkers and readers wait until they are there.
package flow
