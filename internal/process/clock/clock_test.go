package clock

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/telemetry"
)

// A service leads while its clock is close to that of the index. When it is not, it stops leading
// once its term ends, and logs that; it leads again when the clock is right.
func TestClockThatIsOffDoesNotLead(t *testing.T) {
	ctx := t.Context()
	idx, err := sqliteindex.Open(ctx, filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer idx.Close()
	if _, _, err := idx.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	var ahead time.Duration
	var log bytes.Buffer
	metrics := telemetry.NewMetrics("committer", "v1")
	w := New(idx, func() time.Time { return time.Now().Add(ahead) }, slog.New(slog.NewTextHandler(&log, nil)), metrics.Clock())
	leads := w.Index()
	for _, test := range []struct {
		ahead time.Duration
		leads bool
		says  string
	}{
		{0, true, ""},
		{5 * time.Minute, false, "its clock differs"},
		{5 * time.Minute, false, ""}, // logged once
		{0, true, "agrees with the database again"},
		{-365 * 24 * time.Hour, false, "its clock differs"},
		{365 * 24 * time.Hour, false, ""},
		{10 * time.Second, true, "agrees with the database again"},
	} {
		ahead = test.ahead
		log.Reset()
		_, ok, err := leads.Lead(ctx, "keeper", "me", time.Hour)
		if err != nil || ok != test.leads {
			t.Errorf("%v ahead: leads %t, %v", test.ahead, ok, err)
		}
		if got := log.String(); (test.says == "") != (got == "") || !strings.Contains(got, test.says) {
			t.Errorf("%v ahead: logged %q, want %q", test.ahead, got, test.says)
		}
		if err := w.Check(ctx); errors.Is(err, ErrOff) == test.leads {
			t.Errorf("%v ahead: %v", test.ahead, err)
		}
	}
	ahead = 5 * time.Minute
	if err := w.Check(ctx); err == nil || !strings.Contains(err.Error(), "ahead of that of the index") || !strings.Contains(err.Error(), "NTP") {
		t.Errorf("%v, want how far it is off, and what to do", err)
	}
	scrape := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(scrape, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
	text := scrape.Body.String()
	if !regexp.MustCompile(`(?m)^bctl_clock_ahead_seconds (300|299\.)`).MatchString(text) {
		t.Errorf("the metric is not about 300:\n%s", text)
	}
}
