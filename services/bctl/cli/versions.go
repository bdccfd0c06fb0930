package cli

import (
	"io"
	"strconv"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/history"
)

// A snapshotRef names a snapshot in the output of find and history.
type snapshotRef struct {
	ID      string  `json:"id"`
	Number  int64   `json:"number"`
	Started *string `json:"started"`
	Bad     string  `json:"bad,omitempty"` // the reason, if it is marked bad
}

// A versionJSON is one version of a file or directory.
type versionJSON struct {
	Type      string        `json:"type"` // version
	Filer     string        `json:"filer"`
	Shard     string        `json:"shard"`
	Entry     entryJSON     `json:"entry"`
	Snapshots []snapshotRef `json:"snapshots"` // that have it, the newest first
}

func newVersionJSON(snapshots history.Snapshots, v *history.Version) versionJSON {
	newest := &snapshots[v.Last]
	j := versionJSON{Type: "version", Filer: newest.Filer.Name, Shard: newest.Shard.Name, Entry: newEntryJSON(v.Path, v.Entry)}
	for i := v.Last; i >= v.First; i-- {
		s := &snapshots[i]
		j.Snapshots = append(j.Snapshots, snapshotRef{s.ID.String(), int64(s.Number), jsonTime(s.Started), s.Bad})
	}
	return j
}

// A versionList prints versions as lines of columns.
type versionList struct {
	lines alignedList
	last  string // name of the last column
}

func newVersionList(out io.Writer, last string) *versionList {
	isRight := func(column int) bool { return column == 2 || column == 3 } // OF and SIZE
	return &versionList{lines: alignedList{out: out, gap: gap, right: isRight}, last: last}
}

// add prints a version, or keeps it to be aligned with the next ones.
func (l *versionList) add(newest *backup.Snapshot, v *history.Version, text string) error {
	if len(l.lines.rows) == 0 && l.lines.widths == nil {
		l.lines.rows = append(l.lines.rows, []string{"SNAPSHOT", "TAKEN", "OF", "SIZE", "MODIFIED", l.last})
	}
	bytes, modified := "-", "-"
	if v.Entry.Flags&backup.AttributesUnknown == 0 {
		modified = shortTime(v.Entry.Mtime.Time())
	}
	if v.Entry.Kind == backup.File {
		bytes = size(v.Entry.Size)
	}
	return l.lines.add([]string{newest.ID.Short(), shortTime(newest.Started), strconv.Itoa(v.Last - v.First + 1), bytes, modified, text})
}

// flush prints the versions that are kept.
func (l *versionList) flush() error { return l.lines.flush() }
