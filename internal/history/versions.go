package history

import (
	"cmp"
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
)

// An Index has the versions of pages, and their names. index.Index implements it.
type Index interface {
	diff.Index
	EachName(ctx context.Context, shard backup.ShardID, do func(page backup.PageName, names []string) error) error
	VersionsOf(ctx context.Context, shard backup.ShardID, pages []backup.PageName, do func(*index.PageSpan) error) error
	VersionsBelow(ctx context.Context, shard backup.ShardID, path string, only bool, do func(*index.PageSpan) error) error
}

// A Version is what successive snapshots have of a path.
type Version struct {
	Path  string
	Entry *backup.Entry // of a directory: with all attributes, unless they are damaged
	// First and Last are positions in the list of snapshots: all between them have the version.
	First, Last int
}

// A span is an entry with the numbers of the snapshots that have it.
type span struct {
	first, last backup.SnapshotNumber
	entry       *backup.Entry
}

// same reports whether two entries count as one version.
func same(a, b *backup.Entry) bool {
	return a.HadVanished() == b.HadVanished() && diff.Differences(a, b) == 0
}

// Snapshots are the snapshots of a shard that are looked at, in the order of their numbers.
type Snapshots []backup.Snapshot

// within returns the positions of the snapshots with numbers from first to last; from > to: there
// are none.
func (s Snapshots) within(first, last backup.SnapshotNumber) (from, to int) {
	before := func(n backup.SnapshotNumber) int {
		at, _ := slices.BinarySearchFunc(s, n, func(s backup.Snapshot, n backup.SnapshotNumber) int { return cmp.Compare(s.Number, n) })
		return at
	}
	from, to = before(first), len(s)-1
	if last < s.last() {
		to = before(last+1) - 1
	}
	return from, to
}

func (s Snapshots) last() backup.SnapshotNumber {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].Number
}

// has reports whether one of the snapshots has what these numbers have.
func (s Snapshots) has(first, last backup.SnapshotNumber) bool {
	from, to := s.within(first, last)
	return from <= to
}

// versions makes versions of the spans of a path, the oldest first.
func (s Snapshots) versions(path string, spans []span) (list []Version) {
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	for i := range spans {
		from, to := s.within(spans[i].first, spans[i].last)
		if from > to {
			continue
		}
		if n := len(list) - 1; n >= 0 && from <= list[n].Last+1 && same(list[n].Entry, spans[i].entry) {
			list[n].Last = max(list[n].Last, to)
			continue
		}
		list = append(list, Version{Path: path, Entry: spans[i].entry, First: from, Last: to})
	}
	return list
}
