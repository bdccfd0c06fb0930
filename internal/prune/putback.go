package prune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/store"
)

// PutBackObjects are the objects that PutBack has put back from parity.
type PutBackObjects struct {
	Names map[string]bool
	Bytes int64
	// Left are those of the damaged objects that parity does not bring back, with the reasons.
	// Those that are in no group are not among them.
	Left map[string]error
	// Locked are those of Left that parity has, and that the store does not let be replaced.
	Locked map[string]bool
	// Sound are those that are not damaged: their parity is.
	Sound map[string]bool
	// Useless are groups of which more is lost than they can restore, and those of which only
	// parity objects are damaged, and locked: a new group has other names.
	Useless []backup.PackID
	// Misled are groups that were made of damaged bytes, as checksums in the index show. PutBack
	// has ended them: they would bring these bytes back.
	Misled []backup.PackID
}

// PutBack computes damaged objects of packs and of parity from the rest of their groups, and puts
// them back, byte for byte. Objects that it finds to be damaged, too, are put back with them. A
// damaged object is deleted only when its bytes are there to replace it; a sound one is never
// touched. Neither is one that parity would bring back with no less damage, as its checksums in the
// index show. It needs no key. It fails with ErrBusy while another process prunes.
func PutBack(ctx context.Context, o Options, damaged []string) (PutBackObjects, error) {
	p := &puttingBack{pass: &pass{Options: o}, PutBackObjects: PutBackObjects{Names: map[string]bool{}, Left: map[string]error{}, Locked: map[string]bool{}, Sound: map[string]bool{}}}
	if len(damaged) == 0 {
		return p.PutBackObjects, nil
	}
	err := p.lead(ctx, func(ctx context.Context) error {
		err := p.run(ctx, damaged)
		if len(p.Names) > 0 {
			err = errors.Join(err, p.Index.NotePutBack(context.WithoutCancel(ctx), index.FromParity, len(p.Names), p.Bytes))
		}
		if err != nil {
			return err
		}
		return p.endGroups(ctx, p.Misled)
	})
	return p.PutBackObjects, err
}

// EndGroups ends parity groups that can restore nothing, and deletes their parity objects. Their
// members wait for new groups.
func EndGroups(ctx context.Context, o Options, groups []backup.PackID) error {
	if len(groups) == 0 {
		return nil
	}
	p := &pass{Options: o}
	return p.lead(ctx, func(ctx context.Context) error { return p.endGroups(ctx, groups) })
}

// endGroups is EndGroups for a process that leads.
func (p *pass) endGroups(ctx context.Context, groups []backup.PackID) error {
	if len(groups) == 0 {
		return nil
	}
	t := &tending{pass: p, stuck: map[backup.PackID]bool{}}
	if err := t.load(ctx); err != nil {
		return err
	}
	return t.end(ctx, nil, slices.DeleteFunc(slices.Clone(groups), func(id backup.PackID) bool { return t.groups[id] == nil }))
}

type puttingBack struct {
	*pass
	PutBackObjects
	repository backup.RepositoryID
	rows       map[string][]int64 // of the packs of each object, by its name
}

func (p *puttingBack) run(ctx context.Context, damaged []string) error {
	groups, err := validGroups(ctx, p.Index)
	if err != nil {
		return err
	}
	going, err := goingObjects(ctx, p.Index)
	if err != nil {
		return err
	}
	if err := p.load(ctx, groups); err != nil {
		return err
	}
	isDamaged := map[string]bool{}
	for _, name := range damaged {
		isDamaged[name] = true
	}
	for i := range groups {
		g := &groups[i]
		bad := map[string]bool{}
		for _, name := range g.Names() {
			if isDamaged[name] && !p.Names[name] {
				bad[name] = true
			}
		}
		if len(bad) == 0 {
			continue
		}
		p.step(fmt.Sprintf("restoring %d objects from parity", len(bad)))
		restored, err := g.Restore(ctx, p.Store, bad)
		switch {
		case errors.Is(err, backup.ErrCorrupt):
			for name := range bad {
				p.Left[name] = err
			}
			p.Useless = append(p.Useless, g.ID)
			continue
		case err != nil:
			return err
		}
		for name, data := range restored {
			if err := p.put(ctx, g, going, name, data); err != nil {
				return err
			}
		}
		if p.isLockedParity(restored) {
			p.Useless = append(p.Useless, g.ID)
		}
	}
	return nil
}

// isLockedParity reports whether only locked parity objects are left of what a group had lost.
func (p *puttingBack) isLockedParity(restored map[string][]byte) bool {
	locked := false
	for name := range restored {
		_, _, isParity := store.ParseParityName(name)
		if p.Left[name] != nil && (!p.Locked[name] || !isParity) {
			return false
		}
		locked = locked || p.Locked[name]
	}
	return locked
}

