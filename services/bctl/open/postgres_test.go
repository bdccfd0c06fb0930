package open

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
)

// The TLS files become parts of the URL. Parts that the URL already has are kept.
func TestPostgresURL(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	escaped := func(path string) string { return strings.ReplaceAll(path, "/", "%2F") }
	ca, cert, key := file("ca.pem"), file("cert.pem"), file("key.pem")
	got, err := postgresURL(&config.Index{URL: "postgres://bctl_walker@127.0.0.1:5432/bctl", CAFile: ca, CertFile: cert, KeyFile: key})
	want := "postgres://bctl_walker@127.0.0.1:5432/bctl?sslcert=" + escaped(cert) + "&sslkey=" + escaped(key) + "&sslmode=verify-full&sslrootcert=" + escaped(ca)
	if err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	for name, index := range map[string]config.Index{
		"a certificate without its key": {URL: "postgres://a@b/c", CertFile: cert},
		"a file that is not there":      {URL: "postgres://a@b/c", CAFile: "/nowhere"},
	} {
		if _, err := postgresURL(&index); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := postgresURL(&config.Index{URL: "postgres://a@b/c?sslmode=require", CAFile: ca}); err != nil || !strings.Contains(got, "sslmode=require") {
		t.Error(got, err)
	}
	if got, err := postgresURL(&config.Index{URL: "postgres://a@b/c", CAFile: ca, Password: "p"}); err != nil || !strings.Contains(got, "sslmode=verify-full") || !strings.Contains(got, "a:p@b") {
		t.Error(got, err)
	}
}
