package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/repair"
)

// conclude prints what was repaired.
func (c *repairCommand) conclude(s *repair.Summary) error {
	files := int64(0)
	for _, f := range s.Report.Findings {
		if f.Damage == nil || !f.Damage.Unsure {
			files += f.Files
		}
	}
	object := struct {
		Type        string `json:"type"`        // repair
		FromParity  int    `json:"from_parity"` // objects that were put back
		ParityBytes int64  `json:"from_parity_bytes"`
		FromMirror  int    `json:"from_mirror"`
		Cut         int    `json:"cut"`   // objects that had other bytes at their end
		Packs       int    `json:"packs"` // that were dropped
		Partial     int    `json:"partial_packs"`
		Bytes       int64  `json:"bytes"` // of these packs
		Pages       int    `json:"pages"` // whose files are read again
		Journal     int    `json:"journal_objects"`
		Files       int64  `json:"files"`               // that stay damaged until they are stored again
		EndedGroups int    `json:"parity_groups_ended"` // that could not be put back, or were made of damaged bytes
		Left        int    `json:"left"`                // findings that are not repaired
		// The reasons of damaged objects that were kept, by name: the store has locked them, and
		// mirror or parity has them; locked; away: the mirror, which may have them.
		Kept           map[string]repair.Reason `json:"kept"`
		ElapsedSeconds float64                  `json:"elapsed_seconds"`
	}{
		"repair", s.FromParity, s.FromParityBytes, s.FromMirror, s.Cut, s.Packs, s.Partial, s.Bytes, s.Pages, s.Journal, files, s.EndedGroups + s.MisledGroups, s.Left, s.Kept, time.Since(c.started).Seconds(),
	}
	if err := c.app.result(object, "%s", repairedText(s, files)); err != nil || s.Left == 0 {
		return err
	}
	return fmt.Errorf("%s cannot be repaired: do what is written there", counted(s.Left, "finding"))
}

// repairedText describes what was repaired.
func repairedText(s *repair.Summary, files int64) string {
	var parts []string
	part := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if s.FromParity > 0 {
		part("put back %s from parity (%s)", counted(s.FromParity, "object"), size(s.FromParityBytes))
	}
	if s.FromMirror > 0 {
		part("put back %s from the mirror", counted(s.FromMirror, "object"))
	}
	if s.Cut > 0 {
		part("cut %s", counted(s.Cut, "object"))
	}
	switch {
	case s.Partial > 0:
		part("dropped %s and parts of %s", counted(s.Packs, "lost pack"), counted(s.Partial, "pack"))
	case s.Packs > 0 || len(parts) == 0:
		part("dropped %s", counted(s.Packs, "lost pack"))
	}
	if s.Journal > 0 {
		part("%s of the journal are written again", counted(s.Journal, "object"))
	}
	text := strings.Join(parts, "; ") + "\n"
	if s.EndedGroups > 0 {
		text += fmt.Sprintf("deleted the parity of %s that cannot be put back: bctl prune --parity makes it again\n", counted(s.EndedGroups, "group"))
	}
	text += misledText(s.MisledGroups) + keptText(s)
	switch {
	case files > 0 && s.FromParity+s.FromMirror > 0:
		text += fmt.Sprintf("damaged until backups have stored them again: %s; back up, and run bctl check, which lists them\n", counted(files, "file"))
	case files > 0:
		text += fmt.Sprintf("damaged until backups have stored them again: %s, as listed above; back up, and run bctl check\n", counted(files, "file"))
	}
	return text
}

// keptText says why damaged objects stay, and what to do.
func keptText(s *repair.Summary) (text string) {
	for _, name := range slices.Sorted(maps.Keys(s.Kept)) {
		text += name + ": " + keptBecause[s.Kept[name]] + "\n"
	}
	if s.MirrorAway != nil {
		text += fmt.Sprintf("the mirror cannot be read, and what it may have was not dropped: %v\n"+
			"  next: bctl repair, when it can be read. If it is lost for good, remove mirror.url first\n", s.MirrorAway)
	}
	return text
}

const whenUnlocked = "  next: bctl repair, when the lock has ended, or when an administrator of the store has deleted the damaged version"

var keptBecause = map[repair.Reason]string{
	repair.LockedInMirror: "it is damaged, and the store has locked it. The mirror has it whole: restores can read there (--store)\n" + whenUnlocked,
	repair.LockedInParity: "it is damaged, and the store has locked it. Parity has it whole\n" + whenUnlocked,
	repair.Locked:         "it is damaged, and the store has locked it. The next backup of the shard writes what later snapshots need of it\n" + whenUnlocked,
	repair.MirrorIsAway:   "it is damaged, and stays as it is, because the mirror may have it",
}
