package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// write prints an overview for people, with lines of at most width; 0 means no limit.
func (s *overview) write(w io.Writer, work bool, width int) error {
	var lines []string
	for _, text := range texts(s.lacks, (*lack).line) {
		lines = append(lines, wrap(text, width)...)
	}
	if len(lines) > 0 {
		lines = append(lines, "")
	}
	if len(s.running) == 0 {
		lines = append(lines, "No snapshot is running.")
	} else {
		shown, _ := s.onScreen(true)
		lines = append(lines, progressTable.lines(shown, width)...)
	}
	if len(s.running) > 1 {
		lines = append(append(lines, ""), wrap("All: "+strings.Join(s.totals(), ", "), width)...)
	}
	if restores := s.restoreLines(width); len(restores) > 0 {
		lines = append(append(lines, ""), restores...)
	}
	for n, wait := range s.waits() {
		if n == 0 {
			lines = append(lines, "", "Waiting:")
		}
		lines = append(lines, wrap(wait.line(s.at), width)...)
	}
	if work {
		lines = append(lines, s.inHand(width)...)
	}
	if slices.ContainsFunc(s.running, func(p *inProgress) bool { return p.State == interrupted }) {
		lines = append(append(lines, ""), wrap("The process of the interrupted snapshots has died. The next backup of the shard "+
			"reuses the stored content; bctl cancel ends the snapshot now.", width)...)
	}
	if len(s.spared) > 0 {
		lines = append(append(lines, ""), wrap("Filers with reduced limits, because they have become slow:", width)...)
		lines = append(lines, sparedTable.lines(pointers(s.spared), width)...)
	}
	for n := range s.failed {
		if n == 0 {
			lines = append(append(lines, ""), wrap("Failed within the last day, without a good snapshot since:", width)...)
		}
		lines = append(lines, wrap(s.failed[n].line(s.at), width)...)
	}
	return writeLines(w, lines)
}

var sparedTable = table[*index.FilerStatus]{
	{name: "FILER", text: func(f *index.FilerStatus) string { return display(f.Name) }, cut: truncate},
	{name: "WALK", text: walkText, right: true},
	{name: "READ", text: readText, right: true},
	{name: "STAT", text: statText, right: true},
	{name: "OPEN", text: openText, right: true, leave: 1},
}

// progressTable is the table of running snapshots.
var progressTable = table[*inProgress]{
	{name: "SNAPSHOT", text: func(p *inProgress) string { return p.ID.Short() }, leave: 8},
	{name: "FILER", text: func(p *inProgress) string { return display(p.Filer.Name) }, cut: truncate},
	{name: "SHARD", text: func(p *inProgress) string { return display(p.Shard.Name) }, cut: tail, useful: usefulPath},
	{name: "NUMBER", text: func(p *inProgress) string { return fmt.Sprint(p.Number) }, right: true, leave: 1},
	{name: "AGE", text: func(p *inProgress) string { return runningAge(p.Started, p.at) }, right: true, leave: 7},
	{name: "TASKS", text: func(p *inProgress) string { return work(p.TasksSettled, p.TasksAnnounced, p.tasks) }, right: true, leave: 6},
	{name: "BATCHES", text: func(p *inProgress) string { return work(p.BatchesSettled, p.BatchesAnnounced, p.read) }, right: true, leave: 5},
	{name: "STALLED", text: func(p *inProgress) string { return fmt.Sprint(p.tasks.stalled + p.read.stalled) }, right: true, leave: 2},
	{name: "FILES", text: (*inProgress).filesText, right: true, leave: 4},
	{name: "SIZE", text: (*inProgress).sizeText, right: true, leave: 3},
	{name: "FILES/S", text: (*inProgress).filesPerSecondText, right: true, leave: 10},
	{name: "READ/S", text: (*inProgress).readPerSecondText, right: true, leave: 11},
	{name: "LEFT", text: (*inProgress).leftText, right: true},
	{name: "ERRORS", text: func(p *inProgress) string { return humanize.Comma(p.Counts.Errors) }, right: true, leave: 9},
}

// usefulPath is the minimum width of a shortened path. Columns are omitted before a path becomes
// shorter.
const usefulPath = 16

func (p *inProgress) filesText() string {
	if p.known {
		return humanize.Comma(p.Counts.Files) + " of " + humanize.Comma(p.base.Files)
	}
	return humanize.Comma(p.Counts.Files)
}

func (p *inProgress) sizeText() string {
	if p.known {
		return size(p.Counts.Bytes) + " of " + size(p.base.Bytes)
	}
	return size(p.Counts.Bytes)
}

// leftText returns the remaining time of a snapshot, or the reason why it is not known.
func (p *inProgress) leftText() string {
	switch d, ok := p.left(); {
	case p.State == interrupted:
		return string(interrupted)
	case p.Cancel != "":
		return "cancelling"
	case p.isStalled():
		return "stalled"
	case p.Complete():
		return "committing"
	case p.full:
		return storeFull
	case p.still:
		return "waiting"
	case ok:
		return clock(d)
	}
	return "-"
}

// storeFull replaces a time that depends on space in the store.
const storeFull = "store full"

// isStalled reports whether all of a snapshot's work with workers waits for its filer.
func (p *inProgress) isStalled() bool {
	working, stalled := p.tasks.working+p.read.working, p.tasks.stalled+p.read.stalled
	return stalled > 0 && working == stalled
}