// load reads what is needed to prove the members of groups.
func (p *puttingBack) load(ctx context.Context, groups []parity.Group) error {
	if len(groups) == 0 {
		return nil
	}
	r, err := p.Index.Repository(ctx)
	if err != nil {
		return err
	}
	p.repository, p.rows = r.ID, map[string][]int64{}
	for i := range groups {
		for m := range groups[i].Members {
			p.rows[groups[i].Members[m].Name()] = nil
		}
	}
	for k, err := range p.Index.Packs(ctx) {
		if err != nil {
			return err
		}
		name := store.PackName(k.Snapshot, k.Object)
		if rows, is := p.rows[name]; is && !k.Deleting && !k.Gone {
			p.rows[name] = append(rows, k.Row)
		}
	}
	return nil
}

// improves reports whether data is less damaged than what the store has of a member, as far as that
// is known. A group that was made of damaged bytes would otherwise replace sound ones.
func (p *puttingBack) improves(ctx context.Context, name string, data []byte) (bool, error) {
	restored, err := p.proveObject(ctx, bytesOf(data), p.repository, p.rows[name])
	if err != nil || !restored.known || restored.damage == 0 {
		return true, err
	}
	present, err := p.proveObject(ctx, p.Store, p.repository, p.rows[name])
	switch {
	case err != nil:
		return false, err
	case present.sound():
		p.Sound[name] = true
		return false, nil
	case present.damage <= restored.damage:
		p.Left[name] = errDamagedBefore
		return false, nil
	}
	return true, nil
}

var errDamagedBefore = fmt.Errorf("it was damaged before its parity was made: %w", backup.ErrCorrupt)

var errLocked = errors.New("parity has it, and the store has locked the damaged one")

// put replaces an object, unless it is locked. Members that are about to be deleted stay as they
// are.
func (p *puttingBack) put(ctx context.Context, g *parity.Group, going map[string]bool, name string, data []byte) error {
	if going[name] {
		p.Left[name] = fmt.Errorf("nothing needs it: %w", backup.ErrNotFound)
		return nil
	}
	if better, err := p.improves(ctx, name, data); err != nil {
		return err
	} else if !better {
		if !slices.Contains(p.Misled, g.ID) {
			p.Misled = append(p.Misled, g.ID)
		}
		return nil
	}
	switch err := g.Check(ctx, p.Store, name); {
	case err == nil: // it is as it was when the group was made
		p.Left[name] = errDamagedBefore
		return nil
	case !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrNotFound):
		return err
	case errors.Is(err, backup.ErrCorrupt):
		err := p.Store.Delete(ctx, name)
		if store.IsLocked(err) {
			p.Left[name], p.Locked[name] = errLocked, true
			return nil
		}
		if err != nil {
			return refused(name, err)
		}
	}
	if err := p.Store.Put(ctx, name, data); err != nil {
		return refused(name, err)
	}
	if err := g.Check(ctx, p.Store, name); err != nil {
		return fmt.Errorf("%s was put back, and is damaged again: %w", name, err)
	}
	p.Log.Debug("put back from parity", "object", name, "bytes", len(data))
	delete(p.Left, name)
	p.Names[name] = true
	p.Bytes += int64(len(data))
	return nil
}

// refused says what to do if the store does not let an object be replaced.
func refused(name string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("the store does not let this configuration put back %s; parity has it. Run bctl repair --from-parity with the configuration of the pruner first: %w", name, err)
	}
	return err
}

// validGroups returns the parity groups that the index has, without those whose rows are damaged.
func validGroups(ctx context.Context, idx index.Parity) (groups []parity.Group, err error) {
	for row, err := range idx.ParityGroups(ctx) {
		if err != nil {
			return nil, err
		}
		if g, _, err := parity.Parse(row.Description); row.State == index.ParityValid && err == nil && g.ID == row.ID {
			groups = append(groups, g)
		}
	}
	return groups, nil
}

// goingObjects returns the names of the objects of packs that are about to be deleted.
func goingObjects(ctx context.Context, idx index.Pruning) (map[string]bool, error) {
	kept, going := map[string]bool{}, map[string]bool{}
	for k, err := range idx.Packs(ctx) {
		if err != nil {
			return nil, err
		}
		name := store.PackName(k.Snapshot, k.Object)
		if k.Deleting || k.Gone {
			going[name] = true
		} else {
			kept[name] = true
		}
	}
	for name := range kept {
		delete(going, name)
	}
	return going, nil
}

