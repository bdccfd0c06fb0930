package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/e2e/fleet"
)

// certificate writes a client's certificate into a folder, beside the installation's authority, and
// returns whose it is.
func certificate(t *testing.T, f *fleet.Fleet, name string, ends time.Time, issuer *x509.Certificate, issuerKey any) stolen {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "walker@default")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: ends.Add(-48 * time.Hour), NotAfter: ends, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(f.Installation, "ca", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	err = os.Mkdir(folder, 0o700)
	for file, data := range map[string][]byte{
		"cert.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"key.pem":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "ca.pem": ca,
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, file), data, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return stolen{f, folder, "walker"}
}

// theAuthority is the installation's own, with its key.
func theAuthority(t *testing.T, f *fleet.Fleet) (*x509.Certificate, any) {
	t.Helper()
	block := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(f.Installation, "ca", name))
		if err != nil {
			t.Fatal(err)
		}
		decoded, _ := pem.Decode(text)
		if decoded == nil {
			t.Fatalf("%s is not PEM", name)
		}
		return decoded.Bytes
	}
	ca, err := x509.ParseCertificate(block("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(block("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

// anotherAuthority calls itself what the installation's does.
func anotherAuthority(t *testing.T, like *x509.Certificate) (*x509.Certificate, any) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: like.Subject, NotBefore: like.NotBefore, NotAfter: like.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: like.SubjectKeyId,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

// notLetIn shows that an identity gets into neither NATS, nor Postgres, nor the metrics of a
// service.
func notLetIn(t *testing.T, s stolen, metrics string) {
	t.Helper()
	t.Run("NATS", func(t *testing.T) {
		nc, err := s.connect()
		if err == nil {
			nc.Close()
			t.Error("it was let in")
		}
		t.Log(err)
	})
	t.Run("Postgres", func(t *testing.T) {
		err := execute(s.dsn("walker"), "SELECT 1")
		if err == nil {
			t.Error("it was let in")
		}
		t.Log(err)
	})
	t.Run("metrics", func(t *testing.T) {
		status, err := scrape(t, s.Fleet, metrics, s.file("cert.pem"), s.file("key.pem"))
		if err == nil && status == http.StatusOK {
			t.Error("it was answered")
		}
		t.Log(status, err)
	})
}

var served = regexp.MustCompile(`HTTP server for metrics and health started.* address=(\S+)`)

// metricsOf is where a service is watched, as it has logged.
func metricsOf(t *testing.T, s *fleet.Service) string {
	t.Helper()
	log, err := os.ReadFile(s.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	found := served.FindSubmatch(log)
	if found == nil {
		t.Fatalf("it does not say where it is watched:\n%s", log)
	}
	return string(found[1])
}

// scrape asks a service for its metrics, with a certificate if there is one.
func scrape(t *testing.T, f *fleet.Fleet, address, cert, key string) (status int, err error) {
	t.Helper()
	pool, err := authority(f)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, ServerName: "walker.bctl"}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		// It is shown even to a server that says it wants another authority's.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := client.Get("https://" + address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// strangers have no credential, one that does not count, or no TLS.
func strangers(t *testing.T, f *fleet.Fleet, pack string) {
	metrics := metricsOf(t, f.Walkers[0])
	walker := steal(f, "walker@default")
	host, port := f.Postgres.Address()
	nodes := strings.ReplaceAll(f.NATSURL(), "tls://", "")
	plain := func(user string) string {
		return fmt.Sprintf("postgres://bctl_%s@%s:%d/bctl?sslmode=disable", user, host, port)
	}
	t.Run("the walker's own certificate is let in", func(t *testing.T) { // so that what follows is refused for its reason
		if err := errors.Join(walker.publish("bctl.v1.progress")(), walker.sql("SELECT 1")()); err != nil {
			t.Error(err)
		}
	})
	t.Run("without a certificate", func(t *testing.T) {
		t.Run("NATS", func(t *testing.T) {
			if nc, err := nats.Connect(f.NATSURL(), nats.RootCAs(walker.file("ca.pem")), nats.NoReconnect()); err == nil {
				nc.Close()
				t.Error("it was let in")
			}
		})
		t.Run("Postgres", func(t *testing.T) {
			for _, role := range []string{"walker", "operator", "admin"} {
				if err := execute(fmt.Sprintf("postgres://bctl_%s@%s:%d/bctl?sslmode=require", role, host, port), "SELECT 1"); !errors.Is(err, errRefused) {
					t.Errorf("%s: %v", role, err)
				}
			}
		})
		t.Run("metrics", func(t *testing.T) {
			if status, err := scrape(t, f, metrics, "", ""); err != nil || status != http.StatusUnauthorized {
				t.Errorf("%d, %v", status, err)
			}
		})
		t.Run("store", func(t *testing.T) {
			client, err := storeClient(f, credentials.NewStaticV4("", "", ""), true)
			if err != nil {
				t.Fatal(err)
			}
			for _, do := range []func() error{
				func() error { return read(pack)(t.Context(), client, f.S3.Bucket) }, func() error { return put("packs/x")(t.Context(), client, f.S3.Bucket) },
				func() error { return remove(pack)(t.Context(), client, f.S3.Bucket) }, func() error { return list(t.Context(), client, f.S3.Bucket) },
			} {
				if err := refusedByStore(do()); !errors.Is(err, errRefused) {
					t.Errorf("it was not refused: %v", err)
				}
			}
		})
	})
	t.Run("another role's certificate at the metrics", func(t *testing.T) {
		if status, err := scrape(t, f, metrics, walker.file("cert.pem"), walker.file("key.pem")); err != nil || status != http.StatusForbidden {
			t.Errorf("%d, %v", status, err)
		}
		monitor := filepath.Join(f.Installation, "prometheus")
		if status, err := scrape(t, f, metrics, filepath.Join(monitor, "cert.pem"), filepath.Join(monitor, "key.pem")); err != nil || status != http.StatusOK {
			t.Errorf("Prometheus: %d, %v", status, err)
		}
	})
	t.Run("without TLS", func(t *testing.T) {
		t.Run("NATS", func(t *testing.T) { plainNATS(t, strings.Split(nodes, ",")[0]) })
		t.Run("Postgres", func(t *testing.T) {
			for _, role := range []string{"walker", "reader", "committer", "operator", "admin"} {
				if err := execute(plain(role), "SELECT 1"); !errors.Is(err, errRefused) {
					t.Errorf("%s: %v", role, err)
				}
			}
		})
		t.Run("metrics", func(t *testing.T) { plainHTTP(t, "http://"+metrics+"/metrics") })
		t.Run("store", func(t *testing.T) { plainHTTP(t, "http://"+f.S3.Endpoint+"/"+f.S3.Bucket+"/repo/"+pack) })
	})
	ca, key := theAuthority(t, f)
	other, otherKey := anotherAuthority(t, ca)
	const name = "walker@default/1"
	soon := time.Now().Add(time.Hour)
	t.Run("a certificate of another authority", func(t *testing.T) { notLetIn(t, certificate(t, f, name, soon, other, otherKey), metrics) })
	t.Run("a server of another authority", func(t *testing.T) { distrust(t, f, other) })
	t.Run("an expired certificate", func(t *testing.T) {
		notLetIn(t, certificate(t, f, name, time.Now().Add(-time.Minute), ca, key), metrics)
	})
	t.Run("a name that nobody was given", func(t *testing.T) {
		notLetIn(t, certificate(t, f, "walker@default/77", soon, ca, key), metrics)
	})
}

// distrust has clients that trust another authority meet our servers: it is they who refuse, and
// they say why, without their keys.
func distrust(t *testing.T, f *fleet.Fleet, other *x509.Certificate) {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &evidence{t: t, said: map[string][]byte{}, secrets: keysOf(t, f)}
	restore := []string{"restore", "latest", "--target", filepath.Join(t.TempDir(), "x")}
	for _, env := range []string{"BCTL_INDEX_CA_FILE=" + ca, "BCTL_STORE_CA_FILE=" + ca} {
		out := f.As("operator", env, "BCTL_STORE_RETRY=1s", "BCTL_LOG_LEVEL=debug").Run(restore...)
		expect(t, out, 1, "certificate")
		e.heard(env, []byte(out.Stdout+out.Stderr))
	}
	w := f.Service("walker", "BCTL_NATS_CA_FILE="+ca)
	fleet.Await(t, "a complaint", func() bool {
		log, err := os.ReadFile(w.LogFile())
		return err == nil && strings.Contains(string(log), "connecting to NATS failed") && strings.Contains(string(log), "certificate")
	})
	w.Retire()
	log, err := os.ReadFile(w.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	e.heard("walker", log)
	e.check()
}

// plainNATS speaks NATS without TLS: it hears what the server is, and nothing else.
func plainNATS(t *testing.T, address string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("CONNECT {\"verbose\":false,\"tls_required\":false}\r\nSUB > 1\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(conn) // until it hangs up
	if strings.Contains(string(said), "PONG") || strings.Contains(string(said), "MSG") {
		t.Errorf("it was let in: %q", said)
	}
}

// plainHTTP asks a TLS server without TLS.
func plainHTTP(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return // it hung up
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		t.Errorf("it was answered: %s", response.Status)
	}
}

// retired has one walker's and one reader's credentials replaced, and the old ones retired.
func retired(t *testing.T, f *fleet.Fleet, pack string) {
	old := map[string]stolen{}
	for _, identity := range []string{"walker@paris", "reader@paris"} {
		copied := filepath.Join(t.TempDir(), identity)
		if err := os.CopyFS(copied, os.DirFS(filepath.Join(f.Machines, identity))); err != nil {
			t.Fatal(err)
		}
		role, _, _ := strings.Cut(identity, "@")
		old[identity] = stolen{f, copied, role}
	}
	allow(t,
		try{"before: NATS", old["walker@paris"].publish("bctl.v1.progress")}, try{"before: Postgres", old["walker@paris"].sql("SELECT 1")},
		try{"before: store", old["reader@paris"].s3(read(pack))})
	for _, do := range []string{"rotate", "retire"} {
		f.Must("deploy", do, f.Installation, "walker@paris", "reader@paris")
		f.ServersTakeOver()
	}
	notLetIn(t, old["walker@paris"], metricsOf(t, f.Walkers[0]))
	refuse(t, try{"store", old["reader@paris"].s3(read(pack))})
	f.Distribute()
	allow(t, try{"the next generation: NATS", steal(f, "walker@paris").publish("bctl.v1.progress")},
		try{"the next generation: Postgres", steal(f, "walker@paris").sql("SELECT 1")}, try{"the next generation: store", steal(f, "reader@paris").s3(read(pack))})
}
