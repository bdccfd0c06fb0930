package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

// Missing services and other conditions that keep the work of a fleet from proceeding.

// A lack is one missing service or condition.
type lack struct {
	What  string // nats, committer, walker, reader, pruner, scrubber, restorer, clock, brake, purge or policy
	Site  string // of workers
	Text  string
	Stops bool // work cannot proceed; otherwise there are only fewer workers
	Warns bool // nothing is missing, but some services do less than they should
}

// line formats a lack for people.
func (l *lack) line() string {
	if l.Warns {
		return "WARNING  " + l.Text
	}
	return "MISSING  " + l.Text
}

// A crew is the services of a fleet, as reported through NATS.
type crew struct {
	asked    bool      // NATS was queried, because the index is a fleet's
	err      error     // why the services are not known
	heard    time.Time // when they answered, by the clock of this machine
	services []flow.Instance
	// unnamed are the posts whose work is taken by services that do not announce themselves: those
	// of an earlier version.
	unnamed map[post]bool
}

// A post is a role at a site that needs services.
type post struct {
	role flow.Role
	site string
}

// mostAhead is the difference from the index's clock above which a clock is reported.
const mostAhead = 30 * time.Second

// lacks returns what is missing to serve these sites, the most important first.
func (c *crew) lacks(sites []string) (list []lack) {
	switch {
	case !c.asked:
		return nil
	case errors.Is(c.err, flow.ErrDenied):
		return []lack{{What: "nats", Text: "cannot list the services: NATS denies this user the request (bctl deploy refresh writes the permission)"}}
	case c.err != nil:
		return []lack{{What: "nats", Text: "cannot list the services: " + firstLine(c.err.Error()), Stops: true}}
	}
	list = append(list, c.lacksLeader()...)
	for _, site := range sites {
		list = append(list, c.lacksWorkers(site)...)
	}
	return append(list, c.ailing(list)...)
}

// limits returns the limits of running snapshots: those of the committer that schedules or, if none
// does, of any. known is false if no committer reports them.
func (c *crew) limits() (l policy.Limits, known, scheduled bool) {
	for _, s := range c.of(flow.RoleCommitter, "") {
		if s.MaxRunning == 0 || s.MaxRunningPerFiler == 0 {
			continue
		}
		leads := s.Schedules && !s.Silent
		if !known || leads {
			l = policy.Limits{Running: s.MaxRunning, RunningPerFiler: s.MaxRunningPerFiler}
		}
		known, scheduled = true, scheduled || leads
	}
	return l, known, scheduled
}

// unscheduled reports whether committers run, and none of them schedules.
func (c *crew) unscheduled() bool {
	_, known, scheduled := c.limits()
	return known && !scheduled
}

// ready reports whether a service of a role is ready.
func (c *crew) ready(role flow.Role) bool {
	return slices.ContainsFunc(c.services, func(i flow.Instance) bool { return i.Role == role && i.Ready && !i.Silent && !i.Lost })
}

// of returns the services of a role at a site that have not left.
func (c *crew) of(role flow.Role, site string) (list []*flow.Instance) {
	for n := range c.services {
		s := &c.services[n]
		if s.Role == role && s.Site == site && !s.Lost {
			list = append(list, s)
		}
	}
	return list
}

// storeFull reports whether no reader at a site takes work, and the store is full for one of them.
func (c *crew) storeFull(site string) bool {
	readers := c.of(flow.RoleReader, site)
	return !slices.ContainsFunc(readers, takesWork) && slices.ContainsFunc(readers, func(s *flow.Instance) bool {
		return !s.Silent && !s.Ready && strings.Contains(s.Reason, store.ErrFull.Error())
	})
}

// lacksLeader returns a lack unless a committer leads. Committers that do not lead assign and
// commit work, too, if they are ready; a wrong clock keeps them only from leading.
func (c *crew) lacksLeader() []lack {
	committers := c.of(flow.RoleCommitter, "")
	const stops = "no work is assigned, committed or scheduled"
	works := slices.ContainsFunc(committers, assigns)
	switch {
	case len(committers) == 0 && c.unnamed[post{flow.RoleCommitter, ""}]:
		return nil
	case len(committers) == 0:
		return []lack{{What: "committer", Text: "no committer runs: " + stops, Stops: true}}
	case slices.ContainsFunc(committers, func(s *flow.Instance) bool { return s.Leads && !s.Silent && (works || !isCutOff(s)) }):
		return nil
	}
	l := lack{What: "committer", Text: "no committer leads: leases are not renewed, lost queues are not recreated, and no backup is scheduled"}
	if !works {
		l = lack{What: "committer", Text: "no committer works: " + stops, Stops: true}
	}
	if why := ailments(committers); why != "" {
		l.Text += " (" + why + ")"
	}
	return []lack{l}
}

