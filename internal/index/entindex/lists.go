package entindex

import (
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// putLists stores what list chunks refer to. A list of lists is known only after the lists that it
// refers to. So if a list is known, all chunks of its file are known, in any order of messages. A
// list always refers to the same chunks.
func (a *application) putLists(ctx context.Context) error {
	var below []backup.ChunkID
	for i, r := range a.results {
		if r.Lists != nil && a.live(i) {
			below = append(below, belowLists(r.Lists.Lists)...)
		}
	}
	known, err := a.knownLists(ctx, below)
	if err != nil {
		return err
	}
	var lists []backup.ChunkList
	for i, r := range a.results {
		if r.Lists == nil || !a.live(i) {
			continue
		}
		if slices.ContainsFunc(belowLists(r.Lists.Lists), func(id backup.ChunkID) bool { return !known[id] }) {
			a.outcomes[i].Err = index.ErrListUnknown
			continue
		}
		for _, l := range r.Lists.Lists {
			if !known[l.List] {
				known[l.List] = true
				lists = append(lists, l)
			}
		}
	}
	if len(lists) == 0 {
		return nil
	}
	slices.SortFunc(lists, func(a, b backup.ChunkList) int { return slices.Compare(a.List[:], b.List[:]) })
	return a.tx.Hot.PutLists(ctx, lists)
}

// belowLists returns the list chunks that lists of lists refer to, except those in lists itself.
func belowLists(lists []backup.ChunkList) (below []backup.ChunkID) {
	if !slices.ContainsFunc(lists, func(l backup.ChunkList) bool { return l.Nested }) {
		return nil
	}
	own := make(map[backup.ChunkID]bool, len(lists))
	for _, l := range lists {
		own[l.List] = true
	}
	for _, l := range lists {
		for _, id := range l.Chunks {
			if l.Nested && !own[id] {
				below = append(below, id)
			}
		}
	}
	return below
}

// loadLists finds out which list chunks that open batches refer to are known.
func (a *application) loadLists(ctx context.Context) (err error) {
	var wanted []backup.ChunkID
	for i, r := range a.results {
		if r.Batch != nil && a.live(i) && a.batches[r.Batch.Batch] != nil {
			wanted = append(wanted, a.needs[i]...)
		}
	}
	a.lists, err = a.knownLists(ctx, wanted)
	return err
}

// knownLists returns which lists are known, together with all lists below them. Garbage collection
// may have deleted a list below one that it left, because they are in different packs.
func (a *application) knownLists(ctx context.Context, lists []backup.ChunkID) (map[backup.ChunkID]bool, error) {
	known, seen, below := map[backup.ChunkID]bool{}, map[backup.ChunkID]bool{}, []backup.ChunkList{}
	for len(lists) > 0 {
		lists = slices.DeleteFunc(sortedIDs(lists), func(id backup.ChunkID) bool { return seen[id] })
		var next []backup.ChunkID
		for group := range slices.Chunk(lists, listLength) {
			found, err := a.tx.Hot.KnownLists(ctx, group)
			if err != nil {
				return nil, err
			}
			for _, l := range found {
				known[l.List] = true
				if l.Nested {
					below = append(below, l)
					next = append(next, l.Chunks...)
				}
			}
		}
		for _, id := range lists {
			seen[id] = true
		}
		lists = next
	}
	incomplete := func(l backup.ChunkList) bool {
		return known[l.List] && slices.ContainsFunc(l.Chunks, func(id backup.ChunkID) bool { return !known[id] })
	}
	for i := slices.IndexFunc(below, incomplete); i >= 0; i = slices.IndexFunc(below, incomplete) {
		delete(known, below[i].List)
	}
	return known, nil
}

// listsOf returns the list chunks that pages refer to.
func listsOf(pages []backup.PageVersion) ([]backup.ChunkID, error) {
	var lists []backup.ChunkID
	for i := range pages {
		chunks, err := listing.ReadChunks(pages[i].Listing)
		if err != nil {
			return nil, invalid("listing of page %d of %q: %v", pages[i].Key, pages[i].Path, err)
		}
		lists = append(lists, chunks.Lists...)
	}
	return lists, nil
}
