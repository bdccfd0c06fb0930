package prune

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A sweep lists the store, and deletes orphans: objects of attempts that were lost before they
// could announce them. An object is an orphan if, after the store has listed it,
//
//   - the index knows its snapshot, and the snapshot has ended, and
//   - no row names the object after that.
//
// Both conditions are final. So a sweep needs no lock, no clock and no grace period, and may pause
// for any time between a look at the index and a deletion:
//
//   - A pack of a backup. The index registers packs of running snapshots only. So a pack that is
//     being uploaded, or that has not been announced yet, belongs to a running snapshot, and stays.
//     After its snapshot has ended, nobody can register it any more, but for a repair
//     (TakeBackOrphans): it leads as the pruner meanwhile, and the check that follows finds a pack
//     that a process deleted that was paused for longer than its term.
//   - A copy made by compaction. The index names the object before the store has it (Plan), until
//     it is deleted. Its id is random, and used once. A pruner that was paused may put a copy whose
//     plan is gone, but its Move is refused.
//   - A part of a segment. The transaction that commits a snapshot also decides which attempt's
//     segment is valid. After that, the parts of other attempts have no meaning.
//   - A catalog, which belongs to no snapshot. Those with lower sequences than the newest ones have
//     no meaning (catalogs.go).
//   - A commit record. It is needed until its snapshot is removed. A committer that was paused may
//     put it again after that.
//
// The index may be older than its store, if it was restored from a backup. Such an index lacks the
// objects that were registered since that backup. These rules protect them:
//
//   - A sweep never deletes an object of a snapshot that the index does not know.
//   - A sweep deletes nothing while the store has the record of a snapshot that is running
//     according to the index, or that the index does not know. A record is written only after the
//     index knows the end of the snapshot, so such a record shows that the index is older than the
//     store (docs/decisions/0022-an-index-that-is-older-than-its-store.md).
//   - A sweep deletes no pack while content is missing: a pack that the index does not name may
//     have it. A repair or a rebuild that the store did not show the pack could not note it.
//   - A sweep never deletes a copy made by compaction. Such a copy is named after a snapshot that
//     may have ended long before, and may be the only object that has its chunks. Its header
//     identifies it: the id of its pack differs from the id of the object.

// Sections is the number of sections of the store, which are swept one after the other. Each has
// the objects of the snapshots whose ids begin with one hexadecimal digit. Ids are random.
const Sections = 16

// Swept is what a sweep has seen.
type Swept struct {
	Objects int64 // in the store, of all kinds that the pruner may delete
	Orphans int64 // deleted; in a dry run: those that would be deleted
	Bytes   int64 // of the orphans
	Unknown int64 // objects of snapshots that the index does not know
	// Unidentified is the number of objects that no row names, and that stay because their names or
	// headers do not identify them, or because they are copies made by compaction.
	Unidentified int64
	// Locked are orphans that stay until their locks end.
	Locked int64
	// Withheld are orphans that stay, because content is missing that they may have.
	Withheld int64
	// Old reports that orphans stay, because the index is older than its store.
	Old bool
}

func (s *Swept) add(other Swept) {
	s.Objects += other.Objects
	s.Orphans += other.Orphans
	s.Bytes += other.Bytes
	s.Unknown += other.Unknown
	s.Unidentified += other.Unidentified
	s.Locked += other.Locked
	s.Withheld += other.Withheld
	s.Old = s.Old || other.Old
}

// Sweep sweeps the next section of the store. It fails with ErrBusy while another process prunes.
// After an error, the next Sweep begins with the same section.
func Sweep(ctx context.Context, o Options) (Swept, error) {
	o.limitMemory()
	p := &pass{Options: o}
	err := p.lead(ctx, func(ctx context.Context) error { return p.sweepSections(ctx, 1) })
	return p.result.Swept, err
}

// sweepSections sweeps the next n sections. A dry run begins with the first.
func (p *pass) sweepSections(ctx context.Context, n int) error {
	at := 0
	if !p.DryRun {
		var err error
		if at, err = p.Index.NextSection(ctx); err != nil {
			return err
		}
	}
	for range n {
		if at < 0 || at >= Sections { // of a later version
			at = 0
		}
		s := &section{pass: p}
		err := s.sweep(ctx, strconv.FormatInt(int64(at), 16))
		s.report()
		if err != nil {
			return err
		}
		at = (at + 1) % Sections
		if p.DryRun {
			continue
		}
		if err := p.Index.SetNextSection(ctx, p.term, at); err != nil {
			return err
		}
	}
	return nil
}

// A section is the sweep of one section.
type section struct {
	*pass
	Swept
	unknown, unidentified string // the last of each
	current               *bool  // whether the index is as new as the store; nil: not known yet
}

