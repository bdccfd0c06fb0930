package seal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/plugin"

	"github.com/bctl/bctl/internal/backup"
)

// pluginName is that of the plugin as which this test binary runs if the environment says so.
const (
	pluginName    = "bctltest"
	runsAsPlugin  = "BCTL_TEST_AGE_PLUGIN"
	pluginMessage = "touch the key"
)

func TestMain(m *testing.M) {
	if os.Getenv(runsAsPlugin) != "" {
		os.Exit(runPlugin())
	}
	os.Exit(m.Run())
}

// runPlugin is a plugin whose "hardware" holds an X25519 identity: the data of its identity.
func runPlugin() int {
	p, err := plugin.New(pluginName)
	if err != nil {
		return 1
	}
	p.HandleRecipient(func(data []byte) (age.Recipient, error) { return age.ParseX25519Recipient(string(data)) })
	p.HandleIdentity(func(data []byte) (age.Identity, error) {
		if err := p.DisplayMessage(pluginMessage); err != nil {
			return nil, err
		}
		return age.ParseX25519Identity(string(data))
	})
	return p.Main()
}

// installPlugin puts the plugin into a directory of its own, which becomes the PATH.
func installPlugin(t *testing.T) (identityFile, recipient string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", runsAsPlugin, self)
	if err := os.WriteFile(filepath.Join(dir, "age-plugin-"+pluginName), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	recipient = plugin.EncodeRecipient(pluginName, []byte(id.Recipient().String()))
	return "#  Recipient: " + recipient + "\n" + plugin.EncodeIdentity(pluginName, []byte(id.String())) + "\n", recipient
}

// A hardware key works through its plugin: packs are sealed to it, together with other recipients,
// and opened with it.
func TestPlugin(t *testing.T) {
	identityFile, recipient := installPlugin(t)
	plain, other, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := NewSealer([]string{recipient, other})
	if err != nil {
		t.Fatal(err)
	}
	key, wrapped, err := sealer.NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	sealed := key.Seal(nil, []byte("content"), 1, nil)
	var told []string
	ui := &UI{DisplayMessage: func(name, message string) error { told = append(told, name+": "+message); return nil }}
	for _, file := range []string{identityFile, plain, "# both\n" + plain + "\n" + identityFile} {
		opener, err := NewOpenerWithUI([]byte(file), ui)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := opener.Unwrap(wrapped)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := opened.Open(nil, sealed, 1, nil); err != nil || string(got) != "content" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if !slices.Contains(told, pluginName+": "+pluginMessage) {
		t.Errorf("the plugin's message was not shown: %q", told)
	}
	if got, err := RecipientsOf([]byte(identityFile + plain)); err != nil || !slices.Equal(got, []string{other, recipient}) {
		t.Errorf("recipients %q, %v", got, err)
	}
	if _, err := RecipientsOf(onlyIdentities(identityFile)); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("without the comment: %v", err)
	}
}

// onlyIdentities returns only the identities of a file.
func onlyIdentities(file string) []byte { return []byte(strings.Join(Identities([]byte(file)), "\n")) }

// Without its program, a plugin's recipient is refused before anything is sealed.
func TestPluginThatIsMissing(t *testing.T) {
	identityFile, recipient := installPlugin(t)
	t.Setenv("PATH", t.TempDir())
	if _, err := NewSealer([]string{recipient}); !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), "age-plugin-"+pluginName) {
		t.Errorf("sealer: %v", err)
	}
	opener, err := NewOpener([]byte(identityFile))
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := NewSealer([]string{other})
	if err != nil {
		t.Fatal(err)
	}
	_, wrapped, err := sealer.NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := opener.Unwrap(wrapped); err == nil {
		t.Error("opened without the plugin")
	}
}

