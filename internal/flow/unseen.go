package flow

import (
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A worker that does not see the tree of a snapshot hands the work back, to any worker of its site.
// If there is none that might see the tree, the work would go round until its last attempt. The
// roster knows all workers, and what they have handed back.

const (
	// unseenFor is how long no worker must see a tree: a worker that sees it may be starting again.
	unseenFor = 20 * time.Second
	// unseenEvery is the interval at which the keeper looks for such snapshots.
	unseenEvery = time.Second
)

// An Unseen is a snapshot whose tree no worker sees: each worker of a role at a site that is ready
// has handed work of the snapshot back lately, because it sees another tree, or none.
type Unseen struct {
	Snapshot backup.SnapshotID
	Role     Role
	Site     string
	Workers  int    // that are ready
	Why      string // the error of one of them
}

// An unseenBy identifies an Unseen.
type unseenBy struct {
	snapshot backup.SnapshotID
	role     Role
	site     string
}

// unseen returns the snapshots whose trees no worker has seen for unseenFor.
func (r *roster) unseen(now time.Time) (list []Unseen) {
	able, found := map[who]int{}, map[unseenBy]*Unseen{}
	for w, k := range r.services {
		if !w.role.sited() || !k.Ready || k.Draining || now.Sub(k.Heard) > silentAfter {
			continue
		}
		able[who{role: w.role, site: w.site}]++
		for by, why := range unseenOf(w, &k.Instance) {
			if found[by] == nil {
				found[by] = &Unseen{Snapshot: by.snapshot, Role: by.role, Site: by.site}
			}
			found[by].Workers++
			found[by].Why = max(found[by].Why, why)
		}
	}
	since := map[unseenBy]time.Time{}
	for by, u := range found {
		if u.Workers < able[who{role: by.role, site: by.site}] {
			continue
		}
		began, known := r.unseenSince[by]
		if !known {
			began = now
		}
		since[by] = began
		if now.Sub(began) >= unseenFor {
			list = append(list, *u)
		}
	}
	r.unseenSince = since
	slices.SortFunc(list, func(a, b Unseen) int { return compareIDs(a.Snapshot, b.Snapshot) })
	return list
}

// unseenOf returns the snapshots whose trees a worker does not see, each with an error.
func unseenOf(w who, i *Instance) map[unseenBy]string {
	unseen := map[unseenBy]string{}
	for n := range i.HandBacks {
		h := &i.HandBacks[n]
		if !h.Unseen {
			continue
		}
		for _, id := range h.Snapshots {
			by := unseenBy{id, w.role, w.site}
			unseen[by] = max(unseen[by], h.Why)
		}
	}
	return unseen
}
