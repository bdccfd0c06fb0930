package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Status shows what each shared restore waits for.
func TestStatusShowsSharedRestores(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	started := now.Add(-100 * time.Second)
	all := sharedRestores([]index.Restore{
		{Snapshot: backup.SnapshotID{0x3f}, Site: "oslo", Target: "/srv/a", Started: started, Tasks: 20, Open: 8, Working: 3, Waiting: 1, Restorers: 2, Files: 1500, Bytes: 1 << 20, Trouble: "no space"},
		{Site: "oslo", Target: "/srv/b", Started: started, Tasks: 4, Open: 4},
		{Site: "oslo", Target: "/srv/c", Started: started, Tasks: 4, Open: 3, Working: 2, Waiting: 2, Restorers: 1},
		{Site: "oslo", Target: "/srv/d", Started: started, Tasks: 4},
		{Site: "oslo", Target: "/srv/e\x1b[31m", Started: started, Tasks: 4, Open: 2, Failed: "broken\nmore"},
		{Site: "oslo", Target: "/srv/f", Started: now.Add(-time.Second), Tasks: 4, Open: 4},
	}, now)
	s := &overview{at: now, crew: &crew{}, restores: all, lacks: lacksRestorers(all)}
	var b strings.Builder
	if err := s.write(&b, false, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"MISSING  no restorer at site oslo works on the restore to /srv/b (bctl restorer)\n\n",
		"/srv/a            oslo  3f000000  1:40  12/20+3          2  1,500  1.0 MiB  running\n",
		"  no restorer\n", "  no keys\n", "  done\n", "  failed\n",
		"/srv/a: a task will be tried again: no space\n", "/srv/c: its restorers wait for keys", "/srv/d: all tasks are done", "\"/srv/e\\x1b[31m\": failed: broken\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.Count(b.String(), "MISSING") != 1 {
		t.Errorf("a restore that has just begun, or runs, lacks something:\n%s", b.String())
	}
	for _, line := range strings.Split(s.screen(80, 24, false), "\n") {
		if len([]rune(line)) > 80 {
			t.Errorf("%q is too wide", line)
		}
	}
	text, err := json.Marshal(all[0].json())
	if err != nil || !strings.Contains(string(text), `"state":"running"`) || !strings.Contains(string(text), `"tasks":{"settled":12,"all":20,"in_hand":3,"no_keys":1},"restorers":2`) {
		t.Errorf("%s, %v", text, err)
	}
}
