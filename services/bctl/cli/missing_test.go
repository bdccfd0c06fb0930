package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
)

// serving returns services that take work: "reader oslo r1".
func serving(names ...string) (list []flow.Instance) {
	for _, name := range names {
		var role, site, called string
		fmt.Sscan(name, &role, &site, &called)
		if site == "-" {
			site = ""
		}
		list = append(list, flow.Instance{ID: called, Role: flow.Role(role), Site: site, Name: called, Ready: true, Leads: role == "committer"})
	}
	return list
}

func with(list []flow.Instance, n int, change func(*flow.Instance)) []flow.Instance {
	list = slices.Clone(list)
	change(&list[n])
	return list
}

func expired(now string) func(*flow.Instance) {
	return func(s *flow.Instance) {
		s.Ready, s.Reason = false, "store: certificate has expired: current time "+now+" is after 09:00:00Z"
	}
}

func TestMissing(t *testing.T) {
	all := serving("committer - c1", "walker oslo w1", "reader oslo r1", "reader oslo r2")
	const nobodyLeads = "no work is assigned, committed or scheduled"
	const lessWork = "leases are not renewed, lost queues are not recreated, and no backup is scheduled"
	for name, test := range map[string]struct {
		crew crew
		want []string // those that stop work are prefixed with !
	}{
		"one machine": {crew{}, nil},
		"nothing":     {crew{asked: true, services: all}, nil},
		"NATS": {crew{asked: true, err: fmt.Errorf("nats nats://x does not answer: no\nserver: %w", backup.ErrUnavailable)},
			[]string{"!cannot list the services: nats nats://x does not answer: no"}},
		"old permissions": {crew{asked: true, err: flow.ErrDenied},
			[]string{"cannot list the services: NATS denies this user the request (bctl deploy refresh writes the permission)"}},
		"everybody": {crew{asked: true}, []string{"!no committer runs: " + nobodyLeads, "!no walker and no reader at site oslo"}},
		"everybody is of an earlier version": {crew{asked: true, unnamed: map[post]bool{
			{flow.RoleCommitter, ""}: true, {flow.RoleWalker, "oslo"}: true, {flow.RoleReader, "oslo"}: true,
		}}, nil},
		"readers, and the walkers are of an earlier version": {crew{asked: true, services: all[:1], unnamed: map[post]bool{{flow.RoleWalker, "oslo"}: true}},
			[]string{"!no reader at site oslo"}},
		"the committer has gone": {crew{asked: true, services: with(all, 0, func(s *flow.Instance) { s.Silent, s.Lost = true, true })},
			[]string{"!no committer runs: " + nobodyLeads}},
		"a committer does not lead": {crew{asked: true, services: with(all, 0, func(s *flow.Instance) { s.Leads, s.Ready, s.Reason = false, false, "clock: 5m0s ahead\nindex" })},
			[]string{"!no committer works: " + nobodyLeads + " (c1: not ready: clock: 5m0s ahead)"}},
		"a committer's clock is wrong": {crew{asked: true, services: with(all, 0, func(s *flow.Instance) { s.Leads, s.Ready, s.Reason = false, false, "clock: 5m0s ahead" })},
			[]string{"no committer leads: " + lessWork + " (c1: not ready: clock: 5m0s ahead)"}},
		"a committer leads, and NATS stores nothing": {crew{asked: true, services: with(all, 0, func(s *flow.Instance) { s.Ready, s.Reason = false, "nats: nats a answers, but stores no message" })},
			[]string{"!no committer works: " + nobodyLeads + " (c1: not ready: nats: nats a answers, but stores no message)"}},
		"a committer leads, and the store hangs": {crew{asked: true, services: with(all, 0, func(s *flow.Instance) { s.Ready, s.Reason = false, "store: no answer" })},
			[]string{"committers: c1: not ready: store: no answer"}},
		"another committer takes over": {crew{asked: true, services: with(all, 0, func(s *flow.Instance) { s.Leads = false })}, []string{"no committer leads: " + lessWork}},
		"the committer hangs": {crew{asked: true, services: with(all, 0, func(s *flow.Instance) { s.Silent = true })},
			[]string{"!no committer works: " + nobodyLeads + " (c1: no answer)"}},
		"the walker":             {crew{asked: true, services: slices.Delete(slices.Clone(all), 1, 2)}, []string{"!no walker at site oslo"}},
		"the walker was drained": {crew{asked: true, services: with(all, 1, func(s *flow.Instance) { s.Draining, s.Drained = true, true })}, []string{"!no walker at site oslo takes work: w1: drained"}},
		"a reader is blind": {crew{asked: true, services: with(all, 2, func(s *flow.Instance) { s.Ready, s.Reason = false, "store: \x1b[31mfull" })},
			[]string{`readers at site oslo: r1: not ready: "store: \x1b[31mfull"`}},
		"the store is full": {crew{asked: true, services: with(with(all, 3, full), 2, full)},
			[]string{"!no reader at site oslo takes work: r1, r2: not ready: store: full"}},
		"the store's certificate has expired": {crew{asked: true, services: with(with(all, 3, expired("10:00:01Z")), 2, expired("10:00:02Z"))},
			[]string{"!no reader at site oslo takes work: r1, r2: not ready: store: certificate has expired: it is after 09:00:00Z"}},
		"a reader does not see a filer": {crew{asked: true, services: with(all, 2, blind)}, []string{"readers at site oslo: r1: handed work back: nothing is there; is it mounted here?"}},
		"a reader hangs":                {crew{asked: true, services: with(all, 3, func(s *flow.Instance) { s.Silent = true })}, []string{"readers at site oslo: r2: no answer"}},
		"two readers have one name": {crew{asked: true, services: append(slices.Clone(all), serving("reader oslo r2", "walker oslo r2", "reader paris r2")...)},
			[]string{"several readers at site oslo are called r2: start each process once, with a worker.name of its own"}},
		"a reader was started again": {crew{asked: true, services: with(append(slices.Clone(all), serving("reader oslo r2")...), 3, func(s *flow.Instance) { s.Silent, s.Lost = true, true })}, nil},
		"a clock": {crew{asked: true, services: with(all, 3, func(s *flow.Instance) { s.ClockKnown, s.ClockAhead = true, -5*time.Minute })},
			[]string{"the clock of r2 at site oslo is 5m behind that of the index"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, l := range test.crew.lacks([]string{"oslo"}) {
				if text := map[bool]string{true: "!"}[l.Stops] + l.Text; !slices.Contains(got, text) {
					got = append(got, text)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func blind(s *flow.Instance) {
	s.HandedBack, s.HandedBackWhy = 12, "nothing is there; is it mounted here?"
}

func full(s *flow.Instance) { s.Ready, s.Reason = false, "store: full" }

// A lack is reported once, when two consecutive checks found it, and again if it was resolved in
// between.
func TestLookoutSaysWhatIsMissing(t *testing.T) {
	var stderr strings.Builder
	l := &lookout{app: &app{term: &terminal{err: &stderr}}, sites: []string{"oslo"}, advice: "wait"}
	all := serving("committer - c1", "walker oslo w1", "reader oslo r1")
	const none = "bctl: note: no reader at site oslo\n"
	for n, look := range []struct {
		services []flow.Instance
		want     string
	}{
		{all, ""},
		{all[:2], ""}, // it may be restarting
		{all, ""},
		{all[:2], ""},
		{all[:2], none + "bctl: note: wait\n"},
		{all[:2], ""},
		{all, ""},
		{all[:2], ""},
		{all[:2], none},
		{with(all, 2, full), ""},
	} {
		stderr.Reset()
		l.look(&crew{asked: true, services: look.services})
		if stderr.String() != look.want {
			t.Errorf("look %d: %q, want %q", n, stderr.String(), look.want)
		}
	}
}

// A reason that names another object at each look is reported once.
func TestLookoutReportsReasonsOnce(t *testing.T) {
	var stderr strings.Builder
	l := &lookout{app: &app{term: &terminal{err: &stderr}}, sites: []string{"oslo"}}
	for n := range 9 {
		services := serving("committer - c1", "walker oslo w1", "reader oslo r1")
		services[2].Ready, services[2].Reason = false, fmt.Sprintf("store: put packs/%d/%d: full after %d tries", n, n, n)
		l.look(&crew{asked: true, services: services})
	}
	if n := strings.Count(stderr.String(), "full after"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, stderr.String())
	}
}

// A lookout checks until it is stopped, and reports nothing after that.
func TestLookoutStops(t *testing.T) {
	asked := make(chan struct{})
	l := &lookout{app: &app{term: &terminal{err: &strings.Builder{}}}, ask: func(ctx context.Context, sites []string) crew {
		select {
		case asked <- struct{}{}:
		case <-ctx.Done():
		}
		return crew{asked: true}
	}}
	stop := l.watch(t.Context(), time.Millisecond)
	<-asked
	stop()
	select {
	case <-asked:
		t.Error("it goes on")
	default:
	}
}
