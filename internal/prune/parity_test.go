package prune_test

import (
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
)

// parityGroups returns the valid groups, and checks that their rows are in order.
func (m *world) parityGroups() (groups []parity.Group) {
	m.Helper()
	for row, err := range m.x.ParityGroups(m.ctx) {
		m.must(err)
		if row.State != index.ParityValid {
			continue
		}
		g, _, err := parity.Parse(row.Description)
		m.must(err)
		if g.ID != row.ID || g.Repository != repository || row.Bytes != g.ObjectBytes()*int64(len(g.Bodies)) {
			m.fatalf("group %+v has the row %+v", g, row)
		}
		groups = append(groups, g)
	}
	return groups
}

// checkParity checks that what had parity at the last check and is kept has it still: the parity
// objects of each group are as they were made, and each member that is kept is there.
func (m *world) checkParity() {
	m.Helper()
	kept := map[index.StoredObject]bool{}
	for p, err := range m.x.Packs(m.ctx) {
		m.must(err)
		if !p.Deleting && !p.Gone && p.Bytes > 0 {
			kept[index.StoredObject{Snapshot: p.Snapshot, ID: p.Object}] = true
		}
	}
	protected := map[index.StoredObject]bool{}
	for _, g := range m.parityGroups() {
		for _, name := range g.Names()[len(g.Members):] {
			m.must(g.Check(m.ctx, m.s, name))
		}
		lost := map[string]bool{}
		for i := range g.Members {
			o := index.StoredObject{Snapshot: g.Members[i].Snapshot, ID: g.Members[i].Object}
			err := g.Check(m.ctx, m.s, g.Members[i].Name())
			if err != nil && kept[o] {
				m.fatalf("%s is damaged: %v", g.Members[i].Name(), err)
			}
			if protected[o] = kept[o]; err != nil {
				lost[g.Members[i].Name()] = true
			}
		}
		if len(lost) > 0 {
			m.counts["groups with deleted members"]++
		}
	}
	for o := range m.protected {
		if kept[o] && !protected[o] {
			m.fatalf("object %s of snapshot %s is kept, and has no parity any more", o.ID, o.Snapshot)
		}
	}
	m.protected = protected
	m.counts["with parity"] += len(protected)
}
