package installation

import (
	"bytes"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.InMemory{M: m}.Run()) }

// read returns all files of an installation.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func certificate(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	c, err := firstCertificate([]byte(read(t, dir)[name]))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Each key is readable only by its owner, and no other file contains a secret.
func TestSecretsAreInSecretFiles(t *testing.T) {
	for _, kind := range []StoreKind{VersityGW, MinIO} {
		dir := filepath.Join(t.TempDir(), "fleet")
		plan := testPlan(dir, "nats1", "nats2", "nats3")
		plan.Store.Kind, plan.InPlace = kind, ""
		if err := Init(dir, plan, time.Now()); err != nil {
			t.Fatal(err)
		}
		i := opened(t, dir)
		c, err := i.begin(time.Now())
		if err != nil || len(c.keys) != 9 { // admin, committer, operator, pruner, scrubber, restorer, mirror, and one reader per site
			t.Fatal(len(c.keys), err)
		}
		for name, text := range read(t, dir) {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			secret := strings.Contains(text, "PRIVATE KEY")
			for _, key := range c.keys {
				secret = secret || strings.Contains(text, key.Secret)
			}
			if want := map[bool]fs.FileMode{true: 0o600, false: 0o644}[secret]; info.Mode() != want {
				t.Errorf("%s: mode %v, want %v", name, info.Mode(), want)
			}
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Error(info.Mode(), err)
		}
	}
}

