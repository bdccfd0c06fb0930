package parity

import (
	"bytes"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// Limits of a group (docs/formats/parity.md).
const (
	MaxMembers = 240
	MaxParity  = 16
	// MaxMemberBytes is the length of the longest member: that of the longest object of packs.
	MaxMemberBytes = pack.MaxBytes
	// MaxDescriptionBytes is the length of the longest description.
	MaxDescriptionBytes = headerBytes + MaxMembers*memberBytes + MaxParity*digestBytes + digestBytes
	// MaxObjectBytes is the length of the longest parity object.
	MaxObjectBytes = MaxDescriptionBytes + MaxMemberBytes
)

const (
	magic       = "bctlprty"
	version     = 1
	headerBytes = 56
	memberBytes = 72
	digestBytes = 32
)

// A Digest is the BLAKE3-256 of bytes, without a key.
type Digest [digestBytes]byte

// DigestOf returns the digest of data.
func DigestOf(data []byte) Digest { return blake3.Sum256(data) }

// A Member is an object of packs, in a group.
type Member struct {
	Snapshot backup.SnapshotID
	Object   backup.PackID
	Bytes    int64
	Digest   Digest
}

// Name returns the name of the member in the store.
func (m *Member) Name() string { return store.PackName(m.Snapshot, m.Object) }

// A Group describes the objects of a group.
type Group struct {
	Repository backup.RepositoryID
	ID         backup.PackID
	Members    []Member
	Bodies     []Digest // of the parity objects, by number
}

// bodyBytes returns the length of each body.
func (g *Group) bodyBytes() int64 {
	longest := int64(0)
	for i := range g.Members {
		longest = max(longest, g.Members[i].Bytes)
	}
	return longest
}

// DescriptionBytes returns the length of the description of a group.
func DescriptionBytes(members, parity int) int64 {
	return headerBytes + int64(members)*memberBytes + int64(parity)*digestBytes + digestBytes
}

// ObjectBytes returns the length of each parity object.
func (g *Group) ObjectBytes() int64 {
	return DescriptionBytes(len(g.Members), len(g.Bodies)) + g.bodyBytes()
}

// Name returns the name of the parity object with a number.
func (g *Group) Name(number int) string { return store.ParityName(g.ID, number) }

// Describe returns the description of the group, as the parity object with a number has it.
func (g *Group) Describe(number int) []byte {
	b := make([]byte, 0, DescriptionBytes(len(g.Members), len(g.Bodies)))
	b = append(b, magic...)
	b = append(b, version, byte(number), byte(len(g.Bodies)), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(g.Members)))
	b = append(b, 0, 0)
	b = append(b, g.Repository[:]...)
	b = append(b, g.ID[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(g.bodyBytes()))
	for i := range g.Members {
		m := &g.Members[i]
		b = append(b, m.Snapshot[:]...)
		b = append(b, m.Object[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(m.Bytes))
		b = append(b, m.Digest[:]...)
	}
	for i := range g.Bodies {
		b = append(b, g.Bodies[i][:]...)
	}
	sum := DigestOf(b)
	return append(b, sum[:]...)
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("parity: "+format+": %w", append(args, backup.ErrCorrupt)...)
}

// Parse reads a description, which may be followed by a body. Whatever data is, it allocates no
// more than a few times its length. Errors wrap backup.ErrCorrupt, or backup.ErrInvalid for
// another version.
func Parse(data []byte) (g Group, number int, err error) {
	if len(data) < headerBytes || string(data[:8]) != magic {
		return g, 0, corrupt("it does not begin as a parity object")
	}
	if data[8] != version {
		return g, 0, fmt.Errorf("parity: version %d, which this bctl does not know: %w", data[8], backup.ErrInvalid)
	}
	number = int(data[9])
	parity, members := int(data[10]), int(binary.LittleEndian.Uint16(data[12:]))
	if members < 1 || members > MaxMembers || parity < 1 || parity > MaxParity || number >= parity || data[11]|data[14]|data[15] != 0 {
		return g, 0, corrupt("object %d of %d, of a group of %d", number, parity, members)
	}
	size := DescriptionBytes(members, parity)
	if int64(len(data)) < size {
		return g, 0, corrupt("%d bytes of a description of %d", len(data), size)
	}
	data = data[:size]
	if sum := DigestOf(data[:size-digestBytes]); subtle.ConstantTimeCompare(sum[:], data[size-digestBytes:]) != 1 {
		return g, 0, corrupt("the checksum of its description is wrong")
	}
	copy(g.Repository[:], data[16:])
	copy(g.ID[:], data[32:])
	longest := binary.LittleEndian.Uint64(data[48:])
	data = data[headerBytes:]
	g.Members = make([]Member, members)
	seen := make(map[backup.PackID]bool, members)
	for i := range g.Members {
		m := &g.Members[i]
		copy(m.Snapshot[:], data)
		copy(m.Object[:], data[16:])
		bytes := binary.LittleEndian.Uint64(data[32:])
		copy(m.Digest[:], data[40:])
		if bytes < 1 || bytes > MaxMemberBytes || seen[m.Object] {
			return g, 0, corrupt("member %d is wrong", i)
		}
		m.Bytes, seen[m.Object] = int64(bytes), true
		data = data[memberBytes:]
	}
	if longest != uint64(g.bodyBytes()) {
		return g, 0, corrupt("bodies of %d bytes, and a member of %d", longest, g.bodyBytes())
	}
	g.Bodies = make([]Digest, parity)
	for i := range g.Bodies {
		copy(g.Bodies[i][:], data[i*digestBytes:])
	}
	return g, number, nil
}

// CheckDescription returns nil if data begins with the description of the parity object with a
// number.
func (g *Group) CheckDescription(data []byte, number int) error {
	if !bytes.HasPrefix(data, g.Describe(number)) {
		return corrupt("its description is not that of object %d of the group", number)
	}
	return nil
}

// Verify returns nil if data is the parity object of that name, of a repository.
func Verify(data []byte, name string, repository backup.RepositoryID) error {
	g, number, err := Parse(data)
	if err != nil {
		return err
	}
	body := data[DescriptionBytes(len(g.Members), len(g.Bodies)):]
	switch {
	case g.Repository != repository || g.Name(number) != name:
		return corrupt("it is object %s of repository %v", g.Name(number), g.Repository)
	case int64(len(body)) != g.bodyBytes() || DigestOf(body) != g.Bodies[number]:
		return corrupt("its body has changed")
	}
	return nil
}

// A Layout is how many members a group has, if they are equally long, and how many parity objects.
// The zero Layout makes no new groups. The text of a Layout is such as "20+2".
type Layout struct{ Members, Parity int }

// ParseLayout reads the text of a Layout.
func ParseLayout(text string) (l Layout, err error) {
	members, parity, ok := strings.Cut(text, "+")
	if ok {
		if l.Members, err = strconv.Atoi(members); err == nil {
			l.Parity, err = strconv.Atoi(parity)
		}
	}
	// A group may have twice as many members, if some are shorter.
	if !ok || err != nil || l.Parity < 1 || l.Parity > MaxParity || l.Members < l.Parity || l.Members > MaxMembers/2 || l.String() != text {
		return Layout{}, fmt.Errorf("%q is not MEMBERS+PARITY, with 1 to %d parity objects and at least as many members, at most %d: %w",
			text, MaxParity, MaxMembers/2, backup.ErrInvalid)
	}
	return l, nil
}

// ParseSetting reads the text of a Layout, "off" (none: parity is not wanted), or nothing.
func ParseSetting(text string) (l Layout, none bool, err error) {
	switch text {
	case "":
		return Layout{}, false, nil
	case "off":
		return Layout{}, true, nil
	}
	l, err = ParseLayout(text)
	return l, false, err
}

// String returns the text of the layout.
func (l Layout) String() string { return strconv.Itoa(l.Members) + "+" + strconv.Itoa(l.Parity) }

// Full reports whether members of these lengths use the space of the layout: whether the parity
// objects take at most Parity bytes for each Members bytes.
func (l Layout) Full(n int, longest, sum int64) bool {
	return int64(l.Members)*(DescriptionBytes(n, l.Parity)+longest) <= sum
}
