package cli

import (
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/history"
)

func TestStepText(t *testing.T) {
	step := func(first int, flags backup.Flags) history.Step {
		e := &backup.Entry{Kind: backup.Directory, Flags: flags}
		return history.Step{Version: history.Version{Entry: e, First: first, Last: first}}
	}
	appeared, again := step(1, 0), step(2, 0)
	appeared.New, again.New = true, true
	changed := step(2, 0)
	changed.Differs, changed.To, changed.Gone = diff.Mode, "there", true
	for _, c := range []struct {
		s         history.Step
		hasBefore bool
		want      string
	}{
		{step(0, 0), false, "in the first of these snapshots"},
		{appeared, false, "appeared"},
		{again, true, "appeared again"},
		{changed, true, "changed: mode; moved to there"},
		{step(2, backup.AttributesUnknown), true, "vanished before it could be read"},
		{step(3, backup.AttributesUnknown|backup.Unreadable), true, "there again"},
	} {
		if text := stepText(&c.s, c.hasBefore); text != c.want {
			t.Errorf("%q; want %q", text, c.want)
		}
	}
}
