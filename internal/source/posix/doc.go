//go:build linux

// Package posix is the source that reads a mounted path of this Linux machine: a local file system,
// or one that the kernel has mounted from a filer.
//
// # Cost of a walk
//
// Cost is counted in system calls, because they are all that a walk spends:
//
//	directory   openat2, statx (its own), getdents64 per buffer, one more at the end, close
//	file        statx, relative to its directory
//	symlink     statx, readlinkat
//	read        openat, statx, preadv2, statx, close; flistxattr if the caller asks for it
//
// A subdirectory costs nothing in its parent, unless the listing does not contain the kinds of
// entries (DT_UNKNOWN). Entries are read with stat in the order of the listing and immediately
// after it, which lets an NFS client use READDIRPLUS. A file costs lseek calls if its blocks do not
// cover its size, because it then has holes. A file larger than 1 MiB costs one in any case,
// because its blocks may be behind its end, or may never have been written.
//
// System calls go through the scheduler (Syscall, not RawSyscall). That costs a few per cent of a
// warm walk. Without it, a filer that does not answer would hold a P for each call in progress and
// stop the process.
//
// # Nothing leads outside (I10)
//
// The root is opened once, following symlinks, because the operator chose it. Below it, every
// directory is opened by openat2 with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and
// RESOLVE_NO_MAGICLINKS, relative to the root's descriptor. A path longer than PATH_MAX is opened
// in pieces. If the kernel (before 5.6) or a sandbox does not support openat2, the path is opened
// component by component with O_NOFOLLOW. A file is opened by name with O_NOFOLLOW, relative to its
// directory's descriptor, and is used only if the descriptor is then that of a regular file.
//
// # The intended tree (I13)
//
// A root is identified by the type of its file system, the file system's id if that is permanent,
// its inode and its birth time. Check compares the open root with the one that is now at its path,
// and their devices: two statx (AT_STATX_FORCE_SYNC), two fstatfs, one open and one close. It does
// not compare with the attributes that the root had when it was opened, because the inode numbers
// of some file servers change.
//
// A file system begins at a directory that statx marks (STATX_ATTR_MOUNT_ROOT, Linux 5.8), and at a
// subvolume of btrfs. On older kernels it begins at a directory whose device differs from that of
// its parent, which costs one more statx for each directory that is not on the root's device.
//
// # Source snapshots
//
// The URL of a source snapshot is that of the tree in which it was found, with a query: the path
// below the tree's root, and inode, mtime and ctime of the snapshot's own root. The path is opened
// like all others, through no symlink. Open and Check compare the three attributes with those that
// the file server reports (AT_STATX_FORCE_SYNC); Check does so both through the descriptor and by
// the path, with two statx and two opens. A file server changes none of them while the snapshot
// exists. If a rotation renames directories (rsnapshot), it changes the ctime, and another snapshot
// gets the path: the snapshot that was being read has expired.
//
// # The page cache
//
// Reads use RWF_DONTCACHE if the kernel (6.14) and the file system support it: pages that a read
// brings in are dropped after it, and pages that were resident stay. Support is remembered per
// device. Otherwise, a guard determines before the first read which pages are resident (cachestat,
// or mincore before 6.5), and drops the others behind the reader. A process that may not query
// residency (not the owner, no capability) drops nothing.
//
// # Errors
//
//	the root: missing / not a directory / no permission / any other error
//	                        backup.ErrNotFound / backup.ErrInvalid / fs.ErrPermission /
//	                        backup.ErrUnavailable
//	another root is at the path: unmounted, or mounted over
//	                        Check: source.OtherTreeError
//	the root no longer exists
//	                        Check: backup.ErrUnavailable
//	a source snapshot no longer exists, or another is at its path
//	                        Open, Check: source.ErrExpired
//	no source snapshot matches
//	                        Resolve: backup.ErrNotFound
//	a component became a symlink
//	                        OpenDirectory: backup.ErrOutside; nothing behind it is read
//	a directory vanished    OpenDirectory, Read: fs.ErrNotExist
//	a directory became a file
//	                        OpenDirectory: syscall.ENOTDIR
//	a directory permits stat, but not listing
//	                        OpenDirectory succeeds, Read fails
//	an entry vanished between getdents64 and statx
//	                        left out; its problem is fs.ErrNotExist
//	a file became something else before OpenFile
//	                        source.ErrReplaced; fs.ErrNotExist if it no longer exists
//	the server forgot the descriptor (ESTALE)
//	                        source.ErrStale
//	a file grew or shrank during a read
//	                        the existing data is read; the caller compares Stat before and after
//	extended attributes changed during a read
//	                        read again a few times, then an error
//
// Errors that are not in this table wrap the syscall.Errno.
package posix
