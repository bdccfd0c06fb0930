// Package doctor tests what bctl depends on, from where it runs and with the
// settings that it is given, and says what to change.
//
// A check looks at one thing and tells how it is:
//
//	ok          as it should be
//	warning     it works, but something should be changed
//	failure     bctl does not work like this
//	not tested  it could not be looked at, or there is nothing to look at: Seen says why
//
// Checks of one dependency are a group and run in order, because later ones use what earlier
// ones have opened; groups run at the same time. Every check has a time limit,
// and one that does not end by then is left behind as a failure: a dependency that hangs holds
// up nobody but those who need it.
//
// Checks use the clients that the services use (their Inspect functions), so that what is tested is what
// bctl does. Nothing is changed: what has to be tried is tried in a way that the server
// refuses for another reason, but for small objects at the store, which are deleted again
// where that is allowed, and are told of where not. Results never hold secrets.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// A Status is how the thing that a check looked at is.
type Status string

// The statuses. They are names in JSON, and never change.
const (
	OK        Status = "ok"
	Warning   Status = "warning"
	Failure   Status = "failure"
	NotTested Status = "not_tested"
)

// A Result is what a check has found.
type Result struct {
	Status Status
	Seen   string // what there is, or why it was not tested
	Advice string // what to change; empty where nothing need be
}

// A Check looks at one thing.
type Check struct {
	ID      string        // unique among all groups: "nats.streams"
	Needs   []string      // checks before it in its group, without which it is not tested
	Timeout time.Duration // 0: usualTimeout
	Run     func(ctx context.Context) Result
}

// A Group is the checks of one dependency.
type Group struct {
	Name   string
	Checks []Check
	Close  func() // gives back what the checks have opened; nil: nothing
}

// An Outcome is what became of one check.
type Outcome struct {
	Group, ID string
	Result
	Took time.Duration
}

// usualTimeout is what a check may take that says nothing else.
const usualTimeout = 15 * time.Second

// A Summary counts outcomes.
type Summary struct{ OK, Warnings, Failures, NotTested int }

// Run runs all checks, and calls report with what became of each, in the order of the
// groups and their checks, from the caller's goroutine. When ctx ends, what is left is not tested.
func Run(ctx context.Context, groups []Group, report func(Outcome)) Summary {
	outcomes := make([]chan Outcome, len(groups))
	for n := range groups {
		outcomes[n] = make(chan Outcome, len(groups[n].Checks))
		go func() { // ends with its group: checks have time limits
			defer close(outcomes[n])
			groups[n].run(ctx, outcomes[n])
		}()
	}
	var s Summary
	for n := range outcomes {
		for o := range outcomes[n] {
			switch o.Status {
			case OK:
				s.OK++
			case Warning:
				s.Warnings++
			case Failure:
				s.Failures++
			default:
				s.NotTested++
			}
			report(o)
		}
	}
	return s
}

func (g *Group) run(ctx context.Context, to chan<- Outcome) {
	lacking := map[string]string{} // checks that did not succeed, and which is to blame: what needs them cannot be tested
	left := false
	for n := range g.Checks {
		c := &g.Checks[n]
		o := Outcome{Group: g.Name, ID: c.ID}
		blame := c.ID
		for _, need := range c.Needs {
			blame = cmp.Or(lacking[need], blame)
		}
		switch {
		case blame != c.ID:
			o.Result = Result{NotTested, "because of " + blame, ""}
		case ctx.Err() != nil:
			o.Result = Result{NotTested, "interrupted", ""}
		default:
			begin := time.Now()
			var hangs bool
			o.Result, hangs = c.run(ctx)
			o.Took = time.Since(begin)
			left = left || hangs
		}
		if o.Status == Failure || o.Status == NotTested {
			lacking[c.ID] = blame
		}
		to <- o
	}
	if g.Close != nil && !left { // a check that was left behind may use it still
		g.Close()
	}
}

// run runs the check. It may leave it behind: a system call that waits for a dead file server
// does not end before the server is back, or the process has ended.
func (c *Check) run(ctx context.Context) (r Result, left bool) {
	limit := c.Timeout
	if limit == 0 {
		limit = usualTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooLong)
	defer cancel()
	done := make(chan Result, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case r := <-done:
		return r, false
	case <-ctx.Done():
	}
	grace := time.NewTimer(unwind)
	defer grace.Stop()
	select {
	case r := <-done: // it has seen that its context ended, and says where
		return r, false
	case <-grace.C:
	}
	if !errors.Is(context.Cause(ctx), errTooLong) {
		return Result{NotTested, "interrupted", ""}, true
	}
	return Result{Failure, fmt.Sprintf("no answer within %v", limit), "find out what it hangs at: it does not end when it is told to"}, true
}

// unwind is how long a check whose time is over may take to say so.
const unwind = time.Second

var errTooLong = errors.New("it takes too long")

// ok, warn, fail and skip make results.
func ok(format string, args ...any) Result { return Result{OK, fmt.Sprintf(format, args...), ""} }

func warn(advice, format string, args ...any) Result {
	return Result{Warning, fmt.Sprintf(format, args...), advice}
}

func fail(advice, format string, args ...any) Result {
	return Result{Failure, fmt.Sprintf(format, args...), advice}
}

func skip(format string, args ...any) Result {
	return Result{NotTested, fmt.Sprintf(format, args...), ""}
}

// A verdict collects what one check sees of several things: it is as bad as the worst of them.
type verdict struct {
	good []string // what is as it should be
	bad  []Result
}

func (v *verdict) ok(format string, args ...any) {
	v.good = append(v.good, fmt.Sprintf(format, args...))
}

func (v *verdict) add(r Result) {
	if r.Status == OK {
		v.good = append(v.good, r.Seen)
		return
	}
	v.bad = append(v.bad, r)
}
