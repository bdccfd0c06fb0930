// Package rpc is a client of ONC RPC version 2 over TCP (RFC 5531), with AUTH_SYS.
//
// A Client calls the procedures of one program at one address. Any number of goroutines may call at
// once; their calls are in flight together, over one or more connections. Replies may come in any
// order.
//
// # Lost calls
//
// A call that is not answered within Options.Timeout, or whose connection fails, is sent again with
// the same xid, as a server's cache of duplicate requests requires. A connection that has delivered
// no reply for that time is replaced. Connections are made again with a back-off. If there is still
// no answer after Options.RetryFor, the call fails with ErrNoAnswer. Call reports whether a call
// was sent more than once: the server may have executed it twice, or may have executed it although
// the second execution failed.
//
// # Hostile servers
//
// A reply has at most the size that the caller of Call allows; nothing larger is allocated, and its
// connection is closed. Records may consist of any number of fragments. A reply with an unknown xid
// is discarded without being stored. A record that has begun must be complete within
// Options.Timeout.
//
// # Bounds
//
// Each call in flight belongs to a goroutine of the caller, and holds one request and one reply.
// Each connection has two goroutines, a queue of queueLen requests, and the reply that it is
// reading. Close ends all of them.
package rpc
