package serve

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/telemetry"
)

// install creates an installation and returns its directory.
func install(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fleet")
	err := installation.Init(dir, installation.Plan{
		Name: "bctl", NATS: []string{"127.0.0.1"}, Sites: []string{"default"}, Days: 1,
		Postgres: installation.Database{Host: "127.0.0.1", Port: 5432, Name: "bctl"},
		Store:    installation.Store{URL: "s3://bctl/repo", Kind: installation.AWS},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// settings returns the installation's settings for a service.
func settings(t *testing.T, dir, identity string, env map[string]string) *config.Config {
	t.Helper()
	c, err := config.Load(config.Sources{
		File: filepath.Join(dir, identity, "bctl.yaml"),
		Env:  func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// httpClient trusts the installation, and uses the certificate in folder; "": none.
func httpClient(t *testing.T, dir, folder string) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(dir, "ca", "ca.pem"))
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	// The service's certificate has the service's name, and not that of the machine.
	c := &tls.Config{RootCAs: pool, ServerName: "walker.bctl", MinVersion: tls.VersionTLS12}
	if folder != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, folder, "cert.pem"), filepath.Join(dir, folder, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}, Timeout: time.Minute}
}

// answer returns the status of a GET; 0: no response.
func answer(t *testing.T, c *http.Client, url string) (status int, of *tls.ConnectionState) {
	t.Helper()
	r, err := c.Get(url)
	if err != nil {
		return 0, nil
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.TLS
}

// The expiry of each certificate that a service uses is exposed, per use.
func TestEndsOfCertificatesAreTold(t *testing.T) {
	c := settings(t, install(t), "walker@default", map[string]string{"BCTL_HTTP_LISTEN": "127.0.0.1:0", "BCTL_NATS_CERT_FILE": "nothing.pem"})
	w, err := monitor(t.Context(), c, "walker", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	answer := httptest.NewRecorder()
	w.metrics.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	told := map[string]float64{}
	for _, found := range regexp.MustCompile(`(?m)^bctl_certificate_expires_timestamp_seconds\{use="(\w+)"\} (\S+)$`).FindAllStringSubmatch(answer.Body.String(), -1) {
		seconds, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		told[found[1]] = seconds
	}
	day := float64(time.Now().Add(24 * time.Hour).Unix())
	for _, use := range []string{"index", "http"} {
		if told[use] < day-3600 || told[use] > day+3600 {
			t.Errorf("the certificate of %s ends at %v, not in a day", use, told[use])
		}
	}
	for _, use := range []string{"nats", "store"} { // not used; zero
		if seconds, is := told[use]; !is || seconds != 0 {
			t.Errorf("of %s is told %v (%v), not 0", use, seconds, is)
		}
	}
}

var watchedAt = regexp.MustCompile(`address=(\S+)`)

// Only Prometheus can read what an installation's walker serves, except for its health, and only
// over TLS.
func TestWhoMayWatch(t *testing.T) {
	dir := install(t)
	var log bytes.Buffer
	c := settings(t, dir, "walker@default", map[string]string{"BCTL_HTTP_LISTEN": "127.0.0.1:0", "BCTL_HTTP_PPROF": "true"})
	w, err := monitor(t.Context(), c, "walker", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	address := watchedAt.FindStringSubmatch(log.String())[1]
	for _, test := range []struct {
		folder, path string
		want         int
	}{
		{"prometheus", "/metrics", http.StatusOK},
		{"prometheus", "/debug/pprof/", http.StatusOK},
		{"prometheus", "/nothing", http.StatusNotFound},
		{"operator", "/metrics", http.StatusForbidden},
		{"walker@default", "/debug/pprof/", http.StatusForbidden},
		{"", "/metrics", http.StatusUnauthorized},
		{"", "/debug/pprof/cmdline", http.StatusUnauthorized},
		{"", "/healthz", http.StatusOK},
		{"operator", "/healthz", http.StatusOK},
	} {
		if got, _ := answer(t, httpClient(t, dir, test.folder), "https://"+address+test.path); got != test.want {
			t.Errorf("%s with the certificate of %q: %d, want %d", test.path, test.folder, got, test.want)
		}
	}
	other := install(t)
	stranger := httpClient(t, dir, "")
	pair, err := tls.LoadX509KeyPair(filepath.Join(other, "prometheus", "cert.pem"), filepath.Join(other, "prometheus", "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	stranger.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{pair}
	if got, _ := answer(t, stranger, "https://"+address+"/metrics"); got == http.StatusOK {
		t.Error("a certificate of another authority is good enough")
	}
	if got, _ := answer(t, http.DefaultClient, "http://"+address+"/healthz"); got == http.StatusOK {
		t.Error("something is served without TLS")
	}

	// A rotated certificate is used from the next connection on.
	_, before := answer(t, httpClient(t, dir, ""), "https://"+address+"/healthz")
	rotate(t, dir, "walker@default")
	_, after := answer(t, httpClient(t, dir, ""), "https://"+address+"/healthz")
	if before == nil || after == nil || before.PeerCertificates[0].Equal(after.PeerCertificates[0]) {
		t.Error("the certificate is still the old one")
	}
}

func rotate(t *testing.T, dir string, names ...string) {
	t.Helper()
	i, err := installation.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(i.Rotate(time.Now(), names...), i.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestListenerThatMakesNoSense(t *testing.T) {
	dir := install(t)
	for name, env := range map[string]map[string]string{
		"a certificate without its key": {"BCTL_HTTP_CERT_FILE": "cert.pem"},
		"clients without TLS":           {"BCTL_HTTP_CLIENT_CA_FILE": filepath.Join(dir, "ca", "ca.pem")},
		"names of clients without TLS":  {"BCTL_HTTP_CLIENTS": "monitor/1"},
		"a key that is not there":       {"BCTL_HTTP_CERT_FILE": filepath.Join(dir, "postgres", "server.pem"), "BCTL_HTTP_KEY_FILE": "/nowhere"},
	} {
		env["BCTL_HTTP_LISTEN"] = "127.0.0.1:0"
		c, err := config.Load(config.Sources{Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := monitor(t.Context(), c, "walker", slog.New(slog.DiscardHandler)); !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), "http.") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A collector that requires a client certificate gets one, and the new one after a rotation.
func TestTracesWithAClientCertificate(t *testing.T) {
	dir := install(t)
	var mu sync.Mutex
	var shown []string
	collector := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		shown = append(shown, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "nats", "127.0.0.1", "server.pem"), filepath.Join(dir, "nats", "127.0.0.1", "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	collector.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	collector.StartTLS()
	defer collector.Close()
	file := func(name string) string { return filepath.Join(dir, "walker@default", name) }
	for _, want := range []string{"walker@default/1", "walker@default/2"} {
		tracer, err := telemetry.NewTracer(t.Context(), telemetry.TraceOptions{
			URL: collector.URL, CAFile: file("ca.pem"), CertFile: file("cert.pem"), KeyFile: file("key.pem"), Percent: 100, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if want == "walker@default/2" { // after the tracer has started
			rotate(t, dir, "walker@default")
		}
		_, span := tracer.Start(t.Context(), "test", backup.SnapshotID{1})
		span.End(nil)
		if err := tracer.Close(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if len(shown) == 0 || shown[len(shown)-1] != want {
			t.Errorf("the collector saw %q, want %s", shown, want)
		}
		mu.Unlock()
	}
	if _, err := telemetry.NewTracer(t.Context(), telemetry.TraceOptions{URL: collector.URL, CertFile: "/nowhere"}); err == nil {
		t.Error("a certificate that is not there is no error")
	}
}
