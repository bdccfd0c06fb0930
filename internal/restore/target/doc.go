// Package target is the directory that a restore writes into, and the only
// place where restore touches a file system.
//
// # Confinement (I10)
//
// A snapshot may be hostile, and so may whatever is at the target already.
// Nothing here acts outside the directory that Open was given:
//
//   - Directories are opened relative to the target's descriptor with
//     openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS),
//     or component by component with O_NOFOLLOW where the kernel has no openat2.
//   - Everything else is done relative to such a descriptor, with one name
//     that backup.CheckName has passed, and never through a symlink.
//   - What only a path can name (chmod of a fifo, xattrs of a symlink) goes
//     through an O_PATH descriptor and /proc/self/fd, which is the inode itself.
//
// # What a crash leaves
//
// A name that is free and whose content is one write gets the file directly:
// created with O_EXCL, for nobody else who may not have it in the end, with its
// mtime set last. Everything else is made under a temporary name (which tells
// the snapshot and the name) and renamed. So a file that is there under its
// name with its size and mtime is whole, as far as the kernel was still
// running; after a loss of power only its content can tell. The temporary name
// is the same when the restore is run again, which then replaces what the first
// run left.
//
// A directory that is new has mode 0700 until FinishDirectory; one that was
// there, and that its owner may not work in, has more rights than before until
// then, or until its caller gives it back what Made.Before has. A target that Open has made
// has a mark in it until Unmark.
//
// # What fails
//
// Every call that changes the target can fail, and its error is returned or,
// where it is about an attribute, given to a Report: then the rest is done, and
// the file is finished without the attribute. The next restore sees that it is
// not there (Dir.Stat, Dir.HasXattrs).
package target
