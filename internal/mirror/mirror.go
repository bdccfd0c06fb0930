package mirror

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// A Reader is the part of a store that a mirror reads.
type Reader interface {
	Get(ctx context.Context, name string, maxBytes int64) ([]byte, error)
	GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error)
	Stat(ctx context.Context, name string) (int64, error)
	List(ctx context.Context, prefix string) iter.Seq2[store.Object, error]
	String() string
}

// Options are the settings of a pass.
type Options struct {
	From Reader      // the store; nothing is ever written to it
	To   store.Store // the mirror

	// KeepDeleted is how long an object stays that the store has no longer; 0: for ever.
	KeepDeleted time.Duration
	// Locks reports that the mirror locks its objects (decision 42).
	Locks bool
	// AllowDelete is how many bytes may be deleted although the brake would stop it.
	AllowDelete int64
	// Reread is the share of the mirror's objects that are read and compared with their notes.
	Reread float64
	// Replace are packs of the mirror that are replaced by those of the store, although these are
	// not what was copied at first: somebody with an identity has found that they are undamaged.
	Replace map[string]bool
	// DryRun: nothing is written, and nothing is read in full.
	DryRun bool
	// Workers is how many objects are copied at a time; 0: 4.
	Workers int

	Now func() time.Time // nil: time.Now
	// Reached, if not nil, is called when both stores have answered.
	Reached func()
	// Progress, if not nil, is called with the progress, also concurrently.
	Progress func(Progress)
}

// A Progress is how far a pass has come.
type Progress struct {
	Step      string
	Done, All int64 // objects; All 0: not known
	Bytes     int64 // that were copied
}

// A Summary is the result of a pass.
type Summary struct {
	Repository backup.RepositoryID

	Objects, Bytes           int64 // of the store that the mirror has now
	Copied, CopiedBytes      int64
	Adopted                  int64 // were there without a note, and are proven now
	Replaced                 int64 // were damaged in the mirror
	Reread                   int64
	Gone                     int64 // that the store has no longer, noted by this pass
	Retained, RetainedBytes  int64 // gone from the store, and kept
	Deleted, DeletedBytes    int64
	LockedGone, LockExtended int64 // gone objects that stay because they are locked; extended locks
	// Behind are records that the next pass copies, because the store changed meanwhile.
	Behind int64

	Problems     []Problem // the first of them
	MoreProblems int
}

// A Side is one of the two stores.
type Side string

// The sides.
const (
	InStore  Side = "store"
	InMirror Side = "mirror"
)

// A Problem is an object that is not as it should be.
type Problem struct {
	Side    Side
	Name    string
	Text    string
	Missing bool
	// Changed: nothing but the note of the copy shows that the object is damaged. It is whole if it
	// was damaged when it was copied, and was put back since.
	Changed bool
}

// maxProblems bounds Summary.Problems.
const maxProblems = 1000

// ErrOther: the mirror holds another repository. It is a backup.ErrWrongKey.
var ErrOther error = otherError{}

type otherError struct{}

func (otherError) Error() string        { return "another repository" }
func (otherError) Is(target error) bool { return target == backup.ErrWrongKey }

// A pass is one Run.
type pass struct {
	Options
	prover *Prover
	state  *state

	mu      sync.Mutex
	summary Summary
	done    int64
	step    string
	all     int64

	bad map[string]bool // objects with a problem: they are not read again

	// listed are the last lists of the store, by prefix.
	listed map[string]map[string]int64
	// recorded is when each commit record was put.
	recorded map[string]time.Time
}

// Run makes one pass. The Summary is valid also if there is an error: it says what was done until
// then. Errors: those of the stores; ErrOther; backup.ErrNoRepository; and a *BrakeError, after
// which everything but the deletions is done.
func Run(ctx context.Context, o Options) (Summary, error) {
	p, err := newPass(ctx, o)
	if err != nil {
		return Summary{}, err
	}
	if p.Reached != nil {
		p.Reached()
	}
	err = p.run(ctx)
	if !p.DryRun {
		// Also after an error: what was copied is then known.
		err = errors.Join(err, p.state.flush(context.WithoutCancel(ctx)))
	}
	p.count()
	return p.summary, err
}

