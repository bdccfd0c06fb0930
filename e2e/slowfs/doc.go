//go:build linux

// Package slowfs shows a directory through FUSE as a slow filer would: each
// request takes as long as one says, many at once take longer, and the whole of
// it, or a part, can stop answering.
//
//	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Stat: 2 * time.Millisecond}})
//	backup(filer.Dir)
//	filer.SetLatency(slowfs.Latency{})       // from the next request on
//	filer.Hang("export/home")                // what is below it blocks, until Resume
//	filer.AddSnapshot("hourly.0", copied)    // .snapshot/hourly.0 is there
//	filer.Fail(slowfs.Getattr, "home/a", syscall.EIO)()
//	filer.Counters().Stats
//
// It is as near to an NFS mount as is needed to find out what a backup costs:
//
//   - The kernel keeps no names and, unless told, no attributes: each stat, and
//     each part of a path that is opened, is a request. There is no READDIRPLUS.
//   - Names, inodes, sizes, times, owners and modes are those of the directory;
//     what is done behind its back shows at once.
//   - A descriptor stays with its file. Where that is gone, or its snapshot has
//     expired, it is ESTALE.
//   - A process that waits for a filer that hangs cannot be interrupted, but it
//     can be killed.
//   - It is read-only, and has no creation times.
//
// A stat by name is one LOOKUP, which is charged, and a GETATTR right after it,
// which is not: an NFS server has the attributes in its first answer.
//
// Mount needs /dev/fuse and the right to mount; without them the test is skipped.
// The file system is served by the process that mounts it. That may look at it,
// too, but one that did nothing else on all its threads would wait for itself.
package slowfs
