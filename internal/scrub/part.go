package scrub

import (
	"errors"
	"time"

	"github.com/bctl/bctl/internal/index"
)

// Slices of the journal and parity groups are parts: a proof of one may end when the limits allow
// no more, and goes on with the next run.

// errLimited reports that the limits do not allow more.
var errLimited = errors.New("the limits do not allow more")

// before returns the time before which everything is proven, due or not.
func (r *run) before(state *index.Scrub) time.Time {
	if r.All || r.Failed {
		return state.Now
	}
	return time.Time{}
}

// part judges the end of the proof of a part, and reports whether the next one follows.
func (r *run) part(err error) (more bool, _ error) {
	if errors.Is(err, errLimited) {
		r.summary.Limited = true
		return false, nil
	}
	return err == nil, err
}

// noted adds the error of noting a part to that of its proof. That there is no room for more is
// then no error of its own.
func noted(err, noting error) error {
	if noting != nil && errors.Is(err, errLimited) {
		return noting
	}
	return errors.Join(err, noting)
}

// spend counts what is about to be read, also in note, if the limits allow it.
func (r *run) spend(state *index.Scrub, cost index.ScrubCost, note *index.ScrubCost) bool {
	total := r.used.Plus(cost)
	if !r.Failed && !r.allows(state, total) {
		return false
	}
	r.used, *note, r.summary.Read = total, note.Plus(cost), r.summary.Read.Plus(cost)
	return true
}
