package rebuild

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
)

// storeSettings stores the filers, shards and policies of the catalog. Filers and shards that only
// records have were added after the catalog was written.
func (r *rebuilding) storeSettings(ctx context.Context) error {
	if err := r.keepSettings(ctx); err != nil {
		return err
	}
	filers := map[string]backup.FilerID{}
	for i := range r.catalog.Filers {
		f, err := r.catalog.Filers[i].Filer()
		if err == nil {
			f, err = r.Index.RecoverFiler(ctx, f)
		}
		if err != nil {
			return fmt.Errorf("filer %q: %w", r.catalog.Filers[i].Name, err)
		}
		filers[f.Name] = f.ID
	}
	for i := range r.catalog.Shards {
		c := &r.catalog.Shards[i]
		s, err := c.Shard()
		if err == nil {
			s.Filer, err = r.filer(ctx, filers, c.Filer)
		}
		if err == nil {
			s, err = r.Index.RecoverShard(ctx, s)
		}
		if err != nil {
			return fmt.Errorf("shard %q of filer %q: %w", c.Name, c.Filer, err)
		}
		r.shards[s.Key] = s
	}
	for _, key := range r.keys() {
		records := r.byShard[key]
		last := records[len(records)-1]
		if _, ok := r.shards[key]; ok {
			continue
		}
		filer, err := r.filer(ctx, filers, last.Filer.Name)
		if err == nil {
			r.shards[key], err = r.Index.RecoverShard(ctx, backup.Shard{Key: key, Filer: filer, Name: last.Shard.Name, Source: last.Shard.Source})
		}
		if err != nil {
			return fmt.Errorf("shard %q of filer %q: %w", last.Shard.Name, last.Filer.Name, err)
		}
	}
	return r.storePolicies(ctx)
}

// keepSettings finds the shards that the index has. If the index has written the catalog, or a
// later one, its settings, marks and holds are as new, and stay.
func (r *rebuilding) keepSettings(ctx context.Context) error {
	shards, err := r.Index.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	r.shards = map[backup.ShardKey]backup.Shard{}
	for i := range shards {
		r.shards[shards[i].Key] = shards[i].Shard
	}
	written, err := r.Index.WrittenCatalog(ctx)
	if err != nil || written.Sequence == 0 || written.Sequence < r.result.Sequence {
		return err
	}
	r.kept, r.catalog = true, &journal.Catalog{}
	r.bad, err = r.Index.BadSnapshots(ctx)
	return err
}

// filer returns the id of a filer, which it stores if only a record has it.
func (r *rebuilding) filer(ctx context.Context, known map[string]backup.FilerID, name string) (backup.FilerID, error) {
	if id, ok := known[name]; ok {
		return id, nil
	}
	f, err := r.Index.EnsureFiler(ctx, name)
	known[name] = f.ID
	return f.ID, err
}

