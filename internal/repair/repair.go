// Package repair drops from the index what the store has lost, so that the next backups store it
// again from the filers that still have it. It acts on the findings of package check.
//
//	finding           what Run does
//	any object        If a mirror has it, it is put back first, byte for byte, and nothing of what
//	                  follows is done
//	pack              What follows the last pack of an object is cut off
//	pack, parity      If parity has it, it is put back, byte for byte. The rest is for other packs:
//	pack              A chunk that another pack has, too, gets that place. The places of all others
//	                  are dropped. The sound part of a pack stays as it is
//	places            The places that a pack does not have are dropped
//	chunks            Their files are read again
//	record            Fleet: a committer writes it again, unless it was amended. One machine:
//	                  Journal does
//	segment,          Fleet: the shard's next segment is a checkpoint. If there is a later
//	amended record    checkpoint already, nothing. One machine: Journal writes it again
//	catalog           It is written again
//	page, snapshot    Nothing: the index itself has lost them. On one machine, bctl index rebuild
//	lists             restores a copy of it
//
// An object that the store has locked cannot be replaced. What the mirror or parity has of it is
// not dropped: the index keeps it as it is, and the Summary names it (Kept). Objects of the
// journal are written again under other names. Nothing else waits for a lock, nor for a mirror
// that is away.
//
// Versions of pages do not change: a file that is lost in old snapshots stays in them, and a
// restore reports it. The pages of the newest snapshots whose files are affected are noted, and the
// next snapshot reads these files again, although they seem unchanged (index.Repairing). When it
// has stored their content, the same chunks are there for the old snapshots, too.
//
// # Order, and what a crash leaves
//
// Run first puts back what a mirror has, and then what parity has (prune.PutBack), because parity
// needs the other objects of a group. It then notes what to read again, then condemns and drops
// packs (prune.Lose), and in the end writes to the log. Each step can be repeated. Pages that are
// noted without need are only read again.
package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// An Index is the part of the index that a repair uses.
type Index interface {
	check.IndexReader
	prune.LoseIndex
	index.Repairing
	Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error)
}

// Options are the settings of a Run.
type Options struct {
	Index Index
	Store store.Store
	Check check.Options // of the Run that has found the damage
	Prune prune.Options // Holder, Log, Progress and BeforeDelete
	By    string
	// Journal, if not nil, writes the damaged objects of the journal again. If it is nil,
	// committers do that.
	Journal func(ctx context.Context, findings []*check.Finding) error
	// Mirror, if not nil, has a second copy of objects. Only what is damaged after they were put
	// back is dropped.
	Mirror Mirror
	// MirrorAway, if not nil, is why there is no Mirror, although the repository has one. What it
	// may have is not dropped.
	MirrorAway error
}

// A Summary is what a Run has repaired.
type Summary struct {
	prune.LostPacks
	FromParity      int           // objects that were put back from parity
	FromParityBytes int64         // of these
	FromMirror      int           // objects that were put back from the mirror
	PutBack         []string      // names of all of these, and of those that were cut
	Cut             int           // objects that had other bytes after their last pack
	EndedGroups     int           // parity groups that cannot restore anything, and were deleted
	MisledGroups    int           // parity groups that were made of damaged bytes, and were deleted
	Report          *check.Report // of what is damaged after that
	Pages           int           // that the next snapshots read again
	Journal         int           // objects that were written again, or that committers write
	Left            int           // findings that cannot be repaired
	// MirrorAway is why the mirror was not asked for all of what is damaged; nil: it was.
	MirrorAway error
	// Kept are damaged objects that were neither replaced nor dropped, by their names.
	Kept    map[string]Reason
	useless []backup.PackID
}

// A Reason is why a damaged object stays as it is.
type Reason string

// The reasons.
const (
	LockedInMirror Reason = "mirror" // the store has locked it, and the mirror has it
	LockedInParity Reason = "parity" // the store has locked it, and parity has it
	Locked         Reason = "locked" // the store has locked it, and it has to have this name
	MirrorIsAway   Reason = "away"   // the mirror may have it, and does not answer
)

