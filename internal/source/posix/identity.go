//go:build linux

package posix

import (
	"context"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A fileSystem is what the magic number of a file system implies.
type fileSystem struct {
	name    string
	network bool // on another machine
	lasting bool // f_fsid is permanent, even on another device
}

var fileSystems = map[uint32]fileSystem{
	unix.EXT4_SUPER_MAGIC:      {"ext4", false, true}, // also ext2, ext3; f_fsid is derived from the UUID
	unix.XFS_SUPER_MAGIC:       {"xfs", false, false}, // f_fsid is the device
	unix.BTRFS_SUPER_MAGIC:     {"btrfs", false, false},
	unix.TMPFS_MAGIC:           {"tmpfs", false, false},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlay", false, false},
	unix.F2FS_SUPER_MAGIC:      {"f2fs", false, true},
	0x2fc12fc1:                 {"zfs", false, false},
	unix.NFS_SUPER_MAGIC:       {"nfs", true, false},
	unix.CIFS_SUPER_MAGIC:      {"cifs", true, false},
	unix.SMB2_SUPER_MAGIC:      {"cifs", true, false},
	unix.FUSE_SUPER_MAGIC:      {"fuse", true, false},
	unix.V9FS_MAGIC:            {"9p", true, false},
	unix.CEPH_SUPER_MAGIC:      {"ceph", true, false},
	unix.AFS_SUPER_MAGIC:       {"afs", true, false},
	0x0bd00bd0:                 {"lustre", true, false},
	0x47504653:                 {"gpfs", true, false},
	0x19830326:                 {"beegfs", true, false},
}

// identify sets the identity of the root that fd has open.
func (t *tree) identify(fd int) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	identity, network, err := identityOf(s, fd)
	if err != nil {
		return err
	}
	t.identity, t.network = identity, network
	t.device = s.device()
	return nil
}

// identityOf returns the attributes that distinguish the root of fd from any other. It leaves the
// current attributes, as the file server reports them, in s.st.
func identityOf(s *scratch, fd int) (root backup.Root, network bool, err error) {
	if errno := statx(fd, emptyName, unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, &s.st); errno != 0 {
		return root, false, asError(errno)
	}
	var st unix.Statfs_t
	for {
		if err = unix.Fstatfs(fd, &st); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return root, false, asStale(err)
	}
	known, ok := fileSystems[uint32(st.Type)]
	if !ok {
		known.name = "0x" + strconv.FormatUint(uint64(uint32(st.Type)), 16)
	}
	root = backup.Root{FileSystem: known.name, Inode: s.st.Ino}
	if id := st.Fsid.Val; known.lasting && id != [2]int32{} {
		root.ID = fmt.Sprintf("%08x%08x", uint32(id[0]), uint32(id[1]))
	}
	if s.st.Mask&unix.STATX_BTIME != 0 {
		root.Born = backup.Time{Sec: s.st.Btime.Sec, Nsec: s.st.Btime.Nsec}
	}
	return root, known.network, nil
}

// Check implements source.Tree. It compares the open root with the one at its path, both with their
// current attributes. It does not compare with the attributes from when the root was opened,
// because the inode numbers of some file servers change.
func (t *tree) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.snapshot != nil {
		return t.checkSnapshot()
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	was, err := t.openRootNow(s)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", t.path, err, backup.ErrUnavailable)
	}
	device := s.device()
	fd, err := openRoot(t.path)
	if err != nil {
		return fmt.Errorf("%s can no longer be opened: %w: %w", t.path, asStale(err), backup.ErrUnavailable)
	}
	defer unix.Close(fd)
	now, _, err := identityOf(s, fd)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", t.path, err, backup.ErrUnavailable)
	}
	why := was.Differs(now, backup.CompareAll)
	if why == "" && s.device() != device {
		why = "it is on another device than it was"
	}
	if why != "" {
		return &source.OtherTreeError{What: fmt.Sprintf("%s is not the tree that it was when it was opened: %s", t.path, why)}
	}
	return nil
}

// openRootNow identifies the open root, which the server may have forgotten. It leaves its current
// attributes in s.st.
func (t *tree) openRootNow(s *scratch) (backup.Root, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.root < 0 {
		return backup.Root{}, fs.ErrClosed
	}
	root, _, err := identityOf(s, t.root)
	return root, err
}
