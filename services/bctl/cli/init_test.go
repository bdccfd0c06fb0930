package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/config"
)

// A store that refuses is not asked again, and one that does not answer only for a short time. The
// error says what to do.
func TestInitWithAStoreThatRefuses(t *testing.T) {
	for _, test := range []struct {
		code   string
		status int
		want   string
	}{
		{"AccessDenied", http.StatusForbidden, "credentials that may list, read and write the bucket"},
		{"InvalidAccessKeyId", http.StatusForbidden, "set store.access_key and store.secret_key"},
		{"SignatureDoesNotMatch", http.StatusForbidden, "then run bctl init again; bctl doctor tests them"},
		{"NoSuchBucket", http.StatusNotFound, "create the bucket, or correct its name in store.url"},
	} {
		var requests atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(test.status)
			fmt.Fprintf(w, `<Error><Code>%s</Code><Message>no</Message></Error>`, test.code)
		}))
		status, _, stderr := initAt(t, server.URL)
		if status == 0 || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "will retry") || requests.Load() > 8 {
			t.Errorf("%s: status %d after %d requests, %s", test.code, status, requests.Load(), stderr)
		}
		server.Close()
	}
}

func TestInitWithAStoreThatDoesNotAnswer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	status, _, stderr := initAt(t, server.URL)
	if status == 0 || !strings.Contains(stderr, "check store.url and store.endpoint, and whether the server runs") {
		t.Errorf("status %d: %s", status, stderr)
	}
	var c config.Config
	for given, want := range map[time.Duration]time.Duration{10 * time.Minute: initRetry, time.Second: time.Second, -1: -1} {
		c.Store.Retry = given
		if got := briefly(&c).Store.Retry; got != want || c.Store.Retry != given {
			t.Errorf("retried for %v, want %v", got, want)
		}
	}
}

func initAt(t *testing.T, endpoint string) (status int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	return runHere(t, map[string]string{
		"HOME": dir, "BCTL_REPO": filepath.Join(dir, "repo"), "BCTL_STORE": "s3://bucket/x", "BCTL_STORE_ADDRESSING": "path", "BCTL_STORE_ENDPOINT": endpoint, "BCTL_STORE_REGION": "us-east-1",
		"BCTL_STORE_ACCESS_KEY": "key", "BCTL_STORE_SECRET_KEY": "secret", "BCTL_STORE_RETRY": "300ms",
	}, "init")
}
