package rewrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

const (
	// windowKeys is about how many keys a pass holds in memory: 32 MiB with their places.
	windowKeys = 1 << 18
	// maxReads bounds the headers that are read at a time.
	maxReads = 16
	// maxProblems bounds the problems that a Result names.
	maxProblems = 20
)

// journalPrefixes begin the names of objects that are sealed like packs of data.
var journalPrefixes = []string{store.SegmentsPrefix, store.CommitsPrefix, store.CatalogPrefix, store.IndexPrefix}

// Packs is the part of the index that a rotation needs, with the contract of index.Pruning.
type Packs interface {
	Packs(ctx context.Context) iter.Seq2[index.Pack, error]
}

// Options of Rotate. All except Progress must be set.
type Options struct {
	Index   Packs
	Store   store.Store
	Object  *repo.Object // with its recipients loaded, and its signer checked
	Opener  *seal.Opener
	Signing seal.SigningKey
	Now     func() time.Time
	// Progress, if not nil, is called from one goroutine after each part of the work.
	Progress func(done, total int64)

	partKeys, windowKeys int // for tests; 0: maxKeys and windowKeys
}

// A Result is what a rotation has done.
type Result struct {
	Rotation int64 // the last one that was written; 0: nothing was to be done
	Total    int64 // packs and objects of the journal
	Wrapped  int64 // keys that were wrapped again
	Had      int64 // keys that an earlier rotation has for all recipients in force
	Bytes    int64 // that were put into the store
	Unopened int64 // of packs that the identity does not open
	Missing  int64 // packs that are missing or damaged
	Problems []error
}

// Rotate wraps the data keys of all packs for the recipients in force, except those that an
// earlier rotation has wrapped for them. No data is read or written, only the headers of packs. A
// rotation that was interrupted is continued. Packs that are written meanwhile are not covered.
func Rotate(ctx context.Context, o Options) (Result, error) {
	r, err := rotateOnce(ctx, &o)
	if err != nil || !r.resumed {
		return r.Result, err
	}
	// Packs that were written after the interruption may have ids that the rotation had passed.
	again, err := rotateOnce(ctx, &o)
	again.Rotation = cmp.Or(again.Rotation, r.Rotation)
	again.Wrapped += r.Wrapped
	again.Had -= min(again.Had, r.Wrapped)
	again.Bytes += r.Bytes
	return again.Result, err
}

func rotateOnce(ctx context.Context, o *Options) (*rotator, error) {
	sealer, err := seal.NewSealer(o.Object.Recipients)
	if err != nil {
		return &rotator{}, err
	}
	r := &rotator{
		o: *o, sealer: sealer, began: o.Now(),
		known:   newFinder(o.Store, o.Object.ID, o.Object.Signer(), o.Opener),
		covered: newFinder(o.Store, o.Object.ID, o.Object.Signer(), o.Opener),
	}
	if err := r.resume(ctx); err != nil {
		return r, err
	}
	perWindow := int64(cmp.Or(o.windowKeys, windowKeys))
	windows := max(1, (r.Total+perWindow-1)/perWindow)
	for n := range windows {
		if err := r.window(ctx, uint64(n), uint64(windows)); err != nil {
			return r, err
		}
	}
	err = r.finish(ctx)
	return r, err
}

type rotator struct {
	Result
	o       Options
	sealer  *seal.Sealer
	known   *finder // keys for the identity, of all rotations
	covered *finder // keys for all recipients in force

	began   time.Time
	covers  bool // a complete rotation is for all recipients in force
	resumed bool
	after   *seal.KeyID // ids up to this one are in parts that an interrupted rotation has put
	next    int64       // number of the rotation that is written
	pending []entry     // sorted; of the part that is put next
	done    int64
}

// A candidate is a pack, or an object of the journal, whose key is to be wrapped again.
type candidate struct {
	id       seal.KeyID
	place    pack.Place
	pack     backup.PackID // zero: an object of the journal
	snapshot backup.SnapshotID
	object   backup.PackID
}