// Run repairs what a check has found.
func Run(ctx context.Context, o Options, report *check.Report) (s Summary, err error) {
	s.Report, s.Kept = report, map[string]Reason{}
	if err := o.putBack(ctx, &s); err != nil {
		return s, err
	}
	report = s.Report
	defer func() {
		if err == nil {
			err = o.endGroups(ctx, &s)
		}
	}()
	lost, journal, chunks := o.toDo(&s)
	for _, f := range report.Findings {
		s.Left += f.More // a further repair finds them
	}
	if len(lost)+len(journal) > 0 || chunks {
		if err := o.Index.NoteRepair(ctx, o.By, "repository", fmt.Sprintf("begins: %d packs, %d other objects", len(lost), len(journal))); err != nil {
			return s, err
		}
	}
	reread := func(ctx context.Context) (err error) {
		s.Pages, err = o.reread(ctx, report)
		return err
	}
	switch {
	case len(lost) > 0:
		o.Prune.Store, o.Prune.By = o.Store, index.ByRepair(o.By)
		s.LostPacks, err = prune.Lose(ctx, o.Index, o.Prune, lost, reread)
	case chunks:
		err = reread(ctx)
	}
	if err != nil {
		return s, err
	}
	if s.Journal = len(journal); s.Journal > 0 {
		if err := o.journal(ctx, &s, journal); err != nil {
			return s, err
		}
	}
	if len(lost)+len(journal) == 0 && !chunks {
		return s, nil
	}
	return s, o.Index.NoteRepair(ctx, o.By, "repository", fmt.Sprintf("complete: dropped %d packs, and parts of %d (%d bytes); files of %d pages are read again; %d other objects",
		s.Packs, s.Partial, s.Bytes, s.Pages, s.Journal))
}

// toDo returns what is to be dropped and to be written again for the findings of the report, and
// counts those that cannot be repaired. chunks: files of lost chunks are to be read again.
func (o *Options) toDo(s *Summary) (lost []prune.LostPack, journal []*check.Finding, chunks bool) {
	for _, f := range s.Report.Findings {
		switch f.Kind {
		case check.Pack, check.Places:
			p, ok := lostPack(f)
			if ok && s.MirrorAway != nil && s.Kept[f.Object] == "" {
				s.Kept[f.Object] = MirrorIsAway
			}
			if ok && s.Kept[f.Object] == "" {
				lost = append(lost, p)
			} else {
				s.Left++
			}
		case check.Chunks:
			chunks = true
		case check.Parity: // the next prune makes the group again, of what is left
			if s.Kept[f.Object] != "" {
				s.Left++
			}
		case check.Record, check.Segment, check.Catalog, check.Copy:
			if (f.Checkpointed || f.Interrupted) && o.Journal == nil { // another checkpoint would not have it
				s.Left++
				continue
			}
			journal = append(journal, f)
		default:
			s.Left++
		}
	}
	return lost, journal, chunks
}

// putBack puts back what a second copy has, cuts what is too long, and then puts back what parity
// has.
func (o *Options) putBack(ctx context.Context, s *Summary) error {
	s.MirrorAway = o.MirrorAway
	if o.Mirror != nil {
		if err := o.fromMirror(ctx, s); err != nil {
			return err
		}
	}
	if err := o.cut(ctx, s); err != nil {
		return err
	}
	return o.fromParity(ctx, s)
}

// cut cuts off what follows the last pack of an object.
func (o *Options) cut(ctx context.Context, s *Summary) error {
	done := map[string]bool{}
	for _, f := range s.Report.Findings {
		if f.Damage == nil || f.Damage.Ends == 0 {
			continue
		}
		data, err := o.Store.GetRange(ctx, nil, f.Object, 0, f.Damage.Ends)
		if err == nil {
			err = pack.InspectObject(data, o.Check.Repository.ID)
		}
		if errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrInvalid) || errors.Is(err, backup.ErrNotFound) {
			continue // something else is wrong with it
		}
		if err == nil {
			err = store.Replace(ctx, o.Store, f.Object, data)
		}
		switch {
		case store.IsLocked(err): // until its lock ends, nothing can
			continue
		case errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("%w: it is too long; to cut it, use a key of the store that may put all objects, and delete damaged ones", err)
		case err != nil:
			return err
		}
		done[f.Object] = true
	}
	if s.Cut = len(done); s.Cut == 0 {
		return nil
	}
	s.PutBack = append(s.PutBack, slices.Sorted(maps.Keys(done))...)
	s.without(done)
	return o.Index.NoteRepair(ctx, o.By, "repository", fmt.Sprintf("cut %d objects that had other bytes after their last pack", s.Cut))
}

// without removes the findings of some objects from the report.
func (s *Summary) without(repaired map[string]bool) {
	rest := *s.Report
	rest.Findings = nil
	for _, f := range s.Report.Findings {
		if !repaired[f.Object] {
			rest.Findings = append(rest.Findings, f)
		}
	}
	s.Report = &rest
}

// fromParity restores what parity has. The report is then without the findings of these objects.
func (o *Options) fromParity(ctx context.Context, s *Summary) error {
	var damaged []string
	for _, f := range s.Report.Findings {
		if f.Object != "" && (f.Kind == check.Pack || f.Kind == check.Parity) && !isUnsure(f) && s.Kept[f.Object] == "" {
			damaged = append(damaged, f.Object)
		}
	}
	with := o.Prune
	with.Index, with.Store = o.Index, o.Store
	back, err := prune.PutBack(ctx, with, damaged)
	s.useless, s.MisledGroups = back.Useless, len(back.Misled)
	for name := range back.Locked {
		if group, _, is := store.ParseParityName(name); !is || !slices.Contains(back.Useless, group) {
			s.Kept[name] = LockedInParity
		}
	}
	s.PutBack = append(s.PutBack, slices.Sorted(maps.Keys(back.Names))...)
	if s.FromParity, s.FromParityBytes = len(back.Names), back.Bytes; err != nil || s.FromParity == 0 {
		return err
	}
	s.without(back.Names)
	return o.Index.NoteRepair(ctx, o.By, "repository", fmt.Sprintf("put back %d objects from parity (%d bytes)", s.FromParity, s.FromParityBytes))
}

