package cli

import (
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index"
)

// What has happened in the future is shown as such: it was "0s" old.
func TestFuture(t *testing.T) {
	now := time.Date(2026, 11, 22, 16, 0, 0, 0, time.UTC)
	for at, want := range map[time.Time]string{
		now.Add(-3 * time.Hour): "3h", now.Add(5 * time.Second): "0s", now.AddDate(1, 0, 0): "FUTURE 365d",
	} {
		if got := ago(at, now); got != want {
			t.Errorf("%v: %q, want %q", at, got, want)
		}
	}
	// One of its shards lies in the future: the oldest of the others does not hide that.
	f := index.FilerStatus{Shards: 2, Oldest: now.Add(-time.Hour), Newest: now.AddDate(1, 0, 0)}
	if got := lastGood(&f, now); got != "FUTURE 365d" {
		t.Errorf("%q", got)
	}
	if got := agoText(now.AddDate(1, 0, 0), now); got != "in the FUTURE, by 365d: a clock was ahead" {
		t.Errorf("%q", got)
	}
}