// lacksWorkers returns the kinds of work at a site that no worker takes.
func (c *crew) lacksWorkers(site string) (list []lack) {
	walkers, readers := c.of(flow.RoleWalker, site), c.of(flow.RoleReader, site)
	if len(walkers)+len(readers) == 0 && !c.unnamed[post{flow.RoleWalker, site}] && !c.unnamed[post{flow.RoleReader, site}] {
		text := fmt.Sprintf("no walker and no reader at site %s", display(site))
		return []lack{
			{What: string(flow.RoleWalker), Site: site, Text: text, Stops: true},
			{What: string(flow.RoleReader), Site: site, Text: text, Stops: true},
		}
	}
	for _, workers := range []struct {
		role flow.Role
		are  []*flow.Instance
	}{{flow.RoleWalker, walkers}, {flow.RoleReader, readers}} {
		text := fmt.Sprintf("no %s at site %s", workers.role, display(site))
		switch {
		case len(workers.are) == 0 && c.unnamed[post{workers.role, site}]:
			continue
		case len(workers.are) == 0:
		case slices.ContainsFunc(workers.are, takesWork):
			continue
		default:
			text += " takes work: " + ailments(workers.are)
		}
		list = append(list, lack{What: string(workers.role), Site: site, Text: text, Stops: true})
	}
	return list
}

// isCutOff reports whether a service cannot work because of NATS or the index.
func isCutOff(s *flow.Instance) bool {
	if s.Ready {
		return false
	}
	for line := range strings.Lines(s.Reason) {
		if strings.HasPrefix(line, "nats: ") || strings.HasPrefix(line, "index: ") {
			return true
		}
	}
	return false
}

// assigns reports whether a committer assigns and commits work.
func assigns(s *flow.Instance) bool {
	if s.Silent || s.Ready {
		return !s.Silent
	}
	for line := range strings.Lines(strings.TrimSpace(s.Reason)) {
		if !strings.HasPrefix(line, "clock: ") {
			return false
		}
	}
	return s.Reason != ""
}

func takesWork(s *flow.Instance) bool { return s.Ready && !s.Draining && !s.Silent && !s.Lost }

// nowOf finds the time at which a certificate was looked at: services name the same reason with
// different times.
var nowOf = regexp.MustCompile(`current time \S+ is (after|before)`)

// ailment returns the reason why a service does less than it should, or "".
func ailment(s *flow.Instance) string {
	switch {
	case s.Silent:
		return "no answer"
	case s.Drained:
		return "drained"
	case s.Draining:
		return "being drained"
	case !s.Ready && s.Reason != "":
		return "not ready: " + display(nowOf.ReplaceAllString(firstLine(s.Reason), "it is $1"))
	case !s.Ready:
		return "not ready"
	case s.OtherRecipients:
		return otherRecipients
	case s.HandedBack > 0:
		return "handed work back: " + display(firstLine(s.HandedBackWhy))
	}
	return ""
}

const otherRecipients = "seals to other recipients than those in force (docs/keys.md)"

// ailments describes the ailments of services: "r1, r2: drained; r3: no answer".
func ailments(services []*flow.Instance) string {
	var names namesByText
	for _, s := range services {
		if why := ailment(s); why != "" {
			names.add(why, display(s.Name))
		}
	}
	parts := make([]string, len(names.order))
	for n, why := range names.order {
		parts[n] = someNames(names.of[why]) + ": " + why
	}
	return strings.Join(parts, "; ")
}

// A namesByText groups names by a text that applies to them. The texts keep their order.
type namesByText struct {
	order []string
	of    map[string][]string
}

func (g *namesByText) add(text, name string) {
	if g.of == nil {
		g.of = map[string][]string{}
	}
	if g.of[text] == nil {
		g.order = append(g.order, text)
	}
	g.of[text] = append(g.of[text], name)
}

// someNames joins the first of the names.
func someNames(names []string) string {
	if len(names) > maxHints {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxHints], ", "), len(names)-maxHints)
	}
	return strings.Join(names, ", ")
}

