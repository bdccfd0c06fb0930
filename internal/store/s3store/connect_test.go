package s3store

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv"
)

// A real server behind a TLS front that requires a client certificate.
func TestTLS(t *testing.T) {
	server := testenv.VersityGW(t)
	certFile, keyFile, clients := clientCertificate(t)
	front := httptest.NewUnstartedServer(newProxy(t, server.Endpoint))
	front.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	front.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail, as expected
	front.StartTLS()
	t.Cleanup(front.Close)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, caFile, "CERTIFICATE", front.Certificate().Raw)

	good := optionsFor(server)
	good.Endpoint, good.CAFile, good.ClientCertFile, good.ClientKeyFile = front.URL, caFile, certFile, keyFile
	good.RetryFor = time.Minute // a misconfiguration nevertheless fails at once
	for name, c := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"as it should be":       {func(*Options) {}, nil},
		"insecure":              {func(o *Options) { o.CAFile, o.Insecure = "", true }, nil},
		"unknown authority":     {func(o *Options) { o.CAFile = "" }, backup.ErrInvalid},
		"no client certificate": {func(o *Options) { o.ClientCertFile, o.ClientKeyFile = "", "" }, backup.ErrInvalid},
		"https of http":         {func(o *Options) { o.Endpoint = "https://" + server.Endpoint }, backup.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			c.change(&o)
			heard := newCounter()
			o.OnRetry = heard.observe
			err := open(t, o).Put(t.Context(), "packs/"+strings.ReplaceAll(name, " ", "-"), []byte("x"))
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			// The end of the connection may arrive before the server's alert.
			if heard.retries.Load() != 0 && name != "no client certificate" {
				t.Errorf("%d retries", heard.retries.Load())
			}
		})
	}
}

// The answers of real servers to wrong credentials, and to a bucket that does not exist.
func TestRefusals(t *testing.T) {
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		// A server that has just started may answer 503 until it has loaded its users.
		first := optionsFor(server)
		first.AccessKey, first.RetryFor = "unknown-key", time.Minute
		if _, err := open(t, first).Get(t.Context(), "repository", 10); !errors.Is(err, fs.ErrPermission) {
			t.Fatalf("got %v, want %v", err, fs.ErrPermission)
		}
		for name, c := range map[string]struct {
			change func(*Options)
			want   error
		}{
			"unknown key":  {func(o *Options) { o.AccessKey = "unknown-key" }, fs.ErrPermission},
			"wrong secret": {func(o *Options) { o.SecretKey = "SECRET-of-somebody-else" }, fs.ErrPermission},
			"wrong bucket": {func(o *Options) { o.Bucket = "no-such-bucket" }, backup.ErrNoRepository},
		} {
			t.Run(name, func(t *testing.T) {
				o := optionsFor(server)
				o.RetryFor = time.Minute
				c.change(&o)
				heard := newCounter()
				o.OnRetry = heard.observe
				s := open(t, o)
				_, getErr := s.Get(t.Context(), "repository", 10)
				for _, err := range []error{getErr, s.Put(t.Context(), "repository", []byte("x"))} {
					if !errors.Is(err, c.want) || heard.retries.Load() != 0 {
						t.Errorf("got %v after %d retries, want %v", err, heard.retries.Load(), c.want)
					}
					if strings.Contains(err.Error(), o.SecretKey) {
						t.Errorf("%v shows the secret", err)
					}
				}
			})
		}
	})
}

// clientCertificate creates a self-signed certificate.
func clientCertificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePEM(t, certFile, "CERTIFICATE", certificate)
	writePEM(t, keyFile, "PRIVATE KEY", private)
	parsed, err := x509.ParseCertificate(certificate)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return certFile, keyFile, pool
}

func writePEM(t *testing.T, name, kind string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
		t.Fatal(err)
	}
}
