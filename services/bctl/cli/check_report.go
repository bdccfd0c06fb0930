package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/store"
)

// affectedJSON is a file of which a part is lost. The names are fixed.
type affectedJSON struct {
	Type   string                `json:"type,omitempty"` // affected; within a finding: empty
	Object string                `json:"object,omitempty"`
	Filer  string                `json:"filer"`
	Shard  string                `json:"shard"`
	Path   string                `json:"path"`
	Raw    string                `json:"path_b64,omitempty"`
	First  backup.SnapshotNumber `json:"first"`
	Last   backup.SnapshotNumber `json:"last"`
}

func newAffectedJSON(f *check.Finding, a *check.Affected) affectedJSON {
	return affectedJSON{"affected", f.Object, a.Filer, a.Shard, a.Path, backup.RawBase64(a.Path), a.First, a.Last}
}

// findingJSON is something that is damaged. The names are fixed.
type findingJSON struct {
	Type      string                `json:"type"` // finding
	Kind      string                `json:"kind"`
	Object    string                `json:"object,omitempty"`
	Text      string                `json:"text"`
	Filer     string                `json:"filer,omitempty"`
	Shard     string                `json:"shard,omitempty"`
	Path      string                `json:"path,omitempty"`
	Raw       string                `json:"path_b64,omitempty"`
	First     backup.SnapshotNumber `json:"first,omitempty"`
	Last      backup.SnapshotNumber `json:"last,omitempty"`
	Lost      int64                 `json:"chunks_lost"`
	Elsewhere int64                 `json:"chunks_elsewhere"`
	Files     int64                 `json:"files"`
	Affected  []affectedJSON        `json:"affected,omitempty"` // the first of them
	More      int                   `json:"more_findings,omitempty"`
	Parity    bool                  `json:"from_parity"`     // bctl repair can put it back
	Noted     int64                 `json:"noted,omitempty"` // affected entries of the newest snapshots that the next backup reads again
	Unnoted   int64                 `json:"unnoted,omitempty"`
	Next      string                `json:"next,omitempty"`
}

// checkedJSON is the result of check. The names are fixed.
type checkedJSON struct {
	Type           string  `json:"type"` // check
	Level          string  `json:"level"`
	Shards         int     `json:"shards"`
	Snapshots      int     `json:"snapshots"`
	Pages          int64   `json:"pages"` // versions
	Chunks         int64   `json:"chunks"`
	Packs          int64   `json:"packs"`
	PacksRead      int64   `json:"packs_read"`
	BytesRead      int64   `json:"bytes_read"` // of the content of packs
	JournalObjects int64   `json:"journal_objects"`
	ParityObjects  int64   `json:"parity_objects"`
	Findings       int     `json:"findings"`
	Files          int64   `json:"files"` // affected
	ElapsedSeconds float64 `json:"elapsed_seconds"`
}

// report prints the findings and the result. It fails if there are findings.
func (c *checkCommand) report(level check.Level, r *check.Report) error {
	files := int64(0)
	known, again := len(r.Findings) > 0, false
	for _, f := range r.Findings {
		known, again = known && f.Kind == check.Chunks && f.Unnoted == 0, again || f.Noted > 0
		if f.Kind != check.Lists {
			files += f.Files
		}
		if err := c.finding(f); err != nil {
			return err
		}
	}
	elapsed := time.Since(c.started)
	object := checkedJSON{
		"check", level.String(), r.Shards, r.Snapshots, r.Versions, r.Chunks, r.Packs, r.PacksRead, r.ReadBytes, r.Journal, r.Parity, len(r.Findings), files, elapsed.Seconds(),
	}
	text := fmt.Sprintf("checked %s of %s: %s, %s", counted(r.Snapshots, "snapshot"), counted(r.Shards, "shard"), counted(r.Versions, "page"), counted(r.Chunks, "chunk"))
	if level >= check.Objects {
		text += ", " + counted(r.Packs, "pack") + ", " + counted(r.Journal, "other object")
		if r.Parity > 0 {
			text += ", " + counted(r.Parity, "parity object")
		}
	}
	if level >= check.Content {
		text += fmt.Sprintf("; read the content of %s (%s)", counted(r.PacksRead, "pack"), size(r.ReadBytes))
	}
	text += fmt.Sprintf("; level %s, in %.1f s\n", level, elapsed.Seconds())
	if len(r.Findings) == 0 {
		text += "no damage was found\n"
	}
	if err := c.app.result(object, "%s", text); err != nil || len(r.Findings) == 0 {
		return err
	}
	return &damageError{len(r.Findings), files, c.first, known, again}
}