// ailing returns the services that do less than they should while others do their work, those with
// a wrong clock, and workers that cannot be told apart.
func (c *crew) ailing(said []lack) (list []lack) {
	for _, role := range []flow.Role{flow.RoleCommitter, flow.RoleWalker, flow.RoleReader, flow.RolePruner, flow.RoleScrubber, flow.RoleRestorer} {
		var sites []string
		for n := range c.services {
			if s := &c.services[n]; s.Role == role && !slices.Contains(sites, s.Site) {
				sites = append(sites, s.Site)
			}
		}
		slices.Sort(sites)
		for _, site := range sites {
			if slices.ContainsFunc(said, func(l lack) bool { return l.What == string(role) && l.Site == site }) {
				continue
			}
			if why := ailments(c.of(role, site)); why != "" {
				list = append(list, lack{What: string(role), Site: site, Text: string(role) + "s" + at(site) + ": " + why, Warns: true})
			}
		}
	}
	for n := range c.services {
		s := &c.services[n]
		if s.ClockKnown && !s.Silent && !s.Lost && s.ClockAhead.Abs() > mostAhead {
			list = append(list, lack{What: "clock", Site: s.Site, Text: fmt.Sprintf("the clock of %s%s is %s that of the index", display(s.Name), at(s.Site), off(s.ClockAhead)), Warns: true})
		}
	}
	return append(list, c.alike()...)
}

// alike returns the services of the same role, site and name. One that does not answer may have
// been replaced by another.
func (c *crew) alike() (list []lack) {
	type called struct {
		post
		name string
	}
	processes := map[called]int{}
	for n := range c.services {
		s := &c.services[n]
		if s.Silent || s.Lost {
			continue
		}
		is := called{post{s.Role, s.Site}, s.Name}
		if processes[is]++; processes[is] == 2 {
			list = append(list, lack{What: string(s.Role), Site: s.Site, Warns: true, Text: fmt.Sprintf(
				"several %ss%s are called %s: start each process once, with a worker.name of its own", s.Role, at(s.Site), display(s.Name))})
		}
	}
	return list
}

func at(site string) string {
	if site == "" {
		return ""
	}
	return " at site " + display(site)
}

func off(ahead time.Duration) string {
	ahead = rounded(ahead)
	if ahead < 0 {
		return age(-ahead) + " behind"
	}
	return age(ahead) + " ahead of"
}

// rounded returns how far a clock is ahead, without the milliseconds of a large difference: one
// that is five minutes ahead may be measured as 4:59.99.
func rounded(ahead time.Duration) time.Duration {
	if ahead.Abs() < time.Minute {
		return ahead
	}
	return ahead.Round(time.Second)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// lacking returns the lack that stops a kind of work at a site, or nil.
func lacking(list []lack, role flow.Role, site string) *lack {
	for n := range list {
		if l := &list[n]; l.Stops && l.What == string(role) && (role == flow.RoleCommitter || l.Site == site) {
			return l
		}
	}
	return nil
}

// texts returns what text returns for each lack, without repetitions.
func texts(list []lack, text func(*lack) string) (said []string) {
	for n := range list {
		if s := text(&list[n]); !slices.Contains(said, s) {
			said = append(said, s)
		}
	}
	return said
}

// A muster queries NATS for the running services. It serves one command, which may query often.
type muster struct {
	conn   *flow.Conn
	failed error
}

// musterWithin is how long NATS may take to respond.
const musterWithin = 5 * time.Second

// newMuster connects. Errors are reported by the first query.
func newMuster(cfg *config.Config, name string, repository backup.RepositoryID) *muster {
	if !cfg.Fleet() {
		return &muster{}
	}
	conn, err := open.NATS(cfg, name, repository, slog.New(slog.DiscardHandler))
	return &muster{conn, err}
}

// Close disconnects.
func (m *muster) Close() {
	if m.conn != nil {
		m.conn.Close()
	}
}

// ask returns the services of these sites.
func (m *muster) ask(ctx context.Context, sites []string) crew {
	if m.conn == nil {
		return crew{asked: m.failed != nil, err: m.failed}
	}
	ctx, cancel := context.WithTimeout(ctx, musterWithin)
	defer cancel()
	c := crew{asked: true}
	if c.services, c.err = m.conn.Instances(ctx); c.err == nil {
		c.heard = time.Now()
		c.err = m.unnamed(ctx, &c, sites)
	}
	return c
}

// unnamed examines the queues for which no service is known.
func (m *muster) unnamed(ctx context.Context, c *crew, sites []string) (err error) {
	known := map[post]bool{}
	for n := range c.services {
		known[post{c.services[n].Role, c.services[n].Site}] = true
	}
	c.unnamed = map[post]bool{}
	committers := post{flow.RoleCommitter, ""}
	if !known[committers] {
		if c.unnamed[committers], err = m.conn.CommitsServed(ctx); err != nil {
			return err
		}
	}
	for _, site := range sites {
		walkers, readers := post{flow.RoleWalker, site}, post{flow.RoleReader, site}
		if known[walkers] && known[readers] {
			continue
		}
		walk, read, err := m.conn.Served(ctx, site)
		if err != nil {
			return err
		}
		c.unnamed[walkers], c.unnamed[readers] = walk && !known[walkers], read && !known[readers]
	}
	return nil
}
