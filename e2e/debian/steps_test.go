package debian

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/e2e/dockertest"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/testenv"
)

// step returns the block of the page that has a text in it, with other paths and commands in it
// than those of the page.
func step(t *testing.T, text string, replace ...string) string {
	t.Helper()
	var found []string
	for _, b := range blocks(t, page) {
		if strings.Contains(b.Text, text) {
			found = append(found, b.Text)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d blocks of %s have %q, not one", len(found), page, text)
	}
	return strings.NewReplacer(replace...).Replace(found[0])
}

// shell runs a block as a machine does.
func shell(t *testing.T, block string, environment ...string) (output string, err error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", block)
	command.Env = append(os.Environ(), environment...)
	command.Dir = t.TempDir()
	text, err := command.CombinedOutput()
	return string(text), err
}

// What Prometheus has in its configuration stays when bctl is added to it, and a configuration that
// would not be read is not made.
func TestPrometheusIsAddedTo(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		dockertest.Missing(t, "no promtool")
	}
	const others = `# Ours.
global:
  scrape_interval: 20s
rule_files:
  # - "first.yml"
  - ours.yaml
scrape_configs:
  # Prometheus itself.
  - job_name: 'prometheus'
    static_configs:
      - targets: ['localhost:9090']
`
	for name, test := range map[string]struct {
		has  string
		adds bool
	}{
		"as others have it":       {others, true},
		"without other rules":     {strings.Replace(others, "  - ours.yaml\n", "", 1), true},
		"rules and jobs reversed": {"scrape_configs:\n  - job_name: a\nrule_files:\n", true},
		"no rules":                {"scrape_configs:\n  - job_name: a\n", false},
		"indented otherwise":      {"rule_files:\nscrape_configs:\n- job_name: a\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			prometheus := prometheusOf(t, test.has)
			file := filepath.Join(prometheus, "prometheus.yml")
			block := step(t, "promtool check config", "/etc/prometheus", prometheus)
			if text, err := shell(t, block); (err == nil) != test.adds {
				t.Fatalf("%v, %s", err, text)
			}
			has := contents(t, file)
			if !test.adds {
				if has != test.has {
					t.Errorf("it is now\n%s", has)
				}
				return
			}
			rest := has
			for line := range strings.Lines(test.has) {
				_, after, found := strings.Cut(rest, line)
				if !found {
					t.Errorf("%q is gone:\n%s", line, has)
				}
				rest = after
			}
			for _, added := range []string{prometheus + "/bctl/alerts.yaml", "job_name: bctl-walker", "job_name: bctl-reader", "job_name: bctl-committer", "job_name: bctl-pruner", "job_name: bctl-scrubber", "job_name: bctl-mirror"} {
				if strings.Count(has, added) != 1 {
					t.Errorf("%q is not added once:\n%s", added, has)
				}
			}
			if text, err := shell(t, block); err == nil || contents(t, file) != has {
				t.Errorf("added twice (%v): %s\n%s", err, text, contents(t, file))
			}
		})
	}
}