// report adds what the section has seen to the result, and logs what stays.
func (s *section) report() {
	s.result.Swept.add(s.Swept)
	if s.Unknown > 0 {
		s.Log.Warn("objects of snapshots that the index does not know stay in the store (the index may be older than the store)", "objects", s.Unknown, "object", s.unknown)
	}
	if s.Unidentified > 0 {
		s.Log.Warn("objects that cannot be identified stay in the store", "objects", s.Unidentified, "object", s.unidentified)
	}
	if s.Withheld > 0 {
		s.Log.Warn("orphans stay in the store, because snapshots lack content that they may have", "objects", s.Withheld)
	}
	if s.Old {
		s.Log.Warn("orphans stay in the store, because the index is older than the store")
	}
}

// sweep sweeps the objects of the snapshots whose ids begin with digit.
func (s *section) sweep(ctx context.Context, digit string) error {
	for _, kind := range []string{store.SegmentsPrefix, store.PacksPrefix, store.CommitsPrefix} {
		s.step("looking for orphans in " + kind + digit)
		for page, err := range pages(s.Store.List(ctx, kind+digit)) {
			if err != nil {
				return err
			}
			s.step("looking for orphans in " + kind + digit)
			if err := s.page(ctx, page); err != nil {
				return err
			}
		}
	}
	s.step("looking for orphans in " + store.ParityPrefix + digit)
	if err := s.sweepParity(ctx, s.Store.List(ctx, store.ParityPrefix+digit)); err != nil {
		return err
	}
	if digit == "0" { // with which the names of catalogs begin
		return s.catalogs(ctx)
	}
	return nil
}

// pages groups the objects of a list. A page is valid until the next one.
func pages(list iter.Seq2[store.Object, error]) iter.Seq2[[]store.Object, error] {
	return func(yield func([]store.Object, error) bool) {
		page := make([]store.Object, 0, objectsAtOnce)
		for o, err := range list {
			if err != nil {
				yield(nil, err)
				return
			}
			if page = append(page, o); len(page) == objectsAtOnce {
				if !yield(page, nil) {
					return
				}
				page = page[:0]
			}
		}
		if len(page) > 0 {
			yield(page, nil)
		}
	}
}

// page deletes the orphans of a page of the list.
func (s *section) page(ctx context.Context, page []store.Object) error {
	s.Objects += int64(len(page))
	objects := make([]stored, 0, len(page))
	for _, o := range page {
		switch parsed, ok := parse(o); {
		case !ok:
			s.leave(o.Name)
		case parsed.Snapshot != backup.SnapshotID{}: // it is no test object
			objects = append(objects, parsed)
		}
	}
	orphans, unknown, err := s.orphans(ctx, index.Term{}, objects)
	if err != nil {
		return err
	}
	if len(unknown) > 0 {
		s.Unknown, s.unknown = s.Unknown+int64(len(unknown)), unknown[0].Name
	}
	if orphans, err = s.identify(ctx, orphans); err != nil || len(orphans) == 0 {
		return err
	}
	if orphans, err = s.useless(ctx, orphans); err != nil || len(orphans) == 0 {
		return err
	}
	if orphans, err = s.ungrouped(ctx, orphans); err != nil || len(orphans) == 0 {
		return err // the next pass makes the groups of the others again
	}
	if current, err := s.isCurrent(ctx); err != nil || !current {
		s.Old = s.Old || err == nil
		return err
	}
	// Once more, immediately before they are deleted, and only while this process leads.
	if orphans, _, err = s.orphans(ctx, s.term, orphans); err != nil {
		return err
	}
	return s.remove(ctx, orphans)
}

// A stored is an object of the list, with its parsed name.
type stored struct {
	store.Object
	index.StoredObject
	isOrphan func(index.Recognized) bool // if its snapshot has ended
}

// parse reads the name of an object. ok is false unless bctl writes objects with such names.
func parse(o store.Object) (s stored, ok bool) {
	s.Object = o
	kind, rest, _ := strings.Cut(o.Name, "/")
	owner, name, _ := strings.Cut(rest, "/")
	id, err := backup.ParseSnapshotID(owner)
	s.Snapshot = id
	switch kind + "/" {
	case store.CommitsPrefix:
		id, amendment, ok := store.ParseCommitName(o.Name)
		s.Snapshot = id
		// One that the index does not know yet is about to be noted.
		s.isOrphan = func(r index.Recognized) bool { return r.Removed || amendment < r.Amendment }
		return s, ok
	case store.PacksPrefix:
		s.Snapshot, s.ID, ok = store.ParsePackName(o.Name)
		s.isOrphan = func(r index.Recognized) bool { return !r.Named }
		return s, ok
	case store.SegmentsPrefix:
		text, digits, _ := strings.Cut(name, "-")
		attempt, wrong := backup.ParsePackID(text)
		part, notNumber := strconv.Atoi(digits)
		s.isOrphan = func(r index.Recognized) bool { return r.Segment.Attempt != attempt || part >= r.Segment.Parts }
		return s, errors.Join(err, wrong, notNumber) == nil && o.Name == store.SegmentName(id, attempt, part)
	}
	return s, false
}

