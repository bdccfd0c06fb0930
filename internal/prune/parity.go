package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/store"
)

// Parity groups (docs/formats/parity.md) are made and kept by passes. A group never changes, so if
// a member is to be deleted, the members that stay get another group first. Then the old one ends,
// and the member is deleted. In a group of which a member that stays is damaged, nothing is
// deleted: only the whole group can restore that member.
//
// New groups have objects of about the same length, so that the parity objects take no more than
// the share of the layout. Objects wait until there are enough of them. What had parity before, and
// copies of it, never wait: they get a group that takes more space, until other objects join.

// ParityMade is what a pass has done to parity groups.
type ParityMade struct {
	Groups int   // new ones
	Bytes  int64 // stored bytes of their parity objects
	Ended  int   // groups that were replaced, or are not wanted any more
	Freed  int64 // stored bytes of their parity objects
	Held   int   // packs that nothing needs, and that damaged groups need
	// Waiting are objects without parity, of which there are too few for a group.
	Waiting      int
	WaitingBytes int64
	// Late are objects without parity that could not get it: they are damaged, or the store has
	// refused the parity of their groups.
	Late int
}

// A candidate is an object that may become a member of a new group.
type candidate struct {
	parity.Member
	had bool // it has parity, or is a copy of what had it
}

func (c *candidate) object() index.StoredObject { return objectOf(&c.Member) }

// objectOf returns a member as the index names it.
func objectOf(m *parity.Member) index.StoredObject {
	return index.StoredObject{Snapshot: m.Snapshot, ID: m.Object}
}

// A tending makes parity groups again, and makes new ones.
type tending struct {
	*pass
	repository backup.RepositoryID
	groups     map[backup.PackID]*parity.Group // the valid ones
	bytes      map[backup.PackID]int64         // of their parity objects
	left       map[backup.PackID]int           // the other groups, with their numbers of parity objects
	stuck      map[backup.PackID]bool          // groups with members that cannot be read
	skip       map[index.StoredObject]bool     // objects that cannot become members
	refused    bool                            // by the store
	sizes      map[index.StoredObject]int64
	packsIn    map[string][]int64 // rows of the packs of each object, by its name; nil: not needed yet
}

// tendParity makes parity groups, as far as the members of old ones are going, and as there are
// enough objects without parity. It returns the objects that must stay, because a group needs them.
func (p *pass) tendParity(ctx context.Context) (needed map[index.StoredObject]bool, err error) {
	t := &tending{pass: p, stuck: map[backup.PackID]bool{}, skip: map[index.StoredObject]bool{}, sizes: map[index.StoredObject]int64{}}
	for again := true; again && err == nil; {
		if err = t.load(ctx); err == nil {
			again, err = t.round(ctx)
		}
	}
	needed = map[index.StoredObject]bool{}
	for _, g := range t.groups {
		for i := range g.Members {
			needed[objectOf(&g.Members[i])] = true
		}
	}
	return needed, err
}

// load reads the groups, and deletes what is left of those that are not valid.
func (t *tending) load(ctx context.Context) error {
	t.groups, t.bytes, t.left = map[backup.PackID]*parity.Group{}, map[backup.PackID]int64{}, map[backup.PackID]int{}
	for g, err := range t.Index.ParityGroups(ctx) {
		if err != nil {
			return err
		}
		group, _, err := parity.Parse(g.Description)
		if g.State != index.ParityValid {
			if t.left[g.ID] = len(group.Bodies); err != nil { // of a planned group, it is not known
				t.left[g.ID] = parity.MaxParity
			}
			continue
		}
		if (err != nil || group.ID != g.ID) && t.NoParity {
			group = parity.Group{ID: g.ID, Bodies: make([]parity.Digest, parity.MaxParity)}
		} else if err != nil || group.ID != g.ID {
			t.incomplete = true
			t.Log.Warn("the index has a parity group whose description is damaged (bctl check names it)", "group", g.ID.String())
			continue
		}
		t.groups[g.ID], t.bytes[g.ID] = &group, g.Bytes
	}
	if t.NoParity && len(t.groups) > 0 {
		var all []backup.PackID
		for id := range t.groups {
			all = append(all, id)
		}
		return t.end(ctx, nil, all)
	}
	return t.drop(ctx)
}

