package cli

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// The restores that restorers share (bctl restore --fleet), as status shows them.

// A sharedRestore is a restore at one time, by the clock of the index.
type sharedRestore struct {
	index.Restore
	at time.Time
}

func sharedRestores(all []index.Restore, now time.Time) (list []sharedRestore) {
	for _, r := range all {
		list = append(list, sharedRestore{r, now})
	}
	return list
}

// The states of a shared restore.
const (
	restoreRuns    = "running"
	restoreIdle    = "no restorer"
	restoreKeyless = "no keys"
	restoreDone    = "done"
	restoreFailed  = "failed"
)

func (r *sharedRestore) state() string {
	switch {
	case r.Failed != "":
		return restoreFailed
	case r.Open == 0:
		return restoreDone
	case r.Working == 0:
		return restoreIdle
	case r.Waiting == r.Working:
		return restoreKeyless
	}
	return restoreRuns
}

// lacksRestorers returns the restores that no restorer works on.
func lacksRestorers(all []sharedRestore) (list []lack) {
	for i := range all {
		r := &all[i]
		if r.state() == restoreIdle && r.at.Sub(r.Started) >= idleAfter {
			list = append(list, lack{
				What: string(flow.RoleRestorer), Site: r.Site,
				Text: fmt.Sprintf("no restorer at site %s works on the restore to %s (bctl restorer)", r.Site, display(r.Target)),
			})
		}
	}
	return list
}

var restoreTable = table[*sharedRestore]{
	{name: "TARGET", text: func(r *sharedRestore) string { return display(r.Target) }, cut: tail, useful: usefulPath},
	{name: "SITE", text: func(r *sharedRestore) string { return display(r.Site) }, cut: truncate},
	{name: "SNAPSHOT", text: func(r *sharedRestore) string { return r.Snapshot.Short() }, leave: 2},
	{name: "AGE", text: func(r *sharedRestore) string { return runningAge(r.Started, r.at) }, right: true, leave: 4},
	{name: "TASKS", text: func(r *sharedRestore) string {
		return work(int64(r.Tasks-r.Open), int64(r.Tasks), inHand{working: r.Working})
	}, right: true},
	{name: "RESTORERS", text: func(r *sharedRestore) string { return humanize.Comma(int64(r.Restorers)) }, right: true, leave: 5},
	{name: "FILES", text: func(r *sharedRestore) string { return humanize.Comma(r.Files) }, right: true, leave: 3},
	{name: "SIZE", text: func(r *sharedRestore) string { return size(r.Bytes) }, right: true, leave: 1},
	{name: "STATE", text: (*sharedRestore).state},
}

// restoreLines lists the restores, and why some do not go on.
func (s *overview) restoreLines(width int) (lines []string) {
	if len(s.restores) == 0 {
		return nil
	}
	lines = restoreTable.lines(pointers(s.restores), width)
	for i := range s.restores {
		if text := s.restores[i].remark(); text != "" {
			lines = append(lines, wrap(display(s.restores[i].Target)+": "+text, width)...)
		}
	}
	return lines
}

// remark says what a restore needs.
func (r *sharedRestore) remark() string {
	switch {
	case r.Failed != "":
		return "failed: " + display(firstLine(r.Failed))
	case r.Open == 0:
		return "all tasks are done; bctl restore --fleet, run again, shows the result"
	case r.state() == restoreKeyless:
		return "its restorers wait for keys; unless bctl restore --fleet runs, run it again"
	case r.Trouble != "":
		return "a task will be tried again: " + display(firstLine(r.Trouble))
	}
	return ""
}

// restoreJSON is a line of status for a restore. The names are fixed.
type restoreJSON struct {
	Type       string          `json:"type"` // restore
	Time       *string         `json:"time"`
	Restore    string          `json:"restore"`
	Snapshot   string          `json:"snapshot"`
	Site       string          `json:"site"`
	Target     string          `json:"target"`
	Raw        string          `json:"target_b64,omitempty"`
	State      string          `json:"state"` // running, no restorer, no keys, done or failed
	Started    *string         `json:"started"`
	AgeSeconds float64         `json:"age_seconds"`
	Tasks      restoreWorkJSON `json:"tasks"`
	Restorers  int             `json:"restorers"` // that have a task
	Files      int64           `json:"files"`
	Bytes      int64           `json:"bytes"`
	Trouble    string          `json:"trouble,omitempty"`
	Reason     string          `json:"reason,omitempty"` // why it has failed
}

type restoreWorkJSON struct {
	Settled int `json:"settled"`
	All     int `json:"all"`
	InHand  int `json:"in_hand"` // with a restorer
	NoKeys  int `json:"no_keys"` // part of in_hand
}

func (r *sharedRestore) json() restoreJSON {
	return restoreJSON{
		Type: "restore", Time: jsonTime(r.at), Restore: r.ID.String(), Snapshot: r.Snapshot.String(), Site: r.Site, Target: r.Target, Raw: backup.RawBase64(r.Target),
		State: r.state(), Started: jsonTime(r.Started), AgeSeconds: r.at.Sub(r.Started).Seconds(),
		Tasks: restoreWorkJSON{r.Tasks - r.Open, r.Tasks, r.Working, r.Waiting}, Restorers: r.Restorers, Files: r.Files, Bytes: r.Bytes, Trouble: r.Trouble, Reason: r.Failed,
	}
}
