//go:build linux

package target

import (
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// Flags returns the inode flags of path, or of its directory, that prevent any change of path, as a
// suffix for an error message. It is "" if there are none, or if the file system does not
// report them.
func (r *Root) Flags(path string) string {
	parent, name := backup.Split(path)
	if path == "" {
		name = "."
	}
	d, err := r.Dir(parent)
	if err != nil {
		return ""
	}
	defer d.Release()
	for _, at := range []struct{ name, what string }{{name, "it"}, {".", "its directory"}} {
		var st unix.Statx_t
		if unix.Statx(d.fd, at.name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st) != nil {
			continue
		}
		switch {
		case st.Attributes&unix.STATX_ATTR_IMMUTABLE != 0:
			return ": " + at.what + " is immutable (chattr -i)"
		case st.Attributes&unix.STATX_ATTR_APPEND != 0:
			return ": " + at.what + " is append-only (chattr -a)"
		}
	}
	return ""
}
