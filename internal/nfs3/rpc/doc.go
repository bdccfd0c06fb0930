// Package rpc is a client of ONC RPC version 2 over TCP (RFC 5531), with AUTH_SYS.
//
// A Client calls the procedures of one program at one address. Any number of goroutines may call at
// once. Their calls are in flight together, over one or more connections, and replies may come in
// any order.
//
// # Lost calls
//
// A call that is not answered within Options.Timeout, or whose connection fails, is sent again with
// the same xid, as a server's cache of duplicate requests requires. A connection that has delivered
// no reply for that time is replaced. Between attempts to connect there are growing pauses. If
// there is still no answer after Options.RetryFor, the call fails with ErrNoAnswer.
//
// Call reports whether a call was sent more than once. The server may then have executed it twice,
// and the first execution may have succeeded although the second one failed.
//
// # Hostile servers
//
// The caller of Call sets the largest size of a reply. For a larger one, nothing is allocated, and
// its connection is closed. Records may consist of any number of fragments. A reply with an unknown
// xid is discarded without being stored. A record that has begun must be complete within
// Options.Timeout.
//
// # Bounds
//
// Each call in flight belongs to a goroutine of the caller, and holds one request and one reply.
// Each connection has two goroutines, a queue of queueLen requests, and the reply that it is
// reading. Close ends all of them.
package rpc
