package backup

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Filer is a file server, or this machine.
type Filer struct {
	ID        FilerID
	Name      string
	Site      string // the workers that can reach it; DefaultSite where nothing else was said
	Limits    Limits
	Compare   Compare
	Selection Selection // of all its shards, beside what each leaves out itself
	Labels    map[string]string
	Retired   bool // not backed up any more; its snapshots stay
}

// Limits bound what all workers together do to one filer. A zero is the default.
type Limits struct {
	WalkTasks          int   // in hand at a time
	ReadBatches        int   // in hand at a time
	ReadBytesPerSecond int64 // 0: no limit
	Floor              int   // percent of WalkTasks and ReadBatches that the governor leaves in any case; 0: the policy's
}

// What the zero Limits stand for.
const (
	DefaultWalkTasks   = 32
	DefaultReadBatches = 64
)

// WithDefaults returns l with the defaults in the place of zeros.
func (l Limits) WithDefaults() Limits {
	if l.WalkTasks == 0 {
		l.WalkTasks = DefaultWalkTasks
	}
	if l.ReadBatches == 0 {
		l.ReadBatches = DefaultReadBatches
	}
	return l
}

// A Load is how a filer does, and how much of its limits the governor lets the
// workers use: WalkSlots and ReadSlots, from the floor to the limit; 0: the limit, for
// nothing is known yet. Latencies are of one stat, and of one open and first
// read; idle is the least that was seen lately.
type Load struct {
	WalkSlots, ReadSlots int
	WalkLatency          time.Duration
	WalkIdle             time.Duration
	ReadLatency          time.Duration
	ReadIdle             time.Duration
}

// readBytesPerSlot is a rate below which one more batch at a time makes nothing faster.
const readBytesPerSlot = 4 << 20

// Slots returns how many walk tasks and read batches of a filer may be in hand. Under a limit of bytes the batches are no more
// than it takes to use it, because each has its share of it.
func (l Limits) Slots(load Load) (walk, read int) {
	governed := func(limit, slots int) int {
		if slots > 0 {
			return min(limit, slots)
		}
		return limit
	}
	all := l.WithDefaults()
	walk, read = governed(all.WalkTasks, load.WalkSlots), governed(all.ReadBatches, load.ReadSlots)
	if l.ReadBytesPerSecond > 0 {
		read = int(min(int64(read), (l.ReadBytesPerSecond+readBytesPerSlot-1)/readBytesPerSlot))
	}
	return walk, read
}

// FastLatency is so little that no filer is slow that answers within it: what is measured is caches and schedulers.
const FastLatency = time.Millisecond

// A Shard is one tree on a filer, snapshotted as a unit.
type Shard struct {
	ID     ShardID
	Key    ShardKey
	Filer  FilerID
	Name   string // unique on its filer; the absolute path where nothing else was said
	Source string // where to read it: a URL, "posix:///srv/home"
	// Snapshots, where it is not empty, is a pattern relative to the source,
	// ".snapshot/hourly.*": the newest directory that it matches is backed up in the source's place.
	Snapshots string
	Selection Selection
	Retired   bool
}

// DefaultSite is where filers and workers are of which nothing else was said.
const DefaultSite = "default"

var siteName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckSite fails with ErrInvalid unless name can be a site's: it is part of
// the names of subjects and consumers.
func CheckSite(name string) error {
	if siteName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("site %q: up to 32 small letters, digits and hyphens: %w", name, ErrInvalid)
}

// MaxNameBytes is the most that the name of a filer or of a policy may have.
const MaxNameBytes = 255

var plainName = regexp.MustCompile(`^[\pL\pN][\pL\pM\pN._:@+-]*$`)

// CheckPlainName fails with ErrInvalid unless name can be that of a new filer or policy, which what says: people type it, and
// scripts, metrics and logs have it. The index takes any text, which filers of earlier versions may have.
func CheckPlainName(what, name string) error {
	if len(name) <= MaxNameBytes && plainName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("%s name %q: want letters, digits and . _ - : @ +, a letter or digit first, at most %d bytes: %w", what, name, MaxNameBytes, ErrInvalid)
}

// Compare says what must be equal for a file to count as unchanged, beside its
// kind and size. The zero Compare stands for all of it: mtime,ctime,inode.
type Compare uint8

// The attributes of a Compare. The bits are stored in the index and sent to workers.
const (
	CompareMtime Compare = 1 << iota
	CompareCtime
	CompareInode
	CompareAll = CompareMtime | CompareCtime | CompareInode
)

var compareNames = []string{"mtime", "ctime", "inode"}

// OrAll returns CompareAll for the zero Compare, else c.
func (c Compare) OrAll() Compare {
	if c == 0 {
		return CompareAll
	}
	return c
}

// String is the form that ParseCompare reads: "mtime,ctime,inode".
func (c Compare) String() string {
	var names []string
	for i, name := range compareNames {
		if c.OrAll()&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// ParseCompare reads a comma-separated list of mtime, ctime and inode; size is always compared, and may be named.
func ParseCompare(text string) (Compare, error) {
	var c Compare
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		i := slices.Index(compareNames, name)
		if i < 0 && name != "size" {
			return 0, fmt.Errorf("%q is not one of mtime, ctime, inode, size: %w", name, ErrInvalid)
		}
		if i >= 0 {
			c |= 1 << i
		}
	}
	if c&(CompareMtime|CompareCtime) == 0 {
		return 0, fmt.Errorf("%q: without mtime or ctime a change of content would not show: %w", text, ErrInvalid)
	}
	return c, nil
}

// Merge returns what s and t leave out together.
func (s Selection) Merge(t Selection) Selection {
	larger := s.ExcludeLargerBytes
	if larger == 0 || t.ExcludeLargerBytes > 0 && t.ExcludeLargerBytes < larger {
		larger = t.ExcludeLargerBytes
	}
	return Selection{
		Exclude:            slices.Concat(s.Exclude, t.Exclude),
		ExcludeIfPresent:   slices.Concat(s.ExcludeIfPresent, t.ExcludeIfPresent),
		OneFileSystem:      s.OneFileSystem || t.OneFileSystem,
		ExcludeLargerBytes: larger,
	}
}
