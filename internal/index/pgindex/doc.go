// Package pgindex keeps the index in Postgres 14 or later.
//
// Rows of the hot tables are copied (COPY) to temp tables, which each connection
// makes when it is opened, and go from there to the real tables in one sorted
// statement, in the transaction in which ent changes the small tables. Sorted keys keep two
// committers from deadlocks. A pooler in transaction mode (pgbouncer) breaks this, because temp tables
// belong to a session: connect directly, or in session mode.
//
// Every commit is as durable as the server's synchronous_commit makes it; the
// index needs the default, on.
//
// chunks is partitioned by the first digit of the id, which is as even as any
// other hash of a hash, and lets a look-up of thousands of ids search each partition for
// its own ids only.
package pgindex
