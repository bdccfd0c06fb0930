package config

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

var update = flag.Bool("update", false, "write the table of docs/configuration.md")

const docsFile = "../../docs/configuration.md"

// load reads settings from a file's text, an environment and flags.
func load(t *testing.T, file string, env, flags map[string]string) (*Config, error) {
	t.Helper()
	return Load(Sources{
		File: "bctl.yaml", Flags: flags,
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Read: func(path string) ([]byte, error) {
			switch path {
			case "bctl.yaml":
				return []byte(file), nil
			case "secret":
				return []byte("hush\n"), nil
			}
			return nil, fs.ErrNotExist
		},
	})
}

func TestFlagsBeforeEnvironmentBeforeFile(t *testing.T) {
	file := "store:\n  url: s3://file\n  region: file\n  retry: 3m\nrecipients: [age1a, age1b]\nlog: {level: warn}\n"
	env := map[string]string{"BCTL_STORE": "s3://env", "BCTL_STORE_REGION": "env", "BCTL_NATS": ""}
	c, err := load(t, file, env, map[string]string{"store.url": "s3://flag"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Store.URL != "s3://flag" || c.Store.Region != "env" || c.Store.Retry != 3*time.Minute || c.Log.Level != "warn" ||
		strings.Join(c.Recipients, " ") != "age1a age1b" || c.NATS.Replicas != 1 || c.Fleet() {
		t.Errorf("%+v", c)
	}
}

func TestErrorsSayWhere(t *testing.T) {
	for _, test := range []struct{ file, want string }{
		{"stor:\n  url: x\n", "bctl.yaml:1: no setting is called stor"},
		{"store:\n  url: x\n  uri: y\n", "bctl.yaml:3: no setting is called store.uri"},
		{"log:\n  level: a\n  level: b\n", "bctl.yaml:3: log.level is already set in line 2"},
		{"store:\n  retry: soon\n", `bctl.yaml:2: store.retry: "soon" is not a duration`},
		{"nats:\n  replicas: [1]\n", "bctl.yaml:2: nats.replicas is a number"},
		{"store: s3://x\n", "bctl.yaml:1: the file.store must be a group"},
		{"- a\n", "bctl.yaml:1: the file must be a group"},
		{"repo: x\na: b: c\n", "bctl.yaml: line 2:"},
		{"recipients: [[a]]\n", "bctl.yaml:1: recipients: an element must be a plain text"},
		{"store: {secret_key: a, secret_key_file: secret}\n", "store.secret_key and store.secret_key_file are both set"},
		{"&a [*a]\n", "bctl.yaml:1: "},
	} {
		_, err := load(t, test.file, nil, nil)
		if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %s", test.file, err, test.want)
		}
	}
	_, err := load(t, "", map[string]string{"BCTL_NATS_REPLICAS": "many"}, nil)
	if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), "BCTL_NATS_REPLICAS") {
		t.Errorf("environment: %v", err)
	}
	_, err = load(t, "", nil, map[string]string{"log.level": "info", "nats.replicas": "-1"})
	if !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("flag: %v", err)
	}
	if _, err := load(t, "store: {secret_key_file: none}\n", nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("secret file that is not there: %v", err)
	}
}

func TestSecretsFromFiles(t *testing.T) {
	c, err := load(t, "store: {secret_key_file: secret}\n", nil, nil)
	if err != nil || c.Store.SecretKey != "hush" {
		t.Errorf("%q, %v", c.Store.SecretKey, err)
	}
}

func TestRepoNamesItsParts(t *testing.T) {
	c, err := load(t, "", map[string]string{"BCTL_REPO": "/r", "BCTL_STORE": "s3://bucket"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	path, local := c.IndexPath()
	if path != "/r/index.db" || !local || c.WorkerKey != "/r/worker.key" {
		t.Errorf("%+v", c)
	}
	if _, local := c.StorePath(); local {
		t.Error("s3://bucket is a directory")
	}
	if locks, err := c.LockDir(); err != nil || locks != "/r/locks" {
		t.Errorf("locks in %q, %v", locks, err)
	}
}

// The table in the documentation is the one generated from the tags of Config.
func TestDocumentationAgrees(t *testing.T) {
	for _, s := range Settings() {
		if s.Doc == "" {
			t.Errorf("%s is not documented", s.Key)
		}
	}
	data, err := os.ReadFile(filepath.FromSlash(docsFile))
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- settings -->\n", "<!-- end of settings -->\n"
	before, rest, ok := strings.Cut(string(data), begin)
	table, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", docsFile)
	}
	if table == settingsTable() {
		return
	}
	if !*update {
		t.Fatalf("%s does not agree with the settings; go test ./internal/config -update writes it", docsFile)
	}
	if err := os.WriteFile(docsFile, []byte(before+begin+settingsTable()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func FuzzYAML(f *testing.F) {
	f.Add([]byte("store:\n  url: s3://x\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("? {a: b}\n: c\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Config{}
		if err := applyYAML("f", data, settingsOf(c), os.LookupEnv); err != nil && !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("error of no kind: %v", err)
		}
	})
}

// settingsTable returns the settings as the Markdown table of docs/configuration.md.
func settingsTable() string {
	var b strings.Builder
	b.WriteString("| setting | environment | flag | type | default | meaning |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, s := range Settings() {
		flag := ""
		if s.Flag != "" {
			flag = "`--" + s.Flag + "`"
		}
		def := cmp.Or(s.Means, s.Default)
		if def != "" && !strings.Contains(def, " ") { // a value, not words
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s |\n", s.Key, s.Env, flag, s.Type, def, s.Doc)
	}
	return b.String()
}
