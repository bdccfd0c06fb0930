package cli

import (
	"fmt"
	"io"
	"io/fs"
	"os/user"
	"strconv"

	"github.com/bctl/bctl/internal/backup"
)

// vanishedText describes a directory that had vanished.
const vanishedText = "vanished before it could be read"

// A longList prints entries as ls -l does.
type longList struct {
	lines   alignedList
	numeric bool // owners and groups are numbers

	users, groups map[uint32]string // names that were looked up
}

func newLongList(out io.Writer, numeric bool) *longList {
	l := &longList{numeric: numeric, users: map[uint32]string{}, groups: map[uint32]string{}}
	l.lines = alignedList{out: out, gap: " ", right: l.isRight}
	return l
}

// add prints an entry, or keeps it to be aligned with the next ones.
func (l *longList) add(name string, e *backup.Entry) error {
	text := display(name)
	if e.Kind == backup.Symlink {
		text += " -> " + display(e.Target)
	}
	for _, f := range entryFlags {
		if e.Flags&f.flag != 0 && f.remark != "" && !e.HadVanished() {
			text += "  (" + f.remark + ")"
		}
	}
	if e.HadVanished() {
		text += "  (" + vanishedText + ")"
	}
	bytes := strconv.FormatInt(e.Size, 10)
	if e.Kind == backup.CharDev || e.Kind == backup.BlockDev {
		bytes = fmt.Sprintf("%d,%d", e.Major(), e.Minor())
	}
	return l.lines.add([]string{
		modeString(e), strconv.FormatUint(uint64(e.Nlink), 10), l.owner(e.UID), l.group(e.GID), bytes, zoned(e.Mtime.Time()), text,
	})
}

// flush prints the entries that are kept.
func (l *longList) flush() error { return l.lines.flush() }

// isRight reports whether a column has numbers.
func (l *longList) isRight(n int) bool {
	const links, owner, group, bytes = 1, 2, 3, 4
	return n == links || n == bytes || l.numeric && (n == owner || n == group)
}

// owner returns the name of a user, or the number if this machine has no user with it.
func (l *longList) owner(id uint32) string {
	return l.named(l.users, id, userName)
}

func (l *longList) group(id uint32) string {
	return l.named(l.groups, id, groupName)
}

func (l *longList) named(known map[uint32]string, id uint32, lookup func(number string) string) string {
	number := strconv.FormatUint(uint64(id), 10)
	if l.numeric {
		return number
	}
	name, ok := known[id]
	if !ok {
		name = number
		if found := lookup(number); found != "" {
			name = display(found)
		}
		known[id] = name
	}
	return name
}

// userName returns the name that this machine has for a user, or "".
func userName(number string) string {
	u, err := user.LookupId(number)
	if err != nil {
		return ""
	}
	return u.Username
}

// groupName is userName for a group.
func groupName(number string) string {
	g, err := user.LookupGroupId(number)
	if err != nil {
		return ""
	}
	return g.Name
}

// modeString returns the first column of ls -l.
func modeString(e *backup.Entry) string {
	kinds := map[backup.Kind]byte{
		backup.Directory: 'd', backup.Symlink: 'l', backup.FIFO: 'p', backup.Socket: 's', backup.CharDev: 'c', backup.BlockDev: 'b',
	}
	s := []byte(fs.FileMode(e.Mode & 0o777).String())
	if k, ok := kinds[e.Kind]; ok {
		s[0] = k
	}
	for _, bit := range []struct {
		mode   uint32
		at     int
		letter byte
	}{{0o4000, 3, 's'}, {0o2000, 6, 's'}, {0o1000, 9, 't'}} {
		if e.Mode&bit.mode == 0 {
			continue
		}
		if s[bit.at] != 'x' {
			bit.letter -= 'a' - 'A'
		}
		s[bit.at] = bit.letter
	}
	return string(s)
}
