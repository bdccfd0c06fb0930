package scrub

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A Journal is what proves the objects from which the index can be rebuilt: segments, commit
// records, catalogs, and copies of the index. They are signed, so that nothing else is needed.
type Journal struct {
	Store  Lister
	Signer seal.Signer // of the repository
}

// A Lister is the part of store.Store that proves the journal needs.
type Lister interface {
	check.Getter
	List(ctx context.Context, prefix string) iter.Seq2[store.Object, error]
}

// listedAtOnce is the number of objects that a store returns for one request. A slice takes at
// least listsOfSlice of them.
const (
	listedAtOnce = 1000
	listsOfSlice = 2
)

// proveJournal proves the slices of the journal that are due; with Failed, those with damage.
func (r *run) proveJournal(ctx context.Context, state *index.Scrub) error {
	due, err := r.Index.JournalToProve(ctx, r.before(state))
	if err != nil {
		return err
	}
	for i := range due {
		s := &due[i]
		if r.Failed && s.Damaged == 0 {
			continue
		}
		if s.Begun.IsZero() {
			s.Begun, s.Damaged, s.Damage = state.Now, 0, ""
		}
		if more, err := r.part(r.slice(ctx, state, s)); err != nil || !more {
			return err
		}
	}
	return nil
}

// slice proves a slice, from where the last run ended. It notes what it has read in groups.
func (r *run) slice(ctx context.Context, state *index.Scrub, s *index.JournalSlice) (err error) {
	note := index.ScrubCost{}
	defer func() {
		err = noted(err, r.Index.NoteJournal(context.WithoutCancel(ctx), r.term, *s, note))
	}()
	if !r.Failed && !r.allows(state, r.used.Plus(index.ScrubCost{Requests: listsOfSlice})) {
		return errLimited
	}
	objects, lists, err := r.listSlice(ctx, s.Slice)
	if err != nil {
		return err
	}
	if !r.spend(state, index.ScrubCost{Requests: lists}, &note) {
		return errLimited
	}
	for _, o := range objects {
		if o.Name <= s.Reached {
			continue
		}
		if !r.spend(state, index.ScrubCost{Requests: 1, Bytes: o.SizeBytes}, &note) {
			return errLimited
		}
		if err := r.signed(ctx, s, o.Name); err != nil {
			return err
		}
		if note.Bytes >= groupBytes || note.Requests >= groupPacks {
			if err := r.Index.NoteJournal(ctx, r.term, *s, note); err != nil {
				return err
			}
			note = index.ScrubCost{}
		}
	}
	s.Done = true
	return nil
}

// listSlice returns the objects of a slice by name, and the number of requests of that.
func (r *run) listSlice(ctx context.Context, slice int) (objects []store.Object, requests int64, err error) {
	prefixes := []string{store.CatalogPrefix, store.IndexPrefix}
	if slice < index.JournalSlices-1 {
		digits := fmt.Sprintf("%02x", slice)
		prefixes = []string{store.CommitsPrefix + digits, store.SegmentsPrefix + digits}
	}
	for _, prefix := range prefixes {
		n := int64(0)
		for o, err := range r.Journal.Store.List(ctx, prefix) {
			if err != nil {
				return nil, 0, err
			}
			if n++; isJournal(o.Name) {
				objects = append(objects, o)
			}
		}
		requests += max(1, (n+listedAtOnce-1)/listedAtOnce)
	}
	slices.SortFunc(objects, func(a, b store.Object) int { return cmp.Compare(a.Name, b.Name) })
	return withoutReplaced(objects), requests, nil
}

// withoutReplaced leaves out the catalogs that the newest one has replaced: nothing needs them, and
// damage to them is none.
func withoutReplaced(sorted []store.Object) []store.Object {
	newest := ""
	for _, o := range sorted {
		if _, is := store.ParseCatalogName(o.Name); is {
			newest = o.Name
		}
	}
	return slices.DeleteFunc(sorted, func(o store.Object) bool {
		_, is := store.ParseCatalogName(o.Name)
		return is && o.Name != newest
	})
}

// isJournal reports whether the journal has objects of such a name.
func isJournal(name string) bool {
	_, _, _, segment := store.ParseSegmentName(name)
	_, _, record := store.ParseCommitName(name)
	_, catalog := store.ParseCatalogName(name)
	_, _, indexCopy := store.ParseIndexName(name)
	return (segment || record || catalog || indexCopy) && !store.IsTest(name)
}

// signed proves an object of the journal.
func (r *run) signed(ctx context.Context, s *index.JournalSlice, name string) error {
	f, err := check.ProveSigned(ctx, r.Journal.Store, r.Repository, r.Journal.Signer, name)
	if err != nil {
		return err
	}
	s.Reached = name
	r.summary.Journal++
	if f != nil {
		if s.Damaged++; s.Damaged == 1 {
			s.Damage = f.Object + ": " + f.Text
		}
		r.summary.DamagedJournal++
		r.Log.Error("an object of the journal is damaged: bctl check shows whether it is needed, and bctl repair has it written again", "object", name, "error", f.Text)
		if r.Damaged != nil {
			r.Damaged(f)
		}
	}
	if r.Progress != nil {
		r.Progress(r.summary)
	}
	return nil
}