// orphans returns the objects that are orphans according to the index, and the objects of snapshots
// that it does not know.
func (s *section) orphans(ctx context.Context, t index.Term, objects []stored) (orphans, unknown []stored, err error) {
	if len(objects) == 0 {
		return nil, nil, nil
	}
	names := make([]index.StoredObject, len(objects))
	for i := range objects {
		names[i] = objects[i].StoredObject
	}
	recognized, err := s.Index.Recognize(ctx, t, names)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range recognized {
		switch {
		case !r.Known && r.Named: // of a snapshot that was removed, and that a rebuilt index never had
		case !r.Known:
			unknown = append(unknown, objects[i])
		case r.Ended && objects[i].isOrphan(r):
			orphans = append(orphans, objects[i])
		}
	}
	return orphans, unknown, nil
}

// identify returns the objects whose headers agree with their names. It reads only headers of
// packs, because the pruner may not read other objects.
func (s *section) identify(ctx context.Context, objects []stored) (identified []stored, err error) {
	for _, o := range objects {
		if !strings.HasPrefix(o.Name, store.PacksPrefix) {
			identified = append(identified, o)
			continue
		}
		id, err := pack.ReadID(ctx, s.Store, o.Name, o.SizeBytes)
		switch {
		case err == nil && id == o.ID:
			identified = append(identified, o)
		case err == nil, errors.Is(err, backup.ErrCorrupt):
			s.leave(o.Name)
		case !errors.Is(err, backup.ErrNotFound):
			return nil, err
		}
	}
	return identified, nil
}

// useless returns the objects without those that a repair may take back: packs, while content is
// missing.
func (s *section) useless(ctx context.Context, objects []stored) ([]stored, error) {
	isPack := func(o stored) bool { return strings.HasPrefix(o.Name, store.PacksPrefix) }
	if !slices.ContainsFunc(objects, isPack) {
		return objects, nil
	}
	lacks, err := s.lacksContent(ctx)
	if err != nil || !lacks {
		return objects, err
	}
	all := len(objects)
	objects = slices.DeleteFunc(objects, isPack)
	s.Withheld += int64(all - len(objects))
	return objects, nil
}

func (s *section) leave(name string) {
	s.Unidentified++
	s.unidentified = name
}

// isCurrent calls IsCurrent once per section. That suffices: an index that replaces this one later
// does not know the term of this process.
func (s *section) isCurrent(ctx context.Context) (bool, error) {
	if s.current != nil {
		return *s.current, nil
	}
	s.step("comparing the index with the store's records")
	current, err := IsCurrent(ctx, s.Index, s.Store)
	if err == nil {
		s.current = &current
	}
	return current, err
}

// IsCurrent reports whether the index knows the end of each snapshot that has a record in the
// store. If not, the index is older than the store. The records are not read.
func IsCurrent(ctx context.Context, i index.Sweeping, s store.Store) (bool, error) {
	for page, err := range pages(store.Records(ctx, s)) {
		if err != nil {
			return false, err
		}
		var names []index.StoredObject
		for _, o := range page {
			if record, ok := parse(o); ok {
				names = append(names, record.StoredObject)
			}
		}
		recognized, err := i.Recognize(ctx, index.Term{}, names)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(recognized, func(r index.Recognized) bool { return !r.Ended }) {
			return false, nil
		}
	}
	return true, nil
}

// remove deletes orphans. A dry run only counts them. Those that are locked stay for the next
// sweep.
func (s *section) remove(ctx context.Context, orphans []stored) error {
	if len(orphans) == 0 {
		return nil
	}
	names := make([]string, len(orphans))
	for i := range orphans {
		names[i] = orphans[i].Name
	}
	if !s.DryRun {
		err := s.Store.Delete(ctx, names...)
		if locked, ok := errors.AsType[*store.LockedError](err); ok {
			s.Locked += int64(len(locked.Names))
			orphans = slices.DeleteFunc(orphans, func(o stored) bool { return slices.Contains(locked.Names, o.Name) })
		} else if err != nil {
			return err
		}
	}
	bytes := int64(0)
	for i := range orphans {
		bytes += orphans[i].SizeBytes
	}
	if !s.DryRun && len(orphans) > 0 {
		s.Log.Info("orphans deleted", "objects", len(orphans), "bytes", bytes, "object", orphans[0].Name)
	}
	s.Orphans += int64(len(orphans))
	s.Bytes += bytes
	return nil
}