// totals returns the totals over all running snapshots.
func (s *overview) totals() []string {
	var files, ofFiles, bytes, ofBytes int64
	stalled, known, based := 0, true, true
	var left time.Duration
	for _, p := range s.running {
		files, bytes = files+p.Counts.Files, bytes+p.Counts.Bytes
		ofFiles, ofBytes = ofFiles+max(p.base.Files, p.Counts.Files), ofBytes+max(p.base.Bytes, p.Counts.Bytes)
		d, ok := p.left()
		left, known, based = max(left, d), known && ok, based && p.known
		if p.isStalled() {
			stalled++
		}
	}
	list := []string{humanize.Comma(int64(len(s.running))) + " running"}
	if stalled > 0 {
		list = append(list, fmt.Sprintf("%s of these stalled", humanize.Comma(int64(stalled))))
	}
	if based {
		list = append(list, fmt.Sprintf("%s of %s files", humanize.Comma(files), humanize.Comma(ofFiles)), size(bytes)+" of "+size(ofBytes))
	} else { // the amount of work of some is not known
		list = append(list, counted(files, "file"), size(bytes))
	}
	filesPerSecond, readPerSecond := s.speeds()
	if filesPerSecond != nil {
		list = append(list, humanize.Comma(int64(*filesPerSecond))+" files/s")
	}
	if readPerSecond != nil {
		list = append(list, size(int64(*readPerSecond))+"/s read")
	}
	if known && left > 0 {
		list = append(list, clock(left)+" left")
	}
	return list
}

// line formats a failure for people.
func (f *failure) line(now time.Time) string {
	text := fmt.Sprintf("%s %s, %s ago", display(f.Filer.Name), display(f.Shard.Name), age(now.Sub(f.Ended)))
	if f.times > 1 {
		text += fmt.Sprintf(", %d times", f.times)
	}
	return text + ": " + display(firstLine(f.Reason))
}

// work returns "12/20+3": settled of announced work, and the amount with workers.
func work(settled, announced int64, h inHand) string {
	text := fmt.Sprintf("%d/%d", settled, announced)
	if h.working > 0 {
		text += fmt.Sprintf("+%d", h.working)
	}
	return text
}

// A heldWork is work of a running snapshot, with a worker or queued.
type heldWork struct {
	*index.Work
	of   *inProgress
	seen *overview
}

// inQueue stands for the worker of queued work.
const inQueue = "(queued)"

var workTable = table[heldWork]{
	{name: "SNAPSHOT", text: func(h heldWork) string { return h.of.ID.Short() }},
	{name: "WORK", text: func(h heldWork) string { return kindOf(h.Work) }},
	{name: "ATTEMPT", text: func(h heldWork) string { return fmt.Sprint(h.Attempt) }, right: true, leave: 1},
	{name: "WORKER", text: func(h heldWork) string { return display(cmp.Or(h.Worker, inQueue)) }, cut: tail},
	{name: "LEASE", text: heldWork.leaseText, right: true, leave: 2},
	{name: "PATH", text: heldWork.pathText, cut: truncate, useful: 40},
}

// leaseText returns the remaining time of a lease. While the store is full, readers hand work back,
// and one of them tries it from time to time: the lease says nothing.
func (h heldWork) leaseText() string {
	if h.of.full && h.Batch != 0 && h.Stalled.IsZero() {
		return storeFull
	}
	return clock(max(h.Until.Sub(h.seen.at), 0))
}

func (h heldWork) pathText() string {
	path := display(h.Path)
	if path == "" && h.Worker != "" {
		path = "."
	}
	return strings.TrimSpace(path + h.seen.whyText(h.of, h.Work))
}

// inHand lists the work with workers and the queued work.
func (s *overview) inHand(width int) (lines []string) {
	var all []heldWork
	for _, p := range s.running {
		for n := range p.work {
			all = append(all, heldWork{&p.work[n], p, s})
		}
	}
	if len(all) > 0 {
		lines = append([]string{""}, withoutRepetitions(workTable.lines(all, width))...)
	}
	if s.cut {
		lines = append(lines, "… and more")
	}
	return lines
}

// withoutRepetitions replaces equal lines of queued work by their number: such work has no path
// yet.
func withoutRepetitions(lines []string) (short []string) {
	for n := 0; n < len(lines); {
		equal := n + 1
		for equal < len(lines) && lines[equal] == lines[n] && strings.Contains(lines[n], inQueue) {
			equal++
		}
		short = append(short, lines[n])
		switch more := equal - n - 1; {
		case more == 1:
			short = append(short, lines[n])
		case more > 1:
			short = append(short, fmt.Sprintf("… and %s more like this", humanize.Comma(int64(more))))
		}
		n = equal
	}
	return short
}

func kindOf(w *index.Work) string {
	if w.Task != 0 {
		return "walk"
	}
	return "read"
}

// why returns the reason why work does not proceed; "" if it does.
func (s *overview) why(p *inProgress, w *index.Work) string {
	switch {
	case !w.Stalled.IsZero():
		return stalledReason(p.Filer.Name).text
	case w.Worker == "":
		return s.whyQueued(p, roleOf(w)).text
	case s.isSilent(w) != nil:
		return s.silentReason(s.isSilent(w)).text
	}
	return ""
}

func roleOf(w *index.Work) flow.Role {
	if w.Task != 0 {
		return flow.RoleWalker
	}
	return flow.RoleReader
}

// whyText formats the reason for people.
func (s *overview) whyText(p *inProgress, w *index.Work) string {
	switch why := s.why(p, w); {
	case why == "":
		return ""
	case s.isSilent(w) != nil:
		return "  is with " + why
	case w.Stalled.IsZero():
		return "  waits: " + why
	default:
		return fmt.Sprintf("  stalled: %s for %s", why, clock(p.at.Sub(w.Stalled)))
	}
}
