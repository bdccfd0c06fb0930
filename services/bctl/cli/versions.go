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

// versionsTogether is how many lines of a versionList are aligned together.
const versionsTogether = 1000

// A versionList prints versions as lines of columns. It holds some of them only, as longList does.
type versionList struct {
	out    io.Writer
	last   string // name of the last column
	rows   [][]string
	widths []int
}

func newVersionList(out io.Writer, last string) *versionList {
	return &versionList{out: out, last: last}
}

// add prints a version, or keeps it to be aligned with the next ones.
func (l *versionList) add(newest *backup.Snapshot, v *history.Version, text string) error {
	if len(l.rows) == 0 && l.widths == nil {
		l.rows = append(l.rows, []string{"SNAPSHOT", "TAKEN", "OF", "SIZE", "MODIFIED", l.last})
	}
	bytes, modified := "-", "-"
	if v.Entry.Flags&backup.AttributesUnknown == 0 {
		modified = shortTime(v.Entry.Mtime.Time())
	}
	if v.Entry.Kind == backup.File {
		bytes = size(v.Entry.Size)
	}
	l.rows = append(l.rows, []string{newest.ID.Short(), shortTime(newest.Started), strconv.Itoa(v.Last - v.First + 1), bytes, modified, text})
	if len(l.rows) < versionsTogether {
		return nil
	}
	return l.flush()
}

// flush prints the versions that are kept.
func (l *versionList) flush() error {
	if len(l.rows) == 0 {
		return nil
	}
	widths := widthsOf(l.rows)
	widths[len(widths)-1] = 0
	for n := range l.widths {
		widths[n] = max(widths[n], l.widths[n])
	}
	l.widths = widths
	lines := make([]string, len(l.rows))
	for i, row := range l.rows {
		for n, cell := range row {
			if n > 0 {
				lines[i] += gap
			}
			lines[i] += padded(cell, widths[n], n == 2 || n == 3)
		}
	}
	l.rows = l.rows[:0]
	return writeLines(l.out, lines)
}
