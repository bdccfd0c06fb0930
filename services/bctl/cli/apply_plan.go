package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// An applyPlan holds the changes that are necessary to match a file.
type applyPlan struct {
	app       *app
	file      *fleetFile
	prune     bool
	changes   []fleetChange
	unchanged int
	sites     map[string]bool // of new filers
	looked    map[string]bool // filers whose shards change
	busy      []string        // filers and shards to retire that are being backed up
	before    coverage
	planned   plannedFleet
}

// compare compares the declared fleet with the registered one. Filers come before their shards.
// Retirements come after that, because a snapshot that has just begun can make them fail, and the
// removal of policies comes last.
func (p *applyPlan) compare(ctx context.Context, i index.Catalog) error {
	p.sites, p.looked = map[string]bool{}, map[string]bool{}
	filers, err := i.ListFilers(ctx, index.FilerFilter{Retired: true})
	if err != nil {
		return err
	}
	list, err := i.ListShards(ctx, index.ShardFilter{})
	if err != nil {
		return err
	}
	policies, err := i.ListPolicies(ctx)
	if err != nil {
		return err
	}
	shards := map[string][]index.ShardStatus{}
	for n := range list {
		shards[list[n].Filer.Name] = append(shards[list[n].Filer.Name], list[n])
	}
	for n := range p.file.filers {
		w := &p.file.filers[n]
		if err := p.filer(w, n, filers); err != nil {
			return err
		}
		for _, s := range w.shards {
			if err := p.shard(w.Name, s, shards[w.Name]); err != nil {
				return err
			}
		}
	}
	for n := range p.file.policies {
		if err := p.policy(p.file.policies[n], n, policies); err != nil {
			return err
		}
	}
	if p.prune {
		p.retire(filers, shards, policies)
	}
	p.before, p.planned = coverageOf(list, policies), p.plan(list, policies)
	return nil
}

// add records a change, unless nothing differs.
func (p *applyPlan) add(c fleetChange, from, to any) error {
	var err error
	if c.settings, err = changed(from, to); err != nil {
		return err
	}
	if c.action == "change" && len(c.settings) == 0 {
		p.unchanged++
		return nil
	}
	p.changes = append(p.changes, c)
	return nil
}

func (p *applyPlan) filer(w *wantedFiler, n int, filers []index.FilerStatus) error {
	want := w.Filer
	at := slices.IndexFunc(filers, func(f index.FilerStatus) bool { return f.Name == w.Name })
	if at < 0 {
		if err := backup.CheckPlainName("filer", w.Name); err != nil {
			return p.file.wrong(p.file.line("filers", n, "name"), "%v", wrongSetting(err))
		}
	}
	if at < 0 || filers[at].Retired {
		p.sites[want.Site] = true
		return p.add(fleetChange{action: "add", filer: want.Name, do: func(ctx context.Context, i index.Index) error {
			_, err := i.AddFiler(ctx, want)
			return err
		}}, declaredFiler{}, declareFiler(&want))
	}
	was := filers[at].Filer
	want.ID = was.ID
	if want.Site != was.Site {
		p.sites[want.Site] = true
	}
	return p.add(fleetChange{action: "change", filer: want.Name, do: func(ctx context.Context, i index.Index) error {
		return i.SetFiler(ctx, want)
	}}, declareFiler(&was), declareFiler(&want))
}

func (p *applyPlan) shard(filer string, want backup.Shard, of []index.ShardStatus) error {
	before := len(p.changes)
	defer func() {
		if len(p.changes) > before {
			p.looked[filer] = true
		}
	}()
	at := slices.IndexFunc(of, func(s index.ShardStatus) bool { return s.Name == want.Name })
	if at < 0 {
		return p.add(fleetChange{action: "add", filer: filer, shard: want.Name, do: func(ctx context.Context, i index.Index) error {
			f, err := findFiler(ctx, i, filer) // an earlier change may have created it
			if err != nil {
				return err
			}
			want.Filer = f.ID
			_, err = i.AddShard(ctx, want)
			return err
		}}, declaredShard{}, declareShard(&want))
	}
	want.ID = of[at].ID
	return p.add(fleetChange{action: "change", filer: filer, shard: want.Name, do: func(ctx context.Context, i index.Index) error {
		return i.SetShard(ctx, want)
	}}, declareShard(&of[at].Shard), declareShard(&want))
}