func newPass(ctx context.Context, o Options) (*pass, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Workers <= 0 {
		o.Workers = min(4, 2*runtime.GOMAXPROCS(0))
	}
	p := &pass{Options: o, bad: map[string]bool{}, listed: map[string]map[string]int64{}, recorded: map[string]time.Time{}}
	var err error
	if p.prover, err = NewProver(ctx, o.From); err != nil {
		return nil, err
	}
	p.summary.Repository = p.prover.repository
	p.begin("reading what the mirror has", 0)
	p.state, err = load(ctx, o.To, func(name string, err error) { p.problem(InMirror, name, err.Error()) })
	if err != nil {
		return nil, err
	}
	if err := p.same(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// same makes sure that the mirror is of the same repository, or empty.
func (p *pass) same(ctx context.Context) error {
	data, err := p.To.Get(ctx, store.ConfigName, maxObjectBytes)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		for name, h := range p.state.objects {
			if h.isHere() {
				return fmt.Errorf("%v has %s, but no object %q: it is no mirror, or was damaged. Name an empty directory or bucket, or copy %[3]q from %[4]v: %w",
					p.To, name, store.ConfigName, p.From, ErrOther)
			}
		}
		return nil
	case err != nil:
		return err
	case p.prover.Prove(store.ConfigName, data) == nil:
		return nil
	}
	if _, err := NewProver(ctx, p.To); err != nil {
		return fmt.Errorf("%w: its repository object is damaged", err)
	}
	return fmt.Errorf("%v is the mirror of %w than %v has: correct mirror.url, or look whether the object %q of the store was replaced", p.To, ErrOther, p.From, store.ConfigName)
}

func (p *pass) run(ctx context.Context) error {
	if err := p.copyAll(ctx, "copying the repository object", map[string]int64{store.ConfigName: int64(len(p.prover.object))}, nil); err != nil {
		return err
	}
	// These lists come first: what the records refer to is then in the later lists.
	records, err := p.list(ctx, store.CommitsPrefix)
	if err != nil {
		return err
	}
	copies, err := p.list(ctx, store.IndexPrefix)
	if err != nil {
		return err
	}
	if err := p.content(ctx, p.lacks(records) || p.lacks(copies)); err != nil {
		return err
	}
	catalogs, err := p.list(ctx, store.CatalogPrefix)
	if err != nil {
		return err
	}
	if err := p.copyAll(ctx, "copying catalogs", catalogs, nil); err != nil {
		return err
	}
	if err := p.records(ctx, records); err != nil {
		return err
	}
	if err := p.copyAll(ctx, "copying copies of the index", copies, nil); err != nil {
		return err
	}
	if !p.DryRun {
		if err := p.state.flush(ctx); err != nil {
			return err
		}
	}
	return p.keepHouse(ctx)
}

// list lists the objects of the store with a prefix.
func (p *pass) list(ctx context.Context, prefix string) (map[string]int64, error) {
	p.begin("listing the store", 0)
	listed := map[string]int64{}
	for o, err := range p.From.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if isOurs(o.Name) {
			listed[o.Name] = o.SizeBytes
			if prefix == store.CommitsPrefix {
				p.recorded[o.Name] = o.Modified
			}
		}
	}
	p.listed[prefix] = listed
	return listed, nil
}

// lacks reports whether the mirror lacks any of these objects.
func (p *pass) lacks(listed map[string]int64) bool {
	for name := range listed {
		if h := p.state.get(name); !h.isHere() {
			return true
		}
	}
	return false
}

// maxRounds bounds the rounds of a pass. With each, there is less to copy.
const maxRounds = 10

// content copies packs, keys and segments. again requires a second round, because something is to
// be written that refers to them.
func (p *pass) content(ctx context.Context, again bool) error {
	for round := 1; ; round++ {
		var vanished []string
		for _, prefix := range []string{store.PacksPrefix, store.ParityPrefix, store.KeysPrefix, store.SegmentsPrefix} {
			listed, err := p.list(ctx, prefix)
			if err != nil {
				return err
			}
			if err := p.copyAll(ctx, "copying "+prefix, listed, &vanished); err != nil {
				return err
			}
		}
		switch {
		case p.DryRun, len(vanished) == 0 && (round > 1 || !again):
			return nil
		case round == maxRounds:
			return fmt.Errorf("%v changes faster than it can be copied: in %d rounds, objects such as %s were deleted before they were read. Run the command again when the pruner has ended: %w",
				p.From, round, vanished[0], backup.ErrUnavailable)
		}
		again = false
	}
}

// records copies the listed records that the store still has, unless an amended one has replaced
// them since.
func (p *pass) records(ctx context.Context, first map[string]int64) error {
	now, err := p.list(ctx, store.CommitsPrefix)
	if err != nil {
		return err
	}
	amended := map[backup.SnapshotID]bool{}
	for name := range now {
		if id, _, ok := store.ParseCommitName(name); ok {
			if _, before := first[name]; !before {
				amended[id] = true
			}
		}
	}
	whole := map[string]int64{}
	for name, size := range now {
		id, _, _ := store.ParseCommitName(name)
		h := p.state.get(name)
		switch _, before := first[name]; {
		case before && !amended[id], h.isHere():
			whole[name] = size
		default:
			p.summary.Behind++
		}
	}
	// A snapshot is based on earlier ones. The records are copied one after the other, in the order
	// in which they were put, so that a pass that is interrupted leaves no snapshot without its
	// base.
	names := p.toCopy(whole)
	slices.SortStableFunc(names, func(a, b string) int { return p.recorded[a].Compare(p.recorded[b]) })
	return p.copyNames(ctx, "copying commit records", names, whole, nil, 1)
}

