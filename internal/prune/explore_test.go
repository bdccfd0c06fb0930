package prune_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// TestInterleavings interleaves the steps of each scenario with the calls of two passes. In each
// way, one fault may strike, at any call that changes something: the process is killed after the
// call, the call fails, its answer is lost, or the process is paused before the call until the
// second pass has ended.
//
// make test-exhaustive explores all interleavings in which steps come between calls at up to two
// moments, or at one moment if a fault strikes, on both indexes. Other targets choose some at
// random, without these bounds.
func TestInterleavings(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			m := newWorld(t, backend.open(t), 2)
			m.exact = true
			for _, s := range scenarios {
				t.Run(s.name, func(t *testing.T) {
					m.TB = t
					m.exploreAll(s)
				})
				if m.TB = t; t.Failed() {
					return
				}
			}
			t.Logf("%v", m.counts)
		})
	}
}

// exploreAll explores a scenario: exhaustively, or at random.
func (m *world) exploreAll(s scenario) {
	m.Helper()
	if testtarget.Runs(testtarget.Exhaustive) {
		e := &explorer{}
		runs := 1
		for m.explore(s, e); e.next(); runs++ {
			m.explore(s, e)
		}
		m.Logf("all %d interleavings", runs)
		return
	}
	runs := 5
	if testtarget.Runs(testtarget.Often) {
		runs = 20
	}
	for range runs {
		m.explore(s, &explorer{random: rand.New(rand.NewPCG(rand.Uint64(), 15))})
	}
}

// An explorer makes the choices of a run, and finds the next run that differs from all before.
type explorer struct {
	prefix []int // the first choices
	taken  []int
	of     []int      // how many there were of each
	random *rand.Rand // nil: later choices are the first ones
}

// choose returns a number below n.
func (e *explorer) choose(n int) int {
	if n == 1 {
		return 0
	}
	choice := 0
	switch i := len(e.taken); {
	case i < len(e.prefix):
		choice = e.prefix[i]
	// Otherwise, a fault would strike one of the first calls in nearly each run.
	case e.random != nil && e.random.IntN(6) == 0:
		choice = 1 + e.random.IntN(n-1)
	}
	e.taken, e.of = append(e.taken, choice), append(e.of, n)
	return choice
}

// next makes the explorer ready for the next run. It returns false after the last one.
func (e *explorer) next() bool {
	for i := len(e.taken) - 1; i >= 0; i-- {
		if e.taken[i]+1 < e.of[i] {
			e.prefix = append(slices.Clone(e.taken[:i]), e.taken[i]+1)
			e.taken, e.of = nil, nil
			return true
		}
	}
	return false
}

// effects are the effects of steps that matter to the calls of a pass. If nothing that a step does
// matters to a call, both have the same effect in either order, and one order is explored.
type effects int

const (
	begins    effects = 1 << iota // a snapshot
	ends                          // a snapshot
	forgets                       // a snapshot
	changes                       // pages
	looks                         // for chunks
	uploads                       // a pack
	registers                     // packs and lists, and relies on them
)

// delivers has the effects of a step that delivers all results, of every kind.
const delivers = changes | looks | uploads | registers

// A step is what somebody else does at one moment.
type step struct {
	effects effects
	do      func(m *world)
}

// A call is a call of a pass: which effects of steps matter to it, and what protects it.
type call struct {
	matters effects
	durable durability
}

// A durability says whether a call changes something, and whether the index refuses that once the
// term of the pass has ended.
type durability int

const (
	reads durability = iota
	lasts
	lastsInTerm
)

var calls = map[string]call{
	"Packs":      {ends | registers, reads},
	"Acquit":     {looks | registers, lastsInTerm},
	"Delete":     {0, lasts}, // nobody but the checks reads what is deleted
	"DropPlaces": {looks | registers, lasts},
	"DropPacks":  {begins | ends | registers, lasts},
	"DropLists":  {registers, lasts},
	"Fence":      {ends, reads}, // the number of a running snapshot is that of the next one before
	"Needed":     {begins | ends | forgets, reads},
	"References": {changes, reads},
	// A pass ignores places and frames of packs that it has not seen, and lists to which no page
	// refers that it has seen. Others do not change.
	"Condemn":           {looks | registers, lastsInTerm},
	"Deleting":          {begins | ends, lastsInTerm}, // for others, the packs are condemned already
	"Plan":              {0, lastsInTerm},
	"Put":               {0, lasts},
	"Move":              {looks | registers, lastsInTerm},
	"DropVersions":      {begins | ends | forgets | changes, lasts},
	"Forgotten":         {begins | ends | forgets, reads},
	"Remove":            {begins | ends | forgets, lasts},
	"within References": {changes, reads},
	"Recognize":         {ends | registers, reads},
	"within List":       {uploads, reads},
}

