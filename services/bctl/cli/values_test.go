package cli

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/config"
)

// runHere runs a command in this process and returns its exit status and output.
func runHere(t *testing.T, env map[string]string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, messages bytes.Buffer
	a := &app{
		args: args, out: &out, term: &terminal{out: &out, err: &messages}, log: slog.New(slog.DiscardHandler),
		env: func(name string) (string, bool) { value, ok := env[name]; return value, ok },
	}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return a.exit(context.WithoutCancel(t.Context()), err), out.String(), messages.String()
}

// badSettings are invalid values of text settings; "" if any text is valid, as far as this can be
// decided without accessing what it names.
var badSettings = map[string]string{
	"repo": "~root/x", "worker_key": "~root/x", "committer_key": "~root/x", "identity": "~root/x",
	"index.url": "gs://x", "store.url": "gs://x", "store.object_lock": "sideways", "pruner.parity": "20", "log.level": "loud", "log.format": "xml",
	"index.password": "", "store.endpoint": "", "store.region": "", "store.access_key": "", "store.secret_key": "", "store.session_token": "",
	"store.profile": "", "nats.url": "", "nats.user": "", "nats.password": "", "worker.name": "", "worker.site": "", "http.listen": "", "trace.url": "",
	"mirror.url": "gs://x", "mirror.object_lock": "sideways", "mirror.keep_deleted": "", "mirror.endpoint": "", "mirror.region": "", "mirror.access_key": "",
	"mirror.secret_key": "", "mirror.session_token": "", "mirror.profile": "", "mirror.addressing": "",
	"codec": "", "store.addressing": "", "nats.inbox_prefix": "", // checked when they are used
}