// prometheusOf makes what is in /etc/prometheus before jobs are added: what others have, and bctl's
// directory.
func prometheusOf(t *testing.T, has string) (directory string) {
	t.Helper()
	directory = t.TempDir()
	fleet := filepath.Join(t.TempDir(), "fleet")
	if err := installation.Init(fleet, installation.Plan{
		Name: "bctl", NATS: []string{"backup.example.com"}, Sites: []string{"default"}, Days: 30,
		Postgres: installation.Database{Host: "backup.example.com", Port: 5432, Name: "bctl"},
		Store:    installation.Store{URL: "s3://bctl/repo", Endpoint: "https://backup.example.com:7070", Kind: installation.VersityGW},
	}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(directory, "bctl"), os.DirFS(filepath.Join(fleet, "prometheus"))); err != nil {
		t.Fatal(err)
	}
	jobs := strings.ReplaceAll(contents(t, filepath.Join(directory, "bctl", "prometheus.yml")), "/etc/prometheus", directory)
	for name, text := range map[string]string{
		"bctl/prometheus.yml": jobs, "bctl/alerts.yaml": read(t, rules), "ours.yaml": "groups: []\n", "prometheus.yml": has,
		"bctl/targets-walker.yml": "[]\n", "bctl/targets-reader.yml": "[]\n", "bctl/targets-committer.yml": "[]\n", "bctl/targets-pruner.yml": "[]\n", "bctl/targets-scrubber.yml": "[]\n",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

// The accounts that the page adds to a NATS server keep two fleets apart, and its passwords let
// each into its own.
func TestFleetsShareNATS(t *testing.T) {
	directory, program := t.TempDir(), tool(t, "nats-server", "BCTL_NATS_SERVER")
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + strconv.Itoa(port)
	config := filepath.Join(directory, "nats.conf")
	if err := os.WriteFile(config, []byte("listen: \""+address+"\"\njetstream { store_dir: \""+directory+"/jetstream\" }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := testenv.Start(t, testenv.Command{Name: "nats-server", Path: program, Args: []string{"--config", config}, Ready: testenv.TCPReady(address)})
	block := step(t, "fleets.conf", "/etc/nats", directory, "chown nats:", "test -s", "nats-server --config", program+" --config",
		"systemctl reload nats-server", "kill -HUP "+strconv.Itoa(server.PID()))
	if text, err := shell(t, block); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	// The server reloads after the block has ended; until then it lets everybody in.
	await(t, "another password is refused", func() error {
		if c, err := nats.Connect("nats://"+address, nats.UserInfo("fleet1", "fleet1")); err == nil {
			c.Close()
			return errors.New("it lets in as well")
		}
		return nil
	})
	fleets := map[string]nats.JetStreamContext{}
	for _, fleet := range []string{"fleet1", "fleet2"} {
		var c *nats.Conn
		await(t, fleet+" is let in", func() (err error) {
			c, err = nats.Connect("nats://"+address, nats.UserInfo(fleet, contents(t, filepath.Join(directory, fleet+".password"))))
			return err
		})
		t.Cleanup(c.Close)
		if fleets[fleet], err = c.JetStream(); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "a stream is made", func() error {
		_, err := fleets["fleet1"].AddStream(&nats.StreamConfig{Name: "BCTL_WALK", Subjects: []string{"bctl.v1.walk.*"}})
		return err
	})
	if _, err := fleets["fleet2"].StreamInfo("BCTL_WALK"); err == nil {
		t.Error("a fleet sees the streams of the other")
	}
	// The page says which directory to remove, so that an account has no streams any more.
	if _, err := os.Stat(filepath.Join(directory, "jetstream", "jetstream", "fleet1", "streams", "BCTL_WALK")); err != nil {
		t.Error(err)
	}
}

// await tries until that works.
func await(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// The commands of the unit that dumps the index make a dump from which all comes back, and keep
// those of a week. One that fails leaves what is there.
func TestIndexIsDumped(t *testing.T) {
	if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
		output(t, analyze, "verify", "--man=no", "deploy/systemd/servers/bctl-index-dump.timer")
	}
	from, to := testenv.Postgres(t), testenv.Postgres(t)
	psql := func(dsn, command string) string {
		return output(t, "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1", "--dbname", dsn, "--command", command)
	}
	psql(from, "CREATE TABLE snapshots AS SELECT generate_series(1, 1000) AS id")
	var commands []string
	for _, found := range regexp.MustCompile(`(?m)^ExecStart=(.+)$`).FindAllStringSubmatch(read(t, "deploy/systemd/servers/bctl-index-dump.service"), -1) {
		commands = append(commands, strings.ReplaceAll(found[1], "%%", "%"))
	}
	if len(commands) < 3 {
		t.Fatalf("the unit does %q", commands)
	}
	unit := "cd DIRECTORY\n" + strings.Join(commands, "\n")
	directory := t.TempDir()
	dump := func(dsn string) error {
		text, err := shell(t, strings.NewReplacer("DIRECTORY", directory, "--file=new bctl", "--file=new '"+dsn+"'").Replace(unit))
		t.Log(text)
		return err
	}
	for name, age := range map[string]time.Duration{"index-2020-01-01.dump": 8 * 24 * time.Hour, "index-2020-01-07.dump": 6 * 24 * time.Hour, "mine": 90 * 24 * time.Hour} {
		file, modified := filepath.Join(directory, name), time.Now().Add(-age)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	if err := dump(from + "-that-is-lost"); err == nil {
		t.Error("a dump of nothing was made")
	}
	if names := output(t, "ls", directory); !strings.Contains(names, "index-2020-01-01.dump") {
		t.Errorf("a dump was removed, and none made: %s", names)
	}
	if err := dump(from); err != nil {
		t.Fatal(err)
	}
	if names := strings.Fields(output(t, "ls", directory)); len(names) != 3 || names[0] != "index-2020-01-07.dump" || names[2] != "mine" {
		t.Errorf("there is %q; want a dump of today, one of six days ago, and what is no dump", names)
	}
	restore := step(t, "newest=", "/var/lib/bctl-index-dump", directory, "cd /var/lib/postgresql", "", "runuser --user postgres -- ", "", "--dbname bctl", "--dbname '"+to+"'",
		"bctl migrate --config /root/fleet/admin/bctl.yaml", "true")
	if text, err := shell(t, restore); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if n := psql(to, "SELECT count(*) FROM snapshots"); n != "1000" {
		t.Errorf("%s rows are back", n)
	}
}
