package commit

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/process/health"
)

// The work of a worker that is not ready is reassigned once, after another one of its queue has
// been ready for as long: not in an outage that all wait for, and not when that ends.
func TestCutOffWorkers(t *testing.T) {
	const steps = 5
	const step = cutOffAfter / steps
	for name, test := range map[string]struct {
		a, b string // at each step: r eady, n ot ready, d raining, s topping, space: nothing is heard
		role flow.Role
		site string
		want []int // steps after which a is cut off
	}{
		"a is cut off":                    {a: "rrnnnnnnnnnnnnn", b: "rrrrrrrrrrrrrrr", want: []int{2 + steps}},
		"it says so only once":            {a: "rrn            ", b: "rrr            ", want: []int{2 + steps}},
		"for a moment":                    {a: "rrnnnnrrnnnnrrr", b: "rrrrrrrrrrrrrrr"},
		"twice":                           {a: "rnnnnnnrrnnnnnnn", b: "rrrrrrrrrrrrrrrr", want: []int{1 + steps, 9 + steps}},
		"all are":                         {a: "rrnnnnnnnnnnnnn", b: "rrrnnnnnnnnnnnn"},
		"the outage ends for the other":   {a: "nnnnnnnnnnnnrrr", b: "nnnnnnnnrrrrrrr"},
		"and not for a":                   {a: "nnnnnnnnnnnnnnn", b: "nnnnrrrrrrrrrrr", want: []int{4 + steps}},
		"the other drains":                {a: "rrnnnnnnnnnnnnn", b: "ddddddddddddddd"},
		"a drains":                        {a: "ddddddddddddddd", b: "rrrrrrrrrrrrrrr"},
		"the other has another role":      {a: "rrnnnnnnnnnnnnn", b: "rrrrrrrrrrrrrrr", role: flow.RoleWalker},
		"the other is at another site":    {a: "rrnnnnnnnnnnnnn", b: "rrrrrrrrrrrrrrr", site: "rome"},
		"a was never ready":               {a: "nnnnnnnnnnnnnnn", b: "rrrrrrrrrrrrrrr", want: []int{steps}},
		"there is no other":               {a: "rrnnnnnnnnnnnnn", b: "               "},
		"the other is not heard any more": {a: "rrrrrrrrrrrrrnnnnnnnnn", b: "r                     "},
		"a stops, and finishes its work":  {a: "rrsssssssssssss", b: "rrrrrrrrrrrrrrr"},
	} {
		t.Run(name, func(t *testing.T) {
			l, start := &workers{}, time.Unix(1000, 0)
			hear := func(id string, role flow.Role, site string, state byte, now time.Time) {
				if state != ' ' {
					i := flow.Instance{ID: id, Role: role, Site: site, Heard: now, Ready: state != 'n' && state != 's', Draining: state == 'd'}
					if state == 's' {
						i.Reason = health.ErrStopping.Error()
					}
					l.hear(i, false)
				}
			}
			if test.role == "" {
				test.role = flow.RoleReader
			}
			if test.site == "" {
				test.site = "oslo"
			}
			var got []int
			for i := range test.a {
				now := start.Add(time.Duration(i) * step)
				hear("a", flow.RoleReader, "oslo", test.a[i], now)
				hear("b", test.role, test.site, test.b[i], now)
				for _, cut := range l.cutOff(now) {
					if cut != "a" {
						t.Errorf("%s is cut off", cut)
					}
					l.relieve(cut)
					got = append(got, i)
				}
				if ready := test.a[i] == 'r'; ready && l.isRelieved("a") {
					t.Errorf("step %d: it is ready again, and what it reports is ignored", i)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("after steps %v, want %v", got, test.want)
			}
		})
	}
}

// A committer that cannot commit, or apply results, leaves both to others, and does it again once
// it can.
func TestCommitterThatIsCutOff(t *testing.T) {
	for _, what := range []string{"index", "store"} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			conn, _ := f.queue()
			snap := f.begin()
			var away atomic.Bool
			away.Store(true)
			var asked atomic.Int64
			mayNot := func(is string) error {
				if what != is || !away.Load() {
					return nil
				}
				asked.Add(1)
				return backup.IndexAway
			}
			f.start(f.idx, Options{MayApply: func() error { return mayNot("index") }, MayCommit: func(context.Context) error { return mayNot("store") }})
			ctx, cancel := context.WithCancel(f.ctx)
			wait := f.work(ctx, conn)
			f.until(func() bool { return asked.Load() > 1 })
			if s := f.snapshot(snap.ID); s.State != backup.Running || s.Complete() != (what == "store") {
				t.Errorf("%s, complete: %t, although the %s is away", s.State, s.Complete(), what)
			}
			away.Store(false)
			if s := f.ended(snap.ID); s.State != backup.Committed {
				t.Errorf("%s: %s", s.State, s.Reason)
			}
			cancel()
			wait()
			if asked.Load() == 0 {
				t.Error("it did not ask")
			}
		})
	}
}