func TestRecipientsOf(t *testing.T) {
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	identity, recipient, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	got, err := RecipientsOf([]byte("# public key: ignored\r\n\r\n" + identity + "\r\n" + hybrid.String()))
	if err != nil || !slices.Equal(got, []string{recipient, hybrid.Recipient().String()}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "# nothing", "AGE-SECRET-KEY-1QQ", "AGE-PLUGIN-X-1QQ"} {
		_, err := RecipientsOf([]byte(bad))
		if !errors.Is(err, backup.ErrInvalid) || strings.Contains(err.Error(), "1QQ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPassphrase(t *testing.T) {
	text := []byte("# a comment\nAGE-SECRET-KEY-1…\n")
	file, err := Protect(text, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	if !IsProtected(file) || IsProtected(text) || bytes.Contains(file, []byte("SECRET")) {
		t.Errorf("%s", file)
	}
	got, err := Unprotect(file, "correct horse")
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("%q, %v", got, err)
	}
	for what, test := range map[string]struct {
		file       []byte
		passphrase string
		want       error
	}{
		"another passphrase": {file, "battery staple", backup.ErrWrongKey},
		"no passphrase":      {file, "", backup.ErrWrongKey},
		"cut":                {file[:len(file)/2], "correct horse", backup.ErrInvalid},
		"nothing":            {nil, "correct horse", backup.ErrInvalid},
		"no such file":       {text, "correct horse", backup.ErrInvalid},
	} {
		if _, err := Unprotect(test.file, test.passphrase); !errors.Is(err, test.want) || strings.Contains(fmt.Sprint(err), "horse") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Protect(text, ""); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("no passphrase: %v", err)
	}
	if _, err := NewOpener(file); !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), "passphrase") {
		t.Errorf("opened as it is: %v", err)
	}
	// A file that is sealed to a recipient is protected by no passphrase.
	_, recipient, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := NewSealer([]string{recipient})
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := sealer.SealBlob(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Unprotect(sealed, "correct horse"); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("sealed to a recipient: %v", err)
	}
}

// A file of this version, in the form of age -p, opens in later ones.
func TestGoldenProtectedIdentity(t *testing.T) {
	file, err := os.ReadFile("testdata/v1/protected-identity.txt")
	if err != nil {
		t.Fatal(err)
	}
	text, err := Unprotect(file, "bctl golden")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := RecipientsOf(text); err != nil || len(got) != 1 {
		t.Errorf("%q, %v", got, err)
	}
}

// A file cannot make bctl work for minutes: the work is in its header, which anyone can write.
func TestHostileWorkFactor(t *testing.T) {
	recipient, err := age.NewScryptRecipient("x")
	if err != nil {
		t.Fatal(err)
	}
	recipient.SetWorkFactor(1)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, recipient)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	hostile := bytes.Replace(out.Bytes(), []byte(" 1\n"), []byte(" 22\n"), 1)
	if bytes.Equal(hostile, out.Bytes()) {
		t.Fatal("the header has no work factor")
	}
	if _, err := Unprotect(hostile, "x"); !errors.Is(err, backup.ErrInvalid) {
		t.Error(err)
	}
}

func TestKeysThatWereWrappedAgain(t *testing.T) {
	own, recipient, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := NewSealer([]string{recipient})
	if err != nil {
		t.Fatal(err)
	}
	_, wrapped, err := sealer.NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	opener, err := NewOpener([]byte(own))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := opener.UnwrapRaw(wrapped)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := NewOpener([]byte(other))
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	answer := func(key RawKey, err error) *Opener {
		return stranger.WithRewrapped(func(id KeyID) (RawKey, error) { asked++; return key, err })
	}
	if _, err := answer(raw, nil).UnwrapPack(KeyID{1}, wrapped); err != nil || asked != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	if _, err := answer(raw, fmt.Errorf("x: %w", backup.ErrNotFound)).UnwrapPack(KeyID{1}, wrapped); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("not wrapped again: %v", err)
	}
	if _, err := answer(raw, backup.ErrUnavailable).UnwrapPack(KeyID{1}, wrapped); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("the store is away: %v", err)
	}
	asked = 0
	damaged := append([]byte{}, wrapped...)
	damaged[len(damaged)-1]++
	with := opener.WithRewrapped(func(KeyID) (RawKey, error) { asked++; return raw, nil })
	if _, err := with.UnwrapPack(KeyID{1}, damaged); !errors.Is(err, backup.ErrCorrupt) || asked != 0 {
		t.Errorf("damaged: %v, asked %d times", err, asked)
	}
}
