package doctor_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/services/bctl/open"
)

// settings are the settings of one bctl process, by environment variable.
type settings map[string]string

func (s settings) with(more settings) settings {
	all := settings{}
	for _, from := range []settings{s, more} {
		for name, value := range from {
			all[name] = value
		}
	}
	return all
}

func (s settings) load(t testing.TB) *config.Config {
	t.Helper()
	c, err := config.Load(config.Sources{Env: func(name string) (string, bool) { v, ok := s[name]; return v, ok }})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// outcomes are the outcomes of checks, by id.
type outcomes map[string]doctor.Outcome

// examine runs the checks of some groups (all if none is given) for a role.
func examine(t testing.TB, s settings, role installation.Role, groups ...string) outcomes {
	t.Helper()
	p := open.Doctor(s.load(t))
	p.Role = role
	return run(t, &p, groups...)
}

func run(t testing.TB, p *doctor.Parts, names ...string) outcomes {
	t.Helper()
	var chosen []doctor.Group
	for _, g := range doctor.Groups(p) {
		if len(names) == 0 || strings.Contains(" "+strings.Join(names, " ")+" ", " "+g.Name+" ") {
			chosen = append(chosen, g)
		}
	}
	found := outcomes{}
	doctor.Run(t.Context(), chosen, func(o doctor.Outcome) {
		if _, twice := found[o.ID]; twice {
			t.Errorf("check %s is there twice", o.ID)
		}
		found[o.ID] = o
		if o.Status != doctor.OK && o.Status != doctor.NotTested && o.Advice == "" {
			t.Errorf("%s is a %s, and says not what to change: %s", o.ID, o.Status, o.Seen)
		}
		t.Logf("%-10s %s: %s -> %s (%v)", o.Status, o.ID, o.Seen, o.Advice, o.Took)
	})
	return found
}

// want checks the status and the texts of one outcome.
func (o outcomes) want(t testing.TB, id string, status doctor.Status, texts ...string) {
	t.Helper()
	got, is := o[id]
	if !is {
		t.Errorf("there is no check %s", id)
		return
	}
	if got.Status != status {
		t.Errorf("%s is %s, want %s: %s", id, got.Status, status, got.Seen)
	}
	for _, text := range texts {
		if !strings.Contains(got.Seen+" -> "+got.Advice, text) {
			t.Errorf("%s says not %q: %s -> %s", id, text, got.Seen, got.Advice)
		}
	}
}

// onlyFails checks that nothing except these checks fails.
func (o outcomes) onlyFails(t testing.TB, ids ...string) {
	t.Helper()
	for id, outcome := range o {
		if outcome.Status == doctor.Failure && !strings.Contains(" "+strings.Join(ids, " ")+" ", " "+id+" ") {
			t.Errorf("%s fails: %s", id, outcome.Seen)
		}
	}
}

// hides checks that no outcome contains a secret.
func (o outcomes) hides(t testing.TB, secret string) {
	t.Helper()
	for id, outcome := range o {
		if strings.Contains(outcome.Seen+outcome.Advice, secret) {
			t.Errorf("%s tells the secret: %s -> %s", id, outcome.Seen, outcome.Advice)
		}
	}
}

// initialize creates a repository, as bctl init does.
func initialize(t testing.TB, s settings) {
	t.Helper()
	c := s.load(t)
	i, err := open.Index(t.Context(), c, true)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	st, err := open.Store(t.Context(), c, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := repo.Init(t.Context(), st, i, repo.Options{
		WorkerKeyPath: c.WorkerKey, CommitterKeyPath: c.CommitterKey, IdentityPath: cmp.Or(c.Identity, filepath.Join(t.TempDir(), "identity")), Chunker: chunk.DefaultCutter, Codec: c.Codec, Now: time.Now(),
	}); err != nil {
		t.Fatal(err)
	}
}

// makeStreams creates the streams, as the keeper does.
func makeStreams(t testing.TB, o flow.Options, sites ...string) *flow.Conn {
	t.Helper()
	c, err := flow.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		try, stop := context.WithTimeout(ctx, 2*time.Second)
		_, err := c.EnsureStreams(try, append(sites, backup.DefaultSite))
		stop()
		if err == nil {
			return c
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// An authority issues certificates.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	File string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t}
	var der []byte
	a.key, der = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, year)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.File = write(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func (a *authority) sign(template *x509.Certificate, left time.Duration) (*ecdsa.PrivateKey, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(left)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, der
}

// pair returns the files of a certificate that is valid for the given time from now.
func (a *authority) pair(name string, left time.Duration) (cert, key string) {
	a.t.Helper()
	private, der := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, left)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return write(a.t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		write(a.t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

func (a *authority) server(left time.Duration) *tls.Config {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(a.pair("a server", left))
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// year is far from any expiry.
const year = 365 * 24 * time.Hour

func pool(a *authority) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}
