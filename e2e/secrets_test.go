package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
)

// Secrets with what URLs and YAML treat as special.
const (
	natsSecret     = `n@ts:s3cret/p%ss+wörd &?#`
	tokenSecret    = "a-token-for-the-collector"
	postgresSecret = `p0st:gres/s@cret%&=+#? ü`
)

// Evidence is all that a fleet has said anywhere, and the secrets that it must not have said.
type evidence struct {
	t       *testing.T
	mu      sync.Mutex
	said    map[string][]byte
	secrets map[string]string
}

// heard adds what was said at some place.
func (e *evidence) heard(where string, what []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.said[where] = append(e.said[where], what...)
}

// forms are the ways in which a secret could show.
func forms(secret string) map[string]string {
	list := map[string]string{
		"as it is": secret, "in a query": url.QueryEscape(secret), "in a path": url.PathEscape(secret),
		"as user info": strings.TrimPrefix(url.UserPassword("", secret).String(), ":"), "quoted": strings.Trim(fmt.Sprintf("%q", secret), `"`),
		"in hex": hex.EncodeToString([]byte(secret)), "in HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
	}
	// Within other base64 a text begins at one of three places; its edges depend on what is beside
	// it.
	for shift := range 3 {
		for name, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "URL base64": base64.RawURLEncoding} {
			encoded := encoding.EncodeToString(append(make([]byte, shift), secret...))
			if shift > 0 {
				encoded = encoded[4:]
			}
			list[fmt.Sprintf("%s, shifted by %d", name, shift)] = encoded[:len(encoded)-4]
		}
	}
	return list
}

// check fails the test where a secret was said.
func (e *evidence) check() {
	e.t.Helper()
	total := 0
	for where, what := range e.said {
		total += len(what)
		for name, secret := range e.secrets {
			for form, text := range forms(secret) {
				if at := bytes.Index(what, []byte(text)); at >= 0 {
					e.t.Errorf("%s shows the %s, %s: …%q", where, name, form, what[max(0, at-200):min(len(what), at+50)])
				}
			}
		}
	}
	e.t.Logf("%d secrets in none of %d bytes from %d places", len(e.secrets), total, len(e.said))
}

// A guarded fleet has a password at each server.
type guarded struct {
	*evidence
	*fleet.Client
	nats           *testenv.NATSServer
	s3             *testenv.S3Server
	index          *fleet.Index
	host, database string // of Postgres
	user           string
	collector      string // of traces
	config         string
	settings       map[string]string // of config
	services       atomic.Int64
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{
		evidence: &evidence{t: t, said: map[string][]byte{}, secrets: map[string]string{}},
		Client:   fleet.NewClient(t), s3: testenv.VersityGW(t),
		nats: testenv.NATS(t, fmt.Sprintf("authorization { user: bctl, password: %q }", natsSecret)),
	}
	dsn := testenv.Postgres(t)
	g.index = fleet.OpenPostgres(t, dsn)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	g.host, g.database, g.user = u.Host, strings.TrimPrefix(u.Path, "/"), "guarded_"+strings.TrimPrefix(u.Path, "/test_")
	for _, statement := range []string{
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", g.user, postgresSecret), fmt.Sprintf("ALTER DATABASE %s OWNER TO %s", g.database, g.user),
	} {
		if _, err := g.index.DB().Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_, err := g.index.DB().Exec(fmt.Sprintf("ALTER DATABASE %s OWNER TO CURRENT_USER", g.database))
		if err == nil {
			_, err = g.index.DB().Exec(fmt.Sprintf("REASSIGN OWNED BY %s TO CURRENT_USER; DROP ROLE %s", g.user, g.user))
		}
		if err != nil {
			t.Error(err)
		}
	})
	g.collect()
	g.secrets["collector's token"] = tokenSecret
	g.secrets["NATS password"], g.secrets["Postgres password"], g.secrets["S3 secret key"] = natsSecret, postgresSecret, g.s3.SecretKey
	g.settings = map[string]string{
		"index.url":      fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", g.user, g.host, g.database),
		"index.password": postgresSecret,
		"store.url":      "s3://" + g.s3.Bucket + "/repo", "store.endpoint": "http://" + g.s3.Endpoint, "store.region": g.s3.Region,
		"store.access_key": g.s3.AccessKey, "store.secret_key": g.s3.SecretKey, "store.retry": "1s",
		"nats.url": g.nats.URL(), "nats.user": "bctl", "nats.password": natsSecret,
		"worker_key": filepath.Join(g.Home, "worker.key"), "committer_key": filepath.Join(g.Home, "committer.key"), "identity": filepath.Join(g.Home, "identity.txt"),
		"log.level": "debug", "log.format": "json", "trace.url": g.collector, "http.listen": "",
	}
	g.config = g.with(nil)
	return g
}

