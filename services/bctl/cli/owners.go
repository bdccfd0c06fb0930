package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/restore"
)

// A snapshot has the numbers of users and groups, and no names. Files therefore keep the numbers,
// unless flags of bctl restore say otherwise.

// An ownerFlags are the flags that say who owns what is restored.
type ownerFlags struct {
	owners, groups []string
	namesFrom      string
}

func (o *ownerFlags) flags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.owners, "map-owner", nil, "give the files of one user to another: `FROM:TO`, names or numbers; FROM * is all others (may be repeated)")
	flags.StringArrayVar(&o.groups, "map-group", nil, "the same for groups: `FROM:TO` (may be repeated)")
	flags.StringVar(&o.namesFrom, "names-from", "", "restore owners by name: `DIR` has the files passwd and group of the file server")
}

// read returns the owners that the flags describe, or nil.
func (o *ownerFlags) read(a *app) (*ownerMap, error) {
	if len(o.owners)+len(o.groups) == 0 && o.namesFrom == "" {
		return nil, nil
	}
	m := &ownerMap{users: idMap{kind: userIDs}, groups: idMap{kind: groupIDs}}
	if err := m.users.parse("map-owner", o.owners); err != nil {
		return nil, err
	}
	if err := m.groups.parse("map-group", o.groups); err != nil {
		return nil, err
	}
	if o.namesFrom == "" {
		return m, nil
	}
	dir, err := config.ExpandHome(o.namesFrom, a.env)
	if err != nil {
		return nil, usage("--names-from %v", err)
	}
	for _, ids := range []*idMap{&m.users, &m.groups} {
		ids.note = a.note
		if err := ids.readNames(filepath.Join(dir, ids.kind.file)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// An ownerMap is the restore.Owners of the flags.
type ownerMap struct{ users, groups idMap }

var _ restore.Owners = (*ownerMap)(nil)

func (m *ownerMap) User(uid uint32) uint32  { return m.users.get(uid) }
func (m *ownerMap) Group(gid uint32) uint32 { return m.groups.get(gid) }

// unknown returns the names of the file server that this machine does not know.
func (m *ownerMap) unknown() (users, groups []string) {
	if m == nil {
		return nil, nil
	}
	return m.users.unknown, m.groups.unknown
}

// An idKind is users or groups.
type idKind struct {
	one    string
	file   string // that has their names
	lookup func(name string) (number string, err error)
}

var (
	userIDs = idKind{"user", "passwd", func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}}
	groupIDs = idKind{"group", "group", func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	}}
)

// number returns the number that this machine has for a name, or the number that the text is.
func (k idKind) number(text string) (uint32, error) {
	if text == "" {
		return 0, fmt.Errorf("give the name or the number of a %s", k.one)
	}
	number := text
	if strings.Trim(text, "0123456789") != "" {
		found, err := k.lookup(text)
		if err != nil {
			return 0, fmt.Errorf("this machine has no %s %s; give the number", k.one, display(text))
		}
		number = found
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || n == math.MaxUint32 { // chown(2) takes the greatest for "no change"
		return 0, fmt.Errorf("%s is not the number of a %s", display(number), k.one)
	}
	return uint32(n), nil
}

// An idMap gives numbers of the snapshot those of the target.
type idMap struct {
	kind   idKind
	ids    map[uint32]uint32
	others *uint32 // the number of all that are not in ids or names; nil: they keep theirs
	note   func(format string, args ...any)

	mu      sync.Mutex        // for what follows
	names   map[uint32]string // of the file server, until they are looked up
	unknown []string          // names that this machine does not have
}

// parse reads the values of a flag.
func (m *idMap) parse(flag string, values []string) error {
	m.ids = make(map[uint32]uint32)
	for _, value := range values {
		from, to, ok := strings.Cut(value, ":")
		if !ok || from == "" || to == "" {
			return usage("--%s %q is not FROM:TO", flag, value)
		}
		target, err := m.kind.number(to)
		if err != nil {
			return usage("--%s %s: %v", flag, display(value), err)
		}
		if from == "*" {
			m.others = &target
			continue
		}
		source, err := m.kind.number(from)
		if err != nil {
			return usage("--%s %s: %v", flag, display(value), err)
		}
		m.ids[source] = target
	}
	return nil
}

// maxNamesBytes bounds a file of names, which may come from a snapshot.
const maxNamesBytes = 64 << 20

// readNames reads a passwd(5) or group(5): the name is the first field, and the number the third.
// Lines that are different are skipped, as the C library does.
func (m *idMap) readNames(file string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return usage("--names-from: there is no %s; copy it from the file server, or restore it from a snapshot of its /etc", display(file))
	}
	if err != nil {
		return fmt.Errorf("--names-from: %w", err)
	}
	defer f.Close()
	m.names = make(map[uint32]string)
	lines := bufio.NewScanner(io.LimitReader(f, maxNamesBytes))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 || fields[0] == "" {
			continue
		}
		n, err := strconv.ParseUint(fields[2], 10, 32)
		if _, known := m.names[uint32(n)]; err == nil && !known { // the first name counts
			m.names[uint32(n)] = fields[0]
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("--names-from: read %s: %w", display(file), err)
	}
	if len(m.names) == 0 {
		return usage("--names-from: %s has no names of %ss", display(file), m.kind.one)
	}
	return nil
}

// get returns the number at the target.
func (m *idMap) get(id uint32) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if to, ok := m.ids[id]; ok {
		return to
	}
	to, ok := m.byName(id)
	switch {
	case ok:
	case m.others != nil:
		to = *m.others
	default:
		to = id
	}
	m.ids[id] = to
	return to
}

// byName returns the number that this machine has for the name that the file server has for id. It
// names each name once that this machine does not have.
func (m *idMap) byName(id uint32) (uint32, bool) {
	name, ok := m.names[id]
	if !ok || strings.Trim(name, "0123456789") == "" { // a number is no name
		return 0, false
	}
	to, err := m.kind.number(name)
	if err == nil {
		return to, true
	}
	m.unknown = append(m.unknown, name)
	if m.others == nil {
		m.note("this machine has no %s %s: what belongs to it keeps the number %d", m.kind.one, display(name), id)
	}
	return 0, false
}