func (p *applyPlan) policy(want backup.Policy, n int, policies []backup.Policy) error {
	was, action := backup.Policy{}, "add"
	if at := slices.IndexFunc(policies, func(x backup.Policy) bool { return x.Name == want.Name }); at >= 0 {
		was, action = policies[at], "change"
	}
	if err := p.app.checkPolicy(want, was); err != nil {
		return p.file.settings(err, want.Name, "policies", n)
	}
	var from declaredPolicy
	if action == "change" {
		from = declarePolicy(&was)
	}
	return p.add(fleetChange{action: action, policy: want.Name, do: func(ctx context.Context, i index.Index) error {
		_, err := i.SetPolicy(ctx, want, operator())
		return err
	}}, from, declarePolicy(&want))
}

// retire records the retirement of everything that the file does not name, and which of it is being
// backed up.
func (p *applyPlan) retire(filers []index.FilerStatus, shards map[string][]index.ShardStatus, policies []backup.Policy) {
	for n := range filers {
		f := &filers[n]
		id := f.ID
		if f.Retired {
			continue
		}
		if !p.file.has(f.Name, "") {
			c := fleetChange{action: "retire", filer: f.Name, do: func(ctx context.Context, i index.Index) error { return busy(i.RetireFiler(ctx, id, operator())) }}
			for _, s := range shards[f.Name] {
				c.shards = append(c.shards, s.Name)
			}
			p.changes = append(p.changes, c)
			if f.Running > 0 {
				p.busy = append(p.busy, c.String())
			}
			continue
		}
		for _, s := range shards[f.Name] {
			if p.file.has(f.Name, s.Name) {
				continue
			}
			c := fleetChange{action: "retire", filer: f.Name, shard: s.Name, do: func(ctx context.Context, i index.Index) error {
				return busy(i.RetireShard(ctx, s.ID, operator()))
			}}
			p.changes = append(p.changes, c)
			if s.Running != (backup.SnapshotID{}) {
				p.busy = append(p.busy, c.String())
			}
		}
	}
	for n := range policies {
		name := policies[n].Name
		if !slices.ContainsFunc(p.file.policies, func(w backup.Policy) bool { return w.Name == name }) {
			p.changes = append(p.changes, fleetChange{action: "remove", policy: name, do: func(ctx context.Context, i index.Index) error {
				return i.RemovePolicy(ctx, name, operator())
			}})
		}
	}
}

// errBusy returns an error that names what cannot be retired while it is being backed up, or nil.
func (p *applyPlan) errBusy() error {
	if len(p.busy) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was changed, because these would be retired and are being backed up: %s: wait until the backups have ended, or end them with bctl cancel: %w",
		strings.Join(p.busy, ", "), backup.ErrRunning)
}

// A plannedFleet is the part of the fleet after the changes that the notes concern.
type plannedFleet struct {
	shards   []index.ShardStatus
	policies []backup.Policy
}

func (p *applyPlan) plan(shards []index.ShardStatus, policies []backup.Policy) (f plannedFleet) {
	f.policies = slices.Clone(p.file.policies)
	for n := range policies {
		if !p.prune && !slices.ContainsFunc(f.policies, func(w backup.Policy) bool { return w.Name == policies[n].Name }) {
			f.policies = append(f.policies, policies[n])
		}
	}
	for n := range shards {
		declared := slices.ContainsFunc(p.file.filers, func(w wantedFiler) bool { return w.Name == shards[n].Filer.Name })
		if !p.prune && !declared {
			f.shards = append(f.shards, shards[n])
		}
	}
	for n := range p.file.filers {
		w := &p.file.filers[n]
		for _, s := range w.shards {
			f.shards = append(f.shards, index.ShardStatus{Shard: s, Filer: w.Filer})
		}
		for m := range shards {
			if !p.prune && shards[m].Filer.Name == w.Name && !p.file.has(w.Name, shards[m].Name) {
				s := shards[m]
				s.Filer = w.Filer
				f.shards = append(f.shards, s)
			}
		}
	}
	return f
}

// busy adds advice to an error that occurs because an object to retire is being backed up.
func busy(err error) error {
	if errors.Is(err, backup.ErrRunning) {
		return fmt.Errorf("a backup of it has just begun (bctl cancel ends it, bctl status shows how far it is): %w", backup.ErrRunning)
	}
	return err
}
