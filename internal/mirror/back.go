package mirror

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// BackOptions are the settings of CopyBack.
type BackOptions struct {
	From store.Store // the mirror; it is not written to
	To   store.Store // an empty store
	// AsOf, if not zero, is the time of which the repository is copied: what the mirror had then,
	// and what the store has lost since. It must be within what the mirror has kept.
	AsOf    time.Time
	DryRun  bool
	Workers int

	Progress func(Progress)
}

// ErrNotEmpty: a store has objects that CopyBack has not put there. It is a backup.ErrExists.
var ErrNotEmpty error = notEmptyError{}

type notEmptyError struct{}

func (notEmptyError) Error() string        { return "it has other objects" }
func (notEmptyError) Is(target error) bool { return target == backup.ErrExists }

// CopyBack makes an empty store what the mirrored store was, in the order of Run, but the
// repository object comes last: until then nobody takes the store for one that lacks objects. Each
// object is proven. Objects that are damaged in the mirror are left out and reported. An
// interrupted run goes on, also if services have written to the store meanwhile. The Summary is
// valid also if there is an error.
func CopyBack(ctx context.Context, o BackOptions) (Summary, error) {
	p := &pass{bad: map[string]bool{}, Options: Options{To: o.To, DryRun: o.DryRun, Workers: cmp.Or(o.Workers, 4), Progress: o.Progress, Now: time.Now}}
	var err error
	if p.prover, err = NewProver(ctx, o.From); err != nil {
		return p.summary, err
	}
	p.summary.Repository = p.prover.repository
	p.begin("reading what the mirror has", 0)
	p.state, err = load(ctx, o.From, func(name string, err error) { p.problem(InMirror, name, err.Error()) })
	if err != nil {
		return p.summary, err
	}
	wanted := p.asOf(o.AsOf)
	if len(wanted) < 2 {
		return p.summary, fmt.Errorf("%v had no backups then: %w", o.From, backup.ErrNotFound)
	}
	there, err := p.present(ctx, wanted, o.AsOf.IsZero())
	if err != nil {
		return p.summary, err
	}
	p.begin("copying back", int64(len(wanted)))
	// One kind after the other: what refers to others comes later.
	for start := 0; start < len(wanted); {
		end := start
		for end < len(wanted) && turnOf(wanted[end]) == turnOf(wanted[start]) {
			end++
		}
		if err := p.each(ctx, wanted[start:end], p.Workers, func(ctx context.Context, name string) error {
			return p.back(ctx, o.From, name, there)
		}); err != nil {
			return p.summary, err
		}
		start = end
	}
	return p.summary, nil
}

// asOf returns the names of what the store had at a time, in the order in which CopyBack puts them;
// zero: what it has now.
func (p *pass) asOf(at time.Time) (names []string) {
	for name, h := range p.state.objects {
		had := h.goneSince == 0
		if !at.IsZero() {
			had = (h.goneSince == 0 || h.goneSince > at.Unix()) && h.since() <= at.Unix()
		}
		if h.isHere() && (had || name == store.ConfigName) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(turnOf(a), turnOf(b)), cmp.Compare(a, b)) })
	return names
}

// turnOf is kindOf in the order of CopyBack.
func turnOf(name string) int {
	if name == store.ConfigName {
		return len(store.MirroredPrefixes)
	}
	return kindOf(name)
}

// present returns what the store has already. It fails if the store has objects that no earlier run
// has put there. If newer is set, those of this repository may be there, as long as the repository
// object is not.
func (p *pass) present(ctx context.Context, wanted []string, newer bool) (map[string]bool, error) {
	want := make(map[string]bool, len(wanted))
	for _, name := range wanted {
		want[name] = true
	}
	there := map[string]bool{}
	for _, prefix := range append([]string{store.ConfigName}, store.MirroredPrefixes...) {
		for o, err := range p.To.List(ctx, prefix) {
			if err != nil {
				return nil, err
			}
			if want[o.Name] {
				there[o.Name] = true
				continue
			}
			if newer && !there[store.ConfigName] {
				s, err := p.prover.read(ctx, p.To, o.Name)
				if err != nil {
					return nil, err
				}
				if s.whole() || s.gone {
					continue
				}
			}
			return nil, fmt.Errorf("%v: %w, such as %s. If it was only damaged, bctl repair takes from the mirror what it needs; otherwise name an empty directory or bucket (--store)", p.To, ErrNotEmpty, o.Name)
		}
	}
	return there, nil
}

// back puts one object into the store.
func (p *pass) back(ctx context.Context, from Reader, name string, there map[string]bool) error {
	h := p.state.get(name)
	count := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.summary.Objects++
		p.summary.Bytes += h.listed
		if !there[name] {
			p.summary.Copied++
			p.summary.CopiedBytes += h.listed
		}
	}
	if p.DryRun {
		count()
		return nil
	}
	if there[name] { // put by an interrupted run: it is proven like any other
		s, err := p.prover.readNoted(ctx, p.To, name, &h)
		if err != nil {
			return err
		}
		if s.whole() {
			count()
			return nil
		}
		if err := p.To.Delete(ctx, name); err != nil {
			return err
		}
	}
	s, err := p.prover.readNoted(ctx, from, name, &h)
	if err != nil {
		return err
	}
	if !s.whole() {
		text := "it is gone"
		if s.err != nil {
			text = s.err.Error()
		}
		p.problem(InMirror, name, text+"; it was not copied")
		return nil
	}
	if err := p.To.Put(ctx, name, s.data); err != nil {
		return err
	}
	count()
	return nil
}

