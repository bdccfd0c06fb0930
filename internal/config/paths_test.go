package config

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// pathSettings returns all settings whose value is, or may be, a path on this machine.
func pathSettings(t *testing.T) []Setting {
	t.Helper()
	other := map[string]bool{ // strings that are not paths
		"codec": true, "index.password": true, "store.endpoint": true, "store.region": true, "store.access_key": true, "store.secret_key": true,
		"store.session_token": true, "store.profile": true, "store.addressing": true, "store.object_lock": true, "pruner.parity": true, "nats.url": true, "nats.user": true, "nats.password": true,
		"nats.inbox_prefix": true, "worker.name": true, "worker.site": true, "log.level": true, "log.format": true, "http.listen": true, "trace.url": true,
		"mirror.keep_deleted": true, "mirror.endpoint": true, "mirror.region": true, "mirror.access_key": true, "mirror.secret_key": true,
		"mirror.session_token": true, "mirror.profile": true, "mirror.addressing": true, "mirror.object_lock": true,
	}
	var found []Setting
	for _, s := range Settings() {
		_, _, isPath := s.path("x")
		if isPath == (other[s.Key] || s.Type != "string") {
			t.Errorf("%s: is it a path?", s.Key)
		}
		if isPath {
			found = append(found, s)
		}
	}
	return found
}

// A path in the file is relative to the file's directory, so that a directory that contains both
// can be moved. A path in a flag or the environment is relative to the working directory. "~/" is
// the home directory everywhere.
func TestPaths(t *testing.T) {
	for _, s := range pathSettings(t) {
		prefixes := []string{""}
		for _, kind := range localSettings[s.Key].kinds {
			if localSettings[s.Key].local(kind) {
				prefixes = append(prefixes, kind)
			}
		}
		for _, prefix := range prefixes {
			for _, test := range []struct{ value, inFile, typed string }{
				{"x/y", "/srv/bctl/x/y", "x/y"},
				{"../x", "/srv/x", "../x"},
				{"./~x", "/srv/bctl/~x", "./~x"},
				{"/a/b", "/a/b", "/a/b"},
				{"~/x", "/home/me/x", "/home/me/x"},
				{"~", "/home/me", "/home/me"},
				{"~/~x", "/home/me/~x", "/home/me/~x"},
				{"a~/x", "/srv/bctl/a~/x", "a~/x"},
			} {
				wants(t, s, prefix+test.value, prefix+test.inFile, prefix+test.typed)
			}
			wantsError(t, s, prefix+"~root/x", "only your own home directory has a short form", "/home/me")
			wantsError(t, s, prefix+"~/x", "HOME is not set", "")
		}
		for _, kind := range localSettings[s.Key].kinds {
			if !localSettings[s.Key].local(kind) {
				wants(t, s, kind+"~/x", kind+"~/x", kind+"~/x")
			}
		}
	}
}

// loadOne reads one setting: from a file in /srv/bctl, from the environment, and from its flag if
// it has one.
func loadOne(s Setting, value, home string) (values []string, errs []error) {
	read := func(path string) ([]byte, error) {
		if path != "/srv/bctl/bctl.yaml" {
			return nil, nil // a secret
		}
		var b strings.Builder
		indent := ""
		for group, rest, more := strings.Cut(s.Key, "."); ; group, rest, more = strings.Cut(rest, ".") {
			b.WriteString(indent + group + ":")
			if !more {
				break
			}
			b.WriteString("\n")
			indent += "  "
		}
		b.WriteString(" '" + value + "'\n")
		return []byte(b.String()), nil
	}
	env := func(more map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) {
			if name == "HOME" {
				return home, home != ""
			}
			v, ok := more[name]
			return v, ok
		}
	}
	sources := []Sources{{File: "/srv/bctl/bctl.yaml", Env: env(nil), Read: read}, {Env: env(map[string]string{s.Env: value}), Read: read}}
	if s.Flag != "" {
		sources = append(sources, Sources{Env: env(nil), Flags: map[string]string{s.Key: value}, Read: read})
	}
	for _, from := range sources {
		c, err := Load(from)
		errs = append(errs, err)
		got := ""
		if err == nil {
			for _, loaded := range settingsOf(c) {
				if loaded.Key == s.Key {
					got = loaded.value.String()
				}
			}
		}
		values = append(values, got)
	}
	return values, errs
}

