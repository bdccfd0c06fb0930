package check

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// journal returns the objects from which the index could be rebuilt: the commit records and
// segments of the snapshots, the newest catalog, and the copies of the index.
func (c *checker) journal(ctx context.Context) (objects []object, err error) {
	forgotten, err := c.Index.Forgotten(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range c.shards {
		of, err := c.journalOf(ctx, s, forgotten)
		if err != nil {
			return nil, err
		}
		objects = append(objects, of...)
	}
	// Read last: a snapshot may have been committed meanwhile, and its record follows.
	unrecorded, err := c.unrecorded(ctx)
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o object) bool {
		id, _, is := store.ParseCommitName(o.name)
		return is && unrecorded[id]
	})
	if c.Only != nil {
		return objects, nil
	}
	written, err := c.Index.WrittenCatalog(ctx)
	if err != nil {
		return nil, err
	}
	if written.Sequence > 0 {
		o := c.signed(store.CatalogName(written.Sequence), Catalog, nil, 0, 0)
		o.gone = func(ctx context.Context) (bool, error) {
			now, err := c.Index.WrittenCatalog(ctx)
			return now.Sequence != written.Sequence, err
		}
		objects = append(objects, o)
	}
	copies, err := c.copies(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := c.keys(ctx)
	return slices.Concat(objects, copies, keys), err
}

