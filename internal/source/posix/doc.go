//go:build linux

// Package posix is the source that reads a mounted path of this machine, on
// Linux: a local file system, or what the kernel has mounted from a filer.
//
// # What a walk costs
//
// Cost is counted in system calls, since they are all that there is to it:
//
//	directory   openat2, statx (its own), getdents64 a buffer, one more that says "end", close
//	file        statx, relative to its directory
//	symlink     statx, readlinkat
//	read        openat, statx, preadv2, statx, close; flistxattr where the caller asks
//
// A subdirectory costs nothing in its parent unless the file system does not
// say in the directory what is one (DT_UNKNOWN). Entries are stat'ed in the order and at
// the time they are listed, which lets an NFS client use READDIRPLUS. A file has lseek calls
// if its blocks do not cover its size: then it has holes. One that is larger than 1 MiB has one
// in any case, since its blocks may be behind its end, or never have been written.
//
// System calls go through the scheduler (Syscall, not RawSyscall): it costs
// a few per cent of a warm walk, and without it a filer that does not
// answer would hold a P for each call in flight and stop the process.
//
// # Nothing leads outside (I10)
//
// The root is opened once, following symlinks, since it is the operator who
// named it. Below it every directory is opened by openat2 with RESOLVE_BENEATH,
// RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS, relative to the root's
// descriptor; a path that PATH_MAX does not hold is opened in pieces, and where the kernel
// (before 5.6) or a sandbox has no openat2, component by component with O_NOFOLLOW. A file is opened by
// name relative to its directory's descriptor with O_NOFOLLOW, and is
// used only if the descriptor then is a regular file.
//
// # The tree that is meant (I13)
//
// A root is identified by the type of its file system, the file system's id
// where that lasts, its inode and its birth time. Check compares the root that
// is open with what is at its path now, and the devices of both: two statx
// (AT_STATX_FORCE_SYNC), two fstatfs, one open and one close. It does not compare
// with what the root was: there are file servers whose inode numbers change.
//
// A file system begins where statx says so (STATX_ATTR_MOUNT_ROOT, Linux 5.8),
// and at a subvolume of btrfs. On older kernels it begins where the device is
// another than that of the directory above, which costs one more statx for each
// directory that is not on the root's device.
//
// # Source snapshots
//
// The URL of a source snapshot is that of the tree that it was found in, with a query: the path below
// the tree's root, and inode, mtime and ctime of the snapshot's own root. The path is opened as all
// others are, through no symlink. Open and Check compare the three
// with what the file server says (AT_STATX_FORCE_SYNC), Check both through the
// descriptor and by the path: two statx and two opens. A file server changes none of them as long as the
// snapshot is there; where a rotation renames directories (rsnapshot), it changes the
// ctime, and moves the path to another: the snapshot that was being read has expired.
//
// # The page cache
//
// Reads carry RWF_DONTCACHE where kernel (6.14) and file system know it: pages that a
// read brings in go when it is done, pages that were there stay. The
// answer is remembered for each device. Elsewhere a guard asks before the first read which
// pages are resident (cachestat, or mincore before 6.5), and drops behind the reader those that were not. Whoever
// may not ask (not the owner, no capability) drops nothing.
//
// # What fails, and how
//
//	the root: missing / not a directory / no permission / anything else
//	                        backup.ErrNotFound / backup.ErrInvalid / fs.ErrPermission / backup.ErrUnavailable
//	the root is another by now, unmounted or mounted over
//	                        Check: source.OtherTreeError
//	the root is gone        Check: backup.ErrUnavailable
//	a source snapshot is gone, or another is at its path
//	                        Open, Check: source.ErrExpired
//	no source snapshot matches
//	                        Resolve: backup.ErrNotFound
//	a component became a symlink
//	                        OpenDirectory: backup.ErrOutside; nothing behind it is read
//	a directory vanished    OpenDirectory, Read: fs.ErrNotExist
//	a directory became a file
//	                        OpenDirectory: syscall.ENOTDIR
//	a directory may be looked at, but not be listed
//	                        OpenDirectory works, Read fails
//	an entry vanished between getdents64 and statx
//	                        left out; its problem is fs.ErrNotExist
//	a file became something else before OpenFile
//	                        source.ErrReplaced; fs.ErrNotExist if it is gone
//	the server forgot the descriptor (ESTALE)
//	                        source.ErrStale
//	a file grew or shrank while read
//	                        what is there is read; the caller compares Stat before and after
//	extended attributes changed while read
//	                        read again a few times, then an error
//
// Errors that are not in this table wrap the syscall.Errno.
package posix
