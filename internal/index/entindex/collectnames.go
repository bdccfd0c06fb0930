package entindex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/names"
)

// manyNames is how many names may be in no page before the names of a shard are collected anew.
const manyNames = 50_000

// CollectNames implements index.Naming. It reads all versions of the shard's pages, in many
// transactions that lock the shard, so that no purge comes between reading a page and storing its
// names. Backups go on: what they bring meanwhile is in groups of their own, which stay.
func (x *Index) CollectNames(ctx context.Context, shard backup.ShardID) (bool, error) {
	due, err := x.namesDue(ctx, shard)
	if err != nil || !due {
		return false, err
	}
	c := &nameCollector{shard: shard, build: rand.Int64(), writer: names.Writer{Shard: shard}}
	if err := x.Backend.Update(ctx, Relaxed, c.begin); err != nil {
		return false, err
	}
	for !c.end {
		began := time.Now()
		next := c.after
		err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) (err error) {
			next, err = c.some(ctx, tx)
			return err
		})
		if err != nil {
			return false, err
		}
		c.after, c.end = next, next == nil
		if _, err := x.Backend.GiveWay(ctx, time.Since(began)); err != nil {
			return false, err
		}
	}
	return true, x.Backend.Update(ctx, Durable, c.finish)
}

// namesDue reports whether names of a shard are missing or damaged, or whether many may be in no
// page any more. The largest group is that of the first snapshot, or of the last collection.
func (x *Index) namesDue(ctx context.Context, shard backup.ShardID) (bool, error) {
	err := x.EachName(ctx, shard, func(backup.PageName, []string) error { return nil })
	if errors.Is(err, index.ErrNamesIncomplete) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	groups, err := nameGroups(ctx, x.query, shard)
	total, largest := int64(0), int64(0)
	for _, g := range groups {
		total, largest = total+g.names, max(largest, g.names)
	}
	return total-largest > largest/2+manyNames, err
}

// A nameCollector collects the names of one shard.
type nameCollector struct {
	shard   backup.ShardID
	build   int64 // two that collect the same names take notice of each other
	marks   int64 // of the shard, at the beginning
	writer  names.Writer
	decoder listing.Decoder
	after   *Version
	end     bool
	damaged bool // the names of a version are not known
}

const (
	beginBuild   = `INSERT INTO name_groups (shard, number, blocks, names, build) VALUES ($1, -1, 0, 0, $2)`
	countBuild   = `SELECT count(*) FROM name_groups WHERE shard = $1 AND number = -1 AND build = $2`
	finishBlocks = `UPDATE name_blocks SET number = 0 WHERE shard = $1 AND number = -1`
	finishGroup  = `UPDATE name_groups SET number = 0, build = 0 WHERE shard = $1 AND number = -1`
	namesDone    = `DELETE FROM names_incomplete WHERE shard = $1 AND marks = $2`
)

func (c *nameCollector) begin(ctx context.Context, tx *Tx) (err error) {
	if _, err := tx.lockShard(ctx, c.shard); err != nil {
		return err
	}
	if c.marks, err = tx.count(ctx, countIncomplete, int64(c.shard)); err != nil {
		return err
	}
	if err := tx.dropNames(ctx, c.shard, collecting, collecting); err != nil {
		return err
	}
	return tx.exec(ctx, beginBuild, int64(c.shard), c.build)
}

// lock locks the shard, unless another process has begun to collect its names.
func (c *nameCollector) lock(ctx context.Context, tx *Tx) error {
	if _, err := tx.lockShard(ctx, c.shard); err != nil {
		return err
	}
	n, err := tx.count(ctx, countBuild, int64(c.shard), c.build)
	if err == nil && n == 0 {
		err = fmt.Errorf("another process collects the names of shard %d: %w", c.shard, backup.ErrRunning)
	}
	return err
}

// some collects the names of some versions, and returns the last one; nil: that was the end.
func (c *nameCollector) some(ctx context.Context, tx *Tx) (*Version, error) {
	if err := c.lock(ctx, tx); err != nil {
		return nil, err
	}
	var all Range
	if c.after != nil {
		all.From = c.after.PathKey
	}
	versions, err := tx.Hot.Versions(ctx, c.shard, all, 0, c.after, pagesLimit)
	if err != nil {
		return nil, err
	}
	for rest := versions; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].id() == rest[0].id() {
			n++
		}
		c.add(rest[:n])
		rest = rest[n:]
	}
	if err := tx.putNames(ctx, group{c.shard, collecting}, &c.writer); err != nil || len(versions) < pagesLimit {
		return nil, err
	}
	return &versions[len(versions)-1], nil
}

// add adds the names of versions of one page.
func (c *nameCollector) add(versions []Version) {
	seen := map[string]bool{}
	for i := range versions {
		list, err := c.decoder.Names(versions[i].Listing)
		if err != nil {
			c.damaged = true
		}
		for _, name := range list {
			seen[name] = true
		}
	}
	page := names.Page{PathKey: versions[0].PathKey, Key: versions[0].Key, Names: make([]string, 0, len(seen))}
	for name := range seen {
		page.Names = append(page.Names, name)
	}
	slices.Sort(page.Names)
	c.writer.Add(&page)
}

// finish replaces the names of before. Those that a running snapshot brings stay. The shard stays
// marked if a page was written without its names meanwhile, or if one is damaged.
func (c *nameCollector) finish(ctx context.Context, tx *Tx) error {
	if err := c.lock(ctx, tx); err != nil {
		return err
	}
	running, err := tx.Snapshot.Query().Where(snapshot.ShardID(int64(c.shard)), snapshot.State(string(backup.Running))).All(ctx)
	if err != nil {
		return err
	}
	last := int64(open)
	for _, s := range running {
		last = min(last, s.Number-1)
	}
	if err := tx.dropNames(ctx, c.shard, collected, last); err != nil {
		return err
	}
	for _, statement := range []string{finishBlocks, finishGroup} {
		if err := tx.exec(ctx, statement, int64(c.shard)); err != nil {
			return err
		}
	}
	if c.damaged {
		return tx.exec(ctx, markNames, int64(c.shard))
	}
	return tx.exec(ctx, namesDone, int64(c.shard), c.marks)
}