// isUnsure reports whether what a finding calls damaged may be sound, so that nothing replaces it.
func isUnsure(f *check.Finding) bool { return f.Damage != nil && f.Damage.Unsure }

// endGroups deletes the parity of groups that cannot restore what they have lost, once that is
// dropped: their descriptions are not those of their members any more. So it does if only parity is
// damaged, and is locked.
func (o *Options) endGroups(ctx context.Context, s *Summary) error {
	with := o.Prune
	with.Index, with.Store = o.Index, o.Store
	err := prune.EndGroups(ctx, with, s.useless)
	if errors.Is(err, fs.ErrPermission) {
		err = nil // the next prune deletes the objects
	}
	if s.EndedGroups = len(s.useless); err != nil || s.EndedGroups == 0 {
		return err
	}
	return o.Index.NoteRepair(ctx, o.By, "repository", fmt.Sprintf("parity of %d groups cannot be put back, and was deleted", s.EndedGroups))
}

// lostPack returns what is lost of a pack. It is false if that is not known.
func lostPack(f *check.Finding) (prune.LostPack, bool) {
	d := f.Damage
	if d.Unsure { // what would be dropped may be sound
		return prune.LostPack{}, false
	}
	p := prune.LostPack{Row: d.Row, Pack: d.Pack, Missing: d.Missing}
	if !d.Whole {
		p.Keeps = func(place *index.PlaceOf) bool { return !d.Has(place) }
	}
	return p, d.Whole || len(d.Frames)+len(d.Chunks) > 0
}

// pagesAtOnce is how many pages a transaction notes.
const pagesAtOnce = 1000

// reread notes the pages of the newest snapshots with affected files, and returns their number.
func (o *Options) reread(ctx context.Context, report *check.Report) (n int, err error) {
	var mu sync.Mutex
	noted := map[index.PageID]bool{}
	c := o.Check
	c.Only = nil
	c.Affected = func(_ *check.Finding, a check.Affected) {
		mu.Lock()
		defer mu.Unlock()
		if a.Open {
			noted[index.PageID{Shard: a.ShardID, Directory: a.Directory, Key: a.Key}] = true
		}
	}
	if err := check.FindAffected(ctx, c, report); err != nil {
		return 0, err
	}
	pages := make([]index.PageID, 0, len(noted))
	for p := range noted {
		pages = append(pages, p)
	}
	for group := range slices.Chunk(pages, pagesAtOnce) {
		if err := o.Index.Reread(ctx, group); err != nil {
			return 0, err
		}
	}
	return len(pages), nil
}

// journal has damaged objects of the journal written again. Segments and catalogs get new names,
// and what is left of a record is deleted first: an object is never put twice.
func (o *Options) journal(ctx context.Context, s *Summary, findings []*check.Finding) error {
	if o.Journal != nil {
		return o.Journal(ctx, findings)
	}
	for _, f := range findings {
		var err error
		switch f.Kind {
		case check.Record:
			err = o.record(ctx, s, f)
		case check.Segment:
			err = o.Index.RequireCheckpoint(ctx, f.ShardID)
		case check.Catalog:
			err = o.Index.LoseCatalog(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteRecord deletes a damaged record. Where roles have keys of their own, only the pruner's may
// do that.
func (o *Options) deleteRecord(ctx context.Context, name string) error {
	_, err := o.Store.Stat(ctx, name)
	if errors.Is(err, backup.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = o.Store.Delete(ctx, name)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: it is damaged; delete it with the pruner's key, and run this command again", err)
	}
	return err
}

// record makes a committer write a record again. It cannot write one that was amended, or that is
// locked: the next segment of the shard has all pages instead.
func (o *Options) record(ctx context.Context, s *Summary, f *check.Finding) error {
	id, amendment, ok := store.ParseCommitName(f.Object)
	if !ok {
		return fmt.Errorf("%s: it is no record: %w", f.Object, backup.ErrInvalid)
	}
	if amendment > 0 {
		return o.Index.RequireCheckpoint(ctx, f.ShardID)
	}
	err := o.deleteRecord(ctx, f.Object)
	if store.IsLocked(err) {
		s.Kept[f.Object] = Locked
		s.Journal, s.Left = s.Journal-1, s.Left+1
		return o.Index.RequireCheckpoint(ctx, f.ShardID)
	}
	if err != nil {
		return err
	}
	return o.Index.Unrecord(ctx, id)
}
