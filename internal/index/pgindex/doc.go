// Package pgindex keeps the index in Postgres 14 or later. The methods of index.Index are in
// package entindex; this package is its Backend.
//
// Rows of the hot tables are copied (COPY) to temp tables, which each connection creates when it is
// opened. From there, one sorted statement moves them to the real tables, in the transaction in
// which ent changes the small tables. Sorted keys keep two committers from deadlocking. A pooler in
// transaction mode (pgbouncer) breaks this, because temp tables belong to a session: connect
// directly, or in session mode.
//
// Commits are as durable as the server's synchronous_commit makes them. The index needs the
// default, on.
//
// chunks is partitioned by the first digit of the id. The ids are hashes, so this is as even as any
// other hash, and a lookup of thousands of ids searches each partition for its own ids only.
package pgindex
