package e2e_test

import (
	"regexp"
	"slices"

	"github.com/bctl/bctl/e2e/fleet"
)

// keptByPolicy is how many snapshots the policy of a soak keeps of each tree of its filer.
const keptByPolicy = 2

// policyOnce registers a policy for one of the filers, and makes the brake stop most forgets by
// rules. Until each tree has a snapshot, it does nothing: the scheduler would begin the first one.
// It begins no other, because the schedule is due once a year.
func (s *soak) policyOnce() {
	s.t.Helper()
	if s.retains || slices.ContainsFunc(s.trees, func(tree *soakTree) bool { return len(tree.kept) == 0 }) {
		return
	}
	s.retains = true
	s.f.Must("brake", "set", "--snapshots", "40%", "--min-snapshots", "2")
	s.f.Must("filer", "set", s.trees[0].filer, "--label", "soak=yes")
	s.f.Must("policy", "set", "soak", "--label", "soak=yes", "--schedule", "@yearly", "--keep-last", "2")
	for _, tree := range s.trees {
		tree.policy = tree.filer == s.trees[0].filer
	}
}

// retain does one of the rarer things with the snapshots of a tree of which no backup runs. Where
// the policy forgets, that is a hold. Elsewhere, operators forget the newest snapshot, or by rules.
func (s *soak) retain(tree *soakTree) {
	s.t.Helper()
	s.policyOnce()
	if tree.policy {
		s.follow(tree)
		s.holdOrRelease(tree)
		return
	}
	if newest := len(tree.kept) - 1; newest > 1 {
		switch tree.mutator.random.IntN(4) {
		case 0: // the next backup is compared with it nevertheless
			s.f.Must("snapshot", "mark-bad", tree.kept[newest].id, "--reason", "soak")
			s.f.Must("forget", tree.kept[newest].id)
			s.drop(tree, newest)
			s.newest++
		case 1:
			s.byRules(tree)
		}
	}
}

// follow drops the snapshots that the policy forgets: all but the newest and those on hold.
func (s *soak) follow(tree *soakTree) {
	s.t.Helper()
	for i := len(tree.kept) - keptByPolicy - 1; i >= 0; i-- {
		if tree.kept[i].hold == "" {
			s.drop(tree, i)
			s.byPolicy++
		}
	}
}

// drop notes that a snapshot is forgotten.
func (s *soak) drop(tree *soakTree, i int) {
	s.t.Helper()
	removeTree(s.t, tree.kept[i].tree)
	tree.kept = slices.Delete(tree.kept, i, i+1)
	s.forgot++
}

var holdID = regexp.MustCompile(`"id":(\d+)`)

// holdOrRelease holds a snapshot that the policy would forget after the next backup, or removes all
// holds of a tree.
func (s *soak) holdOrRelease(tree *soakTree) {
	s.t.Helper()
	oldest := len(tree.kept) - keptByPolicy
	switch tree.mutator.random.IntN(3) {
	case 0:
		if oldest < 0 || tree.kept[oldest].hold != "" {
			return
		}
		id := tree.kept[oldest].id
		found := holdID.FindStringSubmatch(s.f.Must("hold", "add", id, "--reason", "soak", "--json").Stdout)
		if found == nil {
			s.t.Fatalf("the hold of %s has no id", id)
		}
		tree.kept[oldest].hold = found[1]
		if out := s.f.Run("forget", id); out.Status != 1 {
			s.t.Fatalf("a snapshot on hold: %s", out)
		}
		s.holds++
	case 1:
		s.release(tree)
	}
}

// release removes all holds of a tree.
func (s *soak) release(tree *soakTree) {
	s.t.Helper()
	for i := range tree.kept {
		if kept := &tree.kept[i]; kept.hold != "" {
			s.f.Must("hold", "rm", kept.hold)
			kept.hold = ""
		}
	}
	if tree.policy {
		s.follow(tree)
	}
}

// byRules forgets all but the newest snapshot of a tree, of which the brake demands a confirmation.
func (s *soak) byRules(tree *soakTree) {
	s.t.Helper()
	args := []string{"forget", "--filer", tree.filer, "--shard", tree.mutator.dir, "--keep-last", "1"}
	if !s.retains {
		return // the brake has its usual limits
	}
	stopped := s.f.Run(args...)
	found := toConfirm.FindStringSubmatch(stopped.Stderr)
	if stopped.Status != 1 || found == nil {
		s.t.Fatalf("the brake does not stop %d of %d snapshots: %s", len(tree.kept)-1, len(tree.kept), stopped)
	}
	s.checkListed(tree)
	s.f.Must("confirm", found[1], "--reason", "soak")
	s.f.Must(args...)
	s.stops++
	for len(tree.kept) > 1 {
		s.drop(tree, 0)
	}
	s.checkListed(tree)
}

// checkListed checks that the snapshots of a tree are exactly those that are not forgotten.
func (s *soak) checkListed(tree *soakTree) {
	s.t.Helper()
	if got, want := s.listed(tree), len(tree.kept); got != want {
		s.t.Fatalf("%s has %d snapshots, want %d", tree.mutator.dir, got, want)
	}
}

func (s *soak) listed(tree *soakTree) int {
	s.t.Helper()
	return len(s.f.Snapshots("--filer", tree.filer, "--shard", tree.mutator.dir))
}

// awaitPolicy removes all holds, and waits until the policy has forgotten what it does not keep.
// The brake may have stopped it.
func (s *soak) awaitPolicy() {
	s.t.Helper()
	if !s.retains {
		return
	}
	for _, tree := range s.trees {
		s.release(tree)
	}
	// A policy that has changed is applied now, and not only after the next snapshot. It keeps the
	// same snapshots.
	s.f.Must("policy", "set", "soak", "--keep-daily", "1")
	for _, tree := range s.trees {
		if !tree.policy {
			s.checkListed(tree)
			continue
		}
		fleet.Await(s.t, "the policy to be applied", func() bool {
			for _, stop := range holdID.FindAllStringSubmatch(s.f.Must("confirm", "ls", "--json").Stdout, -1) {
				s.f.Run("confirm", stop[1]) // it may be over
			}
			return s.listed(tree) == len(tree.kept)
		})
	}
}
