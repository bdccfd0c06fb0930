package doctor_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/services/bctl/open"
)

func TestConfiguration(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	cert, key := a.pair("walker@paris/1", year)
	old, _ := a.pair("walker@paris/0", -time.Hour)
	ending, _ := a.pair("walker@paris/2", 5*24*time.Hour)
	good := settings{"BCTL_NATS": "nats://localhost", "BCTL_NATS_CERT_FILE": cert, "BCTL_NATS_KEY_FILE": key, "BCTL_NATS_CA_FILE": a.File}
	found := examine(t, good, "", "configuration")
	found.onlyFails(t)
	found.want(t, "configuration.certificates", doctor.OK, "nats.cert_file: certificate of walker@paris/1 by test authority, 364 days left", "nats.ca_file")
	found.want(t, "configuration.files", doctor.OK, "3 files")
	found.want(t, "configuration.secrets", doctor.OK, "1 secret file")

	t.Run("certificates", func(t *testing.T) {
		examine(t, good.with(settings{"BCTL_NATS_CERT_FILE": old}), "", "configuration").want(t, "configuration.certificates", doctor.Failure, "expired", "bctl deploy rotate")
		examine(t, good.with(settings{"BCTL_NATS_CERT_FILE": ending}), "", "configuration").want(t, "configuration.certificates", doctor.Warning, "4 days left")
		examine(t, good.with(settings{"BCTL_NATS_CERT_FILE": key}), "", "configuration").want(t, "configuration.certificates", doctor.Failure, "no certificate is in")
		// An expired authority next to its successor only causes a recommendation to remove it.
		two := append(read(t, old), read(t, a.File)...)
		examine(t, good.with(settings{"BCTL_NATS_CA_FILE": write(t, "two.pem", two)}), "", "configuration").want(t, "configuration.certificates", doctor.Warning, "expired")
	})
	t.Run("files", func(t *testing.T) {
		found := examine(t, good.with(settings{"BCTL_NATS_CA_FILE": "/nowhere", "BCTL_TRACE_CA_FILE": write(t, "empty", nil), "BCTL_STORE_CA_FILE": t.TempDir()}), "", "configuration")
		found.want(t, "configuration.files", doctor.Failure, "nats.ca_file: open /nowhere: no such file", "trace.ca_file", "is empty", "store.ca_file", "is a directory")
		keys := settings{"BCTL_WORKER_KEY": "/nowhere/worker.key"}
		examine(t, keys, "reader", "configuration").want(t, "configuration.files", doctor.Failure, "worker_key")
		examine(t, keys, "committer", "configuration").want(t, "configuration.files", doctor.OK)
		examine(t, settings{"BCTL_IDENTITY": "/nowhere/identity"}, "operator", "configuration").want(t, "configuration.files", doctor.Warning, "identity", "before a restore")
	})
	t.Run("secrets", func(t *testing.T) {
		open := write(t, "open.key", read(t, key))
		if err := os.Chmod(open, 0o644); err != nil {
			t.Fatal(err)
		}
		examine(t, good.with(settings{"BCTL_NATS_KEY_FILE": open}), "", "configuration").want(t, "configuration.secrets", doctor.Failure, "nats.key_file", "0644", "chmod o=")
		if err := os.Chmod(open, 0o660); err != nil {
			t.Fatal(err)
		}
		examine(t, good.with(settings{"BCTL_NATS_KEY_FILE": open}), "", "configuration").want(t, "configuration.secrets", doctor.Warning, "a group can change")
		if err := os.Chmod(open, 0o440); err != nil { // the mode with which Kubernetes mounts them
			t.Fatal(err)
		}
		examine(t, good.with(settings{"BCTL_NATS_KEY_FILE": open}), "", "configuration").want(t, "configuration.secrets", doctor.OK)
	})
	t.Run("a secret in the configuration", func(t *testing.T) {
		for text, status := range map[string]doctor.Status{
			"store: {secret_key: tell-nobody, access_key: a}":                     doctor.Failure,
			"index: {url: 'postgres://u:tell-nobody@h/d'}":                        doctor.Failure,
			"nats: {url: 'nats://h, nats://u:tell-nobody@i'}":                     doctor.Failure,
			"nats: {url: 'nats://h', password_file: " + filepath.Clean(key) + "}": doctor.OK,
		} {
			file := filepath.Join(t.TempDir(), "bctl.yaml")
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(config.Sources{File: file, Env: func(string) (string, bool) { return "", false }})
			if err != nil {
				t.Fatal(err)
			}
			p := open.Doctor(c)
			p.ConfigFile = file
			found := run(t, &p, "configuration")
			found.want(t, "configuration.secrets", status)
			found.hides(t, "tell-nobody")
		}
	})
	t.Run("environment", func(t *testing.T) {
		p := open.Doctor(settings{}.load(t))
		p.Environ = []string{"BCTL_NATS=x", "BCTL_STORE_URL=tell-nobody", "PATH=y", "BCTL_CONFIG=z"}
		found := run(t, &p, "configuration")
		found.want(t, "configuration.environment", doctor.Warning, "no setting: BCTL_STORE_URL")
		found.hides(t, "tell-nobody")
	})
	t.Run("cannot be read", func(t *testing.T) {
		p := open.Doctor(nil)
		p.ConfigError = errors.New("bctl.yaml:3: no setting is called natz")
		found := run(t, &p)
		found.want(t, "configuration.settings", doctor.Failure, "bctl.yaml:3")
		found.want(t, "configuration.files", doctor.NotTested)
		found.want(t, "nats", doctor.NotTested, "no configuration")
		found.want(t, "machine.kernel", doctor.OK)
	})
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
