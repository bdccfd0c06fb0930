package backup

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A Root identifies the root of a shard's tree, so that a different tree at the same place is
// detected: the directory below a missing mount, or a different mount. A zero field is unknown, and
// equals everything.
type Root struct {
	FileSystem string // its type: "ext4", "nfs"
	ID         string // the file system's own identifier, where that is stable
	Inode      uint64
	Born       Time // birth time of the directory
}

// IsZero reports whether nothing is known of the root.
func (r Root) IsZero() bool { return r == Root{} }

// IsUnique reports whether the root can be distinguished from every other root. Inodes count only
// if by includes them.
func (r Root) IsUnique(by Compare) bool {
	return r.ID != "" || !r.Born.IsZero() || r.Inode != 0 && by.OrAll()&CompareInode != 0
}

// Differs returns a description of how r and s differ, or an empty string if nothing shows that
// they are different roots. Inodes count only if by includes them.
func (r Root) Differs(s Root, by Compare) string {
	switch {
	case r.FileSystem != "" && s.FileSystem != "" && r.FileSystem != s.FileSystem:
		return fmt.Sprintf("the file system was %s, and is %s", r.FileSystem, s.FileSystem)
	case r.ID != "" && s.ID != "" && r.ID != s.ID:
		return fmt.Sprintf("the file system was %s, and is %s", r.ID, s.ID)
	case by.OrAll()&CompareInode != 0 && r.Inode != 0 && s.Inode != 0 && r.Inode != s.Inode:
		return fmt.Sprintf("the inode of the root was %d, and is %d", r.Inode, s.Inode)
	case !r.Born.IsZero() && !s.Born.IsZero() && r.Born != s.Born:
		return fmt.Sprintf("the root was made at %s, this one at %s", r.Born.Time().UTC().Format(time.RFC3339Nano), s.Born.Time().UTC().Format(time.RFC3339Nano))
	}
	return ""
}

// String returns the form that ParseRoot reads, such as "type=ext4 inode=2". Unknown fields are
// omitted. The form is ASCII: within texts, bytes that could end a field and bytes that are not
// ASCII are written as % and two hexadecimal digits.
func (r Root) String() string {
	var fields []string
	if r.FileSystem != "" {
		fields = append(fields, "type="+url.PathEscape(r.FileSystem))
	}
	if r.ID != "" {
		fields = append(fields, "id="+url.PathEscape(r.ID))
	}
	if r.Inode != 0 {
		fields = append(fields, "inode="+strconv.FormatUint(r.Inode, 10))
	}
	if !r.Born.IsZero() {
		fields = append(fields, fmt.Sprintf("born=%d.%09d", r.Born.Sec, r.Born.Nsec))
	}
	return strings.Join(fields, " ")
}

// ParseRoot is the inverse of String. It accepts untrusted input; errors wrap ErrInvalid.
func ParseRoot(text string) (r Root, err error) {
	const maxBytes = 4096
	bad := fmt.Errorf("root %.80q: %w", text, ErrInvalid)
	if len(text) > maxBytes {
		return Root{}, bad
	}
	for field := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "type":
			r.FileSystem, err = url.PathUnescape(value)
		case "id":
			r.ID, err = url.PathUnescape(value)
		case "inode":
			r.Inode, err = strconv.ParseUint(value, 10, 64)
		case "born":
			r.Born, err = parseTime(value)
		default:
			err = bad
		}
		if err != nil {
			return Root{}, bad
		}
	}
	return r, nil
}

// parseTime parses seconds and nine digits of nanoseconds.
func parseTime(text string) (t Time, err error) {
	sec, nsec, ok := strings.Cut(text, ".")
	if !ok || len(nsec) != 9 {
		return Time{}, ErrInvalid
	}
	if t.Sec, err = strconv.ParseInt(sec, 10, 64); err != nil {
		return Time{}, err
	}
	n, err := strconv.ParseUint(nsec, 10, 32)
	t.Nsec = uint32(n)
	return t, err
}