func wants(t *testing.T, s Setting, value, inFile, typed string) {
	t.Helper()
	if s.Key == "repo" { // which is made absolute
		typed, _ = filepath.Abs(typed)
	}
	values, errs := loadOne(s, value, "/home/me")
	for n, got := range values {
		want := typed
		if n == 0 {
			want = inFile
		}
		if got != want || errs[n] != nil {
			t.Errorf("%s from source %d: %q is %q, want %q, error %v", s.Key, n, value, got, want, errs[n])
		}
	}
}

func wantsError(t *testing.T, s Setting, value, text, home string) {
	t.Helper()
	_, errs := loadOne(s, value, home)
	for n, err := range errs {
		if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s from source %d: %q: %v, want %s", s.Key, n, value, err, text)
		}
	}
}

// A URL of another kind is not a place, from any source: the error names the setting to which it
// belongs, and does not contain its password.
func TestURLsOfAnotherKind(t *testing.T) {
	for _, test := range []struct{ key, value, meant string }{
		{"repo", "s3://bucket/prefix", "--store s3://…, with --index"},
		{"repo", "S3://bucket", "--store s3://…"},
		{"repo", "postgres://u:hush@host/db", "--index postgres://…"},
		{"repo", "postgresql://host/db", "--index postgres://…"},
		{"repo", "sqlite:/var/lib/index.db", "--index FILE"},
		{"repo", "nats://u:hush@host:4222", "--nats nats://…"},
		{"repo", "tls://host", "--nats tls://…"},
		{"repo", "file:///backup", "the path alone"},
		{"repo", "https://u:hush@s3.example.com/", "s3://BUCKET"},
		{"repo", "sftp:user@host:/backup", "s3://BUCKET"},
		{"repo", "rest:http://host/", "s3://BUCKET"},
		{"store.url", "postgres://u:hush@host/db", "--index postgres://…"},
		{"store.url", "s3:bucket", "--store s3://…"},
		{"store.url", "gs://bucket", "s3://BUCKET"},
		{"store.url", "file:/backup", "the path alone"},
		{"index.url", "s3://bucket", "--store s3://…"},
		{"index.url", "mysql://u:hush@host/db", "(--index)"},
	} {
		group, name, nested := strings.Cut(test.key, ".")
		file, line := group+": '"+test.value+"'\n", "1"
		if nested {
			file, line = group+":\n  "+name+": '"+test.value+"'\n", "2"
		}
		s := settingOf(t, test.key)
		for where, from := range map[string]func() (*Config, error){
			"flag --" + s.Flag:                    func() (*Config, error) { return load(t, "", nil, map[string]string{test.key: test.value}) },
			"environment variable " + s.Env:       func() (*Config, error) { return load(t, "", map[string]string{s.Env: test.value}, nil) },
			"bctl.yaml:" + line + ": " + test.key: func() (*Config, error) { return load(t, file, nil, nil) },
		} {
			_, err := from()
			var misplaced *MisplacedError
			if !errors.As(err, &misplaced) || !errors.Is(err, backup.ErrInvalid) ||
				!strings.HasPrefix(err.Error(), where+": ") || !strings.Contains(err.Error(), test.meant) || strings.Contains(err.Error(), "hush") {
				t.Errorf("%s=%s: %v, want %s", where, test.value, err, test.meant)
			}
		}
	}
	for _, value := range []string{"/srv/s3:/x", "./s3://x", "../a:b", "backup", "c:"} {
		for key := range localSettings {
			if _, err := load(t, "", nil, map[string]string{key: value}); err != nil {
				t.Errorf("%s %s: %v", key, value, err)
			}
		}
	}
}

func settingOf(t *testing.T, key string) Setting {
	t.Helper()
	for _, s := range Settings() {
		if s.Key == key {
			return s
		}
	}
	t.Fatalf("there is no setting %s", key)
	return Setting{}
}
