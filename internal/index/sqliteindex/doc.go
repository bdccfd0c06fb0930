// Package sqliteindex keeps the index in one SQLite file (with its -wal and -shm), for a repository
// on one machine. The methods of index.Index are in package entindex; this package is its Backend.
// Several processes may have the file open. SQLite's locks allow one writer at a time, and readers
// never wait.
//
// # Durability
//
// The file is in WAL mode. A commit appends to the log. "PRAGMA synchronous" of the writing
// connection decides whether it also waits for the disk: FULL waits, NORMAL does not. Outside of
// transactions, changing the setting costs nothing, so it is set before each one:
//
//	FULL    Commit (the commit point), BeginSnapshot, BeginDue, Fail, RequestCancel, SetBad,
//	        Condemn, Acquit, Deleting, CatalogWritten, and methods that create, change or remove
//	        filers, shards, policies and the repository
//	NORMAL  Apply, Recorded, claims, leases, leaders, loads, bindings and plans
//
// This is enough for the following reason. The log is one file, in the order of commits, and the
// checksum of each of its frames covers all frames before it. So a power failure can only remove
// its tail: the newest commits, never one from the middle, and never half of one. The sync of a
// FULL commit is an fsync of that file. So it also makes everything before it durable, from all
// processes. Before the log is copied into the database and restarted (a checkpoint), NORMAL syncs
// it as well, and the database after that. Under NORMAL, a power failure can therefore undo Apply
// only for a snapshot that was not committed yet: its tasks are open again and are repeated (I2),
// and packs that it had registered are orphans. Never lost are the content of a committed snapshot,
// the condemned state of a pack, and the begin and failure of a snapshot. A process that crashes
// loses nothing in either mode, because the log is in the kernel by then.
//
// # Failures
//
//	another process writes    wait 5 s, try again; backup.ErrUnavailable after about a minute
//	disk full                 backup.ErrUnavailable and syscall.ENOSPC; nothing was changed
//	read-only file system     backup.ErrUnavailable and syscall.EROFS
//	permission denied         fs.ErrPermission
//	I/O error                 backup.ErrUnavailable and syscall.EIO; nothing was changed
//	no database, or damaged   backup.ErrCorrupt
//
// Errors use the operating system's texts and name the file. They contain no SQLite result codes.
// OpenReadOnly opens an index for reading in all of these cases except the last two.
package sqliteindex
