package instant

import (
	"testing"
	"testing/synctest"
	"time"
)

// The background work waits for as long as somebody waits, and not for ever.
func TestBackgroundGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{}
		waits := func() time.Duration {
			began := time.Now()
			q.giveWay(t.Context())
			return time.Since(began)
		}
		if took := waits(); took != 0 {
			t.Errorf("it waited for nobody: %v", took)
		}
		end := q.begin()
		if took := waits(); took != patience {
			t.Errorf("it waited %v for a request that takes long", took)
		}
		end()
		if took := waits(); took != quiet {
			t.Errorf("it waited %v after a request", took)
		}
		if took := waits(); took != 0 {
			t.Errorf("it waited for nobody: %v", took)
		}
	})
}