// FindInGroups returns the objects of parity groups that are missing or have another length, and
// those whose bytes have changed: it reads the ones in which scrubs have found damage, and all of
// them if read is set. It needs no key.
func FindInGroups(ctx context.Context, o Options, read bool) (damaged []string, err error) {
	groups, err := validGroups(ctx, o.Index)
	if err != nil {
		return nil, err
	}
	going, err := goingObjects(ctx, o.Index)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for i := range groups {
		g := &groups[i]
		for m := range g.Members {
			if name := g.Members[m].Name(); !going[name] {
				sizes[name] = g.Members[m].Bytes
			}
		}
		for n := range g.Bodies {
			sizes[g.Name(n)] = g.ObjectBytes()
		}
	}
	suspect, err := suspects(ctx, o.Index, groups)
	if err != nil {
		return nil, err
	}
	sound := map[string]bool{}
	for _, prefix := range []string{store.PacksPrefix, store.ParityPrefix} {
		for at, err := range o.Store.List(ctx, prefix) {
			if err != nil {
				return nil, err
			}
			if size, is := sizes[at.Name]; is && size == at.SizeBytes {
				sound[at.Name] = true
			}
		}
	}
	for i := range groups {
		for _, name := range groups[i].Names() {
			if _, is := sizes[name]; !is {
				continue
			}
			var err error
			if !sound[name] {
				err = backup.ErrNotFound
			} else if read || suspect[name] {
				if o.Progress != nil {
					o.Progress(fmt.Sprintf("reading parity group %d of %d", i+1, len(groups)))
				}
				err = groups[i].Check(ctx, o.Store, name)
			}
			switch {
			case errors.Is(err, backup.ErrNotFound), errors.Is(err, backup.ErrCorrupt):
				damaged = append(damaged, name)
			case err != nil:
				return nil, err
			}
		}
	}
	return damaged, nil
}

// suspects returns the names of the objects of groups in which scrubs have found damage.
func suspects(ctx context.Context, idx Index, groups []parity.Group) (map[string]bool, error) {
	noted, err := idx.DamagedPacks(ctx)
	if err != nil {
		return nil, err
	}
	suspect := map[string]bool{}
	for i := range noted {
		suspect[store.PackName(noted[i].Snapshot, noted[i].Object)] = true
	}
	damaged := map[backup.PackID]bool{}
	for row, err := range idx.ParityGroups(ctx) {
		if err != nil {
			return nil, err
		}
		damaged[row.ID] = row.Suspect
	}
	for i := range groups {
		for n := range groups[i].Bodies {
			if damaged[groups[i].ID] {
				suspect[groups[i].Name(n)] = true
			}
		}
	}
	return suspect, nil
}

// A ParityReport is how much of a repository has parity.
type ParityReport struct {
	Groups       int
	Bytes        int64 // stored bytes of the parity objects
	Objects      int   // that have parity, and are kept
	ObjectBytes  int64
	Without      int   // objects that have none, and are kept
	WithoutBytes int64 // of their packs
	Damaged      int   // groups with a member that scrubs have found to be damaged
}

// A ParityIndex is the part of the index that ReadParity uses.
type ParityIndex interface {
	Packs(ctx context.Context) iter.Seq2[index.Pack, error]
	DamagedPacks(ctx context.Context) ([]index.PackToProve, error)
	ParityGroups(ctx context.Context) iter.Seq2[index.ParityGroup, error]
}

// ReadParity returns how much of a repository has parity, as the index knows it.
func ReadParity(ctx context.Context, idx ParityIndex) (r ParityReport, err error) {
	sizes := map[index.StoredObject]int64{}
	for k, err := range idx.Packs(ctx) {
		if err != nil {
			return r, err
		}
		if !k.Deleting && !k.Gone {
			sizes[k.StoredObject()] += k.Bytes
		}
	}
	packs, err := idx.DamagedPacks(ctx)
	if err != nil {
		return r, err
	}
	damaged := map[index.StoredObject]bool{}
	for i := range packs {
		damaged[packs[i].StoredObject()] = true
	}
	for row, err := range idx.ParityGroups(ctx) {
		if err != nil {
			return r, err
		}
		r.Bytes += row.Bytes
		if row.State != index.ParityValid {
			continue
		}
		r.Groups++
		g, _, err := parity.Parse(row.Description)
		if err != nil {
			continue // bctl check names it
		}
		if slices.ContainsFunc(g.Members, func(m parity.Member) bool { return damaged[objectOf(&m)] }) {
			r.Damaged++
		}
		for i := range g.Members {
			o := objectOf(&g.Members[i])
			if _, is := sizes[o]; is {
				delete(sizes, o)
				r.Objects++
				r.ObjectBytes += g.Members[i].Bytes
			}
		}
	}
	for _, bytes := range sizes {
		r.Without++
		r.WithoutBytes += bytes
	}
	return r, nil
}
