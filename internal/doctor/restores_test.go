package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index"
)

// A restore that waits, or whose end nobody has seen, is reported.
func TestRestoresThatWait(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	old, fresh := now.Add(-time.Hour), now.Add(-time.Second)
	for name, test := range map[string]struct {
		restore index.Restore
		state   Status
		want    string
	}{
		"runs":         {index.Restore{Started: old, Tasks: 4, Open: 2, Working: 2, Waiting: 1}, OK, "1 restore by restorers"},
		"has begun":    {index.Restore{Started: fresh, Tasks: 4, Open: 4}, OK, "1 restore by restorers"},
		"no restorers": {index.Restore{Started: old, Tasks: 4, Open: 4, Target: "/srv", Site: "oslo"}, Warning, `no restorer at site oslo works on the restore to "/srv"`},
		"no keys":      {index.Restore{Started: old, Tasks: 4, Open: 4, Working: 2, Waiting: 2}, Warning, "wait for keys"},
		"has ended":    {index.Restore{Started: fresh, Tasks: 4}, Warning, "nobody has read its result"},
		"has failed":   {index.Restore{Started: fresh, Tasks: 4, Open: 4, Failed: "no space"}, Warning, "has failed: no space"},
		"is not there": {index.Restore{}, OK, "no restore by restorers runs"},
	} {
		t.Run(name, func(t *testing.T) {
			all := []index.Restore{test.restore}
			if name == "is not there" {
				all = nil
			}
			if f := judgeRestores(all, now); f.Status != test.state || !strings.Contains(f.Seen, test.want) {
				t.Errorf("%+v, want %v %q", f, test.state, test.want)
			}
		})
	}
}
