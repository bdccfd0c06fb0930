package dump

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// POSIX ACLs as Linux has them in extended attributes: a version, and 8 bytes for each entry.
const (
	aclVersion    = 2
	aclEntryBytes = 8
)

// aclTags are the kinds of entries, and whether they have an id.
var aclTags = map[uint16]struct {
	name  string
	hasID bool
}{
	0x01: {"user", false}, 0x02: {"user", true}, 0x04: {"group", false}, 0x08: {"group", true}, 0x10: {"mask", false}, 0x20: {"other", false},
}

// aclText returns an ACL in the text form of POSIX 1003.1e draft 17, with numbers instead of names.
func aclText(value []byte) (string, error) {
	if len(value) < 4 || (len(value)-4)%aclEntryBytes != 0 || binary.LittleEndian.Uint32(value) != aclVersion {
		return "", fmt.Errorf("ACL of %d bytes: %w", len(value), backup.ErrCorrupt)
	}
	var b strings.Builder
	for rest := value[4:]; len(rest) > 0; rest = rest[aclEntryBytes:] {
		tag, ok := aclTags[binary.LittleEndian.Uint16(rest)]
		rights := binary.LittleEndian.Uint16(rest[2:])
		if !ok || rights > 7 {
			return "", fmt.Errorf("entry of an ACL: %w", backup.ErrCorrupt)
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(tag.name + ":")
		if tag.hasID {
			fmt.Fprintf(&b, "%d", binary.LittleEndian.Uint32(rest[4:]))
		}
		b.WriteByte(':')
		for i, letter := range []byte("rwx") {
			if rights&(4>>i) == 0 {
				letter = '-'
			}
			b.WriteByte(letter)
		}
	}
	return b.String(), nil
}
