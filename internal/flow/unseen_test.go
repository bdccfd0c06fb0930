package flow

import (
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// No worker sees the tree of a snapshot if all workers that are ready have handed its work back for
// a while.
func TestUnseen(t *testing.T) {
	lost := backup.SnapshotID{1}
	began := time.Unix(1_000_000, 0)
	blind := Instance{ID: "A", Role: RoleReader, Site: "oslo", Ready: true, HandBacks: []HandBack{{Why: "is it mounted?", Times: 3, Unseen: true, Snapshots: []backup.SnapshotID{lost}}}}
	with := func(change func(*Instance)) Instance {
		i := blind
		i.ID, i.HandBacks = "B", nil
		change(&i)
		return i
	}
	for name, test := range map[string]struct {
		other  Instance // beside a blind one
		unseen int      // by how many workers
	}{
		"none":          {Instance{ID: "B"}, 1},
		"sees it":       {with(func(*Instance) {}), 0},
		"is blind, too": {with(func(i *Instance) { i.HandBacks = blind.HandBacks }), 2},
		"is not ready":  {with(func(i *Instance) { i.Ready = false }), 1},
		"is drained":    {with(func(i *Instance) { i.Draining = true }), 1},
		"is at Rome":    {with(func(i *Instance) { i.Site = "rome" }), 1},
		"is a walker":   {with(func(i *Instance) { i.Role = RoleWalker }), 1},
		"fails otherwise": {with(func(i *Instance) {
			i.HandBacks = []HandBack{{Why: "EIO", Times: 1, Snapshots: []backup.SnapshotID{lost}}}
		}), 0},
		"lacks another":    {with(func(i *Instance) { i.HandBacks = []HandBack{{Unseen: true, Snapshots: []backup.SnapshotID{{2}}}} }), 0},
		"is silent":        {with(func(i *Instance) { i.Heard = began.Add(-time.Hour) }), 1},
		"is of an earlier": {with(func(i *Instance) { i.HandedBack, i.HandedBackWhy = 9, "is it mounted?" }), 0},
	} {
		r := &roster{services: map[who]*known{}}
		look := func(after time.Duration) []Unseen {
			now := began.Add(after)
			for _, i := range []Instance{blind, test.other} {
				if i.Heard.IsZero() {
					i.Heard = now
				}
				r.services[who{i.Role, i.Site, i.ID}] = &known{Instance: i}
			}
			return r.unseen(now)
		}
		if first := slices.Concat(look(0), look(unseenFor-1)); len(first) > 0 {
			t.Errorf("%s: at once %v", name, first)
		}
		var want []Unseen
		if test.unseen > 0 {
			want = []Unseen{{lost, RoleReader, "oslo", test.unseen, "is it mounted?"}}
		}
		if got := look(unseenFor); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// A worker that sees the tree meanwhile begins the time again.
func TestSeenMeanwhile(t *testing.T) {
	r := &roster{services: map[who]*known{}}
	now := time.Unix(1_000_000, 0)
	blind := []HandBack{{Unseen: true, Snapshots: []backup.SnapshotID{{1}}}}
	wantAfter := func(after time.Duration, of []HandBack, want int) {
		t.Helper()
		now = now.Add(after)
		r.services[who{RoleWalker, "", "A"}] = &known{Instance: Instance{Ready: true, Heard: now, HandBacks: of}}
		if got := r.unseen(now); len(got) != want {
			t.Errorf("%v, want %d", got, want)
		}
	}
	wantAfter(0, blind, 0)
	wantAfter(unseenFor-1, nil, 0)
	wantAfter(1, blind, 0)
	wantAfter(unseenFor-1, blind, 0)
	wantAfter(1, blind, 1)
	wantAfter(1, nil, 0)
}