// drop deletes the parity objects of groups that are not valid, and then their rows. Those that are
// locked stay.
func (t *tending) drop(ctx context.Context) error {
	for group := range slices.Chunk(slices.Collect(maps.Keys(t.left)), objectsAtOnce/parity.MaxParity) {
		var names []string
		for _, id := range group {
			for n := range t.left[id] {
				names = append(names, store.ParityName(id, n))
			}
		}
		err := t.Store.Delete(ctx, names...)
		if store.IsLocked(err) { // for a day after they were put
			t.incomplete = true
			continue
		}
		if errors.Is(err, fs.ErrPermission) {
			t.incomplete = true
			t.Log.Warn("parity objects that are not needed any more stay, because the store does not let them be deleted", "error", err)
			continue
		}
		if err != nil {
			return err
		}
		if err := t.Index.DropParity(ctx, t.term, group); err != nil {
			return err
		}
	}
	clear(t.left)
	return nil
}

// end makes new groups valid, ends others, and deletes these.
func (t *tending) end(ctx context.Context, made []index.ParityGroup, ended []backup.PackID) error {
	if err := t.Index.ReplaceParity(ctx, t.term, made, ended); err != nil {
		return err
	}
	for _, id := range ended {
		t.result.Parity.Ended++
		t.result.Parity.Freed += t.bytes[id]
		t.left[id] = len(t.groups[id].Bodies)
		delete(t.groups, id)
	}
	return t.drop(ctx)
}

// round makes groups once. again: another round may make more, without what it could not read.
func (t *tending) round(ctx context.Context) (again bool, err error) {
	if t.refused || t.NoParity || len(t.groups) == 0 && t.Parity == (parity.Layout{}) {
		return false, nil
	}
	stays := t.staying()
	opened, layout, limit, must := t.affected(stays)
	candidates := t.survivors(opened, stays)
	waiting, err := t.waiting(ctx, stays, candidates)
	if err != nil {
		return false, err
	}
	groups, full := arrange(append(candidates, waiting...), layout, limit)
	t.result.Parity.Waiting, t.result.Parity.WaitingBytes = count(waiting)
	if !must && !full {
		return false, nil
	}
	if t.repository == (backup.RepositoryID{}) {
		r, err := t.Index.Repository(ctx)
		if err != nil {
			return false, err
		}
		t.repository = r.ID
	}
	for n, members := range groups {
		t.step(fmt.Sprintf("making parity: group %d of %d", n+1, len(groups)))
		err := t.make(ctx, members, layout.Parity, opened)
		bad, isBad := errors.AsType[*parity.BadMemberError](err)
		switch {
		case isBad:
			t.incomplete = true
			t.avoid(bad)
			return true, nil
		case errors.Is(err, fs.ErrPermission), errors.Is(err, store.ErrFull):
			t.refused, t.incomplete = true, true
			for _, late := range groups[n:] {
				objects, _ := countNew(late)
				t.result.Parity.Late += objects
			}
			t.Log.Warn("no parity is made, because the store does not let it be written (renew the permissions of the pruner, or make room); packs of parity groups stay", "error", err)
			return false, nil
		case err != nil:
			return false, err
		}
		joined, bytes := countNew(members)
		t.result.Parity.Waiting -= joined
		t.result.Parity.WaitingBytes -= bytes
	}
	return false, t.endEmpty(ctx, opened)
}

