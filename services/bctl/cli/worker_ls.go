package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/flow"
)

func newWorkerLs(a *app) *cobra.Command {
	var which services
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the services of the fleet and their state",
		Long: `Lists committers, walkers, readers and pruners. Those that need attention come
first. STATE is

  ready      it works or waits for work; a line below the table reports if it
             hands work back, for instance because it cannot reach a filer
  leads      the committer that leads; otherwise like ready
  schedules  the committer that schedules, if another one leads
  not ready  it takes no work; a line below the table gives the reason. A
             committer may lead or schedule nevertheless: "not ready, leads"
  draining   it takes no new work and finishes its current work
  drained    it has no work and can be stopped
  silent     it does not answer; the age of its last message is shown
  lost       it ended without notice, or was silent for long; removed from the
             list an hour after its last message, or after 30 seconds if another
             service of the same role, site and name answers

IN HAND is the number of its tasks and batches; the number that wait for their
filer follows in parentheses. RATE is the entries found (walker) or the bytes
read (reader) per second, over the last ten seconds. CLOCK is the offset of its
clock from the database's; "?" means that the database did not answer the last
request (every 30 seconds). UP is the time since it started. HEARD is when it
last described itself.`,
		Example: `  bctl worker ls
  bctl worker ls --role walker --site oslo
  bctl worker ls --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := which.check(); err != nil {
				return err
			}
			return a.listServices(cmd.Context(), &which)
		},
	}
	which.flags(a, cmd, "committer, walker, reader, pruner")
	a.wideFlag(cmd)
	return cmd
}

func (a *app) listServices(ctx context.Context, which *services) error {
	return a.withServices(ctx, func(conn *flow.Conn) error {
		all, err := conn.Instances(ctx)
		if err != nil {
			return err
		}
		return a.printServices(all, which.among(all))
	})
}

// printServices prints the services found among all.
func (a *app) printServices(all, found []flow.Instance) error {
	now := time.Now()
	slices.SortStableFunc(found, func(a, b flow.Instance) int { return cmp.Compare(urgency(&a), urgency(&b)) })
	if len(found) > 0 {
		if err := printList(a, pointers(found), serviceTable(now), newServiceJSON); err != nil {
			return err
		}
	}
	if !a.json {
		for _, line := range reasonLines(found) {
			if err := writeLines(a.out, wrap(line, a.width())); err != nil {
				return err
			}
		}
	}
	a.noteServices(all, found)
	return nil
}

// noteServices prints what the table cannot show: missing services.
func (a *app) noteServices(all, found []flow.Instance) {
	switch leads := slices.ContainsFunc(all, func(i flow.Instance) bool { return i.Leads && !i.Silent }); {
	case len(all) == 0:
		a.note("no service answers: no service of this version runs")
	case !leads:
		a.note("no committer leads: lost services are not known")
	case len(found) == 0:
		a.note("none of the %d services matches", len(all))
	}
	switch c := (crew{services: all}); {
	case !c.unscheduled():
	case c.ready(flow.RoleCommitter):
		a.note("no committer schedules: due backups begin when one does, within 15 s")
	default:
		a.note("no committer is ready: due backups begin when one is")
	}
}

// serviceState returns the state of a service, as in JSON.
func serviceState(i *flow.Instance) string {
	switch {
	case i.Lost:
		return "lost"
	case i.Silent:
		return "silent"
	case i.Drained:
		return "drained"
	case i.Draining:
		return "draining"
	case !i.Ready:
		return "not ready"
	}
	return "ready"
}

// urgency orders services. Those that need attention come first.
func urgency(i *flow.Instance) int {
	switch state := serviceState(i); {
	case state == "lost":
		return 0
	case state == "silent":
		return 1
	case !i.Ready, i.HandedBack > 0, i.OtherRecipients:
		return 2
	case clockIsOff(i):
		return 3
	case state != "ready":
		return 4
	}
	return 5
}

// maxAhead is the difference from the database's clock above which a clock is highlighted. Clocks
// that NTP synchronizes differ by milliseconds.
const maxAhead = 2 * time.Second

func clockIsOff(i *flow.Instance) bool { return i.ClockKnown && i.ClockAhead.Abs() > maxAhead }

func serviceTable(now time.Time) table[*flow.Instance] {
	return table[*flow.Instance]{
		{name: "ROLE", text: func(i *flow.Instance) string { return string(i.Role) }},
		{name: "NAME", text: func(i *flow.Instance) string { return display(i.Name) }, cut: tail, useful: usefulPath},
		{name: "SITE", text: func(i *flow.Instance) string { return cmp.Or(i.Site, "-") }, leave: 4},
		{name: "STATE", text: func(i *flow.Instance) string { return stateColumn(i, now) }},
		{name: "IN HAND", text: inHandText, right: true, leave: 6},
		{name: "RATE", text: rateText, right: true, leave: 5},
		{name: "CLOCK", text: clockText, right: true, leave: 7},
		{name: "UP", text: func(i *flow.Instance) string { return upText(i, now) }, right: true, leave: 3},
		{name: "VERSION", text: func(i *flow.Instance) string { return display(shortVersion(i.Version)) }, leave: 2},
		{name: "HEARD", text: func(i *flow.Instance) string { return away(i.Heard, now) }, right: true, leave: 1},
	}
}

// reasonLines returns the reasons why services are not ready, one line per reason:
//
//	walker w1, reader r1: index: it does not answer
func reasonLines(found []flow.Instance) (lines []string) {
	var names namesByText
	for n := range found {
		i := &found[n]
		if i.Silent {
			continue
		}
		if i.HandedBack > 0 {
			for _, h := range handBacksOf(i) {
				names.add("handed work back: "+firstLine(cmp.Or(h.Why, "more reasons")), fmt.Sprintf("%s %s (%d times)", i.Role, display(i.Name), h.Times))
			}
		}
		if i.OtherRecipients {
			names.add(otherRecipients, fmt.Sprintf("%s %s", i.Role, display(i.Name)))
		}
		if i.Ready {
			continue
		}
		said := map[string]bool{} // one cause may concern several dependencies
		for line := range strings.Lines(i.Reason) {
			line = strings.TrimSpace(line)
			_, cause, _ := strings.Cut(line, ": ")
			if cause != "" && said[cause] {
				continue
			}
			said[cause] = true
			names.add(line, fmt.Sprintf("%s %s", i.Role, display(i.Name)))
		}
	}
	for _, line := range names.order {
		lines = append(lines, someNames(names.of[line])+": "+display(line))
	}
	return lines
}

// handBacksOf returns what a worker has handed back, by reason. Of a worker of an earlier version,
// only the last reason is known. The rest, if any, is counted together.
func handBacksOf(i *flow.Instance) []flow.HandBack {
	if len(i.HandBacks) == 0 {
		return []flow.HandBack{{Why: i.HandedBackWhy, Times: i.HandedBack}}
	}
	var list []flow.HandBack
	rest := flow.HandBack{}
	for _, h := range i.HandBacks {
		if h.Why == "" {
			rest.Times += h.Times
			continue
		}
		list = append(list, h)
	}
	if rest.Times > 0 {
		list = append(list, rest)
	}
	return list
}

func stateColumn(i *flow.Instance, now time.Time) string {
	state := serviceState(i)
	var duty string
	switch {
	case i.Silent:
		return state + " " + age(now.Sub(i.Heard))
	case i.Leads:
		duty = "leads"
	case i.Schedules:
		duty = "schedules"
	default:
		return state
	}
	if state == "ready" {
		return duty
	}
	return state + ", " + duty
}

func inHandText(i *flow.Instance) string {
	switch {
	case !i.Worker(), i.Silent:
		return "-"
	case i.Stalled > 0:
		return fmt.Sprintf("%d (%d)", i.Tasks+i.Batches, i.Stalled)
	}
	return fmt.Sprint(i.Tasks + i.Batches)
}

func rateText(i *flow.Instance) string {
	switch {
	case i.Silent:
	case i.Role == flow.RoleReader:
		return humanize.Bytes(uint64(i.BytesPerSecond)) + "/s"
	case i.Role == flow.RoleWalker && i.EntriesPerSecond > 0 && i.EntriesPerSecond < 1:
		return "<1/s"
	case i.Role == flow.RoleWalker:
		return strings.ReplaceAll(humanize.SIWithDigits(i.EntriesPerSecond, 0, ""), " ", "") + "/s"
	}
	return "-"
}

func clockText(i *flow.Instance) string {
	switch ahead := rounded(i.ClockAhead); {
	case !i.ClockKnown:
		return "?"
	case ahead.Abs() < 50*time.Millisecond:
		return "0s"
	case ahead.Abs() < time.Minute:
		return fmt.Sprintf("%+.1fs", ahead.Seconds())
	case ahead < 0:
		return "-" + age(-ahead)
	default:
		return "+" + age(ahead)
	}
}

func upText(i *flow.Instance, now time.Time) string {
	if i.Started.IsZero() {
		return "?"
	}
	return age(now.Sub(i.Started))
}

// shortVersion returns the last part of a version that was generated from a commit.
func shortVersion(version string) string {
	const longest = 14 // v10.10.10-rc.1
	version = strings.TrimSuffix(version, "-dirty")
	if len(version) <= longest {
		return version
	}
	last := version[strings.LastIndexByte(version, '-')+1:]
	return last[:min(len(last), longest)]
}

// serviceJSON is a line of worker ls. The names are fixed.
type serviceJSON struct {
	Role     string   `json:"role"` // committer, walker, reader, pruner
	Name     string   `json:"name"`
	Site     string   `json:"site"` // "" for committers and pruners
	State    string   `json:"state"`
	Version  string   `json:"version"`
	Instance string   `json:"instance"`
	Started  *string  `json:"started"`
	Heard    *string  `json:"heard"`
	Ready    bool     `json:"ready"`
	Reason   string   `json:"reason,omitempty"`
	Leads    bool     `json:"leads"`
	Schedule bool     `json:"schedules"`
	Draining bool     `json:"draining"`
	Tasks    int      `json:"tasks"`
	Batches  int      `json:"batches"`
	Stalled  int      `json:"stalled"`
	Entries  float64  `json:"entries_per_second"`
	Bytes    float64  `json:"bytes_per_second"`
	Clock    *float64 `json:"clock_ahead_seconds"` // null if it is not known

	HandedBack int    `json:"handed_back"`               // pieces of work, since it last handed none back for a minute
	Why        string `json:"handed_back_why,omitempty"` // the last reason

	HandBacks []handBackJSON `json:"hand_backs,omitempty"`

	OtherRecipients bool `json:"other_recipients"` // it seals to others than those in force
}

// handBackJSON is work that was handed back for one reason. The names are fixed.
type handBackJSON struct {
	Why       string   `json:"why"` // "": further reasons
	Times     int      `json:"times"`
	Snapshots []string `json:"snapshots"`
}

func newServiceJSON(i *flow.Instance) serviceJSON {
	j := serviceJSON{
		Role: string(i.Role), Name: i.Name, Site: i.Site, State: serviceState(i), Version: i.Version, Instance: i.ID, Started: jsonTime(i.Started), Heard: jsonTime(i.Heard),
		Ready: i.Ready, Reason: i.Reason, Leads: i.Leads, Schedule: i.Schedules, Draining: i.Draining, Tasks: i.Tasks, Batches: i.Batches, Stalled: i.Stalled,
		Entries: i.EntriesPerSecond, Bytes: i.BytesPerSecond, HandedBack: i.HandedBack, Why: i.HandedBackWhy,
		OtherRecipients: i.OtherRecipients,
	}
	if i.ClockKnown {
		seconds := i.ClockAhead.Seconds()
		j.Clock = &seconds
	}
	for _, h := range i.HandBacks {
		b := handBackJSON{Why: h.Why, Times: h.Times, Snapshots: []string{}}
		for _, id := range h.Snapshots {
			b.Snapshots = append(b.Snapshots, id.String())
		}
		j.HandBacks = append(j.HandBacks, b)
	}
	return j
}