// resume counts what is there, and finds where an interrupted rotation for the same recipients has
// ended.
func (r *rotator) resume(ctx context.Context) error {
	for _, err := range r.candidates(ctx) {
		if err != nil {
			return err
		}
		r.Total++
	}
	complete, err := Coverages(ctx, r.o.Store, r.o.Object)
	if err != nil {
		return err
	}
	r.covers = slices.ContainsFunc(complete, func(c Coverage) bool { return containsAll(c.Recipients, r.o.Object.Recipients) })
	f := r.covered
	if err := f.list(ctx); err != nil {
		return err
	}
	r.next = 1
	if len(f.rotations) > 0 {
		r.next = f.rotations[0].number + 1
	}
	for i, old := range f.rotations {
		p, err := f.open(ctx, store.WrapsName(old.number, old.firsts[len(old.firsts)-1]))
		if err != nil {
			return err
		}
		old.closed = p.err != nil || !containsAll(p.recipients, r.o.Object.Recipients)
		if i == 0 && p.err == nil && !p.ends() && slices.Equal(p.recipients, r.o.Object.Recipients) {
			r.next, r.after, r.resumed = old.number, &p.last, true
		}
	}
	return nil
}

func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// candidates yields everything whose data key is wrapped to recipients.
func (r *rotator) candidates(ctx context.Context) iter.Seq2[candidate, error] {
	return func(yield func(candidate, error) bool) {
		for p, err := range r.o.Index.Packs(ctx) {
			if err == nil && (p.Deleting || p.Gone) {
				continue
			}
			id := cmp.Or(p.Sealed, p.Pack)
			c := candidate{id: seal.KeyID(id), pack: id, snapshot: p.Snapshot, object: p.Object, place: pack.Place{Offset: p.Offset, Bytes: p.Bytes}}
			if !yield(c, err) || err != nil {
				return
			}
		}
		for _, prefix := range journalPrefixes {
			for o, err := range r.o.Store.List(ctx, prefix) {
				if err == nil && store.IsTest(o.Name) {
					continue
				}
				c := candidate{id: seal.KeyIDOf(o.Name), place: pack.Place{Object: o.Name, Bytes: o.SizeBytes}}
				if !yield(c, err) || err != nil {
					return
				}
			}
		}
	}
}