// endEmpty ends the opened groups of which nothing stays.
func (t *tending) endEmpty(ctx context.Context, opened map[backup.PackID]map[index.StoredObject]bool) error {
	var ended []backup.PackID
	for id, open := range opened {
		if len(open) == 0 && t.groups[id] != nil {
			ended = append(ended, id)
		}
	}
	if len(ended) == 0 {
		return nil
	}
	return t.end(ctx, nil, ended)
}

// staying returns the objects that are not going to be deleted.
func (p *pass) staying() map[index.StoredObject]bool {
	stays, shared := map[index.StoredObject]bool{}, p.shared()
	for i := range p.packs {
		if k := &p.packs[i]; shared[k.Object] && k.Bytes > 0 && !k.Gone {
			stays[k.StoredObject()] = true
		}
	}
	for _, c := range p.fresh {
		stays[c.object()] = true
	}
	return stays
}

// affected opens the groups that are made again: those with members that are going, and those of
// which other groups have all members (must); and, if objects may join them, those that take more
// space than the layout allows. For each of them,
// open are the members that stay and that no new group has yet. The layout is that of new groups,
// which have limit members at most.
func (t *tending) affected(stays map[index.StoredObject]bool) (opened map[backup.PackID]map[index.StoredObject]bool, l parity.Layout, limit int, must bool) {
	opened, l = map[backup.PackID]map[index.StoredObject]bool{}, t.Parity
	in := map[index.StoredObject]int{}
	for _, g := range t.groups {
		for i := range g.Members {
			in[objectOf(&g.Members[i])]++
		}
	}
	for id, g := range t.groups {
		longest, sum, going := int64(0), int64(0), isRedundant(g, in)
		open := map[index.StoredObject]bool{}
		for i := range g.Members {
			m := &g.Members[i]
			longest, sum = max(longest, m.Bytes), sum+m.Bytes
			o := objectOf(m)
			if stays[o] {
				open[o] = true
			}
			going = going || !stays[o]
		}
		loose := t.Parity.Parity > 0 && !t.Parity.Full(len(g.Members), longest, sum)
		if t.stuck[id] || !going && !loose {
			continue
		}
		must = must || going
		opened[id] = open
		if t.Parity.Parity == 0 { // as the groups are that exist
			l.Parity, l.Members = max(l.Parity, len(g.Bodies)), max(l.Members, len(g.Members))
		}
	}
	limit = l.Members
	if t.Parity.Parity > 0 {
		limit *= 2
	}
	return opened, l, limit, must
}

// isRedundant reports whether all members of a group are in other groups, too: a rebuilt index
// knows groups that were about to end. If so, they are counted without it.
func isRedundant(g *parity.Group, in map[index.StoredObject]int) bool {
	for n, change := range []int{0, -1} {
		for i := range g.Members {
			o := objectOf(&g.Members[i])
			if in[o] += change; n == 0 && in[o] < 2 {
				return false
			}
		}
	}
	return true
}

// survivors returns the members of opened groups that stay, and that no other group has. Copies
// that this pass has made of what may have had parity are among them.
func (t *tending) survivors(opened map[backup.PackID]map[index.StoredObject]bool, stays map[index.StoredObject]bool) (all []candidate) {
	seen := map[index.StoredObject]bool{}
	for id, g := range t.groups {
		if opened[id] != nil {
			continue
		}
		for i := range g.Members {
			seen[objectOf(&g.Members[i])] = true
		}
	}
	for id, open := range opened {
		for i := range t.groups[id].Members {
			c := candidate{t.groups[id].Members[i], true}
			switch o := c.object(); {
			case !stays[o]:
			case seen[o]:
				delete(open, o)
			default:
				seen[o] = true
				all = append(all, c)
			}
		}
	}
	for _, c := range t.fresh {
		if c.had = len(opened) > 0; c.had && !seen[c.object()] && !t.skip[c.object()] {
			seen[c.object()] = true
			all = append(all, c)
		}
	}
	return all
}

