// Package sqliteindex keeps the index in one SQLite file (and its -wal and
// -shm), for a repository on one machine. Several processes may have it open: SQLite's locks let
// one write at a time, and nobody wait to read.
//
// # Durability
//
// The file is in WAL mode. A commit appends to the log; whether it also waits for the disk is
// "PRAGMA synchronous" of the connection that writes: FULL waits, NORMAL does not. Changing it is free, outside of
// transactions, so it is set before each one:
//
//	FULL    Commit (the commit point), BeginSnapshot, Fail, CondemnPacks, what makes or sets filers, shards and the repository; RequestCancel
//	NORMAL  Apply, claims, leases, leaders and loads
//
// Why that is enough: the log is one file, in the order of commits, and each frame's
// checksum covers all before it. So a power cut can only take a tail of it: the
// newest commits, never one from the middle, and never half of one. The sync of a FULL commit is an fsync of that file, whoever wrote
// to it, so it makes everything before it durable too; and before the log is copied into the database and begun anew (a checkpoint),
// NORMAL syncs it as well, and the database after. A power cut under NORMAL can therefore undo Apply only for a
// snapshot that was not committed yet: its tasks are open again, and are done again (I2); packs that it had registered are orphans. What a committed
// snapshot names, what is condemned, and that a snapshot has begun or failed is never lost. A process that crashes
// loses nothing in either mode, because the log is in the kernel by then.
//
// # Failures
//
//	another process writes    wait 5 s, try again; backup.ErrUnavailable after about a minute
//	disk full                 backup.ErrUnavailable and syscall.ENOSPC; nothing was changed
//	read-only file system     backup.ErrUnavailable and syscall.EROFS
//	the user may not          fs.ErrPermission
//	I/O error                 backup.ErrUnavailable and syscall.EIO; nothing was changed
//	no database, or damaged   backup.ErrCorrupt
//
// Errors are in the words of the system and name the file; SQLite's result codes are in none.
// OpenReadOnly opens an index for reading in all of these cases but the last two.
package sqliteindex