// A damageError reports that a check has found damage.
type damageError struct {
	findings int
	files    int64
	first    string // as in checkCommand
	known    bool   // a repair has dealt with all of it
	again    bool   // the next backup reads some of the files again
}

func (e *damageError) Error() string {
	if e.first != "" {
		return "the index is older than its store, and " + counted(e.findings, "finding") + " may only be due to that: run " + e.first + ", and then check again"
	}
	text := "the check found damage (" + counted(e.findings, "finding") + ")"
	switch {
	case e.known && e.again:
		text = "what a repair has dropped is not stored again yet"
	case e.known:
		text = "what a repair has dropped stays lost"
	}
	if e.files == 0 {
		return text + "; no file that is kept is affected"
	}
	return text + "; " + counted(e.files, "file") + " cannot be restored, or not in full, from the snapshots that are named above"
}

const lostForGood = "What no filer has any more stays lost: to accept that, forget these snapshots (bctl forget)"

// next returns the command to type next, or nothing.
func (c *checkCommand) next(f *check.Finding) string {
	if c.first != "" {
		return c.first + ", and then check again"
	}
	_, local := c.app.cfg.IndexPath()
	switch f.Kind {
	case check.Page, check.Snapshot, check.Lists:
		if local {
			return "move the index away, and run bctl index rebuild: the copy in the store may be whole"
		}
		return "restore the database from its last good dump"
	}
	switch {
	case f.Damage != nil && f.Damage.Unsure:
		return "bctl repair --read-data, with an identity: it opens the pack, and finds out what is damaged"
	case f.Checkpointed && !local:
		return "none: these snapshots can be restored as long as the index is there, and later ones do not need this object. To end this finding, forget them (bctl forget)"
	case f.Kind == check.Keys && c.app.cfg.Mirror.URL == "":
		if _, _, wrapped := store.ParseWrapsName(f.Object); wrapped {
			return "put the object back from a copy of the store. Without one, run bctl key rotate with an identity that opens the packs: it wraps their keys again"
		}
		return "put the object back from a copy of the store. Without one, run bctl key rotate: it writes the statement again that the index knows. Then see the recipients in force (bctl key ls), and correct them (bctl key add, bctl key rm)"
	case f.Kind == check.Chunks && c.takesBack():
		return "bctl repair: it takes back what the store has of this"
	case f.Kind == check.Chunks && f.Unnoted == 0 && f.Noted > 0:
		return "back up. " + lostForGood
	case f.Kind == check.Chunks && f.Unnoted == 0:
		return lostForGood
	case f.Kind == check.Parity && f.Object == "":
		return "bctl prune --parity off, and then bctl prune with --parity as before"
	case c.repairs == "" && f.Kind == check.Chunks:
		return "back up. " + lostForGood
	case c.repairs == "":
		return ""
	case f.Kind == check.Chunks:
		return c.repairs + ", then back up. " + lostForGood
	case f.Kind == check.Places && local:
		return "move the index away, and run bctl index rebuild: the copy in the store may be whole. Or " + c.repairs + ", then back up"
	}
	return c.repairs
}

// finding prints a finding.
func (c *checkCommand) finding(f *check.Finding) error {
	if c.app.json {
		o := findingJSON{
			Type: "finding", Kind: string(f.Kind), Object: f.Object, Text: f.Text, Filer: f.Filer, Shard: f.Shard, Path: f.Path, Raw: backup.RawBase64(f.Path),
			First: f.First, Last: f.Last, Lost: f.Lost, Elsewhere: f.Elsewhere, Files: f.Files, More: f.More, Parity: f.FromParity, Noted: f.Noted, Unnoted: f.Unnoted, Next: c.next(f),
		}
		for i := range f.Affected {
			a := newAffectedJSON(f, &f.Affected[i])
			a.Type, a.Object = "", ""
			o.Affected = append(o.Affected, a)
		}
		return c.app.print(o)
	}
	_, err := fmt.Fprint(c.app.out, c.findingText(f))
	return err
}

