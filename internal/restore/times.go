package restore

import "github.com/bctl/bctl/internal/backup"

// coarseTimes are the units, in nanoseconds, in which some file systems store times: NTFS and CIFS,
// some NFS servers, and ext4 with inodes of 128 bytes.
var coarseTimes = []uint32{100, 1_000, 1_000_000, 1_000_000_000}

// sameMtime reports whether an existing entry has the mtime that a restore of e gives it. A file
// system with coarse times cuts off the rest. The ctime proves that it has such times: the kernel
// sets it, and on another file system it would have a rest, too.
func sameMtime(e, have *backup.Entry) bool {
	if e.Mtime == have.Mtime {
		return true
	}
	if e.Mtime.Sec != have.Mtime.Sec {
		return false
	}
	for _, unit := range coarseTimes {
		if have.Mtime.Nsec%unit == 0 && have.Ctime.Nsec%unit == 0 && e.Mtime.Nsec-e.Mtime.Nsec%unit == have.Mtime.Nsec {
			return true
		}
	}
	return false
}
