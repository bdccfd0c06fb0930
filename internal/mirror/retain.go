package mirror

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// keepHouse notes what is gone, deletes what was gone for long enough, and extends locks. Nothing
// is deleted after a pass that has found damage, or that has left something to the next one.
func (p *pass) keepHouse(ctx context.Context) error {
	if err := p.noteGone(ctx); err != nil {
		return err
	}
	var stopped error
	if p.summary.Behind == 0 && len(p.summary.Problems) == 0 {
		err := p.delete(ctx)
		if _, is := errors.AsType[*BrakeError](err); is {
			stopped = err
		} else if err != nil {
			return err
		}
	}
	if p.DryRun {
		return stopped
	}
	if err := p.lock(ctx); err != nil {
		return err
	}
	if err := p.state.flush(ctx); err != nil {
		return err
	}
	// What they noted has been read and noted again.
	if err := p.To.Delete(ctx, p.state.torn...); err != nil && !store.IsLocked(err) {
		return err
	}
	return errors.Join(stopped, p.state.merge(ctx))
}

// inStore reports whether the last list of the store has an object.
func (p *pass) inStore(name string) bool {
	if kind := kindOf(name); kind >= 0 {
		_, is := p.listed[store.MirroredPrefixes[kind]][name]
		return is
	}
	return true // the repository object
}