func TestCertificatesAreForOneUse(t *testing.T) {
	i := made(t, "nats1", "10.0.0.2")
	for _, test := range []struct {
		file, name string
		hosts      []string
		use        []x509.ExtKeyUsage
		uris       int
	}{
		{"walker@paris/cert.pem", "walker@paris/1", []string{"walker.bctl"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, 0},
		{"operator/cert.pem", "operator/1", nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, 0},
		{"prometheus/cert.pem", "monitor/1", nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, 0},
		{"postgres/server.pem", "postgres", []string{"127.0.0.1"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, 0},
		{"nats/10.0.0.2/server.pem", "nats/10.0.0.2", []string{"10.0.0.2"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, 1},
	} {
		c := certificate(t, i.dir, test.file)
		hosts := c.DNSNames
		for _, ip := range c.IPAddresses {
			hosts = append(hosts, ip.String())
		}
		if c.Subject.CommonName != test.name || !slices.Equal(hosts, test.hosts) || !slices.Equal(c.ExtKeyUsage, test.use) || len(c.URIs) != test.uris || c.IsCA {
			t.Errorf("%s: %q for %q, %v, %v", test.file, c.Subject.CommonName, hosts, c.ExtKeyUsage, c.URIs)
		}
		if left := time.Until(c.NotAfter); left > 30*24*time.Hour || left < 29*24*time.Hour {
			t.Errorf("%s ends in %v", test.file, left)
		}
	}
}

// Both generations are accepted until the old one is retired. Identities that were not named are
// unchanged.
func TestRotateAndRetire(t *testing.T) {
	i := made(t, "nats1")
	before := read(t, i.dir)
	if err := i.Rotate(time.Now(), "reader@paris", "postgres"); err != nil {
		t.Fatal(err)
	}
	rotated := read(t, i.dir)
	users := rotated["nats/nats1/users.conf"]
	for _, user := range []string{"CN=reader@paris/1", "CN=reader@paris/2", "CN=reader@oslo/1", "CN=walker@paris/1"} {
		if !strings.Contains(users, user+`"`) || !strings.Contains(rotated["postgres/pg_ident.conf"], strings.TrimPrefix(user, "CN=")) {
			t.Errorf("%s is not accepted", user)
		}
	}
	for _, name := range []string{"reader@paris/cert.pem", "reader@paris/key.pem", "reader@paris/s3-secret-key", "postgres/server.pem"} {
		if rotated[name] == before[name] {
			t.Errorf("%s is still the old one", name)
		}
	}
	for _, name := range []string{"ca/ca.key", "reader@oslo/cert.pem", "reader@oslo/bctl.yaml", "nats/nats1/server.pem"} {
		if rotated[name] != before[name] {
			t.Errorf("%s is another one", name)
		}
	}
	if accounts := rotated["s3/iam/users.json"]; !strings.Contains(accounts, "bctl-reader-paris-1") || !strings.Contains(accounts, "bctl-reader-paris-2") {
		t.Error(accounts)
	}
	// Retiring does not need the authority.
	if err := os.Remove(filepath.Join(i.dir, "ca", "ca.key")); err != nil {
		t.Fatal(err)
	}
	if err := i.Retire(); err != nil {
		t.Fatal(err)
	}
	for name, text := range read(t, i.dir) {
		if strings.Contains(text, "reader@paris/1") || strings.Contains(text, "bctl-reader-paris-1") {
			t.Errorf("%s has the retired generation", name)
		}
	}
	if err := i.Rotate(time.Now()); !errors.Is(err, backup.ErrNotFound) || !strings.Contains(err.Error(), "copy it there") {
		t.Errorf("rotated without the authority's key: %v", err)
	}
	if err := i.Retire("nobody"); !errors.Is(err, backup.ErrNotFound) {
		t.Error(err)
	}
}

// Where each account of a store is a file, the account of a retired generation is removed.
func TestRetiredAccountsGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "fleet")
	plan := testPlan(dir, "nats1")
	plan.Store.Kind = MinIO
	if err := Init(dir, plan, time.Now()); err != nil {
		t.Fatal(err)
	}
	i := opened(t, dir)
	if err := errors.Join(i.Rotate(time.Now(), "committer"), i.Retire()); err != nil {
		t.Fatal(err)
	}
	files := read(t, dir)
	if files["s3/accounts/bctl-committer-1"] != "" || files["s3/accounts/bctl-committer-2"] == "" || files["s3/accounts/bctl-admin-1"] == "" {
		t.Error("accounts of live generations, and no others, should be there")
	}
}

// The authority is rotated in three steps. No certificate in use is ever signed by an authority
// that is not trusted.
func TestRotateTheAuthority(t *testing.T) {
	i := made(t, "nats1")
	if err := i.Rotate(time.Now(), "ca", "operator"); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("rotated the authority and others at once: %v", err)
	}
	if err := i.Rotate(time.Now(), "ca"); err != nil {
		t.Fatal(err)
	}
	if err := i.Rotate(time.Now(), "operator"); err != nil {
		t.Fatal(err)
	}
	trusted, err := parseCertificates([]byte(read(t, i.dir)["walker@paris/ca.pem"]))
	if err != nil || len(trusted) != 2 {
		t.Fatal(len(trusted), err)
	}
	if certificate(t, i.dir, "operator/cert.pem").CheckSignatureFrom(trusted[1]) != nil || certificate(t, i.dir, "committer/cert.pem").CheckSignatureFrom(trusted[0]) != nil {
		t.Error("not signed as they should be")
	}
	if err := i.Retire("ca"); !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), "committer") || strings.Contains(err.Error(), "operator") {
		t.Errorf("retired an authority that has signed what is in use: %v", err)
	}
	if err := i.Rotate(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := i.Retire("ca"); !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), "retire the identities before") {
		t.Errorf("retired an authority while generations are accepted that it has signed: %v", err)
	}
	if err := i.Retire(); err != nil {
		t.Fatal(err)
	}
	if err := i.Retire("ca"); err != nil {
		t.Fatal(err)
	}
	left, err := parseCertificates([]byte(read(t, i.dir)["nats/nats1/ca.pem"]))
	if err != nil || len(left) != 1 || !left[0].Equal(trusted[1]) {
		t.Error(len(left), err)
	}
}

