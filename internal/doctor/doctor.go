// Package doctor tests the dependencies of bctl, from the machine on which it runs and with its
// settings, and recommends changes.
//
// A check tests one thing and reports one of these statuses:
//
//	ok          as it should be
//	warning     it works, but something should be changed
//	failure     bctl does not work in this state
//	not tested  it could not be tested, or there is nothing to test: Seen has the reason
//
// The checks of one dependency form a group and run in order, because later ones use what earlier
// ones have opened. Groups run concurrently. Each check has a time limit; a check that exceeds it
// is abandoned and reported as a failure, so that a hanging dependency delays only the checks that
// need it.
//
// Checks use the clients of the services (their Inspect functions), so that they test what bctl
// does. They change nothing: a permission is tested with a request that the server refuses for
// another reason. The exception are small objects in the store, which are deleted if that is
// allowed, and reported otherwise. Findings never contain secrets.
//
// # Files
//
//	doctor.go         runs the groups of checks, and collects the findings
//	parts.go          what to test, and for which role
//	text.go           words and figures of findings
//	configuration.go  settings and the environment
//	machine.go        kernel, open files, memory and clock of this machine
//	clock.go          differences between clocks
//	source.go         a directory to be backed up
//	nfs.go            a tree of an NFS server to be backed up
//	local.go          an index in SQLite, and a store in a directory
//	postgres.go       Postgres
//	nats.go           NATS
//	s3.go             S3
//	objects.go        puts, gets and deletes objects of a store
//	tls.go            certificates
//	together.go       whether index and store belong together
//	restoring.go      identity, and packs that are needed to restore
//	alarms.go         shards whose files look encrypted
//	brake.go          deletions that wait for operators
//	purges.go         purges that are not complete
//	pruner.go         forgotten snapshots that wait for a pruner
//	restores.go       restores that wait for restorers or for keys
//	scrub.go          packs that are damaged, or not proven in time
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// A Status is the result of a check.
type Status string

// The statuses. They are names in JSON, and never change.
const (
	OK        Status = "ok"
	Warning   Status = "warning"
	Failure   Status = "failure"
	NotTested Status = "not_tested"
)

// A Finding is what a check has found.
type Finding struct {
	Status Status
	Seen   string // the observation, or the reason why it was not tested
	Advice string // the recommended change; empty if there is none
}

// A Check tests one thing.
type Check struct {
	ID      string        // unique among all groups: "nats.streams"
	Needs   []string      // earlier checks in its group that must succeed first
	Timeout time.Duration // 0: usualTimeout
	Run     func(ctx context.Context) Finding
}

// A Group consists of the checks of one dependency.
type Group struct {
	Name   string
	Checks []Check
	Close  func() // closes what the checks have opened; nil: nothing
}

// add appends a check, and returns it. It needs the given earlier checks of the group.
func (g *Group) add(id string, run func(context.Context) Finding, needs ...string) *Check {
	g.Checks = append(g.Checks, Check{ID: id, Needs: needs, Run: run})
	return &g.Checks[len(g.Checks)-1]
}

// An Outcome is the finding of one check.
type Outcome struct {
	Group, ID string
	Finding
	Took time.Duration
}

// usualTimeout is the default time limit of a check.
const usualTimeout = 15 * time.Second

// A Summary counts outcomes.
type Summary struct{ OK, Warnings, Failures, NotTested int }

// Run runs all checks, and calls report with the outcome of each, in the order of the groups and
// their checks, from the caller's goroutine. When ctx ends, the remaining checks are not tested.
func Run(ctx context.Context, groups []Group, report func(Outcome)) Summary {
	outcomes := make([]chan Outcome, len(groups))
	for n := range groups {
		outcomes[n] = make(chan Outcome, len(groups[n].Checks))
		go func() { // ends with its group, because checks have time limits
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
	// The unsuccessful checks, each with the original cause. Checks that need them cannot run.
	lacking := map[string]string{}
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
			o.Finding = Finding{NotTested, "because of " + blame, ""}
		case ctx.Err() != nil:
			o.Finding = Finding{NotTested, "interrupted", ""}
		default:
			begin := time.Now()
			var hangs bool
			o.Finding, hangs = c.run(ctx)
			o.Took = time.Since(begin)
			left = left || hangs
		}
		if o.Status == Failure || o.Status == NotTested {
			lacking[c.ID] = blame
		}
		to <- o
	}
	if g.Close != nil && !left { // an abandoned check may still use it
		g.Close()
	}
}

// run runs the check. It may abandon it: a system call that waits for an unavailable filer does not
// end before the filer is back, or the process has ended.
func (c *Check) run(ctx context.Context) (r Finding, left bool) {
	limit := cmp.Or(c.Timeout, usualTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooLong)
	defer cancel()
	done := make(chan Finding, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case r := <-done:
		return r, false
	case <-ctx.Done():
	}
	grace := time.NewTimer(unwind)
	defer grace.Stop()
	select {
	case r := <-done: // it has noticed the end of its context, and reports where
		return r, false
	case <-grace.C:
	}
	if !errors.Is(context.Cause(ctx), errTooLong) {
		return Finding{NotTested, "interrupted", ""}, true
	}
	return Finding{Failure, fmt.Sprintf("no answer within %v", limit), "find out which call hangs: the check did not end when it was cancelled"}, true
}

// unwind is how long a check may take to return after its time limit.
const unwind = time.Second

var errTooLong = errors.New("it takes too long")

// ok, warn, fail and skip make findings.
func ok(format string, args ...any) Finding { return Finding{OK, fmt.Sprintf(format, args...), ""} }

func warn(advice, format string, args ...any) Finding {
	return Finding{Warning, fmt.Sprintf(format, args...), advice}
}

func fail(advice, format string, args ...any) Finding {
	return Finding{Failure, fmt.Sprintf(format, args...), advice}
}

func skip(format string, args ...any) Finding {
	return Finding{NotTested, fmt.Sprintf(format, args...), ""}
}

// failWith is fail for an error.
func failWith(advice string, err error) Finding { return fail(advice, "%s", oneLine(err)) }

// skipWith is skip for an error.
func skipWith(err error) Finding { return skip("%s", oneLine(err)) }

// A verdict collects the findings of one check about several things. Its status is the worst of
// them.
type verdict struct {
	good []string // findings without a problem
	bad  []Finding
}

func (v *verdict) ok(format string, args ...any) {
	v.good = append(v.good, fmt.Sprintf(format, args...))
}

func (v *verdict) add(r Finding) {
	if r.Status == OK {
		v.good = append(v.good, r.Seen)
		return
	}
	v.bad = append(v.bad, r)
}
