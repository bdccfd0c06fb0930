//go:build linux

// Package nfs is the source that reads the export of an NFS server, version 3, without a mount. The
// protocol is in package nfs3.
//
// A URL is nfs://host[:port]/path?option=value&…, with the path as the server has it. Without a
// port, the source asks the port mapper of the server. The options:
//
//	mountport=N          the port of the mount protocol; otherwise the port mapper is asked
//	connections=N        1 to 16, by default 2
//	uid=N gid=N groups=N,N
//	                     the user that is named to the server; by default that of this process
//	reserved=auto|yes|no connect from a port below 1024; auto: if this process may
//	timeout=15s          how long to wait before a call is sent again
//	retry=1m             how long to try before a call without an answer fails
//
// # Cost of a walk
//
//	directory   one READDIRPLUS for each page of up to 1 MiB; its attributes come with the first
//	file        nothing: its attributes come with the page
//	symlink     READLINK, up to 16 of a page in flight
//	read        one READ for up to 512 KiB, up to 8 in flight in one ReadAt; attributes come with it
//
// A server that leaves out attributes or handles costs a GETATTR or a LOOKUP for each entry. The
// handle of a subdirectory is kept when its directory is listed, so it is opened without a LOOKUP.
// The handle counts only if the entry ".." shows that the directory still has the same parent. If
// it does not count, or there is none, the path is looked up, component by component. OpenFile
// takes the handle from the first page of the directory, once, if no Read came between. Otherwise
// it costs a LOOKUP.
//
// Check mounts the path again. It costs EXPORT and MNT, a GETATTR, and a LOOKUP for each component
// below the export.
//
// # What is not there
//
// The protocol has no extended attributes and no ACLs (source.ErrNoXattrs), no birth times, no
// holes, and no times before 1970. A file system begins where the fsid changes. The server decides
// whether a client sees what is mounted below an export. Bind mounts on the server are not
// recognized.
//
// # Nothing leads outside (I10)
//
// The server never follows a symlink in LOOKUP, and no component of a path may be one. The path of
// the root may contain symlinks if the server resolves them.
//
// # Nothing counts as gone without a name (I13)
//
// Only the answer of LOOKUP that there is no such name means that an entry is gone. The same status
// of any other procedure, and a stale handle, are source.ErrStale: the path is looked up again. A
// server that does not answer, or refuses this machine, is backup.ErrUnavailable. A malformed
// answer, and a listing without an end, are syscall.EIO. A position in a directory that is no
// longer valid is source.ErrStale: its listing begins again.
//
// Check compares what is now at the path with the root that is open. If the handle differs, the old
// one must still be valid, and both must have the same fsid and file ID.
package nfs