// A new site has its own identities, and does not change others.
func TestRefresh(t *testing.T) {
	i := made(t, "nats1")
	before := read(t, i.dir)
	if err := os.WriteFile(filepath.Join(i.dir, "nats", "nats1", "users.conf"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.Refresh(time.Now(), Refreshing{}); err != nil {
		t.Fatal(err)
	}
	for name, text := range read(t, i.dir) {
		if text != before[name] {
			t.Errorf("%s has changed", name)
		}
	}
	if err := i.Refresh(time.Now(), Refreshing{Sites: []string{"lima", "paris"}, Operators: []string{"alice", "bob"}}); err != nil {
		t.Fatal(err)
	}
	after := read(t, i.dir)
	if after["walker@lima/cert.pem"] == "" || !strings.Contains(after["nats/nats1/users.conf"], "walkers-lima") || after["walker@paris/cert.pem"] != before["walker@paris/cert.pem"] {
		t.Error("a new site is not there, or another is not as it was")
	}
	if err := i.Refresh(time.Now(), Refreshing{Sites: []string{"not a site"}}); !errors.Is(err, backup.ErrInvalid) {
		t.Error(err)
	}
}

// Whenever a change is interrupted, the installation is in the old or the new state, and the next
// process that opens it finishes the change.
func TestChangesAreWhole(t *testing.T) {
	i := made(t, "nats1")
	before := read(t, i.dir)
	c, err := i.begin(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(i.sign(c), c.rotate([]string{"operator"}), c.generate()); err != nil {
		t.Fatal(err)
	}
	reopen := func() map[string]string {
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
		i = opened(t, i.dir)
		return read(t, i.dir)
	}
	// Killed before the change took effect.
	if err := errors.Join(os.Mkdir(filepath.Join(i.dir, nextDir), 0o700), writeFiles(filepath.Join(i.dir, nextDir), c.files[:3])); err != nil {
		t.Fatal(err)
	}
	if now := reopen(); now["operator/cert.pem"] != before["operator/cert.pem"] || now[planFile] != before[planFile] {
		t.Error("a change that was not made is there")
	}
	// Killed afterwards, when some of its files were in place.
	if err := writeFiles(filepath.Join(i.dir, changeDir), c.files); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(i.dir, changeDir, "operator", "cert.pem"), filepath.Join(i.dir, "operator", "cert.pem")); err != nil {
		t.Fatal(err)
	}
	now := reopen()
	for _, f := range c.files {
		if now[f.Path] != string(f.Data) {
			t.Errorf("%s is not as the change has it", f.Path)
		}
	}
	if !slices.Equal(i.Plan.Generations["operator"], []int{1, 2}) {
		t.Error(i.Plan.Generations)
	}
	if err := i.Retire(); err != nil { // the remains of the first change do not interfere
		t.Fatal(err)
	}
	for name := range read(t, i.dir) {
		if strings.HasPrefix(name, ".") {
			t.Errorf("%s is left", name)
		}
	}
}

func TestInitRefuses(t *testing.T) {
	i := made(t, "nats1")
	before := read(t, i.dir)
	if err := Init(i.dir, testPlan("", "nats1"), time.Now()); !errors.Is(err, backup.ErrExists) {
		t.Errorf("made over another: %v", err)
	}
	if _, err := Open(i.dir); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("opened twice: %v", err)
	}
	for name, text := range read(t, i.dir) {
		if text != before[name] {
			t.Errorf("%s has changed", name)
		}
	}
	if err := Init(filepath.Join(i.dir, "operator"), testPlan("", "nats1"), time.Now()); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("made in a directory that is not empty: %v", err)
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, backup.ErrNotFound) {
		t.Error(err)
	}
	for name, change := range map[string]func(*Plan){
		"no NATS":               func(p *Plan) { p.NATS = nil },
		"the same server twice": func(p *Plan) { p.NATS = []string{"a:1", "a:2"} },
		"a host of odd letters": func(p *Plan) { p.NATS = []string{"a\"b"} },
		"a path for a host":     func(p *Plan) { p.NATS = []string{"../a"} },
		"no Postgres":           func(p *Plan) { p.Postgres.Host = "" },
		"no site":               func(p *Plan) { p.Sites = nil },
		"a site of two":         func(p *Plan) { p.Sites = []string{"a.b"} },
		"a site twice":          func(p *Plan) { p.Sites = []string{"a", "a"} },
		"a name with a quote":   func(p *Plan) { p.Name = `b"` },
		"no days":               func(p *Plan) { p.Days = 0 },
		"a store in a file":     func(p *Plan) { p.Store.URL = "/srv" },
		"a store in the clear":  func(p *Plan) { p.Store.Endpoint = "http://s3:7070" },
		"a store of no kind":    func(p *Plan) { p.Store.Kind = "ceph" },
	} {
		dir := filepath.Join(t.TempDir(), "x")
		plan := testPlan("", "nats1")
		change(&plan)
		if err := Init(dir, plan, time.Now()); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: something was made", name)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add([]byte("version: 1\nname: bctl\nnats: [a]\npostgres: {host: b, port: 1, name: c}\nstore: {url: s3://buck/x, kind: aws}\nsites: [d]\n" +
		"days: 1\nauthorities: [1]\ngenerations: {admin: [1], committer: [1], walker@d: [1], reader@d: [1], operator: [1], monitor: [1]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsePlan(data)
		if err != nil {
			if !errors.Is(err, backup.ErrInvalid) {
				t.Errorf("error of no kind: %v", err)
			}
			return
		}
		var text bytes.Buffer
		if err := encodeYAML(&text, p); err != nil {
			t.Fatal(err)
		}
		if _, err := parsePlan(text.Bytes()); err != nil {
			t.Errorf("what was read is not what can be read: %v", err)
		}
		_ = natsFiles(p)
	})
}