// with writes a file of all settings, some of them changed, and returns where it is.
func (g *guarded) with(changed map[string]string) string {
	g.t.Helper()
	groups := map[string][]string{}
	add := func(key, value string) {
		group, name, ok := strings.Cut(key, ".")
		if !ok {
			group, name = "", key
		}
		groups[group] = append(groups[group], fmt.Sprintf("%s: %q", name, value))
	}
	for key, value := range g.settings {
		if other, ok := changed[key]; ok {
			value = other
		}
		add(key, value)
	}
	var text strings.Builder
	for group, list := range groups {
		if group != "" {
			fmt.Fprintf(&text, "%s: {%s}\n", group, strings.Join(list, ", "))
		} else {
			text.WriteString(strings.Join(list, "\n") + "\n")
		}
	}
	path := filepath.Join(g.t.TempDir(), "bctl.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// collect takes what services send as traces; the first time it does not want them, which is
// logged.
func (g *guarded) collect() {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.heard("traces", body)
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	g.t.Cleanup(server.Close)
	g.collector = server.URL
}

// run runs a command, and keeps what it said.
func (g *guarded) run(config string, args ...string) fleet.Output {
	g.t.Helper()
	out := g.Run(append(args, "--config", config, "--log-level", "debug")...)
	g.heard("bctl "+args[0], []byte(out.Stdout+out.Stderr))
	return out
}

// start starts a service, and keeps its command line and environment; stop keeps what it has
// logged.
func (g *guarded) start(kind, config string, env ...string) (s *testenv.Process, stop func()) {
	g.t.Helper()
	name := fmt.Sprintf("%s %d", kind, g.services.Add(1))
	s = testenv.Start(g.t, testenv.Command{
		Name: kind, Path: fleet.Binary(g.t), Args: []string{kind, "--config", config}, Env: append(env, "HOME="+g.Home),
	})
	for _, file := range []string{"cmdline", "environ"} {
		if file == "environ" && len(env) > 0 {
			continue // what is there was put there by us
		}
		what, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.PID(), file))
		if err != nil {
			g.t.Error(err)
		}
		g.heard(name+": "+file, what)
	}
	return s, func() {
		s.Stop()
		g.logOf(name, s)
	}
}

func (g *guarded) logOf(name string, s *testenv.Process) (text string) {
	g.t.Helper()
	what, err := os.ReadFile(s.LogFile())
	if err != nil {
		g.t.Error(err)
	}
	g.heard(name+": log", what)
	return string(what)
}

// Secrets are in none of: logs at level debug, errors, command lines and environments, metrics,
// health, traces, JSON, the index, messages, what servers know of their clients, and what a service
// says as it dies.
func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	tree := filepath.Join(t.TempDir(), "tree")
	const content = "what is in a file is nobody's business, wherever it is on its way"
	treetest.Make(t, tree, treetest.Tree{"directory/file": treetest.File(content), "other": treetest.File("more")})
	settle(t)
	if out := g.run(g.config, "init"); out.Status != 0 {
		t.Fatal(out)
	}
	for file, begins := range map[string]string{"identity.txt": "AGE-SECRET-KEY-", "worker.key": "dedup ", "committer.key": "seed "} {
		text, err := os.ReadFile(filepath.Join(g.Home, file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if _, secret, of := strings.Cut(line, " "); of && strings.HasPrefix(line, begins) {
				g.secrets[file] = strings.TrimSpace(secret)
			} else if strings.HasPrefix(line, begins) {
				g.secrets[file] = strings.TrimSpace(line)
			}
		}
	}
	for _, file := range []string{"worker.key", "committer.key"} {
		raw, err := hex.DecodeString(g.secrets[file])
		if err != nil {
			t.Fatal(err)
		}
		g.secrets[file+"'s bytes"] = string(raw)
	}
	g.secrets["content of a file"] = content
	if len(g.secrets) != 10 {
		t.Fatalf("%d secrets are known", len(g.secrets))
	}
	t.Run("success", func(t *testing.T) { g.success(t, tree) })
	t.Run("failure", g.failures)
	t.Run("files", g.badFiles)
	g.check()
}

