package telemetry

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificate returns a PEM block with a certificate that expires at end.
func certificate(t *testing.T, end time.Time) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// The expiry of the presented certificate is exported, also after a rotation. A file that is
// missing or cannot be read gives 0, and does not affect others.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("a key")})
	chain := append(append(key, certificate(t, time.Unix(2_000_000_000, 0))...), certificate(t, time.Unix(2_100_000_000, 0))...)
	shown := write("cert.pem", chain)
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")})
	m := NewMetrics("test", "v1")
	m.Certificates(map[string]string{"nats": shown, "index": filepath.Join(dir, "nothing"), "store": "", "http": write("broken.pem", broken), "text": write("text", []byte("text"))})
	line := func(use string, value float64) string {
		return fmt.Sprintf("bctl_certificate_expires_timestamp_seconds{use=%q} %v", use, value)
	}
	wants(t, scrape(t, m), line("nats", 2e9), line("index", 0), line("store", 0), line("http", 0), line("text", 0))

	write("cert.pem", certificate(t, time.Unix(2_200_000_000, 0)))
	wants(t, scrape(t, m), line("nats", 2.2e9))
	(*Metrics)(nil).Certificates(map[string]string{"nats": shown}) // measures nothing
}
