package entindex

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/bctl/bctl/internal/backup"
)

// Needed are the numbers of the snapshots of a shard whose versions of pages are needed, in
// ascending order. If it is nil, all versions are.
type Needed []backup.SnapshotNumber

// maxGaps bounds the length of a condition.
const maxGaps = 16

// Has reports whether a snapshot needs the version that the snapshots from first to last have. Both
// numbers of an interrupted page are math.MaxInt64, and it is needed.
func (n Needed) Has(first, last backup.SnapshotNumber) bool {
	if n == nil || first == math.MaxInt64 {
		return true
	}
	i, _ := slices.BinarySearch(n, first)
	return i < len(n) && n[i] <= last
}

// Condition returns an SQL condition, which begins with AND, on first_snapshot and last_snapshot of
// a version, and its arguments, of which the first has number next. mark begins a parameter. The
// condition holds for each version that Has selects, and for few others: it has the widest gaps
// between the numbers only. A database that evaluates it does not read the listings of what nothing
// needs. There are maxGaps+1 conditions.
func (n Needed) Condition(mark string, next int) (condition string, args []any) {
	for _, g := range n.gaps() {
		condition += fmt.Sprintf(" AND (last_snapshot IS NULL OR last_snapshot >= %s%d OR first_snapshot <= %[1]s%[3]d)", mark, next, next+1)
		args = append(args, int64(g.before), int64(g.after))
		next += 2
	}
	return condition, args
}

// A gap is a range of numbers, from after+1 to before-1, of which none is needed.
type gap struct{ after, before backup.SnapshotNumber }

// gaps returns the widest gaps below the last number.
func (n Needed) gaps() (gaps []gap) {
	after := backup.SnapshotNumber(0)
	for _, number := range n {
		if number > after+1 {
			gaps = append(gaps, gap{after, number})
		}
		after = number
	}
	slices.SortFunc(gaps, func(a, b gap) int { return cmp.Compare(b.before-b.after, a.before-a.after) })
	return gaps[:min(len(gaps), maxGaps)]
}