func (r *rebuilding) storePolicies(ctx context.Context) error {
	if r.result.Sequence == 0 || r.kept {
		return nil
	}
	stored, err := r.Index.ListPolicies(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for i := range r.catalog.Policies {
		p, err := r.catalog.Policies[i].Policy()
		if err == nil {
			_, err = r.Index.SetPolicy(ctx, p, r.By)
		}
		if err != nil {
			return fmt.Errorf("policy %q: %w", r.catalog.Policies[i].Name, err)
		}
		wanted[p.Name] = true
	}
	for i := range stored {
		if !wanted[stored[i].Name] {
			if err := r.Index.RemovePolicy(ctx, stored[i].Name, r.By); err != nil {
				return err
			}
		}
	}
	if b := r.catalog.Brake; b != nil {
		brake := index.Brake{Snapshots: b.Snapshots, MinSnapshots: b.MinSnapshots, Bytes: b.Bytes, MinBytes: b.MinBytes, Operators: b.Operators}
		now, err := r.Index.Brake(ctx)
		if err == nil && now != brake {
			err = r.Index.SetBrake(ctx, brake, r.By)
		}
		if err != nil {
			return err
		}
	}
	return r.storeScrub(ctx)
}

// storeScrub stores the limits of scrubs.
func (r *rebuilding) storeScrub(ctx context.Context) error {
	c := r.catalog.Scrub
	if c == nil { // an earlier version has written the catalog
		return nil
	}
	if c.WithinSeconds > int64(math.MaxInt64/time.Second) {
		return fmt.Errorf("scrubs within %d seconds: %w", c.WithinSeconds, backup.ErrInvalid)
	}
	scrub := index.ScrubSettings{
		Within: time.Duration(c.WithinSeconds) * time.Second, PerDay: index.ScrubCost{Bytes: c.Bytes, Requests: c.Requests},
		Prices: index.ScrubPrices{Requests: index.Money(c.PriceRequests), Bytes: index.Money(c.PriceBytes)}, Spend: index.Money(c.Spend),
	}
	now, err := r.Index.ScrubSettings(ctx)
	if err == nil && now != scrub {
		err = r.Index.SetScrub(ctx, scrub, r.By)
	}
	return err
}

// storeHolds stores the holds of the catalog.
func (r *rebuilding) storeHolds(ctx context.Context) error {
	if r.result.Sequence == 0 || r.kept {
		return r.raiseAlarms(ctx)
	}
	var holds []index.Hold
	for i := range r.catalog.Holds {
		c := &r.catalog.Holds[i]
		path, err := c.PathOnHold()
		if err != nil {
			return err
		}
		h := index.Hold{ID: c.ID, Path: path, Reason: c.Reason, By: c.By, Login: c.Login, Since: c.Since}
		if c.Shard != "" {
			key, err := backup.ParseShardKey(c.Shard)
			if err != nil {
				return err
			}
			h.Shard = r.shards[key].ID
		} else if h.Snapshot, err = backup.ParseSnapshotID(c.Snapshot); err != nil {
			return err
		}
		if h.Shard == 0 && h.Snapshot == (backup.SnapshotID{}) {
			return fmt.Errorf("hold %d is on an unknown shard: %w", c.ID, backup.ErrCorrupt)
		}
		if c.Alarm != "" {
			if h.Alarm, err = backup.ParseSnapshotID(c.Alarm); err != nil {
				return err
			}
		}
		holds = append(holds, h)
	}
	without, err := r.Index.RecoverHolds(ctx, holds, r.By)
	r.result.Holds = without
	if err != nil {
		return err
	}
	return r.raiseAlarms(ctx)
}

// raiseAlarms raises the alarms of snapshots that are newer than the catalog, which may lack them.
// If one was acknowledged since, it is open again.
func (r *rebuilding) raiseAlarms(ctx context.Context) error {
	holds, err := r.Index.Holds(ctx)
	if err != nil {
		return err
	}
	open := map[backup.ShardID]bool{}
	for i := range holds {
		open[holds[i].Shard] = open[holds[i].Shard] || holds[i].Alarm != backup.SnapshotID{}
	}
	for _, key := range r.keys() {
		shard := r.shards[key].ID
		for _, s := range r.byShard[key] {
			if s.Alarm == "" || open[shard] || s.State != backup.Committed || s.Ended.Before(r.result.Catalog) {
				continue
			}
			if _, err := r.Index.AddHold(ctx, index.Hold{Shard: shard, Reason: s.Alarm, By: r.By, Alarm: s.ID}); err != nil {
				return err
			}
			open[shard] = true
		}
	}
	return nil
}

// noteCatalog notes the catalog in the index, so that the next one gets a greater number.
func (r *rebuilding) noteCatalog(ctx context.Context) error {
	if r.result.Sequence == 0 || r.kept {
		return nil
	}
	lines, err := r.catalog.Lines()
	if err != nil {
		return err
	}
	return r.Index.CatalogWritten(ctx, index.WrittenCatalog{Sequence: r.result.Sequence, Digest: sha256.Sum256(lines), Written: r.result.Catalog})
}