// noteGone notes which objects the store has no longer, and takes back notes of objects that it has
// again.
func (p *pass) noteGone(ctx context.Context) error {
	var gone, back []string
	for _, name := range p.state.names() {
		h := p.state.objects[name]
		switch there := p.inStore(name); {
		case h.isHere() && !there && h.goneSince == 0:
			// An amended record that is not copied yet has replaced one that counts until then.
			if journal := strings.HasPrefix(name, store.CommitsPrefix) || strings.HasPrefix(name, store.SegmentsPrefix); !journal || p.summary.Behind == 0 {
				gone = append(gone, name)
			}
		case h.goneSince != 0 && (there || !h.isHere()):
			back = append(back, name)
		}
	}
	p.begin("noting what is gone from the store", int64(len(gone)))
	if err := p.each(ctx, gone, p.Workers, p.markGone); err != nil {
		return err
	}
	for _, name := range back {
		if err := p.unmark(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// markGone notes that an object is gone, if the store says so again: a list alone is not enough.
func (p *pass) markGone(ctx context.Context, name string) error {
	if there, err := p.stillThere(ctx, name); there || err != nil {
		return err
	}
	at := p.Now().Truncate(time.Second)
	if !p.DryRun {
		if err := p.To.Put(ctx, store.GoneName(name, at), []byte(goneText)); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.objects[name].goneSince = at.Unix()
	p.summary.Gone++
	return nil
}

const goneText = "bctl-mirror-gone v1\n"

// stillThere asks the store for one object.
func (p *pass) stillThere(ctx context.Context, name string) (bool, error) {
	_, err := p.From.Stat(ctx, name)
	if errors.Is(err, backup.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// unmark removes the notes that an object is gone.
func (p *pass) unmark(ctx context.Context, name string) error {
	p.state.objects[name].goneSince = 0
	if p.DryRun {
		return nil
	}
	var notes []string
	for o, err := range p.To.List(ctx, store.GonePrefix+name+"/") {
		if err != nil {
			return err
		}
		if of, _, ok := store.ParseGoneName(o.Name); ok && of == name {
			notes = append(notes, o.Name)
		}
	}
	return p.To.Delete(ctx, notes...)
}

// copyKept is how long a copy of the index stays after a newer one has replaced it. It only saves
// time, and each backup on one machine makes another.
const copyKept = 24 * time.Hour

// replacedCopies returns the sequence of the newest copy of the index that the store has, too:
// those before it were replaced. It is 0 if there is none.
func (p *pass) replacedCopies() (before int64) {
	for name, h := range p.state.objects {
		if n, _, is := store.ParseIndexName(name); is && h.isHere() && h.goneSince == 0 {
			before = max(before, n)
		}
	}
	return before
}

// keeps returns for how long an object stays that the store has no longer. It is false if it stays
// for ever.
func (p *pass) keeps(name string, newestCopy int64) (time.Duration, bool) {
	if n, _, is := store.ParseIndexName(name); is && n < newestCopy {
		return min(cmp.Or(p.KeepDeleted, copyKept), copyKept), true
	}
	return p.KeepDeleted, p.KeepDeleted > 0
}

// due returns the names of what is to be deleted, and their number of bytes and records. What
// refers to others comes first.
func (p *pass) due() (names []string, d Deletion) {
	newestCopy := p.replacedCopies()
	for name, h := range p.state.objects {
		if !h.isHere() {
			continue
		}
		record := strings.HasPrefix(name, store.CommitsPrefix)
		d.OfBytes += h.listed
		if record {
			d.OfRecords++
		}
		keep, ends := p.keeps(name, newestCopy)
		if h.goneSince == 0 || !ends || h.goneSince > p.Now().Add(-keep).Unix() {
			continue
		}
		names = append(names, name)
		if !strings.HasPrefix(name, store.IndexPrefix) {
			d.Bytes += h.listed
			if record {
				d.Records++
			}
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(kindOf(b), kindOf(a)), cmp.Compare(a, b)) })
	return names, d
}

// deleteAtOnce is how many objects are deleted with one request.
const deleteAtOnce = 1000

// delete deletes what was gone for long enough, unless the brake stops it.
func (p *pass) delete(ctx context.Context) error {
	names, d := p.due()
	if len(names) == 0 {
		return nil
	}
	today, err := p.deletedToday(ctx)
	if err != nil {
		return err
	}
	if stop := d.with(today); stop.exceeds() && d.Bytes > p.AllowDelete {
		return &BrakeError{stop}
	}
	if p.DryRun {
		p.summary.Deleted, p.summary.DeletedBytes = int64(len(names)), d.Bytes
		return nil
	}
	if d.Bytes+d.Records > 0 {
		// Before anything is deleted: after a crash, too much was counted, never too little.
		if err := p.To.Put(ctx, deletedName(p.Now(), d), []byte("bctl-mirror-deleted v1\n")); err != nil {
			return err
		}
	}
	p.begin("deleting from the mirror", int64(len(names)))
	for group := range slices.Chunk(names, deleteAtOnce) {
		if err := p.deleteGroup(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) deleteGroup(ctx context.Context, names []string) error {
	var sure []string
	for _, name := range names {
		there, err := p.stillThere(ctx, name)
		if err != nil {
			return err
		}
		if !there {
			sure = append(sure, name)
		}
		p.advance()
	}
	err := p.To.Delete(ctx, sure...)
	locked, is := errors.AsType[*store.LockedError](err)
	if err != nil && !is {
		return err
	}
	for _, name := range sure {
		if is && slices.Contains(locked.Names, name) {
			p.summary.LockedGone++
			continue
		}
		h := p.state.objects[name]
		p.summary.Deleted++
		p.summary.DeletedBytes += h.listed
		h.listed = absent
		if err := p.unmark(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// A Deletion is what a pass would delete, and what the mirror has.
type Deletion struct {
	Bytes, OfBytes     int64
	Records, OfRecords int64
}

// The brake stops a pass that would delete, with what was deleted in the last day, more than these
// shares of the mirror. Below the least numbers it does so only for nearly everything.
const (
	maxByteShare   = 0.3
	leastBytes     = 1 << 30
	maxRecordShare = 0.5
	leastRecords   = 10
	nearlyAll      = 0.9
)

func (d Deletion) exceeds() bool {
	tooMuch := func(n, of int64, share float64, least int64) bool {
		return float64(n) > share*float64(of) && (n >= least || float64(n) >= nearlyAll*float64(of))
	}
	return tooMuch(d.Bytes, d.OfBytes, maxByteShare, leastBytes) || tooMuch(d.Records, d.OfRecords, maxRecordShare, leastRecords)
}

// with adds what was deleted before: the mirror had that, too.
func (d Deletion) with(before Deletion) Deletion {
	return Deletion{d.Bytes + before.Bytes, d.OfBytes + before.Bytes, d.Records + before.Records, d.OfRecords + before.Records}
}

// A BrakeError reports that the brake has stopped the deletions of a pass.
type BrakeError struct{ Deletion }

// Error says what would have been deleted.
func (e *BrakeError) Error() string {
	return fmt.Sprintf("the brake has stopped the deletions, and nothing was deleted: with those of the last 24 hours, they are %s of %s, and %d of %d commit records. "+
		"Was so much forgotten on purpose? If it was, --allow-delete %d lets it be deleted", humanize.IBytes(uint64(e.Bytes)), humanize.IBytes(uint64(e.OfBytes)), e.Records, e.OfRecords, e.Bytes)
}

const brakeWindow = 24 * time.Hour

// deletedName is the name of the note of a deletion.
func deletedName(now time.Time, d Deletion) string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	return fmt.Sprintf("%s%016x-%016x-%016x-%x", store.DeletedPrefix, now.Unix(), d.Bytes, d.Records, id)
}

// deletedToday adds up the notes of the last deletions, and removes older ones.
func (p *pass) deletedToday(ctx context.Context) (d Deletion, err error) {
	var old []string
	for o, err := range p.To.List(ctx, store.DeletedPrefix) {
		if err != nil {
			return d, err
		}
		var fields [3]int64
		parts := strings.Split(strings.TrimPrefix(o.Name, store.DeletedPrefix), "-")
		ok := len(parts) == 4
		for i := range fields {
			if ok {
				fields[i], err = strconv.ParseInt(parts[i], 16, 64)
				ok = err == nil && fields[i] >= 0 && fields[i] < 1<<60
			}
		}
		switch {
		case !ok:
		case time.Unix(fields[0], 0).Before(p.Now().Add(-brakeWindow)):
			old = append(old, o.Name)
		default:
			d.Bytes += fields[1]
			d.Records += fields[2]
		}
	}
	if p.DryRun {
		return d, nil
	}
	return d, p.To.Delete(ctx, old...)
}

// minLock is the lock period of a mirror that keeps everything for ever.
const minLock = 30 * 24 * time.Hour

// lock extends the locks of what the store still has, when half of them has passed. So nobody can
// delete an object from the mirror until at least half of the period after the store has lost it.
func (p *pass) lock(ctx context.Context) error {
	if !p.Locks {
		return nil
	}
	period := cmp.Or(p.KeepDeleted, minLock)
	now := p.Now()
	var names []string
	for _, name := range p.state.names() {
		h := p.state.objects[name]
		if h.isHere() && h.isNoted() && h.goneSince == 0 && store.Lockable(name) && h.locked < now.Add(period/2).Unix() {
			names = append(names, name)
		}
	}
	until := now.Add(period).Truncate(time.Second)
	p.begin("extending locks", int64(len(names)))
	return p.each(ctx, names, p.Workers, func(ctx context.Context, name string) error {
		if err := p.To.Lock(ctx, name, until); err != nil {
			return err
		}
		h := p.state.get(name)
		h.locked = until.Unix()
		p.mu.Lock()
		p.summary.LockExtended++
		p.mu.Unlock()
		return p.state.take(ctx, name, h.note)
	})
}