// findingText describes a finding by its consequence.
func (c *checkCommand) findingText(f *check.Finding) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", subject(f), f.Text)
	switch {
	case f.Damage != nil && f.Lost == 0 && f.Elsewhere > 0:
		b.WriteString("  no file is affected: other packs have the same content\n")
	case f.Damage != nil && f.Files == 0:
		b.WriteString("  no file is affected: no snapshot that is kept needs it\n")
	case f.Kind == check.Segment || f.Kind == check.Record:
		fmt.Fprintf(&b, "  no file is affected. If the index is lost, %s cannot be rebuilt from the store\n", snapshots(f.First, f.Last))
	case f.Kind == check.Catalog:
		b.WriteString("  no file is affected. If the index is lost, filers, shards, policies and holds must be registered again\n")
	case f.Kind == check.Copy:
		b.WriteString("  no file is affected. If the index is lost, it cannot be rebuilt from this copy\n")
	case f.Kind == check.Page:
		fmt.Fprintf(&b, "  the files of this directory page cannot be restored from %s\n", snapshots(f.First, f.Last))
	case f.Kind == check.Lists:
		fmt.Fprintf(&b, "  no file is affected, but bctl prune stops: it does not know what %s need\n", counted(f.Files, "large file"))
	case f.Damage != nil && f.Damage.Ends > 0:
		b.WriteString("  no file is affected. If the index is lost, it cannot be rebuilt from this object\n")
	case f.Files > 0:
		perhaps := ""
		if f.Damage != nil && f.Damage.Unsure {
			perhaps = "perhaps "
		}
		fmt.Fprintf(&b, "  %s %scannot be restored, or not in full", counted(f.Files, "file"), perhaps)
		if f.Elsewhere > 0 {
			fmt.Fprintf(&b, "; other packs have %s", counted(f.Elsewhere, "further chunk"))
		}
		b.WriteString(":\n")
		for i := range f.Affected {
			a := &f.Affected[i]
			fmt.Fprintf(&b, "    %s %s: %s, in %s\n", display(a.Filer), display(a.Shard), display(rootName(a.Path)), snapshots(a.First, a.Last))
		}
		if more := f.Files - int64(len(f.Affected)); more > 0 {
			fmt.Fprintf(&b, "    and %s (--json lists all)\n", counted(more, "more file"))
		}
	}
	switch {
	case f.Kind == check.Chunks && c.takesBack():
	case f.Kind == check.Chunks && f.Unnoted == 0 && f.Noted > 0:
		b.WriteString("  a repair has dropped this, and the next backup reads the files of the newest snapshots again: bctl repair does nothing more\n")
	case f.Kind == check.Chunks && f.Unnoted == 0:
		b.WriteString("  the newest snapshots do not need it, so that no backup reads these files again, and bctl repair does nothing more\n")
	case f.Kind == check.Parity:
		b.WriteString("  no file is affected, but objects of its group are not protected\n")
	case f.FromParity:
		b.WriteString("  parity has it: bctl repair puts it back, byte for byte\n")
	}
	if next := c.next(f); next != "" {
		fmt.Fprintf(&b, "  next: %s\n", next)
	}
	if f.More > 0 {
		fmt.Fprintf(&b, "and %s\n", counted(f.More, "more finding"))
	}
	return b.String()
}

// subject names what is damaged.
func subject(f *check.Finding) string {
	switch {
	case f.Kind == check.Page:
		return fmt.Sprintf("index: a page of %s in %s %s", display(rootName(f.Path)), display(f.Filer), display(f.Shard))
	case f.Kind == check.Snapshot:
		return fmt.Sprintf("index: %s of %s %s", snapshots(f.First, f.Last), display(f.Filer), display(f.Shard))
	case f.Object == "":
		return "index"
	}
	return f.Object
}

func rootName(path string) string {
	if path == "" {
		return "."
	}
	return path
}

// snapshots names some snapshots of a shard by their numbers.
func snapshots(first, last backup.SnapshotNumber) string {
	if first == last {
		return "snapshot " + humanize.Comma(int64(first))
	}
	return fmt.Sprintf("snapshots %d to %d", first, last)
}
