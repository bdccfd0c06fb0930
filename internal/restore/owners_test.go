package restore

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// plus is Owners that adds to each number.
type plus struct{ user, group uint32 }

func (p plus) User(uid uint32) uint32  { return uid + p.user }
func (p plus) Group(gid uint32) uint32 { return gid + p.group }

// acl returns an ACL that names a user and a group.
func acl(user, group uint32) []byte {
	const none = 1<<32 - 1
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{{0x01, 6, none}, {0x02, 4, user}, {0x04, 4, none}, {0x08, 4, group}, {0x10, 6, none}, {0x20, 0, none}} {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

func TestOwnersInACLs(t *testing.T) {
	given := acl(1000, 2000)
	kept := slices.Clone(given)
	if got := mapACL(given, plus{1, 2}); !slices.Equal(got, acl(1001, 2002)) {
		t.Errorf("%x", got)
	}
	if !slices.Equal(given, kept) {
		t.Error("it was changed in place")
	}
	for _, odd := range [][]byte{nil, {2, 0}, given[:len(given)-1], append([]byte{3}, given[1:]...)} {
		if got := mapACL(odd, plus{1, 2}); !slices.Equal(got, odd) {
			t.Errorf("%x became %x", odd, got)
		}
	}
}

// Files, directories, symlinks and further names get other owners, whether they are new or kept,
// and so do the users that ACLs name, whether these are in the page or in a chunk.
func TestOwners(t *testing.T) {
	needRoot(t)
	f := newFixture(t)
	xattrs := []backup.Xattr{{Name: "system.posix_acl_access", Value: acl(1000, 2000)}}
	withACL, chunked := f.file("acl", "content"), f.file("chunked", "content")
	withACL.Mode, chunked.Mode = 0o660, 0o660
	withACL.Xattrs = xattrs
	chunked.XattrChunk = f.xattrs(xattrs...)
	link, again := f.file("one", "linked"), f.file("two", "linked")
	link.Nlink, again.Nlink, link.Inode, again.Inode = 2, 2, 9, 9
	f.directory("", withACL, chunked, link, again, symlink("symlink", "x"), subdirectory("d"))
	f.directory("d", f.file("below", "b"))
	target := filepath.Join(t.TempDir(), "target")
	for _, by := range []uint32{5, 7} {
		_, obs := f.restore(Options{Target: target, Owners: plus{by, by + 1}})
		obs.wantProblems(t)
		for _, name := range []string{"acl", "chunked", "one", "two", "symlink", "d", "d/below"} {
			if st := stat(t, filepath.Join(target, name)); st.Uid != by || st.Gid != by+1 {
				t.Errorf("%s belongs to %d:%d, not %d", name, st.Uid, st.Gid, by)
			}
		}
		for _, name := range []string{"acl", "chunked"} {
			wantXattr(t, filepath.Join(target, name), "system.posix_acl_access", string(acl(1000+by, 2001+by)))
		}
		wantGroups(t, target, "acl", "chunked", "d/below", "one two", "symlink")
	}
}
