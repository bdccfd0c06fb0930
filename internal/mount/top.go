package mount

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A levelKind is a kind of what is above snapshots.
type levelKind int

const (
	rootLevel    levelKind = iota // filers, ids
	filersLevel                   // the filers
	filerLevel                    // the shards of a filer
	shardLevel                    // the snapshots of a shard
	idsLevel                      // all snapshots
	symlinkLevel                  // a symlink to a snapshot
)

const (
	filersName = "filers"
	idsName    = "ids"
	latestName = "latest"
)

// A level is a directory or symlink above snapshots.
type level struct {
	kind         levelKind
	filer, shard string
	target       string // of a symlink
}

// ShardDir returns the name of a shard as one of a directory. Shards with different names differ:
// only that of an absolute path does not begin with ".%2F".
func ShardDir(name string) string {
	if rest, ok := strings.CutPrefix(name, "/"); ok && rest != "" {
		name = rest
	} else {
		name = "./" + name
	}
	return escaper.Replace(name)
}

// FilerDir is ShardDir for the name of a filer, which is no path.
func FilerDir(name string) string {
	if name == "." || name == ".." {
		return ShardDir(name)
	}
	return escaper.Replace(name)
}

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

// An item is what a directory lists. Exactly one of the fields besides the name is set.
type item struct {
	name     string
	entry    *backup.Entry
	level    *level
	snapshot *backup.Snapshot
}

// kind returns the type bits of the item's mode.
func (i *item) kind() uint32 {
	switch {
	case i.entry != nil:
		return types[i.entry.Kind]
	case i.level != nil && i.level.kind == symlinkLevel:
		return syscall.S_IFLNK
	}
	return syscall.S_IFDIR
}

// levelInode is the inode number of what is above snapshots, and of the snapshots in it.
func levelInode(parent *node, name string) uint64 {
	return number(fmt.Appendf(nil, "%d/%s", parent.id, name))
}

// fillLevel sets the attributes of a level.
func (f *fileSystem) fillLevel(out *fuse.Attr, l *level, inode uint64) {
	now := uint64(f.started.Unix())
	*out = fuse.Attr{Ino: inode, Mode: syscall.S_IFDIR | 0o555, Nlink: 2, Owner: f.owner, Mtime: now, Ctime: now, Atime: now, Blksize: pageBytes}
	if l.kind == symlinkLevel {
		out.Mode, out.Nlink, out.Size = syscall.S_IFLNK|0o777, 1, uint64(len(l.target))
	}
}

// list returns what a level lists.
func (f *fileSystem) list(ctx context.Context, l *level) ([]item, error) {
	switch l.kind {
	case rootLevel:
		return []item{{name: filersName, level: &level{kind: filersLevel}}, {name: idsName, level: &level{kind: idsLevel}}}, nil
	case filersLevel, filerLevel:
		return f.listShards(ctx, l)
	case shardLevel:
		return f.listShard(ctx, l)
	case idsLevel:
		found, err := f.o.Catalog.Snapshots(ctx, index.SnapshotFilter{States: onlyCommitted})
		items := make([]item, len(found))
		for i := range found {
			items[i] = item{name: found[i].ID.String(), snapshot: &found[i]}
		}
		return items, err
	}
	return nil, syscall.ENOTDIR
}

var onlyCommitted = []backup.State{backup.Committed}

// listShards lists the filers, or the shards of a filer, that have a snapshot.
func (f *fileSystem) listShards(ctx context.Context, l *level) (items []item, err error) {
	found, err := f.o.Catalog.ListShards(ctx, index.ShardFilter{Filer: l.filer, Retired: true})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range found {
		s := &found[i]
		is := item{name: FilerDir(s.Filer.Name), level: &level{kind: filerLevel, filer: s.Filer.Name}}
		if l.kind == filerLevel {
			is = item{name: ShardDir(s.Name), level: &level{kind: shardLevel, filer: s.Filer.Name, shard: s.Name}}
		}
		if !seen[is.name] {
			seen[is.name] = true
			items = append(items, is)
		}
	}
	return items, nil
}

// listShard lists the snapshots of a shard by their times, and the latest good one.
func (f *fileSystem) listShard(ctx context.Context, l *level) (items []item, err error) {
	found, err := f.o.Catalog.Snapshots(ctx, index.SnapshotFilter{Filer: l.filer, Shard: l.shard, States: onlyCommitted})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range found {
		s := &found[i]
		name := s.Started.UTC().Format(time.RFC3339)
		if seen[name] { // begun within the same second
			name += "-" + s.ID.Short()
		}
		seen[name] = true
		items = append(items, item{name: name, snapshot: s})
	}
	shards, err := f.o.Catalog.ListShards(ctx, index.ShardFilter{Filer: l.filer, Name: l.shard, Retired: true})
	if err != nil {
		return nil, err
	}
	for i := range items {
		if len(shards) == 1 && items[i].snapshot.ID == shards[0].LastGood {
			return append(items, item{name: latestName, level: &level{kind: symlinkLevel, target: items[i].name}}), nil
		}
	}
	return items, nil
}

// findAbove returns the item of a name in a level; nil: there is none.
func (f *fileSystem) findAbove(ctx context.Context, l *level, name string) (*item, error) {
	if l.kind == idsLevel {
		return f.findID(ctx, name)
	}
	items, err := f.list(ctx, l)
	for i := range items {
		if items[i].name == name {
			return &items[i], nil
		}
	}
	return nil, err
}

// findID returns a snapshot by its id, or a symlink to it by the beginning of its id.
func (f *fileSystem) findID(ctx context.Context, name string) (*item, error) {
	const whole = 2 * len(backup.SnapshotID{})
	if len(name) > whole || strings.Trim(name, "0123456789abcdef") != "" {
		return nil, nil
	}
	found, err := f.o.Catalog.Snapshots(ctx, index.SnapshotFilter{IDPrefix: name, States: onlyCommitted, Limit: 2})
	switch {
	case err != nil || len(found) != 1:
		return nil, err
	case len(name) == whole:
		return &item{name: name, snapshot: &found[0]}, nil
	}
	return &item{name: name, level: &level{kind: symlinkLevel, target: found[0].ID.String()}}, nil
}
