package policy

import (
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A filer's own floor takes precedence over that of its policy, and that over the default. The
// floor is higher near the first deadline and after it.
func TestFloor(t *testing.T) {
	now := time.Now()
	policies := []backup.Policy{{Name: "gold", Labels: map[string]string{"tier": "gold"}, Floor: 40}, {Name: "none"}}
	gold := map[string]string{"tier": "gold"}
	for _, test := range []struct {
		own      int
		labels   map[string]string
		deadline time.Duration // from now; 0: none
		limit    int
		want     int
	}{
		{0, nil, 0, 64, 8}, {0, nil, 0, 9, 2}, {0, nil, 0, 1, 1},
		{0, gold, 0, 64, 26}, {0, gold, 0, 1, 1},
		{10, gold, 0, 64, 7}, {100, nil, 0, 64, 64},
		{0, nil, 2 * NearDeadline, 64, 8}, {0, nil, NearDeadline / 2, 64, 16}, {0, nil, -time.Second, 64, 32},
		{0, gold, NearDeadline / 2, 64, 52}, {0, gold, -time.Second, 64, 64},
		{1, gold, -time.Second, 64, 3},
	} {
		filer := backup.Filer{Labels: test.labels, Limits: backup.Limits{Floor: test.own}}
		deadline := time.Time{}
		if test.deadline != 0 {
			deadline = now.Add(test.deadline)
		}
		if got := FloorOf(&filer, policies, deadline, now).Of(test.limit); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
	for percent, ok := range map[int]bool{-1: false, 0: true, 100: true, 101: false} {
		if err := CheckFloor(percent); (err == nil) != ok {
			t.Errorf("%d%%: %v", percent, err)
		}
	}
}
