package cli

import (
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// overviewJSON is the first line that status prints each time. The names are fixed.
type overviewJSON struct {
	Type    string     `json:"type"` // overview
	Time    *string    `json:"time"`
	Missing []lackJSON `json:"missing"`
	Running int        `json:"running"`
	// Stalled is the number of running snapshots of which all work with workers is stalled.
	Stalled int `json:"stalled"`
	// FilesPerSecond and ReadPerSecond are sums over the snapshots of which they are known; null:
	// there are none.
	FilesPerSecond *float64      `json:"files_per_second"`
	ReadPerSecond  *float64      `json:"read_bytes_per_second"`
	Waiting        []waitJSON    `json:"waiting"`
	Failed         []failureJSON `json:"failed"`
}

type lackJSON struct {
	What  string `json:"what"` // nats, committer, walker, reader, pruner, scrubber, restorer, clock, alarm, brake, purge or policy
	Site  string `json:"site,omitempty"`
	Stops bool   `json:"stops"` // work cannot proceed because of it
	Text  string `json:"text"`
}

type waitJSON struct {
	Cause   string   `json:"cause"`
	Why     string   `json:"why"`
	Filers  []string `json:"filers"`
	Tasks   int      `json:"tasks"`
	Batches int      `json:"batches"`
	Shards  int      `json:"shards"` // due shards
	// Snapshots is the number of complete snapshots that cannot be committed.
	Snapshots int `json:"snapshots"`
	// Since is the start of the longest stall; null: no work is stalled.
	Since   *string        `json:"stalled_since"`
	Workers map[string]int `json:"workers"` // amount of stalled work per worker
}

type failureJSON struct {
	Snapshot string  `json:"snapshot"`
	Filer    string  `json:"filer"`
	Shard    string  `json:"shard"`
	Number   int64   `json:"number"`
	Ended    *string `json:"ended"`
	Times    int     `json:"times"` // failures since the shard's last good snapshot
	Reason   string  `json:"reason"`
}

// printJSON prints an overview, then the running snapshots, and then the restores.
func (s *overview) printJSON(to func(any) error) error {
	err := to(s.json())
	for n := 0; n < len(s.running) && err == nil; n++ {
		err = to(s.snapshotJSON(s.running[n]))
	}
	for n := 0; n < len(s.restores) && err == nil; n++ {
		err = to(s.restores[n].json())
	}
	return err
}

func (s *overview) json() overviewJSON {
	j := overviewJSON{
		Type: "overview", Time: jsonTime(s.at), Running: len(s.running), Missing: []lackJSON{}, Waiting: []waitJSON{}, Failed: []failureJSON{},
	}
	j.FilesPerSecond, j.ReadPerSecond = s.speeds()
	for _, p := range s.running {
		if p.isStalled() {
			j.Stalled++
		}
	}
	for _, l := range s.lacks {
		j.Missing = append(j.Missing, lackJSON{l.What, l.Site, l.Stops, l.Text})
	}
	for _, w := range s.waits() {
		j.Waiting = append(j.Waiting, waitJSON{causeNames[w.cause], w.text, w.filers, w.tasks, w.batches, w.shards, w.snapshots, jsonTime(w.since), w.workers})
	}
	for n := range s.failed {
		f := &s.failed[n]
		j.Failed = append(j.Failed, failureJSON{f.ID.String(), f.Filer.Name, f.Shard.Name, int64(f.Number), jsonTime(f.Ended), f.times, f.Reason})
	}
	return j
}

// statusJSON is a line of status. The names are fixed.
type statusJSON struct {
	Type           string         `json:"type"` // snapshot
	Time           *string        `json:"time"`
	Snapshot       string         `json:"snapshot"`
	Filer          string         `json:"filer"`
	Shard          string         `json:"shard"`
	Number         int64          `json:"number"`
	State          string         `json:"state"` // running, or interrupted: no process is making it
	Started        *string        `json:"started"`
	AgeSeconds     float64        `json:"age_seconds"`
	Source         string         `json:"source"`
	SourceSnapshot string         `json:"source_snapshot,omitempty"`
	Tags           []string       `json:"tags"`
	Cancel         string         `json:"cancel,omitempty"` // the reason why it is to end
	Tasks          statusWork     `json:"tasks"`
	Batches        statusWork     `json:"batches"`
	Files          int64          `json:"files"`
	Directories    int64          `json:"directories"`
	Bytes          int64          `json:"bytes"`
	ExpectedFiles  *int64         `json:"expected_files"` // null: there was no earlier snapshot
	ExpectedBytes  *int64         `json:"expected_bytes"`
	FilesPerSecond *float64       `json:"files_per_second"` // within the last minute; null: not known
	ReadBytes      int64          `json:"read_bytes"`
	ReadPerSecond  *float64       `json:"read_bytes_per_second"`
	LeftSeconds    *float64       `json:"left_seconds"` // null: not known
	Errors         int64          `json:"errors"`
	Work           []statusInHand `json:"work"`
}

type statusWork struct {
	Settled   int64 `json:"settled"`
	Announced int64 `json:"announced"`
	InHand    int   `json:"in_hand"` // with a worker
	Stalled   int   `json:"stalled"` // part of in_hand
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
	Stalled *string `json:"stalled_since"` // null: it is not stalled
	Why     string  `json:"why,omitempty"` // if it is stalled or queued
}

func (s *overview) snapshotJSON(p *inProgress) statusJSON {
	row := newSnapshotJSON(&p.Snapshot)
	j := statusJSON{
		Type: "snapshot", Time: jsonTime(p.at), Snapshot: row.ID, Filer: row.Filer, Shard: row.Shard, Number: row.Number, State: row.State, Started: row.Started,
		AgeSeconds: p.at.Sub(p.Started).Seconds(), Source: sourceOf(&p.Snapshot), SourceSnapshot: row.SourceSnapshot, Tags: row.Tags, Cancel: p.Cancel,
		Tasks:   statusWork{p.TasksSettled, p.TasksAnnounced, p.tasks.working, p.tasks.stalled, p.tasks.queued},
		Batches: statusWork{p.BatchesSettled, p.BatchesAnnounced, p.read.working, p.read.stalled, p.read.queued},
		Files:   row.Files, Directories: row.Directories, Bytes: row.Bytes,
		FilesPerSecond: ifKnown(p.filesPerSecond(), p.walk.known), ReadBytes: p.readBytes(), ReadPerSecond: ifKnown(p.readPerSecond(), p.reads.known), Errors: row.Errors, Work: []statusInHand{},
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
		j.Work = append(j.Work, statusInHand{
			Kind: kindOf(w), ID: int64(w.Task) + int64(w.Batch), Attempt: w.Attempt, Worker: w.Worker, Path: w.Path, Raw: backup.RawBase64(w.Path),
			Until: jsonTime(w.Until), Stalled: jsonTime(w.Stalled), Why: s.why(p, w),
		})
	}
	return j
}