// keys returns the statements of recipients, and the wrapped keys of rotations: those that the
// store must have or, if the index does not know which, those that it has. The recipients must be
// those of the last statement.
func (c *checker) keys(ctx context.Context) (objects []object, err error) {
	if c.ProveKeys == nil {
		return nil, nil
	}
	must, err := c.KeyObjects(ctx)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	rotation, sequence := int64(-1), int64(-1) // the greatest
	for _, name := range must {
		sizes[name] = 0 // it may be missing
		if n, _, is := store.ParseWrapsName(name); is {
			rotation = max(rotation, n)
		}
		if n, is := store.ParseRecipientsName(name); is {
			sequence = max(sequence, n)
		}
	}
	for o, err := range c.Store.List(ctx, store.KeysPrefix) {
		if err != nil {
			return nil, err
		}
		if _, is := sizes[o.Name]; is {
			sizes[o.Name] = o.SizeBytes
		}
		// A command that was interrupted has put what comes after that.
		r, _, wraps := store.ParseWrapsName(o.Name)
		n, recipients := store.ParseRecipientsName(o.Name)
		if recipients && (len(must) == 0 || n > sequence) || wraps && (len(must) == 0 || r > rotation) {
			sizes[o.Name] = o.SizeBytes
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		objects = append(objects, object{
			name: name, size: sizes[name],
			check:   func(_ context.Context, data []byte) error { return c.ProveKeys(name, data) },
			finding: Finding{Kind: Keys, Object: name},
			gone: func(ctx context.Context) (bool, error) { // after a change of recipients, or a rotation
				now, err := c.KeyObjects(ctx)
				return !slices.Equal(now, must) && !slices.Contains(now, name), err // it is not needed any more
			},
		})
	}
	c.report.Cost.Lists++
	inForce, err := c.Recipients(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(inForce, c.Repository.Recipients) {
		c.find(&Finding{Kind: Keys, Text: fmt.Sprintf("by the last statement below %s, the recipients are %q; the index knows %q: a statement is missing or damaged, or a command that changed them was interrupted",
			store.KeysPrefix, inForce, c.Repository.Recipients)})
	}
	return objects, nil
}

// unrecorded returns the snapshots whose records are not written yet.
func (c *checker) unrecorded(ctx context.Context) (map[backup.SnapshotID]bool, error) {
	found, err := c.Index.Unrecorded(ctx, nil, 1<<20)
	ids := map[backup.SnapshotID]bool{}
	for i := range found {
		ids[found[i].ID] = true
	}
	return ids, err
}

// journalOf returns the records and segments of a shard.
func (c *checker) journalOf(ctx context.Context, s *shard, forgotten []index.Forgotten) (objects []object, err error) {
	journals, err := c.journals(ctx, s.ID, forgotten)
	if err != nil {
		return nil, err
	}
	last := backup.SnapshotNumber(0)
	if n := len(journals); n > 0 {
		last = journals[n-1].Number
	}
	if err := c.interrupted(ctx, s, journals); err != nil {
		return nil, err
	}
	for i := range journals {
		j := &journals[i]
		if j.Stale {
			continue
		}
		if c.Only != nil {
			if _, is := slices.BinarySearch(s.numbers, j.Number); !is {
				continue
			}
		}
		gone := func(ctx context.Context) (bool, error) { return c.replaced(ctx, s.ID, j) }
		// Later snapshots are based on it, up to the next checkpoint.
		until := last
		for _, next := range journals[i+1:] {
			if next.Segment.Checkpoint && next.Segment.Parts > 0 {
				until = next.Number - 1
				break
			}
		}
		record := c.signed(store.AmendedName(j.ID, j.Sequence), Record, s, j.Number, j.Number)
		record.gone = gone
		if j.State == backup.Committed || j.Sequence > 0 { // those that are based on it could not be rebuilt either
			record.finding.Last = until
		}
		// Committers cannot write an amended one again: it is lost as a segment is.
		record.finding.Checkpointed = j.Sequence > 0 && until < last
		objects = append(objects, record)
		for part := range j.Segment.Parts {
			o := c.signed(store.SegmentName(j.ID, j.Segment.Attempt, part), Segment, s, j.Number, until)
			o.gone = gone
			o.finding.Checkpointed = until < last
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// interrupted finds records that nobody writes again, although the store does not have those of the
// present content.
func (c *checker) interrupted(ctx context.Context, s *shard, journals []index.SnapshotJournal) error {
	stale := slices.DeleteFunc(slices.Clone(journals), func(j index.SnapshotJournal) bool { return !j.Stale })
	if len(stale) == 0 || c.Only != nil || c.Busy == nil {
		return nil
	}
	if busy, err := c.Busy(ctx); err != nil || busy {
		return err
	}
	now, err := c.Index.Journals(ctx, s.ID) // a purge may have ended meanwhile
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(now, func(j index.SnapshotJournal) bool { return j.Stale }) {
		return nil
	}
	first := &stale[0]
	c.find(&Finding{
		Kind: Record, Object: store.AmendedName(first.ID, first.Sequence), Interrupted: true, Filer: s.Filer.Name, Shard: s.Name, ShardID: s.ID,
		First: first.Number, Last: stale[len(stale)-1].Number,
		Text: fmt.Sprintf("the records of %d snapshots are not those of what the index has: a purge or a repair was interrupted before it had written them again", len(stale)),
	})
	return nil
}

// journals returns the journals of a shard that the store must have, by number: also those of
// forgotten snapshots on which others are based.
func (c *checker) journals(ctx context.Context, id backup.ShardID, forgotten []index.Forgotten) ([]index.SnapshotJournal, error) {
	journals, err := c.Index.Journals(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, f := range forgotten {
		if f.Shard == id && f.Needed && !slices.ContainsFunc(journals, func(j index.SnapshotJournal) bool { return j.ID == f.ID }) {
			journals = append(journals, index.SnapshotJournal{ID: f.ID, Number: f.Number, State: backup.Committed, Sequence: f.Amendment, Segment: f.Segment})
		}
	}
	slices.SortFunc(journals, func(a, b index.SnapshotJournal) int { return int(a.Number - b.Number) })
	return journals, nil
}

// replaced reports whether the index does not need the journal of a snapshot any more, or has
// another one.
func (c *checker) replaced(ctx context.Context, id backup.ShardID, j *index.SnapshotJournal) (bool, error) {
	forgotten, err := c.Index.Forgotten(ctx)
	if err != nil {
		return false, err
	}
	journals, err := c.journals(ctx, id, forgotten)
	if err != nil {
		return false, err
	}
	n := slices.IndexFunc(journals, func(now index.SnapshotJournal) bool { return now.ID == j.ID })
	return n < 0 || journals[n].Stale || journals[n].Sequence != j.Sequence || journals[n].Segment.Attempt != j.Segment.Attempt, nil
}

// signed returns an object that the repository's signer must have signed.
func (c *checker) signed(name string, kind Kind, s *shard, first, last backup.SnapshotNumber) object {
	o := object{
		name: name, size: absent,
		check: func(_ context.Context, data []byte) error {
			return pack.Verify(data, name, c.Repository.ID, seal.Signer(c.Repository.Signer))
		},
		finding: Finding{Kind: kind, Object: name},
		gone:    func(context.Context) (bool, error) { return false, nil },
	}
	if f := &o.finding; s != nil {
		f.Filer, f.Shard, f.ShardID, f.First, f.Last = s.Filer.Name, s.Name, s.ID, first, last
	}
	return o
}

// copies returns the parts of the copies of the index.
func (c *checker) copies(ctx context.Context) (objects []object, err error) {
	if c.Copies == nil {
		return nil, nil
	}
	sequences, err := c.Copies(ctx)
	if err != nil {
		return nil, err
	}
	parts := map[int64]int{}
	for o, err := range c.Store.List(ctx, store.IndexPrefix) {
		if err != nil {
			return nil, err
		}
		if n, part, ok := store.ParseIndexName(o.Name); ok {
			parts[n] = max(parts[n], part+1)
		}
	}
	c.report.Cost.Lists++
	for _, n := range sequences {
		gone := func(ctx context.Context) (bool, error) {
			now, err := c.Copies(ctx)
			return !slices.Contains(now, n), err
		}
		for part := range max(1, parts[n]) {
			o := c.signed(store.IndexName(n, part), Copy, nil, 0, 0)
			o.gone = gone
			objects = append(objects, o)
		}
	}
	return objects, nil
}
