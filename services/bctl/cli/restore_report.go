package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore"
)

// summary prints what a restore did. Its fields never change their meaning.
func (x *restoring) summary(unmatched []string) error {
	sum := &x.sum
	if !x.app.json {
		return x.summaryText()
	}
	state := "restored"
	if sum.Problems > 0 {
		state = "incomplete"
	}
	return x.summaryJSON(state, "", unmatched)
}

// summaryJSON prints the summary as an object. reason says why a restore failed.
func (x *restoring) summaryJSON(state, reason string, unmatched []string) error {
	sum, c := &x.sum, x.restoreCommand
	users, groups := c.ownerMap.unknown()
	return c.app.print(struct {
		Type           string   `json:"type"`
		Snapshot       string   `json:"snapshot,omitempty"`
		Filer          string   `json:"filer"`
		Shard          string   `json:"shard"`
		State          string   `json:"state"` // restored, incomplete, failed or no_snapshot
		Reason         string   `json:"reason,omitempty"`
		Target         string   `json:"target"`
		DryRun         bool     `json:"dry_run"`
		Files          int64    `json:"files"`
		Links          int64    `json:"links"`
		Directories    int64    `json:"directories"`
		Kept           int64    `json:"kept"`
		KeptDirs       int64    `json:"kept_directories"`
		Attributes     int64    `json:"attributes"`
		Deleted        int64    `json:"deleted"`
		Bytes          int64    `json:"bytes"`
		KeptBytes      int64    `json:"kept_bytes"`
		Errors         int64    `json:"errors"`
		Flawed         int64    `json:"flawed"`
		ElapsedSeconds float64  `json:"elapsed_seconds"`
		Unmatched      []string `json:"unmatched_patterns,omitempty"`
		UnknownUsers   []string `json:"unknown_users,omitempty"`
		UnknownGroups  []string `json:"unknown_groups,omitempty"`
	}{"summary", x.id(), x.snapshot.Filer.Name, x.snapshot.Shard.Name, state, reason, x.target, c.dryRun, sum.Files, sum.Links, sum.Directories, sum.Kept, sum.KeptDirs, sum.Attributes, sum.Deleted,
		sum.Bytes, sum.KeptBytes, sum.Problems, sum.Flawed, x.elapsed.Seconds(), unmatched, users, groups})
}

// summaryText prints what a person asks, with errors first, and leaves out what is zero.
func (x *restoring) summaryText() error {
	sum, c := &x.sum, x.restoreCommand
	var b strings.Builder
	if x.label != "" {
		fmt.Fprintf(&b, "%sto %s\n", x.label, display(x.target))
	}
	if sum.Problems > 0 {
		b.WriteString(counted(sum.Problems, "error"))
		switch sum.Flawed {
		case sum.Problems:
			b.WriteString(", recorded when the snapshot was taken; another snapshot may have more")
		case 0:
			b.WriteString(": not everything was restored (docs/restore.md explains the errors)")
		default:
			fmt.Fprintf(&b, ", of which %s recorded when the snapshot was taken; another\nsnapshot may have more", wasWere(sum.Flawed))
		}
		b.WriteString("\n")
	}
	verb := "restored"
	if c.dryRun {
		verb = "would restore"
	}
	fmt.Fprintf(&b, "%s %s", verb, counted(sum.Files, "file"))
	if sum.Links > 0 {
		b.WriteString(", " + counted(sum.Links, "hard link"))
	}
	if sum.Directories > 0 {
		b.WriteString(", " + counted(sum.Directories, "directory"))
	}
	fmt.Fprintf(&b, " (%s) from snapshot %s in %.1f s\n", size(sum.Bytes), x.snapshot.ID.Short(), x.elapsed.Seconds())
	if rest := c.rest(sum); len(rest) > 0 {
		b.WriteString(strings.Join(rest, ", ") + "\n")
	}
	_, err := io.WriteString(c.app.out, b.String())
	return err
}

// id returns the id of the snapshot, or "" if there is none.
func (x *restoring) id() string {
	if x.snapshot.ID == (backup.SnapshotID{}) {
		return ""
	}
	return x.snapshot.ID.String()
}

// rest returns what a restore did besides restoring.
func (c *restoreCommand) rest(sum *restore.Summary) (parts []string) {
	if sum.Kept+sum.KeptDirs > 0 {
		text := "skipped " + counted(sum.Kept, "file")
		if sum.KeptDirs > 0 {
			text += " and " + counted(sum.KeptDirs, "directory")
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", text, size(sum.KeptBytes)))
	}
	if sum.Attributes > 0 {
		parts = append(parts, "set attributes of "+humanize.Comma(sum.Attributes))
	}
	if c.del || sum.Deleted > 0 {
		parts = append(parts, "deleted "+humanize.Comma(sum.Deleted))
	}
	return parts
}

func wasWere(n int64) string {
	if n == 1 {
		return "1 was"
	}
	return humanize.Comma(n) + " were"
}
