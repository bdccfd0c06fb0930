package cli

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/services/bctl/open"
)

// Notes on settings that are valid but may be unintended.

// askSitesFor is how long NATS may take to report the services of sites. The filers are already
// registered by then. A fleet that starts takes the longest.
const askSitesFor = 15 * time.Second

// noteSites prints a note for each site whose work no service takes.
func (a *app) noteSites(ctx context.Context, i index.Index, sites ...string) {
	if !a.cfg.Fleet() || len(sites) == 0 {
		return
	}
	taken, err := a.taken(ctx, i, sites)
	if err != nil {
		a.note("cannot check for workers at site %s: %v", some(sites, ", "), err)
		return
	}
	for _, site := range sites {
		walkers, readers := taken[post{flow.RoleWalker, site}], taken[post{flow.RoleReader, site}]
		missing := "walker and no reader"
		switch {
		case walkers && readers:
			continue
		case walkers:
			missing = "reader"
		case readers:
			missing = "walker"
		}
		a.note("no %s takes work of site %s: nothing there is backed up; start one with the setting worker.site: %[2]s", missing, site)
	}
}

// taken queries NATS for the services of sites. A service that is there counts also while it is not
// ready, for instance because it has just started: bctl status reports that.
func (a *app) taken(ctx context.Context, i index.Index, sites []string) (map[post]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askSitesFor)
	defer cancel()
	repository, err := i.Repository(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := open.NATS(a.cfg, "bctl filer", repository.ID, a.log)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	all := func(there []flow.Instance) bool {
		found := posts(there)
		return !slices.ContainsFunc(sites, func(site string) bool {
			return !found[post{flow.RoleWalker, site}] || !found[post{flow.RoleReader, site}]
		})
	}
	there, err := conn.AwaitInstances(ctx, all)
	taken := posts(there)
	switch {
	case err == nil && all(there):
		return taken, nil
	case err != nil && !errors.Is(err, flow.ErrDenied):
		return nil, err
	}
	for _, site := range sites { // services of an earlier version do not announce themselves
		walk, read, err := conn.Served(ctx, site)
		if err != nil {
			return nil, err
		}
		walkers, readers := post{flow.RoleWalker, site}, post{flow.RoleReader, site}
		taken[walkers], taken[readers] = taken[walkers] || walk, taken[readers] || read
	}
	return taken, nil
}

// posts returns the posts of services that are there, and are not to take less work.
func posts(services []flow.Instance) map[post]bool {
	found := map[post]bool{}
	for n := range services {
		if s := &services[n]; !s.Silent && !s.Draining {
			found[post{s.Role, s.Site}] = true
		}
	}
	return found
}

// noteNested prints a note if a shard of a filer is inside another one, or is the same tree, so
// that it is backed up twice. Only the shard of is examined.
func (a *app) noteNested(ctx context.Context, i index.Catalog, filer, of string) error {
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: filer})
	if err != nil {
		return err
	}
	policies, err := i.ListPolicies(ctx)
	if err != nil {
		return err
	}
	a.noteNestedOf(shards, policies, func(s *index.ShardStatus) bool { return s.Name == of })
	return nil
}

// noteNestedOf prints the notes of noteNested for those shards for which examined returns true.
func (a *app) noteNestedOf(shards []index.ShardStatus, policies []backup.Policy, examined func(*index.ShardStatus) bool) {
	for n := range shards {
		for m := range shards {
			inner, outer := &shards[n], &shards[m]
			if n == m || inner.Filer.Name != outer.Filer.Name || !examined(inner) && !examined(outer) {
				continue
			}
			if text := nested(inner, outer, policies); text != "" {
				a.note("%s", text)
			}
		}
	}
}

// nested describes how the tree of inner is also backed up with that of outer; "" if it is not.
func nested(inner, outer *index.ShardStatus, policies []backup.Policy) string {
	on, in, err := treeAt(inner.Source)
	if err != nil {
		return ""
	}
	server, out, err := treeAt(outer.Source)
	if err != nil || server != on {
		return ""
	}
	if in == out {
		if inner.Name < outer.Name { // one note is enough
			return ""
		}
		return fmt.Sprintf("shards %s and %s of %s are the same tree, %s, which is backed up twice", display(outer.Name), display(inner.Name), display(inner.Filer.Name), display(in))
	}
	below, ok := strings.CutPrefix(in, strings.TrimSuffix(out, "/")+"/")
	if !ok || leavesOut(outer, policies, below) {
		return ""
	}
	return fmt.Sprintf("shard %s of %s is inside shard %s and is backed up twice: if that is not intended, exclude %s from %[3]s (bctl shard set %[2]s %[3]s --exclude)",
		display(inner.Name), display(inner.Filer.Name), display(outer.Name), display("/"+below))
}

// leavesOut reports whether a shard excludes a path in it. A shard that stays on one file system
// may do so, because a separate shard is often mounted there.
func leavesOut(s *index.ShardStatus, policies []backup.Policy, below string) bool {
	all := s.Filer.Selection.Merge(s.Selection)
	if p, ok := policy.For(s.Filer.Labels, policies); ok {
		all = s.Filer.Selection.Merge(p.Selection).Merge(s.Selection)
	}
	m, err := selection.Compile(all)
	if err != nil || m.OneFileSystem() {
		return err == nil
	}
	for ; below != "."; below = path.Dir(below) {
		if m.Matches(below, true) {
			return true
		}
	}
	return false
}

// checkPolicy refuses an invalid policy, and prints notes on probable mistakes. was is the policy
// before the change; times that it already had are not checked again.
func (a *app) checkPolicy(p, was backup.Policy) error {
	if was.Name == "" {
		if err := backup.CheckPlainName("policy", p.Name); err != nil {
			return wrongSetting(err)
		}
	}
	if _, err := policy.Parse(p); err != nil {
		return wrongSetting(err)
	}
	if p.Schedule != was.Schedule || p.TimeZone != was.TimeZone || p.RecoveryPoint != was.RecoveryPoint {
		notes, err := policy.Check(p)
		if err != nil {
			return wrongSetting(err)
		}
		for _, text := range notes {
			a.note("policy %s: %s", display(p.Name), text)
		}
	}
	return nil
}
