package sizes

import (
	"container/heap"
	"slices"
)

// A largest keeps the largest rows, and the sum of the others.
type largest struct {
	most   int
	rows   []Row // a heap, the smallest first
	others Sum
	count  int64 // of all rows
}

func (l *largest) Len() int           { return len(l.rows) }
func (l *largest) Less(i, j int) bool { return before(&l.rows[i], &l.rows[j]) > 0 }
func (l *largest) Swap(i, j int)      { l.rows[i], l.rows[j] = l.rows[j], l.rows[i] }
func (l *largest) Push(row any)       { l.rows = append(l.rows, row.(Row)) }
func (l *largest) Pop() any           { panic("not used") }

// add adds a row that is not there yet.
func (l *largest) add(row Row) {
	l.count++
	switch {
	case len(l.rows) < l.most:
		heap.Push(l, row)
	case before(&row, &l.rows[0]) > 0:
		l.others.Add(&row.Sum)
	default:
		l.others.Add(&l.rows[0].Sum)
		l.rows[0] = row
		heap.Fix(l, 0)
	}
}

// tooSmall reports whether no row with so few bytes can be kept.
func (l *largest) tooSmall(bytes int64) bool { return len(l.rows) == l.most && bytes < l.rows[0].Bytes }

// leaveOut counts a row that is too small.
func (l *largest) leaveOut(sum *Sum) {
	l.count++
	l.others.Add(sum)
}

// join adds the rows of another one.
func (l *largest) join(m *largest) {
	for _, row := range m.rows {
		l.add(row)
	}
	l.others.Add(&m.others)
	l.count += m.count - int64(len(m.rows))
}

// sorted returns the rows, the largest first.
func (l *largest) sorted() []Row {
	slices.SortFunc(l.rows, func(a, b Row) int { return before(&a, &b) })
	return l.rows
}

// maxGroups is the number of groups by owner or extension that one goroutine keeps apart.
const maxGroups = 100_000

// groups are sums by key.
type groups struct {
	sums    map[Key]*Sum
	key     Key // of the group that was used last
	sum     *Sum
	further Sum  // what is in groups for which there was no room
	full    bool // there is something in further
}

// of returns the sum of a group.
func (g *groups) of(key Key) *Sum {
	if g.sum != nil && key == g.key {
		return g.sum
	}
	sum := g.sums[key]
	switch {
	case sum != nil:
	case len(g.sums) < maxGroups:
		sum = &Sum{}
		g.sums[key] = sum
	default:
		g.full = true
		return &g.further
	}
	g.key, g.sum = key, sum
	return sum
}

// join adds the groups of another one.
func (g *groups) join(h *groups) {
	for key, sum := range h.sums {
		g.of(key).Add(sum)
	}
	g.further.Add(&h.further)
	g.full = g.full || h.full
}
