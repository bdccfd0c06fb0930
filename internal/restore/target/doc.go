// Package target is the directory that a restore writes into, and the only place where restore
// touches a file system.
//
// # Confinement (I10)
//
// A snapshot may be hostile, and so may the entries that exist at the target. Nothing here acts
// outside the directory that Open was given:
//
//   - Directories are opened relative to the target's descriptor with
//     openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS), or component by
//     component with O_NOFOLLOW if the kernel has no openat2.
//   - All other calls are relative to such a descriptor, with one name that backup.CheckName has
//     accepted, and never follow a symlink.
//   - Calls that take only a path (chmod of a fifo, xattrs of a symlink) go through an O_PATH
//     descriptor and /proc/self/fd, which is the inode itself.
//
// # State after a crash
//
// If a name is free and its content is one write, the file is created directly under that name:
// with O_EXCL, accessible to nobody who may not access it in the end, and with its mtime set last.
// Every other file is created under a temporary name, which encodes the snapshot and the name, and
// then renamed. A file that exists under its name with the right size and mtime is therefore
// complete, as long as the kernel kept running; after a loss of power only its content can prove
// that. A repeated restore uses the same temporary name, and so replaces what the first run left.
//
// A file that is changed in place has another mtime until its content is on the disk (inplace.go).
//
// A new directory has mode 0700 until FinishDirectory. An existing directory in which its owner may
// not work has additional rights until then, or until its caller restores what Made.Before holds. A
// target that Open has created contains a mark until Unmark.
//
// # Errors
//
// Every call that changes the target can fail. Its error is returned or, if it concerns an
// attribute, passed to a Report; in the latter case the remaining steps are done, and the file is
// finished without the attribute. The next restore notices that the attribute is missing (Dir.Stat,
// Dir.HasXattrs).
package target
