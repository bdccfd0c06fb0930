package entindex

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/migrations"
)

// PreparePages implements index.Recovering. Each page is looked up once. The rest of the work needs
// no transaction, and is done by several goroutines.
func (x *Index) PreparePages(ctx context.Context, shard backup.ShardID, at backup.SnapshotNumber, changes []index.RecoveredChange) error {
	var names []PageID
	of := make([]int, len(changes)) // the position in names, plus 1
	if at > 0 {
		for i := range changes {
			if c := &changes[i]; !c.Ended || c.Digest == (backup.PageDigest{}) {
				names = append(names, PageID{Shard: shard, Directory: listing.DirectoryID(c.Path), Key: c.Key})
				of[i] = len(names)
			}
		}
	}
	var before []OpenPage
	patches := false
	err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) (err error) {
		if patches, err = tx.writesPatches(ctx); err != nil || len(names) == 0 {
			return err
		}
		before, err = tx.Hot.PagesAt(ctx, at, names)
		return err
	})
	if err != nil {
		return err
	}
	var working errgroup.Group
	for group := range slices.Chunk(changes, len(changes)/runtime.GOMAXPROCS(0)+1) {
		rest := of
		of = of[len(group):]
		working.Go(func() error {
			var p preparation
			for i := range group {
				var name PageID
				var b OpenPage
				if rest[i] > 0 {
					name, b = names[rest[i]-1], before[rest[i]-1]
				}
				b.Patches = patches
				if err := p.prepare(&name, &group[i], &b); err != nil {
					return fmt.Errorf("page %d of %q: %w", group[i].Key, group[i].Path, err)
				}
			}
			return nil
		})
	}
	return working.Wait()
}

// writesPatches reports whether the schema declares that a version may be a patch.
func (tx *Tx) writesPatches(ctx context.Context) (patches bool, err error) {
	err = tx.Each(ctx, "SELECT "+migrations.WritesPatches, nil, func(scan func(...any) error) error { return scan(&patches) })
	return patches, err
}

// A preparation prepares changes one after another.
type preparation struct {
	base, old []byte // the plain forms of the base, and of the version that is replaced
	compared  []byte // the plain form of the base with which store has compared a listing last
}

// prepare completes a change, and decides how its page is stored: as when the snapshot was made.
// The name is not needed if the page has no version before.
func (p *preparation) prepare(name *PageID, c *index.RecoveredChange, before *OpenPage) error {
	c.Replaces, c.Replaced = before.First != 0, before.Digest
	if c.Ended {
		if c.Digest == (backup.PageDigest{}) {
			c.Digest = before.Digest
		}
		if c.Digest == (backup.PageDigest{}) {
			return fmt.Errorf("it has ended, and the base does not have it: %w", backup.ErrCorrupt)
		}
		return nil
	}
	var patch []byte // of the version that is replaced
	if c.Patched {
		if !c.Replaces {
			return fmt.Errorf("it is changed, and the base does not have it: %w", backup.ErrCorrupt)
		}
		whole, err := p.readOld(before)
		if err != nil {
			return err
		}
		patch = c.Listing
		if c.Listing, err = listing.Patched(whole, patch); err != nil {
			return err
		}
		c.Patched, c.Digest = false, listing.Digest(&c.PageVersion)
	}
	c.Stored = c.Listing
	if before.Patches && listing.IsPlain(c.Listing) && len(c.Listing) <= listing.MaxPatchedBytes {
		c.Stored, c.Base = p.store(name, before, c.Listing, patch)
	}
	return nil
}

// readOld returns the plain form of a version.
func (p *preparation) readOld(v *OpenPage) ([]byte, error) {
	if v.Base == 0 {
		plain, err := listing.AppendPlainBase(p.old[:0], v.Listing)
		p.old = keepMemory(p.old, plain, v.Listing)
		return plain, err
	}
	if v.BaseListing == nil {
		return nil, fmt.Errorf("the base of its version is not there: %w", backup.ErrCorrupt)
	}
	plain, err := listing.AppendPlainBase(p.base[:0], v.BaseListing)
	if err != nil {
		return nil, err
	}
	p.base = keepMemory(p.base, plain, v.BaseListing)
	whole, err := listing.AppendPatched(p.old[:0], plain, v.Listing)
	if err == nil {
		p.old = whole
	}
	return whole, err
}

// keepMemory returns the memory for the next plain form: that of plain, unless it is the stored
// one.
func keepMemory(memory, plain, stored []byte) []byte {
	if plain == nil || listing.IsPlain(stored) {
		return memory
	}
	return plain
}

// store returns how a plain listing is stored that replaces a version. patch is that of the
// version, if there is one: if the version is a base itself, nothing else must be computed.
func (p *preparation) store(name *PageID, before *OpenPage, plain, patch []byte) ([]byte, backup.SnapshotNumber) {
	if before.First == 0 {
		return listing.AppendPatch(nil, nil, plain), 0
	}
	base, stored := before.Base, before.BaseListing
	if base == 0 {
		base, stored = before.First, before.Listing
	}
	if before.Base != 0 || patch == nil {
		old, err := listing.AppendPlainBase(p.base[:0], stored)
		if err != nil || len(old) > listing.MaxPatchedBytes {
			return listing.AppendPatch(nil, nil, plain), 0
		}
		p.base, p.compared = keepMemory(p.base, old, stored), old
		patch = listing.AppendPatch(nil, old, plain)
	}
	if len(patch) <= name.maxPatch(len(stored)) {
		return patch, base
	}
	return listing.AppendPatch(nil, nil, plain), 0
}

// RecoverPages implements index.Recovering.
func (x *Index) RecoverPages(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber, changes []index.RecoveredChange) error {
	var pages []PageRow
	var ended []PageID
	for i := range changes {
		c := &changes[i]
		row := newPageRow(shard, number, &c.PageVersion)
		row.Digest = c.Digest // that of the page version may not be set
		if c.Ended {
			ended = append(ended, row.id())
			continue
		}
		row.Listing, row.Base, row.Ends = c.Stored, c.Base, c.Replaces
		pages = append(pages, row)
	}
	slices.SortFunc(pages, func(a, b PageRow) int { return comparePageIDs(a.id(), b.id()) })
	slices.SortFunc(ended, comparePageIDs)
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.Hot.PutPages(ctx, pages); err != nil {
			return err
		}
		if err := tx.Hot.EndPages(ctx, ended); err != nil {
			return err
		}
		return tx.exec(ctx, markNames, int64(shard)) // the rebuild collects them at its end
	})
}
