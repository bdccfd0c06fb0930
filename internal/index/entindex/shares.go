package entindex

import (
	"cmp"
	"math"
	"slices"

	"github.com/bctl/bctl/internal/index"
)

// shares distributes a claim. It knows the assigned and the open work of each filer, and chooses
// within the bounds. Its user adds the leases first, then the filers, then the open work.
type shares struct {
	limit    int // how much this claim may still choose
	free     int // how much of queued is not assigned yet
	queued   int // maximum work assigned at a time; math.MaxInt: unlimited
	leases   map[int64]leases
	filers   []*filerShare
	of       map[int64]*filerShare
	sites    map[string]*siteShare // of filers with a running snapshot
	allSites int                   // number of sites of all filers
}

// leases counts the running leases of one filer. queued leaves out those of stalled work.
type leases struct{ all, queued int }

type filerShare struct {
	id    int64
	slots int // maximum of assigned work
	hand  int // assigned work, including the chosen
	site  *siteShare
	open  []int64 // ids, oldest first
	asked int     // how much open work was searched for, and found
	found int
}

type siteShare struct {
	queued int  // assigned and not stalled, including the chosen
	active bool // it has work, open or assigned
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

// room returns how much can be chosen in all.
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

// ask returns how much open work of a filer to search for: as much as it has room for, and at most
// as much again as it has slots. A surplus shows that there is work for slots that become free.
func (p *shares) ask(f *filerShare) int {
	if f.asked = p.roomOf(f); f.asked > 0 {
		f.asked += min(f.slots, max(1, plentyOfWork/len(p.filers)))
	}
	return f.asked
}

// plentyOfWork is how much surplus to search for over all filers together. With many running
// filers, a worker that finds no work of one finds work of another.
const plentyOfWork = 64

// scarce reports whether a filer has less open work than it will soon have room for. In that case
// the work held by one worker keeps the others waiting.
func (p *shares) scarce(filer int64) bool {
	f := p.of[filer]
	return f != nil && f.found < f.asked
}

// ofSite returns the part of Queued that one site may use. The sites that have work divide it
// evenly, and leave one equal share free. A site that gets work later finds that share, even if the
// other sites have no worker that could finish theirs.
func (p *shares) ofSite() int {
	active := 0
	for _, site := range p.sites {
		if site.active {
			active++
		}
	}
	return max(1, p.queued/max(1, min(p.allSites, active+1)))
}

// choose returns the work to claim. Filers take turns: the one with the least assigned work is
// next, and of two with equally much, the one whose work is older.
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