// waiting returns the objects that have no parity and are needed, if new groups are wanted.
func (t *tending) waiting(ctx context.Context, stays map[index.StoredObject]bool, candidates []candidate) (all []candidate, err error) {
	t.result.Parity.Late = 0
	if t.Parity.Parity == 0 || t.needed == nil {
		return nil, nil
	}
	not := map[index.StoredObject]bool{}
	for i := range candidates {
		not[candidates[i].object()] = true
	}
	for _, g := range t.groups {
		for i := range g.Members {
			not[objectOf(&g.Members[i])] = true
		}
	}
	isNeeded := map[index.StoredObject]bool{}
	for i := range t.packs {
		k := &t.packs[i]
		o := k.StoredObject()
		isNeeded[o] = isNeeded[o] || k.marked > 0
		not[o] = not[o] || k.Running || !stays[o]
	}
	for i := range t.packs {
		k := &t.packs[i]
		o := k.StoredObject()
		if not[o] || !isNeeded[o] {
			continue
		}
		not[o] = true
		if t.skip[o] {
			t.result.Parity.Late++
			continue
		}
		c := candidate{Member: parity.Member{Snapshot: k.Snapshot, Object: k.Object, Bytes: k.Bytes}}
		if k.Sealed != (backup.PackID{}) { // there may be more in the object
			if c.Bytes, err = t.sizeOf(ctx, &c); err != nil {
				return nil, err
			}
		}
		if c.Bytes > 0 && c.Bytes <= parity.MaxMemberBytes {
			all = append(all, c)
		}
	}
	return all, nil
}

// sizeOf returns the size of an object; 0: it is missing.
func (t *tending) sizeOf(ctx context.Context, c *candidate) (int64, error) {
	if size, known := t.sizes[c.object()]; known {
		return size, nil
	}
	size, err := t.Store.Stat(ctx, c.Name())
	if errors.Is(err, backup.ErrNotFound) {
		size, err = 0, nil
	}
	t.sizes[c.object()] = size
	return size, err
}

// arrange divides candidates into groups. A group is full when its parity objects take no more than
// the share of the layout. What does not fill a group waits. Candidates that had parity get a group
// nevertheless; others join it that take no more space. full: a group has a candidate that did not
// have parity, and is full.
func arrange(all []candidate, l parity.Layout, limit int) (groups [][]candidate, full bool) {
	if l.Parity == 0 {
		return nil, false
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), slices.Compare(a.Object[:], b.Object[:]))
	})
	var rest []candidate
	for i := 0; i < len(all); {
		n, sum := 0, int64(0)
		for n < limit && i+n < len(all) && !l.Full(n, all[i].Bytes, sum) {
			sum += all[i+n].Bytes
			n++
		}
		if !l.Full(n, all[i].Bytes, sum) {
			rest = append(rest, all[i])
			i++
			continue
		}
		group := all[i : i+n]
		joined, _ := countNew(group)
		full = full || joined > 0
		groups = append(groups, group)
		i += n
	}
	return append(groups, arrangeRest(rest, limit)...), full
}

// arrangeRest groups those that had parity, with others that are not longer.
func arrangeRest(rest []candidate, limit int) (groups [][]candidate) {
	var group, had []candidate
	for i := range rest {
		if rest[i].had {
			had = append(had, rest[i])
		}
	}
	for ; len(had) > 0; had = had[len(group):] {
		group = slices.Clone(had[:min(limit, len(had))])
		joined := group
		for i := range rest {
			if c := &rest[i]; !c.had && len(joined) < limit && c.Bytes <= group[0].Bytes {
				joined, c.had = append(joined, *c), true
			}
		}
		groups = append(groups, joined)
	}
	return groups
}

func count(all []candidate) (n int, bytes int64) {
	for i := range all {
		bytes += all[i].Bytes
	}
	return len(all), bytes
}

// countNew counts the candidates that had no parity.
func countNew(all []candidate) (n int, bytes int64) {
	for i := range all {
		if !all[i].had {
			n, bytes = n+1, bytes+all[i].Bytes
		}
	}
	return n, bytes
}