// copyAll makes the mirror have these objects. The names of those that the store has no longer are
// appended to vanished, if it is not nil.
func (p *pass) copyAll(ctx context.Context, step string, listed map[string]int64, vanished *[]string) error {
	return p.copyNames(ctx, step, p.toCopy(listed), listed, vanished, p.Workers)
}

// toCopy returns the names of those of the objects that the mirror may lack, sorted.
func (p *pass) toCopy(listed map[string]int64) []string {
	names := make([]string, 0, len(listed))
	for name, size := range listed {
		h := p.state.get(name)
		if p.bad[name] || !p.Replace[name] && p.believes(&h, size) {
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// copyNames is copyAll for these of the listed objects, some at a time.
func (p *pass) copyNames(ctx context.Context, step string, names []string, listed map[string]int64, vanished *[]string, atOnce int) error {
	p.begin(step, int64(len(names)))
	return p.each(ctx, names, atOnce, func(ctx context.Context, name string) error {
		if p.DryRun {
			p.would(name, listed[name])
			return nil
		}
		err := p.settle(ctx, name)
		if errors.Is(err, errVanished) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if vanished != nil {
				*vanished = append(*vanished, name)
			}
			return nil
		}
		return err
	})
}

// believes reports whether nothing is to be done for an object of the store.
func (p *pass) believes(h *held, size int64) bool {
	return h.isHere() && h.isNoted() && h.listed == size && h.sizeBytes == size && !p.rereads(h)
}

// rereads reports whether an object of the mirror is read. It depends on the object's content, so
// that all passes with the same share read the same objects.
func (p *pass) rereads(h *held) bool {
	return p.Reread > 0 && float64(h.sum[0])/256 < p.Reread
}

// would counts an object that a pass would copy.
func (p *pass) would(name string, size int64) {
	h := p.state.get(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !h.isHere() {
		p.summary.Copied++
		p.summary.CopiedBytes += size
	}
}

// each calls do with the names, some at a time.
func (p *pass) each(ctx context.Context, names []string, atOnce int, do func(ctx context.Context, name string) error) error {
	g, working := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, name := range names {
		if working.Err() != nil {
			break
		}
		g.Go(func() error {
			err := do(working, name)
			p.advance()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (p *pass) begin(step string, all int64) {
	p.mu.Lock()
	p.step, p.done, p.all = step, -1, all
	p.mu.Unlock()
	p.advance()
}

func (p *pass) advance() {
	p.mu.Lock()
	p.done++
	now := Progress{p.step, p.done, p.all, p.summary.CopiedBytes}
	p.mu.Unlock()
	if p.Progress != nil {
		p.Progress(now)
	}
}

// problem reports an object that is not as it should be.
func (p *pass) problem(side Side, name, text string) {
	p.report(Problem{Side: side, Name: name, Text: strings.TrimPrefix(text, name+": ")})
}

// damagedIn reports an object that is damaged on one side, unless nothing needs it any more. after
// is added to the reason.
func (p *pass) damagedIn(side Side, name string, s *seen, after string) {
	if p.isReplaced(name) {
		return
	}
	p.report(Problem{Side: side, Name: name, Text: strings.TrimPrefix(s.err.Error(), name+": ") + after, Changed: s.changed})
}

// isReplaced reports whether the store has a newer catalog than this one. Damage to the older one
// is none: a repair writes a newer one, and leaves what it may not delete. If the newer one is
// damaged, that is reported.
func (p *pass) isReplaced(name string) bool {
	sequence, is := store.ParseCatalogName(name)
	if !is {
		return false
	}
	for other := range p.listed[store.CatalogPrefix] {
		if n, ok := store.ParseCatalogName(other); ok && n > sequence {
			return true
		}
	}
	return false
}

func (p *pass) report(problem Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad[problem.Name] = true
	if len(p.summary.Problems) == maxProblems {
		p.summary.MoreProblems++
		return
	}
	p.summary.Problems = append(p.summary.Problems, problem)
}

// count counts what the mirror has at the end.
func (p *pass) count() {
	for _, h := range p.state.objects {
		switch {
		case !h.isHere():
		case h.goneSince != 0:
			p.summary.Retained++
			p.summary.RetainedBytes += h.listed
		default:
			p.summary.Objects++
			p.summary.Bytes += h.listed
		}
	}
}
