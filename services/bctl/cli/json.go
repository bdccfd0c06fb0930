package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// print writes v as one line of JSON.
func (a *app) print(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// result prints the result of a command: with --json an object, otherwise text, whose lines fit the
// terminal.
func (a *app) result(object any, format string, args ...any) error {
	if a.json {
		return a.print(object)
	}
	_, err := io.WriteString(a.out, fitted(fmt.Sprintf(format, args...), a.width()))
	return err
}

// printList prints items: with --json one object per line, otherwise a table.
func printList[T, Object any](a *app, items []T, t table[T], object func(T) Object) error {
	if !a.json {
		return writeLines(a.out, t.lines(items, a.width()))
	}
	for _, item := range items {
		if err := a.print(object(item)); err != nil {
			return err
		}
	}
	return nil
}

// errorJSON is one error.
type errorJSON struct {
	Type     string `json:"type"`               // error
	Snapshot string `json:"snapshot,omitempty"` // if the command makes several snapshots
	Path     string `json:"path,omitempty"`
	Raw      string `json:"path_b64,omitempty"` // if the path is not UTF-8
	Op       string `json:"op,omitempty"`
	Error    string `json:"error"`
}

func problemJSON(p backup.Problem) errorJSON {
	return errorJSON{Type: "error", Path: p.Path, Raw: backup.RawBase64(p.Path), Op: p.Op, Error: p.Err}
}

// printChange prints a change at one path: one that the backup of a shard found, or one that a
// restore made or would make.
func (a *app) printChange(action, shard, path string, sizeBytes int64) {
	if !a.json {
		fmt.Fprintf(a.out, "%-12s%s\n", action, display(path))
		return
	}
	a.print(struct {
		Type   string `json:"type"`
		Action string `json:"action"`
		Shard  string `json:"shard,omitempty"` // of a backup
		Path   string `json:"path"`
		Raw    string `json:"path_b64,omitempty"`
		Size   int64  `json:"size"`
	}{"change", action, shard, path, backup.RawBase64(path), sizeBytes})
}

// jsonTime returns RFC 3339 in UTC, or null if there is no time.
func jsonTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format(time.RFC3339Nano)
	return &s
}

// jsonID returns the id of a snapshot, or null if there is none.
func jsonID(id backup.SnapshotID) *string {
	if id == (backup.SnapshotID{}) {
		return nil
	}
	s := id.String()
	return &s
}

// jsonLabels returns labels, which are never null.
func jsonLabels(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// snapshotJSON is a line of snapshot ls. The names are fixed.
type snapshotJSON struct {
	ID          string   `json:"id"`
	Filer       string   `json:"filer"`
	Shard       string   `json:"shard"`
	Number      int64    `json:"number"`
	State       string   `json:"state"`
	Started     *string  `json:"started"`
	Committed   *string  `json:"committed"`
	Files       int64    `json:"files"`
	Directories int64    `json:"directories"`
	Bytes       int64    `json:"bytes"`
	NewBytes    int64    `json:"new_bytes"`
	StoredBytes int64    `json:"stored_bytes"`
	Errors      int64    `json:"errors"`
	Tags        []string `json:"tags"`
	Reason      string   `json:"reason,omitempty"` // why it failed
	// The reason why an operator does not want it to count as good.
	Bad string `json:"bad,omitempty"`
	// The reasons of the holds that keep it; only in snapshot ls and snapshot show.
	Holds []string `json:"holds,omitempty"`
	// The path of the filer's own snapshot that was read instead of the shard.
	SourceSnapshot string `json:"source_snapshot,omitempty"`
}

func newSnapshotJSON(s *backup.Snapshot) snapshotJSON {
	return snapshotJSON{
		ID: s.ID.String(), Filer: s.Filer.Name, Shard: s.Shard.Name, Number: int64(s.Number), State: string(s.State),
		Started: jsonTime(s.Started), Committed: jsonTime(s.Committed),
		Files: s.Counts.Files, Directories: s.Counts.Directories, Bytes: s.Counts.Bytes,
		NewBytes: s.Counts.NewBytes, StoredBytes: s.Counts.StoredBytes, Errors: s.Counts.Errors, Tags: append([]string{}, s.Tags...), Reason: s.Reason,
		SourceSnapshot: takenFrom(s), Bad: s.Bad,
	}
}

// stageSeconds are the seconds of work per stage, summed over workers.
type stageSeconds struct {
	Walk     float64 `json:"walk"`
	Read     float64 `json:"read"`
	Hash     float64 `json:"hash"`
	Compress float64 `json:"compress"`
	Seal     float64 `json:"seal"`
	Upload   float64 `json:"upload"`
	Commit   float64 `json:"commit"`
}

func stagesOf(c *backup.Counts) stageSeconds {
	return stageSeconds{c.WalkSeconds, c.ReadSeconds, c.HashSeconds, c.CompressSeconds, c.SealSeconds, c.UploadSeconds, c.CommitSeconds}
}
