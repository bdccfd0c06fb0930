package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// write prints an overview for people, with any width.
func (s *overview) write(w io.Writer, work bool) error {
	for _, text := range texts(s.lacks) {
		fmt.Fprintln(w, "MISSING  "+text)
	}
	if len(s.lacks) > 0 {
		fmt.Fprintln(w)
	}
	if len(s.running) == 0 {
		fmt.Fprintln(w, "No snapshot is running.")
	} else if err := s.table(w); err != nil {
		return err
	}
	if len(s.running) > 1 {
		fmt.Fprintln(w, "\nAll: "+strings.Join(s.totals(), ", "))
	}
	for n, wait := range s.waits() {
		if n == 0 {
			fmt.Fprintln(w, "\nWaiting:")
		}
		fmt.Fprintln(w, wait.line(s.at))
	}
	if err := s.inHand(w, work); err != nil {
		return err
	}
	if slices.ContainsFunc(s.running, func(p *inProgress) bool { return p.State == interrupted }) {
		fmt.Fprintln(w, "\nNo process makes what is interrupted. The next bctl backup of the shard uses what\nis stored of it; bctl cancel ends it now.")
	}
	if err := s.sparedTable(w); err != nil {
		return err
	}
	for n := range s.failed {
		if n == 0 {
			fmt.Fprintln(w, "\nFailed within a day, and not made since:")
		}
		fmt.Fprintln(w, s.failed[n].line(s.at))
	}
	return nil
}

func (s *overview) sparedTable(w io.Writer) error {
	if len(s.spared) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nFilers that are spared, since they have become slow:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FILER\tWALK\tREAD\tSTAT\tOPEN")
	for n := range s.spared {
		f := &s.spared[n]
		limits := f.Limits.WithDefaults()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", display(f.Name), slots(f.Tasks, f.Load.WalkSlots, limits.WalkTasks),
			slots(f.Batches, f.Load.ReadSlots, limits.ReadBatches),
			latency(f.Load.WalkLatency, f.Load.WalkIdle), latency(f.Load.ReadLatency, f.Load.ReadIdle))
	}
	return t.Flush()
}

func (s *overview) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SNAPSHOT\tFILER\tSHARD\tNUMBER\tAGE\tTASKS\tBATCHES\tSTALLED\tFILES\tSIZE\tFILES/S\tREAD/S\tLEFT\tERRORS")
	for _, p := range s.running {
		files, bytes := humanize.Comma(p.Counts.Files), size(p.Counts.Bytes)
		if p.known {
			files += " of " + humanize.Comma(p.base.Files)
			bytes += " of " + size(p.base.Bytes)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\n", p.ID.Short(), display(p.Filer.Name), display(p.Shard.Name),
			p.Number, clock(p.at.Sub(p.Started)), work(p.TasksSettled, p.TasksAnnounced, p.tasks), work(p.BatchesSettled, p.BatchesAnnounced, p.read),
			p.tasks.stalled+p.read.stalled, files, bytes, humanize.Comma(int64(p.filesPerSecond)), size(int64(p.readPerSecond)), p.leftText(), p.Counts.Errors)
	}
	return t.Flush()
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
	case p.still:
		return "waiting"
	case ok:
		return clock(d)
	}
	return "-"
}

// isStalled reports whether all of a snapshot's work with workers waits for its filer.
func (p *inProgress) isStalled() bool {
	working, stalled := p.tasks.working+p.read.working, p.tasks.stalled+p.read.stalled
	return stalled > 0 && working == stalled
}

// totals returns the totals over all running snapshots.
func (s *overview) totals() []string {
	var files, ofFiles, bytes, ofBytes int64
	var filesPerSecond, readPerSecond float64
	stalled, known, based := 0, true, true
	var left time.Duration
	for _, p := range s.running {
		files, bytes = files+p.Counts.Files, bytes+p.Counts.Bytes
		ofFiles, ofBytes = ofFiles+max(p.base.Files, p.Counts.Files), ofBytes+max(p.base.Bytes, p.Counts.Bytes)
		filesPerSecond, readPerSecond = filesPerSecond+p.filesPerSecond, readPerSecond+p.readPerSecond
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
	list = append(list, fmt.Sprintf("%s files/s", humanize.Comma(int64(filesPerSecond))), size(int64(readPerSecond))+"/s read")
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

// inHand prints the work with workers and the queued work.
func (s *overview) inHand(w io.Writer, all bool) error {
	if !all {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := func() { fmt.Fprintln(t, "\nSNAPSHOT\tWORK\tATTEMPT\tWORKER\tLEASE\tPATH") }
	for _, p := range s.running {
		for n := range p.work {
			held := &p.work[n]
			if head != nil {
				head()
				head = nil
			}
			worker, path := held.Worker, display(held.Path)
			switch {
			case worker == "":
				worker = "(queued)"
			case path == "":
				path = "."
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", p.ID.Short(), kindOf(held), held.Attempt, display(worker), clock(max(held.Until.Sub(s.at), 0)), strings.TrimSpace(path+s.whyText(p, held)))
		}
	}
	if s.cut {
		fmt.Fprintln(t, "… and more")
	}
	return t.Flush()
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
		return s.whyQueued(&p.Filer, roleOf(w)).text
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