func (g *guarded) success(t *testing.T, tree string) {
	nc, err := nats.Connect(g.nats.URL(), nats.UserInfo("bctl", natsSecret))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("bctl.>", func(m *nats.Msg) { g.heard("messages", m.Data) }); err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	var stops []func()
	var committer *testenv.Process
	for _, kind := range []string{"walker", "reader", "committer"} {
		port, err := testenv.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[kind] = fmt.Sprintf("127.0.0.1:%d", port)
		config, env := g.with(map[string]string{"http.listen": ports[kind]}), []string(nil)
		if kind == "committer" { // OpenTelemetry has no other place for it
			env = []string{"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20" + tokenSecret}
		}
		s, stop := g.start(kind, config, env...)
		stops, committer = append(stops, stop), s
	}
	for _, args := range [][]string{
		{"filer", "add", "nas"}, {"shard", "add", "nas", tree}, {"backup", "--filer", "nas", "--json"},
		{"backup", "--filer", "nas", "--detach", "--json"}, {"status", "--json"}, {"status"}, {"filer", "ls", "--json"}, {"shard", "ls", "--json"},
		{"snapshot", "ls", "--json"}, {"snapshot", "show", "latest", "--json"}, {"ls", "latest", "--json"}, {"version", "--json"},
		{"restore", "latest", "--target", filepath.Join(t.TempDir(), "restored"), "--json"},
	} {
		if out := g.run(g.config, args...); out.Status != 0 {
			t.Errorf("%s", out)
		}
	}
	for kind, address := range ports {
		for _, path := range []string{"/metrics", "/readyz", "/healthz"} {
			body, err := get("http://" + address + path)
			if err != nil {
				t.Error(err)
			}
			g.heard(kind+path, []byte(body))
		}
	}
	for _, path := range []string{"/connz?auth=1&subs=1", "/varz", "/jsz?streams=1&consumers=1"} {
		body, err := get(g.nats.MonitorURL + path)
		if err != nil {
			t.Error(err)
		}
		g.heard("nats-server "+path, []byte(body))
	}
	for _, row := range texts(t, g.index, "SELECT a::text FROM pg_stat_activity a") {
		g.heard("pg_stat_activity", []byte(row))
	}
	g.heard("index", dump(t, g.index))
	// A crash prints all goroutines with their arguments.
	committer.Signal(syscall.SIGQUIT)
	_ = committer.Wait() // it ends with the status of the signal
	if text := g.logOf("crash", committer); !strings.Contains(text, "\ngoroutine 1 ") {
		t.Error("it did not say what it was doing")
	}
	for _, stop := range stops {
		stop()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, where := range []string{"traces", "messages", "index", "pg_stat_activity"} {
		if len(g.said[where]) == 0 {
			t.Errorf("there was nothing to look at in the %s", where)
		}
	}
}

// dump is all that is in the tables of an index, as text.
func dump(t *testing.T, x *fleet.Index) []byte {
	t.Helper()
	var all bytes.Buffer
	for _, table := range texts(t, x, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'") {
		for _, row := range texts(t, x, "SELECT x::text FROM "+table+" x") {
			all.WriteString(table + ": " + row + "\n")
		}
	}
	return all.Bytes()
}

// failures has services and commands fail in all ways that have to do with secrets. A wrong
// password is a secret as well.
func (g *guarded) failures(t *testing.T) {
	const wrong = `wr0ng:but/s@cret%all the same`
	g.secrets["wrong password"] = wrong
	in := func(scheme, user, rest string) string {
		return scheme + "://" + url.UserPassword(user, wrong).String() + "@" + rest
	}
	nowhere := "127.0.0.1:1"
	for name, c := range map[string]struct {
		services []string
		changed  map[string]string
	}{
		"wrong Postgres password":            {[]string{"walker"}, map[string]string{"index.password": wrong}},
		"wrong Postgres password in the URL": {[]string{"committer"}, map[string]string{"index.password": "", "index.url": in("postgres", g.user, g.host+"/"+g.database+"?sslmode=disable")}},
		"Postgres does not answer":           {[]string{"reader"}, map[string]string{"index.password": "", "index.url": in("postgres", g.user, nowhere+"/x")}},
		"Postgres without TLS":               {[]string{"walker"}, map[string]string{"index.password": "", "index.url": in("postgres", g.user, g.host+"/"+g.database+"?sslmode=verify-full")}},
		"no URL of Postgres":                 {[]string{"walker"}, map[string]string{"index.password": "", "index.url": "postgres://u:" + wrong + "%zz@" + g.host + "/x"}},
		"no URL, and a password":             {[]string{"walker"}, map[string]string{"index.url": "postgres://u:" + wrong + "%zz@" + g.host + "/x"}},
		"wrong NATS password":                {[]string{"walker"}, map[string]string{"nats.password": wrong}},
		"wrong NATS password in the URL":     {[]string{"reader"}, map[string]string{"nats.user": "", "nats.url": in("nats", "bctl", strings.TrimPrefix(g.nats.URL(), "nats://"))}},
		"NATS does not answer":               {[]string{"committer"}, map[string]string{"nats.user": "", "nats.url": in("nats", "bctl", nowhere)}},
		"NATS without TLS":                   {[]string{"walker"}, map[string]string{"nats.user": "", "nats.url": in("tls", "bctl", strings.TrimPrefix(g.nats.URL(), "nats://"))}},
		"no URL of NATS":                     {[]string{"walker"}, map[string]string{"nats.user": "", "nats.url": "nats://bctl:" + wrong + "%zz@" + nowhere}},
		"wrong S3 secret":                    {[]string{"reader"}, map[string]string{"store.secret_key": wrong}},
		"S3 does not answer":                 {[]string{"committer"}, map[string]string{"store.endpoint": "http://" + nowhere, "store.secret_key": wrong}},
		"S3 without TLS":                     {[]string{"reader"}, map[string]string{"store.endpoint": "https://" + g.s3.Endpoint, "store.secret_key": wrong}},
		"S3 endpoint with a password":        {[]string{"reader"}, map[string]string{"store.endpoint": in("http", "u", nowhere)}},
		"S3 URL with a password":             {[]string{"reader"}, map[string]string{"store.url": in("s3", "u", g.s3.Bucket+"/repo")}},
		"traces with a password":             {[]string{"walker"}, map[string]string{"trace.url": in("http", "u", nowhere)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := g.with(c.changed)
			for _, kind := range c.services {
				s, stop := g.start(kind, config)
				fleet.Await(t, "a complaint", func() bool {
					log, err := os.ReadFile(s.LogFile())
					if err != nil {
						t.Fatal(err)
					}
					// The store is asked when there is something to do: restore, below, fails at
					// once.
					return !s.Running() || bytes.Contains(log, []byte(`"level":"WARN"`)) || bytes.Contains(log, []byte(`"level":"ERROR"`)) ||
						bytes.Contains(log, []byte(kind+" started")) && !strings.Contains(name, "NATS")
				})
				s.Kill()
				stop()
			}
			if strings.Contains(name, "S3") { // which others do not get as far as
				g.run(config, "restore", "latest", "--target", filepath.Join(t.TempDir(), "x"))
			} else {
				g.run(config, "status", "--json")
			}
		})
	}
}

// badFiles has secrets in files that are not as they should be, and values where they do not
// belong.
func (g *guarded) badFiles(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	identity, dedup := g.secrets["identity.txt"], g.secrets["worker.key"]
	for name, changed := range map[string]map[string]string{
		"identity that is cut short":     {"identity": write(identity[:len(identity)-3] + "\n")},
		"identity with a letter changed": {"identity": write(identity[:40] + "B" + identity[41:] + "\n")},
		"identity with text behind it":   {"identity": write(identity + " my key\n")},
		"worker key as identity":         {"identity": filepath.Join(g.Home, "worker.key")},
	} {
		if out := g.run(g.with(changed), "restore", "latest", "--target", filepath.Join(t.TempDir(), "x")); out.Status == 0 {
			t.Errorf("%s: %s", name, out)
		}
	}
	g.secrets["identity, cut short"] = identity[:len(identity)-3]
	for name, wrong := range map[string]struct{ service, setting, file string }{
		"worker key of one line":    {"reader", "worker_key", write("dedup " + dedup + "\n")},
		"identity as worker key":    {"reader", "worker_key", filepath.Join(g.Home, "identity.txt")},
		"committer key of one line": {"committer", "committer_key", write("seed " + g.secrets["committer.key"] + "\n")},
		"worker key as its own":     {"committer", "committer_key", filepath.Join(g.Home, "worker.key")},
	} {
		s, stop := g.start(wrong.service, g.with(map[string]string{wrong.setting: wrong.file}))
		if err := s.Wait(); err == nil {
			t.Errorf("%s: the %s did not mind", name, wrong.service)
		}
		stop()
	}
	// YAML that is wrong where the secrets are.
	for _, text := range []string{
		"index: {password: [" + natsYAML + ", x]}\n", "nats: {password: {" + natsYAML + ": x}}\n", "store: {secret_key: " + natsYAML + ", secret_key: x}\n",
		"store: {retry: " + natsYAML + "}\n", "store:\n  secret_key: |\n   " + natsSecretLine + "\n bad indent\n",
	} {
		if out := g.run(write(text), "status"); out.Status == 0 {
			t.Errorf("%s: %s", text, out)
		}
	}
}

const (
	natsSecretLine = "a-s3cret-in-a-file-that-is-wrong"
	natsYAML       = `"` + natsSecretLine + `"`
)