// window wraps the keys of one of several equal ranges of ids.
func (r *rotator) window(ctx context.Context, n, windows uint64) error {
	var found []candidate
	for c, err := range r.candidates(ctx) {
		if err != nil {
			return err
		}
		high := uint64(c.id[0])<<24 | uint64(c.id[1])<<16 | uint64(c.id[2])<<8 | uint64(c.id[3])
		if high*windows>>32 == n {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return compareIDs(a.id, b.id) })
	found = slices.CompactFunc(found, func(a, b candidate) bool { return a.id == b.id })
	for some := range slices.Chunk(found, 512) {
		if err := r.wrap(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// wrap adds the keys of candidates to the part that is put next.
func (r *rotator) wrap(ctx context.Context, some []candidate) error {
	entries, errs := make([]entry, len(some)), make([]error, len(some))
	var had int64
	var mu sync.Mutex
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(maxReads)
	for i := range some {
		g.Go(func() error {
			covers, err := r.isCovered(within, some[i].id)
			if err != nil {
				return err
			}
			if covers {
				mu.Lock()
				had++
				mu.Unlock()
				return nil
			}
			entries[i].key, err = r.key(within, &some[i])
			entries[i].id = some[i].id
			errs[i] = err
			if err != nil && !isOfPack(err) {
				return err
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	r.Had += had
	for i, e := range entries {
		switch {
		case errs[i] != nil:
			r.problem(&some[i], errs[i])
		case e.id != seal.KeyID{}:
			r.pending = append(r.pending, e)
		}
		if n := len(r.pending); n == cmp.Or(r.o.partKeys, maxKeys) {
			if err := r.put(ctx, r.pending[n-1].id); err != nil {
				return err
			}
		}
	}
	if r.done += int64(len(some)); r.o.Progress != nil {
		r.o.Progress(r.done, r.Total)
	}
	return nil
}

// isCovered reports whether a rotation for all recipients in force has the key, or an interrupted
// one that is continued has dealt with it.
func (r *rotator) isCovered(ctx context.Context, id seal.KeyID) (bool, error) {
	if r.after != nil && compareIDs(id, *r.after) <= 0 {
		return true, nil
	}
	_, err := r.covered.find(ctx, id)
	if errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) {
		return false, nil
	}
	return err == nil, err
}

// key returns the data key of a candidate.
func (r *rotator) key(ctx context.Context, c *candidate) (seal.RawKey, error) {
	key, err := r.known.find(ctx, c.id)
	if err == nil || !errors.Is(err, backup.ErrNotFound) && !errors.Is(err, backup.ErrCorrupt) {
		return key, err
	}
	place := c.place
	if c.pack != (backup.PackID{}) {
		place.Object = store.PackName(c.snapshot, c.object)
	}
	wrapped, err := pack.ReadWrapped(ctx, r.o.Store, place, r.o.Object.ID, c.pack)
	if err != nil {
		return key, err
	}
	if key, err = r.o.Opener.UnwrapRaw(wrapped); err != nil {
		err = fmt.Errorf("%s: %w", place.Object, err)
	}
	return key, err
}

// isOfPack reports whether err concerns one pack, and not the store or the command.
func isOfPack(err error) bool {
	return errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrWrongKey) || errors.Is(err, backup.ErrInvalid)
}

// problem notes that the key of a candidate could not be wrapped again. An object of the journal
// that was deleted meanwhile is none.
func (r *rotator) problem(c *candidate, err error) {
	switch {
	case errors.Is(err, backup.ErrWrongKey):
		r.Unopened++
	case errors.Is(err, backup.ErrNotFound) && c.pack == (backup.PackID{}):
		return
	default:
		r.Missing++
	}
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, err)
	}
}

// put puts the part with the pending keys, which covers the ids up to last.
func (r *rotator) put(ctx context.Context, last seal.KeyID) error {
	p := part{rotation: r.next, last: last, made: r.began.UTC().Truncate(time.Millisecond), recipients: r.o.Object.Recipients}
	if r.after != nil {
		p.first = next(*r.after)
	}
	var err error
	if p.sealed, err = r.sealer.SealBlob(encodeEntries(r.pending)); err != nil {
		return err
	}
	text, err := p.encode(r.o.Object.ID, r.o.Signing)
	if err != nil {
		return err
	}
	// From here on the keys are there for the new recipients.
	err = r.o.Store.PutNew(ctx, p.name(), text)
	switch {
	case errors.Is(err, backup.ErrExists):
		return fmt.Errorf("%s is there: another bctl key rotate is running, or an object that nobody has signed has this name: %w", p.name(), err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (only the admin may write below %s)", err, store.KeysPrefix)
	case err != nil:
		return err
	}
	r.Rotation, r.Wrapped, r.Bytes = r.next, r.Wrapped+int64(len(r.pending)), r.Bytes+int64(len(text))
	r.pending, r.after = r.pending[:0], &last
	return nil
}

// finish puts the last part, unless nothing is left to do. An interrupted rotation is ended even
// without further keys. So is one that begins, if others have all keys, but none of them is
// complete. A rotation is complete only if this run has dealt with all keys, and none is lacking.
func (r *rotator) finish(ctx context.Context) error {
	whole := r.Unopened+r.Missing == 0
	switch {
	case r.after != nil && compareIDs(*r.after, lastOfIncomplete) >= 0:
		return nil
	case len(r.pending) > 0 || r.after != nil:
	case !whole || r.covers || r.Had == 0:
		return nil
	}
	if whole && !r.resumed {
		return r.put(ctx, lastID)
	}
	return r.put(ctx, lastOfIncomplete)
}