// make makes a group, and ends the opened groups of which no other member is left.
func (t *tending) make(ctx context.Context, of []candidate, number int, opened map[backup.PackID]map[index.StoredObject]bool) error {
	g, objects, err := t.makeGroup(ctx, of, number)
	if err != nil {
		return err
	}
	if err := t.Index.PlanParity(ctx, t.term, g.ID); err != nil {
		return err
	}
	made := index.ParityGroup{ID: g.ID, State: index.ParityValid, Description: g.Describe(0)}
	for n, data := range objects {
		if err := t.Store.Put(ctx, g.Name(n), data); err != nil {
			return err
		}
		made.Bytes += int64(len(data))
	}
	var ended []backup.PackID
	for id, open := range opened {
		for i := range of {
			delete(open, of[i].object())
		}
		if len(open) == 0 && t.groups[id] != nil {
			ended = append(ended, id)
		}
	}
	if err := t.end(ctx, []index.ParityGroup{made}, ended); err != nil {
		return err
	}
	t.groups[g.ID], t.bytes[g.ID] = &g, made.Bytes
	t.result.Parity.Groups++
	t.result.Parity.Bytes += made.Bytes
	return nil
}

// avoid leaves out a member that cannot be read. If it has parity, its group stays as it is.
func (t *tending) avoid(bad *parity.BadMemberError) {
	o := objectOf(&bad.Member)
	t.skip[o] = true
	for id, g := range t.groups {
		if slices.ContainsFunc(g.Members, func(m parity.Member) bool { return objectOf(&m) == o }) {
			t.stuck[id] = true
		}
	}
	t.Log.Warn("a damaged object gets no new parity; the packs of its parity group stay until bctl repair --read-data has put it back", "object", bad.Member.Name(), "error", bad.Err)
}

// wrote notes an object that this pass has written.
func (p *pass) wrote(snapshot backup.SnapshotID, object backup.PackID, data []byte) {
	m := parity.Member{Snapshot: snapshot, Object: object, Bytes: int64(len(data)), Digest: parity.DigestOf(data)}
	p.fresh = append(p.fresh, candidate{Member: m})
}

// sweepParity deletes parity objects that no row of a group names. Rows are there before the
// objects, and ids are used once, so such an object is of no use, unless the index is older than
// the store.
func (s *section) sweepParity(ctx context.Context, list iter.Seq2[store.Object, error]) error {
	for page, err := range pages(list) {
		if err != nil {
			return err
		}
		known := map[backup.PackID]bool{}
		for g, err := range s.Index.ParityGroups(ctx) {
			if err != nil {
				return err
			}
			known[g.ID] = true
		}
		var orphans []stored
		for _, o := range page {
			s.Objects++
			switch group, _, ok := store.ParseParityName(o.Name); {
			case !ok:
				s.leave(o.Name)
			case !known[group]:
				orphans = append(orphans, stored{Object: o})
			}
		}
		if len(orphans) == 0 {
			continue
		}
		if current, err := s.isCurrent(ctx); err != nil || !current {
			s.Old = s.Old || err == nil
			return err
		}
		if err := s.remove(ctx, orphans); err != nil {
			return err
		}
	}
	return nil
}

// ungrouped returns those of the objects that are not members of a parity group.
func (s *section) ungrouped(ctx context.Context, objects []stored) ([]stored, error) {
	members := map[index.StoredObject]bool{}
	for g, err := range s.Index.ParityGroups(ctx) {
		if err != nil {
			return nil, err
		}
		if group, _, err := parity.Parse(g.Description); err == nil && g.State == index.ParityValid {
			for i := range group.Members {
				members[objectOf(&group.Members[i])] = true
			}
		}
	}
	return slices.DeleteFunc(objects, func(o stored) bool { return members[o.StoredObject] }), nil
}
