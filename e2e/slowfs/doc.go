//go:build linux

// Package slowfs shows a directory through FUSE as a slow filer would. The latency of each request
// can be set. Many requests at a time take longer. The file system, or a part of it, can stop
// answering.
//
//	slow := slowfs.Latency{Stat: 2 * time.Millisecond}
//	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slow})
//	backup(filer.Dir)
//	filer.SetLatency(slowfs.Latency{})       // from the next request on
//	filer.Hang("export/home")                // requests below it block until Resume
//	filer.AddSnapshot("hourly.0", copied)    // .snapshot/hourly.0 exists
//	filer.Fail(slowfs.Getattr, "home/a", syscall.EIO)()
//	filer.Counters().Stats
//
// It resembles an NFS mount closely enough to measure the cost of a backup:
//
//   - The kernel caches no names and, by default, no attributes: each stat, and each component of a
//     path that is opened, is a request. There is no READDIRPLUS.
//   - Names, inodes, sizes, times, owners and modes are those of the directory;
//     changes of the directory show at once.
//   - A descriptor stays with its file. If the file is gone, or its snapshot has
//     expired, calls fail with ESTALE.
//   - A process that waits for a filer that hangs cannot be interrupted, but it
//     can be killed.
//   - It is read-only, and has no creation times.
//
// A stat by name is one LOOKUP, which is charged, and a GETATTR right after it,
// which is not: an NFS server has the attributes in its first answer.
//
// Mount needs /dev/fuse and the right to mount; without them the test is skipped. The process that
// mounts the file system also serves it. It may use the file system itself, but not in all of its
// threads at a time: it would wait for itself.
package slowfs