// A Source is a mirror from which single objects are put back.
type Source struct {
	mirror Reader
	prover *Prover
	state  *state
	// Content, if not nil, proves the content of a pack, with an identity.
	Content func(ctx context.Context, name string, data []byte) error
	// Mend, if not nil, puts a pack together of the sound parts of two copies, the store's (nil:
	// there is none) and the mirror's, if they differ and it is known which parts are sound. It
	// returns nil if the store's is as good.
	Mend func(ctx context.Context, name string, present, copied []byte) (mended []byte, known bool, err error)
	// Mended, if not nil, is called with each object that is put together.
	Mended func(name string)
	// Damaged, if not nil, is called with each object that PutBack does not put back because the
	// mirror's copy is damaged, or is gone.
	Damaged func(name string, why error)
}

// NewSource opens the mirror of a repository. Errors: ErrOther, and those of the mirror.
func NewSource(ctx context.Context, mirror store.Store, repository backup.RepositoryID, signer [32]byte) (*Source, error) {
	prover, err := NewProver(ctx, mirror)
	if err != nil {
		return nil, err
	}
	if prover.repository != repository || [32]byte(prover.signer) != signer {
		return nil, fmt.Errorf("%v is the mirror of %w", mirror, ErrOther)
	}
	s, err := load(ctx, mirror, func(string, error) {})
	if err != nil {
		return nil, err
	}
	return &Source{mirror: mirror, prover: prover, state: s}, nil
}

// Has reports whether the mirror has an object of that name.
func (s *Source) Has(name string) bool {
	h := s.state.get(name)
	return h.isHere()
}

// Bytes returns the length of an object of the mirror.
func (s *Source) Bytes(name string) int64 {
	h := s.state.get(name)
	return h.listed
}

// IsAway reports whether an error is one of the mirror: it cannot be reached, or refuses. The store
// may be all right.
func (s *Source) IsAway(err error) bool {
	of, is := errors.AsType[*store.Error](err)
	return is && of.Store == fmt.Sprint(s.mirror) && IsAway(err)
}

// IsAway reports whether an error of a mirror means that it cannot be read now.
func IsAway(err error) bool {
	return errors.Is(err, backup.ErrUnavailable) || errors.Is(err, fs.ErrPermission) || errors.Is(err, backup.ErrNoRepository)
}

// PutBack puts an object of the mirror into the store, in place of what is there, if the mirror's
// is whole and differs. It reports whether it did. Errors concern the stores, and are those of a
// Store; if the store has locked what is there, it is a *store.LockedError.
func (s *Source) PutBack(ctx context.Context, to store.Store, name string) (bool, error) {
	h := s.state.get(name)
	if !isOurs(name) || !h.isHere() {
		return false, nil
	}
	good, err := s.prover.readNoted(ctx, s.mirror, name, &h)
	if err != nil {
		return false, err
	}
	if good.whole() && s.Content != nil && kindOf(name) == 0 {
		if good.err = s.Content(ctx, name, good.data); good.err != nil && !damaged(good.err) {
			return false, good.err
		}
	}
	if s.Mend != nil && kindOf(name) == 0 && !good.gone {
		if done, known, err := s.mend(ctx, to, name, &good); known || err != nil {
			return done, err
		}
	}
	if !good.whole() {
		why := good.err
		if good.gone {
			why = backup.ErrNotFound
		}
		if s.Damaged != nil {
			s.Damaged(name, why)
		}
		return false, nil
	}
	// Without a note or an identity, a pack may be damaged more than the one that it would replace.
	unsure := kindOf(name) == 0 && !h.isNoted() && s.Content == nil
	present, err := to.Get(ctx, name, maxObjectBytes)
	switch {
	case err == nil && (unsure || sha256.Sum256(present) == good.sum):
		return false, nil
	case err == nil || damaged(err):
		// A store refuses to replace an object.
		if err := to.Delete(ctx, name); err != nil {
			return false, err
		}
	case !errors.Is(err, backup.ErrNotFound):
		return false, err
	}
	return true, to.Put(ctx, name, good.data)
}

// mend puts back what is sound in the copies of the store and the mirror, if one of them lacks
// something that the other has. known is false if only the bytes themselves show what is right.
func (s *Source) mend(ctx context.Context, to store.Store, name string, copied *seen) (done, known bool, err error) {
	present, err := to.Get(ctx, name, maxObjectBytes)
	switch {
	case errors.Is(err, backup.ErrNotFound):
		present, err = nil, nil
	case err != nil && damaged(err):
		present, err = asIs(ctx, to, name)
	}
	if err == nil && copied.data == nil {
		copied.data, err = asIs(ctx, s.mirror, name)
	}
	if err != nil || copied.whole() && sha256.Sum256(present) == copied.sum {
		return false, false, err
	}
	mended, known, err := s.Mend(ctx, name, present, copied.data)
	if err != nil || !known || mended == nil {
		if known && !copied.whole() && s.Damaged != nil {
			s.Damaged(name, copied.err)
		}
		return false, known, err
	}
	if err := store.Replace(ctx, to, name, mended); err != nil {
		return false, true, err
	}
	if sha256.Sum256(mended) != copied.sum && s.Mended != nil {
		s.Mended(name)
	}
	return true, true, nil
}

// asIs returns the bytes of a damaged object. A Get fails if they do not have the checksum that the
// store has noted. They are nil if the store does not return them.
func asIs(ctx context.Context, from Reader, name string) ([]byte, error) {
	size, err := from.Stat(ctx, name)
	if err == nil && size > maxObjectBytes {
		return nil, nil
	}
	var data []byte
	if err == nil {
		data, err = from.GetRange(ctx, nil, name, 0, size)
	}
	if err != nil && (damaged(err) || errors.Is(err, backup.ErrNotFound)) {
		return nil, nil
	}
	return data, err
}
