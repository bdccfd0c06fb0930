package commit

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

// Every kind of result, with every outcome, has a metric. One that had none ended each committer
// that received such a result.
func TestEveryResultIsCounted(t *testing.T) {
	metrics := telemetry.NewMetrics("committer", "v1")
	m := metrics.Committer()
	outcomes := []index.Outcome{
		{}, {Failed: true}, {Late: true}, {Err: index.ErrPackUnknown}, {Err: index.ErrListUnknown}, {Err: index.ErrPartMissing}, {Err: index.ErrCondemned},
		{Err: backup.ErrInvalid}, {Err: errors.New("any")},
	}
	for _, r := range []flow.Received{
		{Slice: &backup.SliceWalked{}}, {Pack: &backup.PackStored{}}, {Lists: &backup.ListsStored{}}, {Batch: &backup.BatchStored{}},
	} {
		for i := range outcomes {
			counter := fmt.Sprintf(`bctl_results_total{outcome=%q,result=%q}`, outcomeOf(&outcomes[i]), describe(r).kind)
			before := sample(t, metrics, counter)
			m.Result(describe(r).kind, outcomeOf(&outcomes[i]))
			if after := sample(t, metrics, counter); after != before+1 {
				t.Errorf("%s is %v, was %v", counter, after, before)
			}
		}
	}
	for _, work := range []string{"task", "batch"} {
		m.HandedOut(work, 1)
		m.Died(work)
	}
	for _, state := range []backup.State{backup.Committed, backup.Failed} {
		for _, snap := range []backup.Snapshot{{State: state}, {State: state, Cancel: "by an operator"}} {
			m.Ended(howEnded(&snap, "reason"))
			m.Ended(howEnded(&snap, snap.Cancel))
		}
	}
}

// sample returns the value of a metric, or -1 if there is none.
func sample(t *testing.T, m *telemetry.Metrics, name string) float64 {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return -1
}
