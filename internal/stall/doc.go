// Package stall keeps filers that are slow, or do not answer, from delaying the work of others. A
// walker's task and a reader's batch are each a Work here.
//
// A call that waits for a file server may stay in the kernel for ever: no context ends it, and it
// cannot report itself. Each Work therefore notes when a call of its source began, and a Watch
// looks for calls that have no answer. The files are
//
//	watch.go   finds the work that has waited for its filer for too long, and what has its answer
//	source.go  notes each call of a source, a tree, a directory or a file, and times some
//	slots.go   bounds how much of the work of one filer is done at a time
//
// # What stalled means
//
// A Work is stalled if it has waited for longer than the Watch permits, and the filer has answered
// none of its calls in that time. A Work that waits for one of its filer's slots is stalled if no
// other Work of the filer gets answers either. Time that passes between calls does not count.
//
// When a Work stalls, its Owner gives back what others need; when the filer answers, the Owner
// takes it again, before the call returns. A bounded number of Works is stalled at a time; any
// other keeps what it has, so that in the end nothing more is begun.
//
// # Cost
//
// A call costs a few atomic operations: no allocation, no lock, and no look at the clock. The Watch
// counts ticks, eight in the time after which a Work is stalled, and a call notes the tick at which
// it began. A Watch that is late finds a stalled Work later, and never finds one that is not
// stalled.
//
// # Time of the filer
//
// Opening and listing a directory is timed (Took), and so is opening a file with its first read
// (Work.Opens): the governor of a filer's load uses both. Waiting for a slot and the work between
// calls are not included.
package stall
