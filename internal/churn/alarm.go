package churn

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

const (
	alarmTally = 64  // the most directories that an alarm counts
	alarmParts = 5   // directories, and owners, that it names
	alarmPath  = 200 // bytes of a path that it shows
	alarmBytes = 2000
)

// Alarm returns the text of a snapshot's alarm. changes are the pages that the snapshot has and its
// base has not, and since is when the base began. Pages that are damaged are left out.
func Alarm(s *backup.Snapshot, v *Verdict, since time.Time, changes iter.Seq2[backup.PageChange, error]) (string, error) {
	tally, first := NewTally(alarmTally), backup.Time{}
	from := backup.TimeOf(since)
	for c, err := range changes {
		if err != nil {
			return "", err
		}
		if c.Ended {
			break // only ended pages follow
		}
		page, err := listing.DecodePage(c.PageVersion)
		if errors.Is(err, backup.ErrCorrupt) {
			continue
		}
		if err != nil {
			return "", err
		}
		for i := range page.Entries {
			e := &page.Entries[i]
			if !Opaque(e, from) {
				continue
			}
			tally.Add(c.Path, e.UID, Count{Opaque: 1})
			if at := changed(e); first.IsZero() || at.Compare(first) < 0 {
				first = at
			}
		}
	}
	return text(s, v, tally, first), nil
}

func text(s *backup.Snapshot, v *Verdict, tally *Tally, first backup.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d files of snapshot %d now look encrypted", s.Counts.FilesOpaque, s.Number)
	if v.Opaque > s.Counts.FilesOpaque {
		fmt.Fprintf(&b, ", %d with those of the snapshots before", v.Opaque)
	}
	if !first.IsZero() {
		fmt.Fprintf(&b, "; the first at %s", first.Time().Format(time.RFC3339))
	}
	if v.Clean > 0 {
		fmt.Fprintf(&b, "; the last clean snapshot is %d (%s)", v.Clean, v.CleanID.Short())
	} else {
		b.WriteString("; no earlier snapshot is clean")
	}
	owners, dirs := tally.Owners(), tally.Directories()
	for i, o := range owners[:min(len(owners), alarmParts)] {
		fmt.Fprintf(&b, "%suser %d (%d)", separator(i, "; of "), o.Of, o.Opaque)
	}
	b.WriteString(more(len(owners), "owners"))
	for i, d := range dirs[:min(len(dirs), alarmParts)] {
		path := strings.ToValidUTF8(d.Of, "\uFFFD")
		if len(path) > alarmPath {
			path = strings.ToValidUTF8(path[:alarmPath], "") + "…"
		}
		fmt.Fprintf(&b, "%s%q (%d)", separator(i, "; in "), "/"+path, d.Opaque)
	}
	b.WriteString(more(len(dirs), "directories"))
	all := b.String()
	return strings.ToValidUTF8(all[:min(len(all), alarmBytes)], "")
}

func separator(i int, first string) string {
	if i == 0 {
		return first
	}
	return ", "
}

func more(n int, of string) string {
	if n <= alarmParts {
		return ""
	}
	return fmt.Sprintf(" and %d more %s", n-alarmParts, of)
}
