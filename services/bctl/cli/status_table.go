package cli

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/index"
)

// write writes an overview for people.
func (s *overview) write(w io.Writer, work bool) error {
	if len(s.running) == 0 {
		fmt.Fprintln(w, "No snapshot is running.")
	} else if err := s.table(w); err != nil {
		return err
	}
	if err := s.inHand(w, work); err != nil {
		return err
	}
	if slices.ContainsFunc(s.running, func(p *inProgress) bool { return p.State == interrupted }) {
		fmt.Fprintln(w, "\nNo process makes what is interrupted. The next bctl backup of the shard uses what\nis stored of it; bctl cancel ends it now.")
	}
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
		left := "-"
		if d, ok := p.left(); ok {
			left = clock(d)
		}
		switch {
		case p.State == interrupted:
			left = string(interrupted)
		case p.Cancel != "":
			left = "cancelling"
		}
		files, bytes := humanize.Comma(p.Counts.Files), size(p.Counts.Bytes)
		if p.known {
			files += " of " + humanize.Comma(p.base.Files)
			bytes += " of " + size(p.base.Bytes)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\n", p.ID.Short(), display(p.Filer.Name), display(p.Shard.Name),
			p.Number, clock(p.at.Sub(p.Started)), work(p.TasksSettled, p.TasksAnnounced, p.tasks), work(p.BatchesSettled, p.BatchesAnnounced, p.read),
			p.tasks.stalled+p.read.stalled, files, bytes, humanize.Comma(int64(p.filesPerSecond)), size(int64(p.readPerSecond)), left, p.Counts.Errors)
	}
	return t.Flush()
}

// work is "12/20+3": settled of announced, and what workers have in hand.
func work(settled, announced int64, h inHand) string {
	text := fmt.Sprintf("%d/%d", settled, announced)
	if h.working > 0 {
		text += fmt.Sprintf("+%d", h.working)
	}
	return text
}

// inHand writes what workers do: all of it, or what is stalled only.
func (s *overview) inHand(w io.Writer, all bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := func() { fmt.Fprintln(t, "\nSNAPSHOT\tWORK\tATTEMPT\tWORKER\tLEASE\tPATH") }
	for _, p := range s.running {
		for n := range p.work {
			held := &p.work[n]
			if !all && held.Stalled.IsZero() {
				continue
			}
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
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", p.ID.Short(), kindOf(held), held.Attempt, display(worker), clock(max(held.Until.Sub(s.at), 0)), path+p.why(held))
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

// why says why work stands still; "" where it does not.
func (p *inProgress) why(w *index.Work) string {
	if w.Stalled.IsZero() {
		return ""
	}
	return fmt.Sprintf("  stalled: no answer from filer %s for %s", display(p.Filer.Name), clock(p.at.Sub(w.Stalled)))
}

// statusJSON is a line of status. The names are fixed.
type statusJSON struct {
	Time           *string        `json:"time"`
	Snapshot       string         `json:"snapshot"`
	Filer          string         `json:"filer"`
	Shard          string         `json:"shard"`
	Number         int64          `json:"number"`
	State          string         `json:"state"` // running, or interrupted: no process makes it
	Started        *string        `json:"started"`
	AgeSeconds     float64        `json:"age_seconds"`
	Source         string         `json:"source"`
	SourceSnapshot string         `json:"source_snapshot,omitempty"`
	Tags           []string       `json:"tags"`
	Cancel         string         `json:"cancel,omitempty"` // why it shall end
	Tasks          statusWork     `json:"tasks"`
	Batches        statusWork     `json:"batches"`
	Files          int64          `json:"files"`
	Directories    int64          `json:"directories"`
	Bytes          int64          `json:"bytes"`
	ExpectedFiles  *int64         `json:"expected_files"` // null: there was no snapshot before
	ExpectedBytes  *int64         `json:"expected_bytes"`
	FilesPerSecond float64        `json:"files_per_second"`
	ReadBytes      int64          `json:"read_bytes"`
	ReadPerSecond  float64        `json:"read_bytes_per_second"`
	LeftSeconds    *float64       `json:"left_seconds"` // null: not known yet
	Errors         int64          `json:"errors"`
	Work           []statusInHand `json:"work"`
}

type statusWork struct {
	Settled   int64 `json:"settled"`
	Announced int64 `json:"announced"`
	InHand    int   `json:"in_hand"` // with a worker
	Stalled   int   `json:"stalled"` // of these
	Queued    int   `json:"queued"`
}

type statusInHand struct {
	Kind    string  `json:"kind"` // walk or read
	ID      int64   `json:"id"`
	Attempt int32   `json:"attempt"`
	Worker  string  `json:"worker"` // empty: it is queued
	Path    string  `json:"path"`
	Raw     string  `json:"path_b64,omitempty"`
	Until   *string `json:"lease_until"`
	Stalled *string `json:"stalled_since"` // null: it is not
	Why     string  `json:"why,omitempty"`
}

func (p *inProgress) json() statusJSON {
	row := newSnapshotJSON(&p.Snapshot)
	j := statusJSON{
		Time: jsonTime(p.at), Snapshot: row.ID, Filer: row.Filer, Shard: row.Shard, Number: row.Number, State: row.State, Started: row.Started,
		AgeSeconds: p.at.Sub(p.Started).Seconds(), Source: sourceOf(&p.Snapshot), SourceSnapshot: row.SourceSnapshot, Tags: row.Tags, Cancel: p.Cancel,
		Tasks:   statusWork{p.TasksSettled, p.TasksAnnounced, p.tasks.working, p.tasks.stalled, p.tasks.queued},
		Batches: statusWork{p.BatchesSettled, p.BatchesAnnounced, p.read.working, p.read.stalled, p.read.queued},
		Files:   row.Files, Directories: row.Directories, Bytes: row.Bytes,
		FilesPerSecond: p.filesPerSecond, ReadBytes: p.Counts.ReadBytes, ReadPerSecond: p.readPerSecond, Errors: row.Errors, Work: []statusInHand{},
	}
	if p.known {
		j.ExpectedFiles, j.ExpectedBytes = &p.base.Files, &p.base.Bytes
	}
	if d, ok := p.left(); ok {
		seconds := d.Round(time.Millisecond).Seconds()
		j.LeftSeconds = &seconds
	}
	for n := range p.work {
		w := &p.work[n]
		held := statusInHand{
			Kind: kindOf(w), ID: int64(w.Task) + int64(w.Batch), Attempt: w.Attempt, Worker: w.Worker, Path: w.Path, Raw: rawBase64(w.Path),
			Until: jsonTime(w.Until), Stalled: jsonTime(w.Stalled),
		}
		if !w.Stalled.IsZero() {
			held.Why = "no answer from filer " + p.Filer.Name
		}
		j.Work = append(j.Work, held)
	}
	return j
}
