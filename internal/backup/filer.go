package backup

import (
	"cmp"
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
	Site      string // the workers that can reach the filer; DefaultSite if not set
	Limits    Limits
	Compare   Compare
	Selection Selection // for all of its shards, in addition to each shard's own
	Labels    map[string]string
	Retired   bool // no longer backed up; its snapshots stay
}

// Limits bound the load that all workers together put on one filer. A zero stands for the default.
type Limits struct {
	WalkTasks          int   // maximum open at a time
	ReadBatches        int   // maximum open at a time
	ReadBytesPerSecond int64 // 0: no limit
	// Floor is the percentage of WalkTasks and ReadBatches that the governor always leaves; 0: the
	// policy's value.
	Floor int
}

// The defaults for zero Limits.
const (
	DefaultWalkTasks   = 32
	DefaultReadBatches = 64
)

// WithDefaults returns l with zeros replaced by the defaults.
func (l Limits) WithDefaults() Limits {
	if l.WalkTasks == 0 {
		l.WalkTasks = DefaultWalkTasks
	}
	if l.ReadBatches == 0 {
		l.ReadBatches = DefaultReadBatches
	}
	return l
}

// A Load is the measured responsiveness of a filer, and the part of its limits that the governor
// lets the workers use: WalkSlots and ReadSlots, between the floor and the limit. Zero slots mean
// the limit, because nothing is known yet. Latencies are of one stat, and of one open with the
// first read. The idle latency is the lowest recent one.
type Load struct {
	WalkSlots, ReadSlots int
	WalkLatency          time.Duration
	WalkIdle             time.Duration
	ReadLatency          time.Duration
	ReadIdle             time.Duration
}

// readBytesPerSlot is the rate below which an additional concurrent batch gains no speed.
const readBytesPerSlot = 4 << 20

// Slots returns how many walk tasks and read batches of a filer may be open. Under a byte limit
// there are no more batches than it takes to use the limit, because each batch gets an equal share
// of it.
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

// FastLatency is the latency below which no filer counts as slow: at this scale the measurement
// reflects caches and schedulers.
const FastLatency = time.Millisecond

// A Shard is one directory tree of a filer that is backed up as a unit.
type Shard struct {
	ID     ShardID
	Key    ShardKey
	Filer  FilerID
	Name   string // unique on its filer; defaults to the absolute path
	Source string // a URL: "posix:///srv/home"
	// Snapshots, if not empty, is a pattern relative to the source, such as ".snapshot/hourly.*".
	// The newest directory that it matches is backed up in place of the source.
	Snapshots string
	Selection Selection
	Retired   bool
}

// DefaultSite is the site of filers and workers for which none is set.
const DefaultSite = "default"

// SiteName returns site, or DefaultSite if site is empty.
func SiteName(site string) string { return cmp.Or(site, DefaultSite) }

var siteName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckSite fails with ErrInvalid unless name can be the name of a site: it becomes part of the
// names of subjects and consumers.
func CheckSite(name string) error {
	if siteName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("site %q: up to 32 small letters, digits and hyphens: %w", name, ErrInvalid)
}

// MaxNameBytes is the maximum length of the name of a filer or a policy.
const MaxNameBytes = 255

var plainName = regexp.MustCompile(`^[\pL\pN][\pL\pM\pN._:@+-]*$`)

// CheckPlainName fails with ErrInvalid unless name can be the name of a new filer or policy; what
// says which, for the error. Names are typed by people and appear in scripts, metrics and logs. The
// index accepts any text, because filers made by earlier versions may have any name.
func CheckPlainName(what, name string) error {
	if len(name) <= MaxNameBytes && plainName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("%s name %q: want letters, digits and . _ - : @ +, a letter or digit first, at most %d bytes: %w", what, name, MaxNameBytes, ErrInvalid)
}

// Compare lists the attributes, in addition to kind and size, that must be equal for a file to
// count as unchanged. The zero Compare stands for all of them: mtime,ctime,inode.
type Compare uint8

// The attributes of a Compare. The bits are stored in the index and sent to workers.
const (
	CompareMtime Compare = 1 << iota
	CompareCtime
	CompareInode
	CompareAll = CompareMtime | CompareCtime | CompareInode
)

var compareNames = []string{"mtime", "ctime", "inode"}

// OrAll returns c, or CompareAll if c is zero.
func (c Compare) OrAll() Compare {
	if c == 0 {
		return CompareAll
	}
	return c
}

// String returns the form that ParseCompare reads: "mtime,ctime,inode".
func (c Compare) String() string {
	var names []string
	for i, name := range compareNames {
		if c.OrAll()&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// ParseCompare parses a comma-separated list of mtime, ctime and inode. The list may also contain
// size, which is always compared.
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

// Merge returns the Selection that excludes everything that s or t excludes.
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
