package restore

import (
	"encoding/binary"
	"slices"

	"github.com/bctl/bctl/internal/backup"
)

// Owners gives users and groups of the snapshot the numbers that they have at the target. It is
// called from any goroutine, and returns the same number each time.
type Owners interface {
	User(uid uint32) uint32
	Group(gid uint32) uint32
}

// mapOwners replaces the owner, the group, and those that the ACLs name.
func (o *Options) mapOwners(e *backup.Entry) {
	if o.Owners == nil {
		return
	}
	e.UID, e.GID = o.Owners.User(e.UID), o.Owners.Group(e.GID)
	o.mapACLs(e)
}

// mapACLs replaces the users and groups in POSIX ACLs. It changes no value in place, because
// entries share them.
func (o *Options) mapACLs(e *backup.Entry) {
	if o.Owners == nil {
		return
	}
	copied := false
	for i := range e.Xattrs {
		if x := &e.Xattrs[i]; x.Name != "system.posix_acl_access" && x.Name != "system.posix_acl_default" {
			continue
		}
		if !copied {
			e.Xattrs, copied = slices.Clone(e.Xattrs), true
		}
		e.Xattrs[i].Value = mapACL(e.Xattrs[i].Value, o.Owners)
	}
}

// mapACL returns an ACL in the form of linux/posix_acl_xattr.h with other users and groups: a
// version of 4 bytes, and entries of 8: tag, permissions and number, in little-endian. Anything
// else is returned as it is, and the kernel refuses it.
func mapACL(acl []byte, owners Owners) []byte {
	const (
		version, header, entry = 2, 4, 8
		user, group            = 0x02, 0x08
	)
	if len(acl) < header || (len(acl)-header)%entry != 0 || binary.LittleEndian.Uint32(acl) != version {
		return acl
	}
	acl = slices.Clone(acl)
	for at := header; at < len(acl); at += entry {
		id := acl[at+4 : at+entry]
		switch n := binary.LittleEndian.Uint32(id); binary.LittleEndian.Uint16(acl[at:]) {
		case user:
			binary.LittleEndian.PutUint32(id, owners.User(n))
		case group:
			binary.LittleEndian.PutUint32(id, owners.Group(n))
		}
	}
	return acl
}