// once are the calls of which several in a row are one: nothing depends on what happens between two
// of them. A fault at the first one leaves some undone.
var once = []string{"Delete", "DropPlaces"}

// depends reports whether it matters in which order a call and a step happen.
func (c call) depends(s step) bool { return s.effects&c.matters != 0 }

// An exploration is a run of a scenario.
type exploration struct {
	*world
	*explorer
	steps     []step // that are left
	met       bool   // no fault may strike any more
	moments   int    // at which steps came between two calls
	limit     int    // of these
	withFault int    // the limit if a fault strikes
}

// explore runs a scenario, with two passes, and leaves an index and a store without content.
func (m *world) explore(s scenario, e *explorer) {
	m.Helper()
	m.trace = []string{s.name}
	defer func() {
		if m.Failed() {
			m.Logf("choices: %v", e.taken)
		}
	}()
	m.r, m.ids = rand.New(rand.NewPCG(1, 1)), 0 // a run can be repeated
	s.before(m)
	x := &exploration{world: m, explorer: e, steps: s.steps, limit: moments, withFault: momentsWithFault}
	if e.random != nil {
		x.limit, x.withFault = math.MaxInt, math.MaxInt
	}
	var paused *process
	for range 2 {
		p := m.startStopping(s)
		if x.pass(p) {
			paused = p
		}
		x.met = true // the second pass is whole
	}
	if paused != nil {
		x.pass(paused)
	}
	x.take(len(x.steps))
	m.settle()
	m.twoPasses()
	m.checkNoLeaks()
	m.empty()
}

// startStopping starts a pass that stops before each call that a scenario wants to see.
func (m *world) startStopping(s scenario) *process {
	m.Helper()
	m.passes++
	last := ""
	return m.start(fmt.Sprint("pass ", m.passes), func(name string) bool {
		again := name == last && slices.Contains(once, name)
		last = name
		switch {
		case again:
			return false
		case name == "within References":
			return s.within
		case name == "within List":
			return s.sweeps
		}
		_, is := calls[name]
		return is
	}, 0, s.sweeps)
}

// take does the next n steps.
func (x *exploration) take(n int) {
	x.Helper()
	for _, s := range x.steps[:n] {
		x.note("step")
		s.do(x.world)
		x.check()
	}
	x.steps = x.steps[n:]
}

// At how many moments steps come between calls at most, in an exhaustive exploration.
const (
	moments          = 2
	momentsWithFault = 1
)

// pass runs a pass to its end, or until it is paused, interleaved with the steps that are left.
func (x *exploration) pass(p *process) (paused bool) {
	x.Helper()
	for !p.done {
		next := calls[p.at]
		options := []func(){func() { x.call(p, noFault) }}
		// Steps come before the call only if one of them matters to it.
		if before := slices.IndexFunc(x.steps, next.depends) + 1; before > 0 && x.moments < x.limit {
			options = append(options, func() {
				x.moments++
				x.take(before)
			})
		}
		if next.durable != reads && !x.met && x.moments <= x.withFault {
			strike := func(do func()) {
				options = append(options, func() {
					x.met, x.limit = true, x.withFault
					do()
				})
			}
			// To be killed before a call is to be killed after the previous one that changes
			// something.
			strike(func() { x.call(p, killedAfter) })
			strike(func() { x.call(p, failed) })
			strike(func() { x.call(p, answerLost) })
			if next.durable == lasts && p.leads {
				strike(func() { paused = true })
			}
		}
		choice := x.choose(len(options))
		if choice >= len(options) {
			x.fatalf("a run cannot be repeated: it has %d choices, and choice %d was there before", len(options), choice)
		}
		options[choice]()
		if paused {
			x.note("%s is paused before %s", p.name, p.at)
			x.must(x.x.Resign(x.ctx, p.term))
			p.leads = false
			return true
		}
	}
	x.ended(p)
	return false
}

// call lets a pass make its next call, which may meet a fault.
func (x *exploration) call(p *process, f fault) {
	x.Helper()
	x.note("%s: %s, fault %d", p.name, p.at, f)
	deletes := p.deletes()
	p.meet(f)
	if deletes {
		x.check()
	}
}

// ended checks how a pass has ended.
func (x *exploration) ended(p *process) {
	x.Helper()
	x.note("%s ends: %v", p.name, p.err)
	if p.killed && p.leads { // its term would run out
		x.must(x.x.Resign(x.ctx, p.term))
		p.leads = false
	}
	if p.err == nil || p.killed || errors.Is(p.err, errFailed) || errors.Is(p.err, index.ErrNotLeading) && !p.leads {
		return
	}
	x.fatalf("%s: %v", strings.TrimSpace(p.name), p.err)
}
