package indextest

import (
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Parity groups are planned, valid and ended, in this order, and only the leader changes them.
func testParity(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	term := f.lead("pruner", "first", time.Minute, true)
	want := func(groups ...index.ParityGroup) {
		t.Helper()
		var got []index.ParityGroup
		for g, err := range f.x.ParityGroups(f.ctx) {
			f.must(err)
			g.Description = slices.Clone(g.Description)
			got = append(got, g)
		}
		order := func(a, b index.ParityGroup) int { return slices.Compare(a.ID[:], b.ID[:]) }
		slices.SortFunc(got, order)
		slices.SortFunc(groups, order)
		if !slices.EqualFunc(got, groups, func(a, b index.ParityGroup) bool {
			return a.ID == b.ID && a.State == b.State && a.Bytes == b.Bytes && slices.Equal(a.Description, b.Description)
		}) {
			t.Fatalf("%+v, want %+v", got, groups)
		}
	}
	want()
	planned := index.ParityGroup{ID: backup.NewPackID(), State: index.ParityPlanned}
	f.must(f.x.PlanParity(f.ctx, term, planned.ID))
	want(planned)
	one := planned
	one.State, one.Description, one.Bytes = index.ParityValid, []byte("\x00description"), 64<<20
	f.must(f.x.ReplaceParity(f.ctx, term, []index.ParityGroup{one}, nil))
	want(one)

	// What is not planned, or not any more, does not become valid, and then nothing changes.
	two := index.ParityGroup{ID: backup.NewPackID(), State: index.ParityValid, Description: []byte{1}, Bytes: 1}
	f.wants(f.x.ReplaceParity(f.ctx, term, []index.ParityGroup{two}, []backup.PackID{one.ID}), backup.ErrInvalid)
	f.wants(f.x.ReplaceParity(f.ctx, term, []index.ParityGroup{one}, nil), backup.ErrInvalid)
	want(one)

	// A valid group is not dropped before it is ended.
	f.must(f.x.DropParity(f.ctx, term, []backup.PackID{one.ID}))
	want(one)
	f.must(f.x.PlanParity(f.ctx, term, two.ID))
	f.must(f.x.ReplaceParity(f.ctx, term, []index.ParityGroup{two}, []backup.PackID{one.ID}))
	ended := one
	ended.State = index.ParityEnded
	want(ended, two)
	f.must(f.x.DropParity(f.ctx, term, []backup.PackID{one.ID, two.ID, backup.NewPackID()}))
	want(two)

	f.must(f.x.Resign(f.ctx, term))
	f.wants(f.x.PlanParity(f.ctx, term, backup.NewPackID()), index.ErrNotLeading)
	f.wants(f.x.ReplaceParity(f.ctx, term, nil, []backup.PackID{two.ID}), index.ErrNotLeading)
	f.wants(f.x.DropParity(f.ctx, term, []backup.PackID{two.ID}), index.ErrNotLeading)
	want(two)

	// A rebuild knows what the store has.
	f.must(f.x.RecoverParity(f.ctx, []index.ParityGroup{one}))
	want(one)
	f.must(f.x.RecoverParity(f.ctx, nil))
	want()
}
