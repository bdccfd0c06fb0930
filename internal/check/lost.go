package check

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// chunkBytes is about the memory for a lost chunk.
const chunkBytes = 64

// A loss is what is lost, of a part of the chunks, and why.
type loss struct {
	*checker
	chunks map[backup.ChunkID]*Finding
	reread map[index.PageID]bool       // pages that the next backups read again
	lists  map[backup.ChunkID]*Finding // lists that are lost, or that have something lost below
	mu     sync.Mutex
	seen   map[*Finding]map[uint64]bool // hashes of files
}

// consequences finds the files that need what is damaged or missing.
func (c *checker) consequences(ctx context.Context) error {
	var rows []int64
	total := int64(len(c.missing) + len(c.unknown))
	damaged := map[int64]*Finding{}
	for _, f := range c.report.Findings {
		if f.Damage != nil && (f.Damage.Whole || len(f.Damage.Frames)+len(f.Damage.Chunks) > 0) {
			damaged[f.Damage.Row] = f
			rows = append(rows, f.Damage.Row)
			if i, ok := c.rows[f.Damage.Row]; ok {
				total += c.packs[i].Chunks
			}
		}
	}
	if total == 0 {
		return nil
	}
	c.step("finding the affected files", 0, 0)
	none := &Finding{Kind: Chunks, Text: "the index has no place of chunks that pages refer to"}
	unknown := &Finding{Kind: Lists, Text: "the index does not know what list chunks refer to"}
	reread, err := c.toReread(ctx)
	if err != nil {
		return err
	}
	parts := 1
	for total/int64(parts)*chunkBytes > c.MemoryBytes && parts < 1<<16 {
		parts *= 2
	}
	for n := range parts {
		l := &loss{checker: c, reread: reread, chunks: map[backup.ChunkID]*Finding{}, lists: map[backup.ChunkID]*Finding{}, seen: map[*Finding]map[uint64]bool{}}
		in := inPart(n, parts)
		if err := l.findLost(ctx, in, rows, damaged); err != nil {
			return err
		}
		for id := range c.missing {
			if in(&id) {
				l.chunks[id] = none
			}
		}
		for id := range c.unknown {
			if in(&id) {
				l.lists[id] = unknown
			}
		}
		for _, f := range l.chunks {
			f.Lost++
		}
		unknown.Lost += int64(len(l.lists))
		if err := l.findFiles(ctx); err != nil {
			return err
		}
	}
	for _, f := range []*Finding{none, unknown} {
		if f.Files > 0 {
			c.find(f)
		}
	}
	return nil
}

// toReread returns the pages that the next backups read again.
func (c *checker) toReread(ctx context.Context) (map[index.PageID]bool, error) {
	pages := map[index.PageID]bool{}
	for id, err := range c.Index.ToReread(ctx) {
		if err != nil {
			return nil, err
		}
		pages[id] = true
	}
	return pages, nil
}

// findLost finds the chunks that are in the damaged parts of packs, and nowhere else.
func (l *loss) findLost(ctx context.Context, in func(*backup.ChunkID) bool, rows []int64, damaged map[int64]*Finding) error {
	if len(rows) == 0 {
		return nil
	}
	for place, err := range l.Index.Places(ctx, rows) {
		if err != nil {
			return err
		}
		if f := damaged[place.Pack]; f != nil && in(&place.Chunk) && f.Damage.Has(&place) {
			l.chunks[place.Chunk] = f
		}
	}
	for place, err := range l.Index.Places(ctx, nil) {
		if err != nil {
			return err
		}
		f := l.chunks[place.Chunk]
		if f == nil {
			continue
		}
		if d := damaged[place.Pack]; d != nil && d.Damage.Has(&place) || l.deleting[place.Pack] {
			continue
		}
		f.Elsewhere++
		delete(l.chunks, place.Chunk)
	}
	return nil
}

