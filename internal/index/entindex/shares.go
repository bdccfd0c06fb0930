package entindex

import (
	"cmp"
	"math"
	"slices"

	"github.com/bctl/bctl/internal/index"
)

// shares decides who gets how much of a claim: it knows what is in hand and what is open, of
// each filer, and chooses within the bounds. It is told of leases first, then of filers, then of open work.
type shares struct {
	limit, free int // of this claim; of Queued
	queued      int // the claim's bound; math.MaxInt: none
	leases      map[int64]leases
	filers      []*filerShare
	of          map[int64]*filerShare
	sites       map[string]*siteShare // of filers that something runs of
	allSites    int                   // how many there are
}

// leases are those that run of one filer: all, and those that count for Queued.
type leases struct{ all, queued int }

type filerShare struct {
	id    int64
	slots int // that may be in hand
	hand  int // in hand, with what is chosen
	site  *siteShare
	open  []int64 // by age
	asked int     // how much open work was looked for, and found
	found int
}

type siteShare struct {
	queued int  // in hand and not stalled, with what is chosen
	active bool // it has work, open or in hand
}

func newShares(c index.Claim) *shares {
	p := &shares{
		limit: c.Limit, queued: c.Queued,
		leases: map[int64]leases{}, of: map[int64]*filerShare{}, sites: map[string]*siteShare{},
	}
	if p.queued <= 0 {
		p.queued = math.MaxInt
	}
	p.free = p.queued
	return p
}

func (p *shares) leased(filer int64, all, queued int) {
	p.leases[filer] = leases{all, queued}
	p.free = max(0, p.free-queued)
}

// room is how much can be chosen at all.
func (p *shares) room() int { return min(p.limit, p.free) }

func (p *shares) add(filer int64, siteName string, slots int) {
	site := p.sites[siteName]
	if site == nil {
		site = &siteShare{}
		p.sites[siteName] = site
	}
	l := p.leases[filer]
	site.queued += l.queued
	site.active = site.active || l.all > 0
	f := &filerShare{id: filer, slots: slots, hand: l.all, site: site}
	p.filers = append(p.filers, f)
	p.of[filer] = f
}

func (p *shares) roomOf(f *filerShare) int { return min(p.room(), max(0, f.slots-f.hand)) }

func (p *shares) open(filer, id int64) {
	f := p.of[filer]
	f.open = append(f.open, id)
	f.found++
	f.site.active = true
}

// ask returns how much open work of a filer is to be looked for: more than it has room for by as much as it
// has places, at most, so that it is known whether there is work for all of them again.
func (p *shares) ask(f *filerShare) int {
	if f.asked = p.roomOf(f); f.asked > 0 {
		f.asked += min(f.slots, max(1, plentyOfWork/len(p.filers)))
	}
	return f.asked
}

// plentyOfWork is how much waits, of all filers together, where there is plenty: where many run,
// workers who have nothing to do for one have something to do for another.
const plentyOfWork = 64

// scarce reports whether less work of a filer is open than it soon has places for: what is
// in hand of one worker then keeps the others waiting.
func (p *shares) scarce(filer int64) bool {
	f := p.of[filer]
	return f != nil && f.found < f.asked
}

// ofSite is how much of Queued one site may have: an even part, where those that have work share it with one
// that has none yet. When that gets some, it finds its place free, even if no worker of the others ever comes.
func (p *shares) ofSite() int {
	active := 0
	for _, site := range p.sites {
		if site.active {
			active++
		}
	}
	return max(1, p.queued/max(1, min(p.allSites, active+1)))
}

// choose returns the work to claim. Filers take turns: who has least in hand is next, and of two that have as
// much, the one whose work is older.
func (p *shares) choose() []int64 {
	var waiting []*filerShare
	for _, f := range p.filers {
		if len(f.open) > 0 {
			slices.Sort(f.open)
			waiting = append(waiting, f)
		}
	}
	perSite := p.ofSite()
	var chosen []int64
	for p.room() > 0 {
		waiting = slices.DeleteFunc(waiting, func(f *filerShare) bool {
			return len(f.open) == 0 || f.hand >= f.slots || f.site.queued >= perSite
		})
		if len(waiting) == 0 {
			break
		}
		next := slices.MinFunc(waiting, func(a, b *filerShare) int {
			return cmp.Or(cmp.Compare(a.hand, b.hand), cmp.Compare(a.open[0], b.open[0]))
		})
		chosen = append(chosen, next.open[0])
		next.open = next.open[1:]
		next.hand++
		next.site.queued++
		p.limit--
		p.free--
	}
	return chosen
}
