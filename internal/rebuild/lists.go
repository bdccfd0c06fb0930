package rebuild

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/listing"
)

// listsAtOnce is how many list chunks are in memory at a time.
const listsAtOnce = 256

// readLists makes the index know what list chunks refer to, so that live chunks can be found
// without a key. A list chunk that is damaged or gone is noted, and so are those above it: their
// files cannot be restored.
func (r *rebuilding) readLists(ctx context.Context, ids []backup.ChunkID) error {
	ids = sorted(ids)
	known, err := r.Index.KnownLists(ctx, ids)
	if err != nil {
		return err
	}
	ids = slices.DeleteFunc(ids, func(id backup.ChunkID) bool { return known[id] || r.lostLists[id] })
	for group := range slices.Chunk(ids, listsAtOnce) {
		lists, err := r.fetchLists(ctx, group)
		if err != nil {
			return err
		}
		var below []backup.ChunkID
		for i := range lists {
			if lists[i].Nested {
				below = append(below, lists[i].Chunks...)
			}
		}
		if len(below) > 0 {
			if err := r.readLists(ctx, below); err != nil {
				return err
			}
			lists = slices.DeleteFunc(lists, r.isIncomplete)
		}
		if err := r.Index.RecoverLists(ctx, lists); err != nil {
			return err
		}
	}
	return nil
}

// RecoverLists makes the index know what the list chunks refer to that snapshots need, and whose
// packs it has. Of the Options, it uses Index, Store, Trust and Dedup.
func RecoverLists(ctx context.Context, o Options) error {
	r := newRebuilding(o)
	needed, err := o.Index.Needed(ctx, nil)
	if err != nil {
		return err
	}
	var chunks listing.Chunks
	var ids []backup.ChunkID
	for shard, numbers := range needed {
		for data, err := range o.Index.References(ctx, shard, 0, numbers) {
			if err != nil {
				return err
			}
			if chunks, err = listing.AppendChunks(listing.Chunks{Lists: chunks.Lists[:0], Other: chunks.Other[:0]}, data); err != nil {
				continue // a check reports the page
			}
			if ids = append(ids, chunks.Lists...); len(ids) > 1<<16 {
				if err := r.readLists(ctx, ids); err != nil {
					return err
				}
				ids = ids[:0]
			}
		}
	}
	return r.readLists(ctx, ids)
}

// isIncomplete reports whether a list refers to one that is lost, and is then lost itself.
func (r *rebuilding) isIncomplete(l backup.ChunkList) bool {
	lost := l.Nested && slices.ContainsFunc(l.Chunks, func(id backup.ChunkID) bool { return r.lostLists[id] })
	if lost {
		r.lostLists[l.List] = true
	}
	return lost
}

func sorted(ids []backup.ChunkID) []backup.ChunkID {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, func(a, b backup.ChunkID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}

// fetchLists reads list chunks from the store.
func (r *rebuilding) fetchLists(ctx context.Context, ids []backup.ChunkID) ([]backup.ChunkList, error) {
	places, err := r.Index.LocateReadable(ctx, ids)
	if err != nil {
		return nil, err
	}
	sink := &listSink{ids: ids, lists: make([]*backup.ChunkList, len(ids)), errs: make([]error, len(ids))}
	wants := make([]fetch.Want, len(ids))
	for i := range ids {
		wants[i] = fetch.Want{Chunk: ids[i], Length: int64(places[i].Length), Tag: int64(i), Sink: sink}
	}
	if err := r.fetcher.Get(ctx, wants); err != nil {
		return nil, err
	}
	lists := make([]backup.ChunkList, 0, len(ids))
	for i := range ids {
		if sink.errs[i] != nil {
			r.lostLists[ids[i]] = true
			r.damaged(fmt.Sprintf("list chunk %x", ids[i][:]), sink.errs[i])
			continue
		}
		lists = append(lists, *sink.lists[i])
	}
	return lists, nil
}

// A listSink receives list chunks.
type listSink struct {
	ids   []backup.ChunkID
	guard sync.Mutex
	lists []*backup.ChunkList
	errs  []error
}

// Chunk implements fetch.Sink.
func (s *listSink) Chunk(tag int64, data []byte) {
	content, err := listing.DecodeRefs(data)
	if err != nil {
		s.Fail(tag, err)
		return
	}
	list := &backup.ChunkList{List: s.ids[tag], Nested: content.Depth > 0, Chunks: make([]backup.ChunkID, len(content.Refs))}
	for i := range content.Refs {
		list.Chunks[i] = content.Refs[i].Chunk
	}
	s.guard.Lock()
	defer s.guard.Unlock()
	s.lists[tag] = list
}

// Fail implements fetch.Sink.
func (s *listSink) Fail(tag int64, err error) {
	s.guard.Lock()
	defer s.guard.Unlock()
	s.errs[tag] = err
}