// findFiles finds the files that need what is lost, in the snapshots that are needed now.
func (l *loss) findFiles(ctx context.Context) error {
	if len(l.chunks) == 0 && len(l.lists) == 0 {
		return nil
	}
	for more := true; more; { // lists of lists may come before the lists
		more = false
		for list, err := range l.Index.ChunkLists(ctx) {
			if err != nil {
				return err
			}
			if f := l.below(&list); f != nil && l.lists[list.List] == nil {
				l.lists[list.List] = f
				more = true
			}
		}
	}
	needed, err := l.Index.Needed(ctx, nil)
	if err != nil {
		return err
	}
	for _, s := range l.shards {
		now := &shard{ShardStatus: s.ShardStatus}
		for _, n := range s.numbers {
			if _, still := slices.BinarySearch(needed[s.ID], n); still {
				now.numbers = append(now.numbers, n)
			}
		}
		if len(now.numbers) == 0 {
			continue
		}
		workers := make([]worker, shares())
		_, err := l.eachVersion(ctx, now, func(share int, v *index.Version) error {
			l.version(now, v, &workers[share])
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// below returns why something in a list is lost; nil: nothing is.
func (l *loss) below(list *backup.ChunkList) *Finding {
	for i := range list.Chunks {
		if f := l.chunks[list.Chunks[i]]; f != nil {
			return f
		}
		if f := l.lists[list.Chunks[i]]; list.Nested && f != nil {
			return f
		}
	}
	return nil
}

// version reports the files of a version of which something is lost.
func (l *loss) version(s *shard, v *index.Version, w *worker) {
	chunks, err := listing.AppendChunks(listing.Chunks{Lists: w.chunks.Lists[:0], Other: w.chunks.Other[:0]}, v.Listing)
	w.chunks = chunks
	if err != nil || !l.any(chunks.Lists) && !l.any(chunks.Other) {
		return // the page is reported as damaged
	}
	page, err := w.decode(v)
	if err != nil {
		return // likewise
	}
	if page.Self != nil {
		l.entry(s, v, page.Path, page.Self)
	}
	for i := range page.Entries {
		l.entry(s, v, backup.Join(page.Path, page.Entries[i].Name), &page.Entries[i])
	}
}

func (l *loss) any(ids []backup.ChunkID) bool {
	return slices.ContainsFunc(ids, func(id backup.ChunkID) bool { return l.chunks[id] != nil || l.lists[id] != nil })
}

// entry reports an entry of which something is lost.
func (l *loss) entry(s *shard, v *index.Version, path string, e *backup.Entry) {
	var f *Finding
	if e.XattrChunk.Length > 0 {
		f = l.chunks[e.XattrChunk.Chunk]
	}
	for i := range e.Content.Refs {
		if f != nil {
			break
		}
		if f = l.chunks[e.Content.Refs[i].Chunk]; f == nil && e.Content.Depth > 0 {
			f = l.lists[e.Content.Refs[i].Chunk]
		}
	}
	if f == nil {
		return
	}
	a := Affected{
		Filer: s.Filer.Name, Shard: s.Name, Path: path, ShardID: s.ID, Directory: v.Directory, Key: v.Key, Version: v.First,
		Open: v.Last >= s.numbers[len(s.numbers)-1],
	}
	a.First, a.Last = s.among(v.First, v.Last)
	again := l.reread[index.PageID{Shard: s.ID, Directory: v.Directory, Key: v.Key}]
	l.affected(f, a, again)
}

var fileSeed = maphash.MakeSeed()

// maxSeen bounds the files that are counted once, although several versions of pages have them.
const maxSeen = 1 << 20

// affected adds an affected file to a finding. The next backup reads it again, or does not.
func (l *loss) affected(f *Finding, a Affected, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !a.Open:
	case again:
		f.Noted++
	default:
		f.Unnoted++
	}
	if l.seen[f] == nil {
		l.seen[f] = map[uint64]bool{}
	}
	file := maphash.String(fileSeed, a.Path) + uint64(a.ShardID)*0x9e3779b97f4a7c15
	if !l.seen[f][file] {
		f.Files++
		if len(l.seen[f]) < maxSeen {
			l.seen[f][file] = true
		}
	}
	if l.Affected != nil && f.Kind != Lists { // a restore does not need these rows
		l.Affected(f, a)
	}
	for i := range f.Affected {
		if known := &f.Affected[i]; known.Path == a.Path && known.ShardID == a.ShardID {
			known.First, known.Last = min(known.First, a.First), max(known.Last, a.Last)
			return
		}
	}
	if len(f.Affected) < maxAffected {
		f.Affected = append(f.Affected, a)
	}
}
