package cli

import (
	"testing"
	"time"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/prune"
)

// A missing pruner is reported where something waits for it and nobody prunes.
func TestMissingPruner(t *testing.T) {
	now := time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC)
	all := serving("committer - c1", "walker oslo w1", "reader oslo r1", "pruner - p1")
	waits := prune.Backlog{Snapshots: 3, Now: now}
	since := func(ago time.Duration) prune.Backlog {
		return prune.Backlog{Snapshots: 1, Last: now.Add(-ago), Now: now}
	}
	for name, test := range map[string]struct {
		services []flow.Instance
		waits    prune.Backlog
		want     string
	}{
		"it runs":                  {all, waits, ""},
		"nothing is forgotten":     {all[:3], prune.Backlog{Now: now}, ""},
		"none ever ran":            {all[:3], waits, "MISSING  no pruner runs: 3 forgotten snapshots not yet deleted (nothing was ever pruned)"},
		"one ran":                  {all[:3], since(50 * time.Hour), "MISSING  no pruner runs: 1 forgotten snapshot not yet deleted (last prune 2d ago)"},
		"one does not say that":    {all[:3], since(time.Hour), ""},
		"one died":                 {with(all, 3, func(s *flow.Instance) { s.Silent, s.Lost = true, true }), since(time.Minute), "MISSING  no pruner runs: 1 forgotten snapshot not yet deleted (last prune 60s ago)"},
		"packs wait for deletion":  {all[:3], prune.Backlog{Condemned: 1, Now: now}, "MISSING  no pruner runs: condemned packs not yet deleted (nothing was ever pruned)"},
		"the services are unknown": {nil, prune.Backlog{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := crew{asked: true, services: test.services}
			got := ""
			for _, l := range c.lacksPruner(&test.waits) {
				got += l.line()
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
	ill := crew{asked: true, services: with(all, 3, full)}
	if got := texts(ill.lacks([]string{"oslo"}), (*lack).line); len(got) != 1 || got[0] != "WARNING  pruners: p1: not ready: store: full" {
		t.Errorf("%q", got)
	}
}
