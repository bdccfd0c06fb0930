package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// purgedSnapshotJSON is a line of purge: what is removed from a snapshot. The names are fixed.
type purgedSnapshotJSON struct {
	Type        string  `json:"type"` // snapshot
	DryRun      bool    `json:"dry_run"`
	ID          string  `json:"id"`
	Filer       string  `json:"filer"`
	Shard       string  `json:"shard"`
	Number      int64   `json:"number"`
	Started     *string `json:"started"`
	Files       int64   `json:"files"` // that are removed, and so on
	Directories int64   `json:"directories"`
	Bytes       int64   `json:"bytes"`
}

// list prints what is removed from each snapshot.
func (c *purgeCommand) list() error {
	a := c.app
	snapshots, files, directories, bytes := 0, int64(0), int64(0), int64(0)
	var shown []*index.PurgedSnapshot
	for n := range c.found {
		f := &c.found[n]
		for m := range f.Snapshots {
			shown = append(shown, &f.Snapshots[m])
		}
		snapshots, files, directories, bytes = snapshots+f.Total.Snapshots, files+f.Total.Files, directories+f.Total.Directories, bytes+f.Total.Bytes
	}
	if a.json {
		for _, s := range shown {
			err := a.print(purgedSnapshotJSON{
				"snapshot", c.dryRun, s.ID.String(), s.Filer.Name, s.Shard.Name, int64(s.Number), jsonTime(s.Started), s.Files, s.Directories, s.Bytes,
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := writeLines(a.out, purgedTable.lines(shown, a.width())); err != nil {
		return err
	}
	verb := "removing"
	if c.dryRun {
		verb = "would remove"
	}
	_, err := fmt.Fprintf(a.out, "%s %s, %s and %s from %s\n", verb, counted(int(files), "file"), counted(int(directories), "directory"), size(bytes), counted(snapshots, "snapshot"))
	return err
}

var purgedTable = table[*index.PurgedSnapshot]{
	{name: "ID", text: func(s *index.PurgedSnapshot) string { return s.ID.Short() }},
	{name: "STARTED", text: func(s *index.PurgedSnapshot) string { return zoned(s.Started) }, brief: func(s *index.PurgedSnapshot) string { return shortTime(s.Started) }},
	{name: "FILER", text: func(s *index.PurgedSnapshot) string { return display(s.Filer.Name) }, cut: truncate, leave: 2},
	{name: "SHARD", text: func(s *index.PurgedSnapshot) string { return display(s.Shard.Name) }, cut: tail, useful: usefulPath, leave: 3},
	{name: "NUMBER", text: func(s *index.PurgedSnapshot) string { return fmt.Sprint(s.Number) }, right: true, leave: 1},
	{name: "FILES", text: func(s *index.PurgedSnapshot) string { return fmt.Sprint(s.Files) }, right: true},
	{name: "DIRECTORIES", text: func(s *index.PurgedSnapshot) string { return fmt.Sprint(s.Directories) }, right: true},
	{name: "BYTES", text: func(s *index.PurgedSnapshot) string { return size(s.Bytes) }, right: true},
}

// purgedJSON is the result of purge for a shard. The names are fixed.
type purgedJSON struct {
	Type           string  `json:"type"` // purge
	ID             string  `json:"id"`   // in the log
	Filer          string  `json:"filer"`
	Shard          string  `json:"shard"`
	Complete       bool    `json:"complete"`
	Snapshots      int     `json:"snapshots"` // that were changed
	Files          int64   `json:"files"`     // that were removed, and so on
	Directories    int64   `json:"directories"`
	Bytes          int64   `json:"bytes"`
	Chunks         int64   `json:"chunks"`        // of their content
	SharedChunks   int64   `json:"shared_chunks"` // of these, needed by other files
	DeletedObjects int     `json:"deleted_objects"`
	WrittenObjects int     `json:"written_objects"` // with what is needed of these
	AmendedRecords int     `json:"amended_records"`
	LeftObjects    int     `json:"left_objects"`    // that could not be replaced: run bctl purge --resume
	LeftPlaces     int64   `json:"left_places"`     // of chunks that nothing needs, in the index
	PresentObjects int64   `json:"present_objects"` // of the deleted ones, still in the store
	LockedUntil    *string `json:"locked_until"`    // when the last lock ends of what is left; null: nothing of it is locked
	NamedRows      int64   `json:"named_rows"`      // of the index, with the name
	NamedObjects   int     `json:"named_objects"`   // of the journal, with the name
	ReadObjects    int     `json:"read_objects"`    // of the journal, to find that
	ForeignCopies  int     `json:"foreign_copies"`  // of another index, which stay
	Orphans        int64   `json:"orphans"`         // that were deleted
	ElapsedSeconds float64 `json:"elapsed_seconds"`
}

// report prints what was done, and the proof.
func (c *purgeCommand) report(p *index.Purge, s *index.ShardStatus, proof *embedded.PurgeProof, elapsed time.Duration) error {
	a, t := c.app, &p.Total
	if a.json {
		err := a.print(purgedJSON{
			"purge", p.ID.String(), s.Filer.Name, s.Name, proof.Complete, t.Snapshots, t.Files, t.Directories, t.Bytes, proof.Chunks, proof.Shared,
			proof.Objects, proof.Sealed, proof.Amended, proof.Left, proof.Places, proof.Present, jsonTime(proof.LockedUntil), proof.Rows, proof.Journal, proof.Read,
			proof.OtherCopies, proof.Orphans.Orphans, elapsed.Seconds(),
		})
		if err != nil {
			return err
		}
	} else if err := c.reportText(p, s, proof, elapsed); err != nil {
		return err
	}
	c.noteCopies(proof)
	if proof.Complete {
		c.noteNext(p, s)
		return nil
	}
	return incomplete(proof, "bctl purge --resume")
}

func (c *purgeCommand) reportText(p *index.Purge, s *index.ShardStatus, proof *embedded.PurgeProof, elapsed time.Duration) error {
	text := fmt.Sprintf("purge %s of %s %s: removed from %s in %.1f s\n", p.ID, display(s.Filer.Name), display(s.Name), counted(p.Total.Snapshots, "snapshot"), elapsed.Seconds())
	if proof.Complete {
		text += fmt.Sprintf("content: %s, of which other files need %d; the rest is neither in the index nor in the store (deleted: %s)\n",
			counted(int(proof.Chunks), "chunk"), proof.Shared, counted(proof.Objects, "object"))
		name := "name: not in the index"
		switch {
		case proof.Read > 0:
			name += fmt.Sprintf(", and not in the shard's journal (read: %s)", counted(proof.Read, "object"))
		case p.Path == "":
			name += ", and not in the shard's journal, as an earlier run has found"
		default:
			name += "; the shard's journal was written again from the index, but not read, because there is no identity"
		}
		text += name + "\n"
	}
	_, err := fmt.Fprint(c.app.out, text)
	return err
}

// incomplete says what is left, and with which command to continue.
func incomplete(proof *embedded.PurgeProof, command string) error {
	var left []string
	if proof.Left > 0 {
		left = append(left, fmt.Sprintf("%s with removed content (%v)", counted(proof.Left, "object"), proof.Why))
	}
	if proof.Places > 0 {
		left = append(left, fmt.Sprintf("%s of removed content in the index", counted(int(proof.Places), "place")))
	}
	if proof.Present > 0 {
		left = append(left, fmt.Sprintf("%s that should be deleted", counted(int(proof.Present), "object")))
	}
	if n := proof.Rows + int64(proof.Journal); n > 0 {
		left = append(left, countedRows(n)+" with the name, in the index or its journal")
	}
	next := "Remove the cause, and then run " + command
	if !proof.LockedUntil.IsZero() {
		next = fmt.Sprintf("The store's object lock keeps some of it until %s. Remove other causes, and run %s after that", zoned(proof.LockedUntil), command)
	}
	return errors.New("the purge is not complete; it has left " + strings.Join(left, ", and ") + ". " + next)
}

func countedRows(n int64) string {
	if n == 1 {
		return "1 row or object"
	}
	return fmt.Sprintf("%d rows or objects", n)
}

func (c *purgeCommand) noteCopies(proof *embedded.PurgeProof) {
	if proof.OtherCopies > 0 {
		c.app.note("the store has %s of another index, which may have the name, and which purge does not delete: look below index/ in the store", counted(proof.OtherCopies, "copy"))
	}
}

// noteNext says what the next backup does.
func (c *purgeCommand) noteNext(p *index.Purge, s *index.ShardStatus) {
	path := p.Path
	if path == "" || s.Retired { // a purge that was resumed late has forgotten it
		return
	}
	command := "bctl shard set " + argument(s.Filer.Name) + " " + argument(s.Name)
	for _, pattern := range append(append([]string{}, s.Selection.Exclude...), "/"+escapePattern(path)) {
		command += " --exclude " + argument(pattern)
	}
	c.app.note("if the path still exists on the filer, the next backup takes it again. To exclude it: %s", command)
}