// An invalid value of a setting gives status 2, wherever it is set.
func TestSettingsThatMakeNoSense(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bctl.yaml")
	for _, s := range config.Settings() {
		bad, known := badSettings[s.Key]
		switch {
		case s.Type == "number", s.Type == "duration", s.Type == "boolean":
			bad = "nonsense"
		case strings.HasSuffix(s.Key, "_file"):
			bad = "~root/x"
		case s.Type == "list":
			continue
		case !known:
			t.Errorf("%s: the table has no value that makes no sense", s.Key)
		}
		if bad == "" {
			continue
		}
		want := func(where string, status int, stderr string) {
			t.Helper()
			if status != exitUsage || !strings.Contains(stderr, strings.TrimPrefix(bad, "gs://x")) {
				t.Errorf("%s %s: status %d, %s", where, bad, status, stderr)
			}
		}
		status, _, stderr := runHere(t, map[string]string{s.Env: bad}, "version")
		want(s.Env, status, stderr)
		if s.Flag != "" {
			status, _, stderr = runHere(t, nil, "version", "--"+s.Flag, bad)
			want("--"+s.Flag, status, stderr)
		}
		group, key, inGroup := strings.Cut(s.Key, ".")
		text := group + ": " + bad + "\n"
		if inGroup {
			text = group + ": {" + key + ": " + bad + "}\n"
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		status, _, stderr = runHere(t, nil, "version", "--config", file)
		want("in a file, "+s.Key, status, stderr)
	}
}

// badFlags are invalid values of command flags; "" if any text is valid, or is a name that may
// exist.
var badFlags = map[string]string{
	"config": "~root/x", "progress": "maybe", "cpuprofile": "", "memprofile": "", "exectrace": "",
	"exclude": "[", "include": "[", "exclude-file": "", "files-from": "", "stdin-filename": "a/b", "exclude-if-present": "a/b", "exclude-larger-than": "huge", "max-memory": "huge", "by": "color", "parquet": "", "max-bytes": "huge", "max-requests": "many", "proven-within": "soon", "max-unused": "all", "parity": "20", "level": "some", "read-data": "all", "price-per-gb-month": "cheap", "price-per-1000-requests": "cheap", "price-per-gib": "cheap", "max-cost": "little",
	"filer": "", "shard": "", "tag": "", "label": "nolabel", "recipient": "foo", "source": "", "target": "", "committer": "", "pruner": "",
	"larger": "huge", "smaller": "huge", "newer": "yesterday", "older": "yesterday", "until": "yesterday", "owner": "", "type": "thing",
	"since": "yesterday", "state": "odd", "limit": "-1", "depth": "-1", "accept-loss": "-1", "latest": "-1", "path": "", "overwrite": "sometimes", "concurrency": "-1",
	"compare": "taste", "site": "", "walk-tasks": "-1", "read-batches": "-1", "read-rate": "fast", "snapshots": "[",
	"schedule": "now and then", "time-zone": "Middle/Earth", "jitter": "much", "window": "some day", "recovery-point": "soon",
	"keep-last": "-1", "keep-hourly": "-1", "keep-daily": "-1", "keep-weekly": "-1", "keep-monthly": "-1", "keep-yearly": "-1", "keep-within": "long",
	"keep-within-hourly": "-1h", "keep-within-daily": "1", "keep-within-weekly": "1w", "keep-within-monthly": "m", "keep-within-yearly": "1001y", "keep-tag": "a,,b", "keep-style": "borg",
	"as": "king", "timeout": "long", "nats": "a b", "postgres": "b c", "days": "0", "name": "A B", "store-kind": "tape", "store-endpoint": "ftp://x",
	"stat-rate": "fast", "floor": "101", "drill": "sometimes", "role": "cook", "reason": "", "file": "", "store-region": "", "bytes": "all", "min-bytes": "huge", "min-snapshots": "0", "operators": "0", "operator": "", "signer": "me", "policy": "",
	"keep-deleted": "long", "allow-delete": "huge", "as-of": "yesterday", "replace": "repository",
	"packs": "0", "png": "", "output": "", "dir": "", "shares": "1", "needed": "1", "archive": "rar",
	"map-owner": "1000", "map-group": "1:4294967295", "names-from": "/nowhere", "map": "nas1:/home",
}

// requiredFlags are the flags that a command requires before it checks others.
var requiredFlags = map[string][]string{
	"bctl restore": {"--target", "out", "--filer", "x"}, "bctl policy set": {"--schedule", "@daily"},
	"bctl deploy init": {"--nats", "a", "--postgres", "b", "--store", "s3://bucket/x", "--store-kind", "minio", "--store-endpoint", "https://s3"},
	"bctl backup":      {"--filer", "x"},
}

// An invalid value of any flag of any command gives status 2.
func TestFlagsThatMakeNoSense(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	env := map[string]string{"BCTL_REPO": filepath.Join(t.TempDir(), "repo"), "HOME": t.TempDir()}
	for _, args := range [][]string{{"init"}, {"filer", "add", "x"}, {"shard", "add", "x", "x", "--source", "/x"}} {
		if status, _, stderr := runHere(t, env, args...); status != 0 {
			t.Fatalf("%q: status %d, %s", args, status, stderr)
		}
	}
	everyCommand((&app{out: &bytes.Buffer{}, term: &terminal{}}).root(), func(cmd *cobra.Command) {
		if cmd.HasSubCommands() {
			return
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			bad, known := badFlags[f.Name]
			switch {
			case f.Value.Type() == "bool":
				bad = "perhaps"
			case !known:
				t.Errorf("%s --%s: the table has no value that makes no sense", cmd.CommandPath(), f.Name)
			}
			if bad == "" {
				return
			}
			args := strings.Fields(cmd.CommandPath())[1:]
			for _, word := range strings.Fields(cmd.Use)[1:] {
				switch {
				case word == "--target":
				case strings.HasPrefix(word, "SNAPSHOT"):
					args = append(args, "latest")
				case word == "DIR" && args[0] == "deploy":
					args = append(args, "/x")
				case strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" && word != "DIR":
					args = append(args, "x")
				}
			}
			args = append(append(args, requiredFlags[cmd.CommandPath()]...), "--"+f.Name+"="+bad)
			if cmd.Name() == "init" {
				args = append(args, "--repo", "another")
			}
			if status, _, stderr := runHere(t, env, args...); status != exitUsage {
				t.Errorf("%q: status %d, %s", args, status, stderr)
			}
		})
	})
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// An empty name, mostly an unset variable of a script, is never the first filer or all of them.
func TestEmptyNamesAreRefused(t *testing.T) {
	env := map[string]string{"BCTL_REPO": filepath.Join(t.TempDir(), "repo"), "HOME": t.TempDir()}
	for _, args := range [][]string{{"init"}, {"filer", "add", "x"}, {"shard", "add", "x", "/x"}} {
		if status, _, stderr := runHere(t, env, args...); status != 0 {
			t.Fatalf("%q: status %d, %s", args, status, stderr)
		}
	}
	refused := 0
	want := func(args []string) {
		t.Helper()
		if status, _, stderr := runHere(t, env, args...); status != exitUsage || !strings.Contains(stderr, "is empty") && !strings.Contains(stderr, `"" is not`) {
			t.Errorf("%q: status %d, %s", args, status, stderr)
		}
		refused++
	}
	everyCommand((&app{out: &bytes.Buffer{}, term: &terminal{}}).root(), func(cmd *cobra.Command) {
		if cmd.HasSubCommands() || cmd.Name() == "completion" || cmd.Name() == "help" {
			return
		}
		names := 0
		for _, word := range strings.Fields(cmd.Use)[1:] {
			if strings.HasPrefix(word, "--") {
				break
			}
			names++
		}
		command := append(strings.Fields(cmd.CommandPath())[1:], slices.Repeat([]string{"x"}, names)...)
		for n := range names {
			args := slices.Clone(command)
			args[len(args)-1-n] = ""
			want(args)
		}
		for _, name := range []string{"filer", "shard", "tag"} {
			if cmd.Flags().Lookup(name) != nil {
				want(append(slices.Clone(command), "--"+name, ""))
			}
		}
	})
	if refused < 30 {
		t.Errorf("%d empty names tried", refused)
	}
	if status, stdout, stderr := runHere(t, env, "filer", "ls", "--json"); status != 0 || !strings.Contains(stdout, `"filer":"x"`) {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
}

// A value that only the index refuses is a wrong use, too, in every command that sets it.
func TestWhatTheIndexRefusesIsAWrongUse(t *testing.T) {
	env := map[string]string{"BCTL_REPO": filepath.Join(t.TempDir(), "repo"), "HOME": t.TempDir()}
	for _, args := range [][]string{{"init"}, {"filer", "add", "x"}, {"shard", "add", "x", "/x"}, {"policy", "set", "p", "--schedule", "@daily"}} {
		if status, _, stderr := runHere(t, env, args...); status != 0 {
			t.Fatalf("%q: status %d, %s", args, status, stderr)
		}
	}
	long := strings.Repeat("x", 300)
	for _, args := range [][]string{
		{"filer", "add", "y", "--read-rate", "2PiB"}, {"filer", "set", "x", "--read-rate", "2PiB"},
		{"filer", "add", "y", "--label", "a=" + long}, {"filer", "set", "x", "--label", "a=" + long}, {"filer", "add", long},
		{"shard", "add", "x", "y", "--source", "/" + strings.Repeat(long, 30)}, {"shard", "set", "x", "/x", "--source", "/" + strings.Repeat(long, 30)},
		{"shard", "add", "x", "/" + strings.Repeat(long, 7)},
		{"policy", "set", "p", "--label", "a=" + long}, {"policy", "set", "q", "--schedule", "@daily", "--label", "a=" + long},
		{"policy", "set", "p", "--schedule", ""}, {"policy", "set", "p", "--schedule", "@every -5m"},
	} {
		if status, _, stderr := runHere(t, env, args...); status != exitUsage || strings.Contains(stderr, "invalid") {
			t.Errorf("%.80q: status %d, %s", args, status, stderr)
		}
	}
}

// Errors are objects on stdout if --json is among the arguments.
func TestErrorsAreObjectsWithJSON(t *testing.T) {
	env := map[string]string{"BCTL_REPO": filepath.Join(t.TempDir(), "repo")}
	for _, test := range []struct {
		args []string
		json bool
	}{
		{[]string{"backup", "--json", "--bogus"}, true},
		{[]string{"backup", "--bogus", "--json"}, true},
		{[]string{"backup", "--bogus", "--json=true"}, true},
		{[]string{"snapshot", "ls", "--limit", "-1", "--json"}, true},
		{[]string{"bogus", "--json"}, true},
		{[]string{"ls", "--json"}, true},
		{[]string{"ls", "latest", "--json", "--log-level", "loud"}, true},
		{[]string{"backup", "--bogus", "--json=false"}, false},
		{[]string{"backup", "--bogus", "--", "--json"}, false},
		{[]string{"backup", "--bogus"}, false},
	} {
		status, stdout, stderr := runHere(t, env, test.args...)
		if is := strings.HasPrefix(stdout, `{"type":"error","error":"`); status != exitUsage || is != test.json || stderr == "" {
			t.Errorf("%q: status %d, stdout %q, stderr %q", test.args, status, stdout, stderr)
		}
	}
}

// A filer that does not exist is an error of every command that takes one, and not an empty result.
func TestUnknownFilersAreErrors(t *testing.T) {
	env := map[string]string{"BCTL_REPO": filepath.Join(t.TempDir(), "repo"), "HOME": t.TempDir()}
	for _, args := range [][]string{{"init"}, {"filer", "add", "known"}} {
		if status, _, stderr := runHere(t, env, args...); status != 0 {
			t.Fatalf("%q: status %d, %s", args, status, stderr)
		}
	}
	tried := 0
	everyCommand((&app{out: &bytes.Buffer{}, term: &terminal{}}).root(), func(cmd *cobra.Command) {
		if cmd.HasSubCommands() || cmd.Flags().Lookup("filer") == nil {
			return
		}
		args := strings.Fields(cmd.CommandPath())[1:]
		if strings.Contains(cmd.Use, "SNAPSHOT") && cmd.Name() != "cancel" {
			args = append(args, "latest")
		}
		if cmd.Name() == "diff" {
			args = append(args, "latest")
		}
		if cmd.Name() == "find" || cmd.Name() == "history" {
			args = append(args, "name")
		}
		if cmd.Name() == "stats" {
			args = append(args, "--by", "snapshot")
		}
		if cmd.Name() == "restore" {
			args = append(args, "--target", filepath.Join(t.TempDir(), "target"))
		}
		if cmd.Name() == "mark-bad" || cmd.CommandPath() == "bctl churn ack" || cmd.CommandPath() == "bctl hold add" {
			args = append(args, "--reason", "because")
		}
		if cmd.Name() == "purge" {
			args = append(args, "--path", "some/where", "--reason", "because", "--yes")
		}
		status, _, stderr := runHere(t, env, append(args, "--filer", "knwon")...)
		if status == 0 || !strings.Contains(stderr, "no filer knwon; did you mean known?") {
			t.Errorf("%q: status %d, %s", args, status, stderr)
		}
		tried++
	})
	if tried < 8 {
		t.Errorf("%d commands tried", tried)
	}
}
