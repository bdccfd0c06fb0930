package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
)

// A coverage is which filers the scheduler backs up. Filers without shards do not count.
type coverage struct {
	policies bool            // there are some
	covered  map[string]bool // filers to which a policy applies
	not      map[string]int  // the others, with the number of their shards
}

// coverageOf returns the coverage of shards that are not retired.
func coverageOf(shards []index.ShardStatus, policies []backup.Policy) coverage {
	c := coverage{len(policies) > 0, map[string]bool{}, map[string]int{}}
	for n := range shards {
		f := &shards[n].Filer
		if _, ok := policy.For(f.Labels, policies); ok {
			c.covered[f.Name] = true
		} else {
			c.not[f.Name]++
		}
	}
	return c
}

// coverage returns which filers the scheduler backs up.
func (a *app) coverage(ctx context.Context, i index.Catalog) (coverage, error) {
	if !a.cfg.Fleet() { // policies have no effect
		return coverage{}, nil
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{})
	if err != nil {
		return coverage{}, err
	}
	policies, err := i.ListPolicies(ctx)
	return coverageOf(shards, policies), err
}

// watchCoverage returns what prints the note of noteUncovered after a change.
func (a *app) watchCoverage(ctx context.Context, i index.Catalog) (note func() error, err error) {
	before, err := a.coverage(ctx, i)
	return func() error {
		now, err := a.coverage(ctx, i)
		if err == nil {
			a.noteUncovered(before, now)
		}
		return err
	}, err
}

// noteUncovered prints a note on the filers that a command has taken from the scheduler, or that it
// has added although no policy applies to them.
func (a *app) noteUncovered(before, now coverage) {
	if !a.cfg.Fleet() {
		return
	}
	lost := coverage{not: map[string]int{}}
	for filer, shards := range now.not {
		if before.not[filer] == 0 && (before.covered[filer] || now.policies) {
			lost.not[filer] = shards
		}
	}
	if text := lost.text(); text != "" {
		a.note("%s", text)
	}
}

// text says which filers the scheduler does not back up; "": it backs up all.
func (c *coverage) text() string {
	if len(c.not) == 0 {
		return ""
	}
	shards := 0
	for _, n := range c.not {
		shards += n
	}
	names := slices.Sorted(maps.Keys(c.not))
	for n := range names {
		names[n] = display(names[n])
	}
	return fmt.Sprintf("no policy applies to %s of %s: only bctl backup backs %s up (bctl policy ls shows the labels)",
		counted(shards, "shard"), someNames(names), itOrThem(shards))
}

// lacksPolicies returns a lack if policies apply to some filers and not to others.
func (c *coverage) lacksPolicies() []lack {
	if text := c.text(); text != "" && len(c.covered) > 0 {
		return []lack{{What: "policy", Text: text, Warns: true}}
	}
	return nil
}
