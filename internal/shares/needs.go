package shares

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// A need is a chunk, and a group of shards that needs it.
type need struct {
	chunk backup.ChunkID
	group int32
}

// A set has each need once.
type set map[need]struct{}

// lists are the groups that need each list chunk.
type lists map[backup.ChunkID][]int32

// add reports whether the need is a new one.
func (l lists) add(n need) bool {
	if slices.Contains(l[n.chunk], n.group) {
		return false
	}
	l[n.chunk] = append(l[n.chunk], n.group)
	return true
}

// A reading finds needs.
type reading struct {
	index  Index
	groups map[backup.ShardID]int
	needed map[backup.ShardID][]backup.SnapshotNumber
	lists  lists // those that lists name included; nil: not known yet
}

// read calls do with each need. It may call do several times for a need.
func (r *reading) read(ctx context.Context, do func(need)) error {
	found := lists{}
	if err := r.readPages(ctx, found, do); err != nil {
		return err
	}
	if r.lists == nil {
		if err := r.nest(ctx, found); err != nil {
			return err
		}
		r.lists = found
	}
	if len(r.lists) == 0 {
		return nil
	}
	for list, err := range r.index.ChunkLists(ctx) {
		if err != nil {
			return err
		}
		for _, group := range r.lists[list.List] {
			for _, id := range list.Chunks {
				do(need{id, group})
			}
		}
	}
	return nil
}

// readPages is read for what pages name. The first time, it also adds their lists.
func (r *reading) readPages(ctx context.Context, found lists, do func(need)) error {
	var chunks listing.Chunks
	for _, shard := range slices.Sorted(maps.Keys(r.needed)) {
		group, ok := r.groups[shard]
		if !ok {
			continue // it is new
		}
		for data, err := range r.index.References(ctx, shard, 0, r.needed[shard]) {
			if err != nil {
				return err
			}
			chunks, err = listing.AppendChunks(listing.Chunks{Lists: chunks.Lists[:0], Other: chunks.Other[:0]}, data)
			if err != nil {
				return fmt.Errorf("cannot find the chunks of a page of shard %d: %w", shard, err)
			}
			for _, id := range chunks.Lists {
				do(need{id, int32(group)})
				if r.lists == nil {
					found.add(need{id, int32(group)})
				}
			}
			for _, id := range chunks.Other {
				do(need{id, int32(group)})
			}
		}
	}
	return nil
}

// nest adds the lists that lists of lists name.
func (r *reading) nest(ctx context.Context, found lists) error {
	for more := len(found) > 0; more; {
		more = false
		for list, err := range r.index.ChunkLists(ctx) {
			if err != nil {
				return err
			}
			if !list.Nested {
				continue
			}
			for _, group := range found[list.List] {
				for _, id := range list.Chunks {
					more = found.add(need{id, group}) || more
				}
			}
		}
	}
	return nil
}
