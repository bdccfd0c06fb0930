package seal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"

	"github.com/bctl/bctl/internal/backup"
)

func TestWrappedKeyOpensWhatWasSealed(t *testing.T) {
	alice, bob, eve := newPerson(t), newPerson(t), newPerson(t)
	sealer := newSealer(t, alice.recipient, bob.recipient)
	key, wrapped, err := sealer.NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	sealed := key.Seal([]byte("head"), []byte("a frame"), 7, []byte("aad"))
	if len(sealed) != len("head")+len("a frame")+OverheadBytes {
		t.Errorf("sealed is %d bytes", len(sealed))
	}
	for _, person := range []person{alice, bob} {
		k, err := person.opener(t).Unwrap(wrapped)
		if err != nil {
			t.Fatal(err)
		}
		plaintext, err := k.Open([]byte("dst "), sealed[len("head"):], 7, []byte("aad"))
		if err != nil || string(plaintext) != "dst a frame" {
			t.Errorf("Open: %q, %v", plaintext, err)
		}
	}
	if _, err := eve.opener(t).Unwrap(wrapped); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("Unwrap by somebody else: %v, want ErrWrongKey", err)
	}
}

func TestOpenRefusesWhatWasNotSealed(t *testing.T) {
	key := newDataKey(newRawKey())
	sealed := key.Seal(nil, []byte("a frame"), 7, []byte("aad"))
	flipped := bytes.Clone(sealed)
	flipped[3] ^= 1
	tests := []struct {
		name    string
		key     *DataKey
		sealed  []byte
		counter uint64
		aad     string
	}{
		{"changed byte", key, flipped, 7, "aad"},
		{"truncated", key, sealed[:len(sealed)-1], 7, "aad"},
		{"shorter than its tag", key, sealed[:5], 7, "aad"},
		{"empty", key, nil, 7, "aad"},
		{"another counter", key, sealed, 8, "aad"},
		{"another counter, far away", key, sealed, 7 | 1<<63, "aad"},
		{"other additional data", key, sealed, 7, "aae"},
		{"another key", newDataKey(newRawKey()), sealed, 7, "aad"},
	}
	for _, tt := range tests {
		if _, err := tt.key.Open(nil, tt.sealed, tt.counter, []byte(tt.aad)); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", tt.name, err)
		}
	}
}

func TestDamagedWrappedKeyIsAnError(t *testing.T) {
	alice := newPerson(t)
	_, wrapped, err := newSealer(t, alice.recipient).NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	opener := alice.opener(t)
	for i := range wrapped {
		damaged := bytes.Clone(wrapped)
		damaged[i] ^= 4
		if _, err := opener.Unwrap(damaged); !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrWrongKey) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if _, err := opener.Unwrap(wrapped[:i]); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("truncated to %d bytes: %v, want ErrCorrupt", i, err)
		}
	}
	if _, err := opener.Unwrap(append(wrapped, 0)); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a byte more: %v, want ErrCorrupt", err)
	}
	if _, err := opener.Unwrap(make([]byte, MaxWrappedBytes+1)); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("too long: %v, want ErrCorrupt", err)
	}
}

// A blob's length must differ from that of a key; otherwise it could be accepted as one.
func TestUnwrapRefusesBlob(t *testing.T) {
	alice := newPerson(t)
	sealed, err := newSealer(t, alice.recipient).SealBlob([]byte("not a key"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alice.opener(t).Unwrap(sealed); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("Unwrap of a blob: %v, want ErrCorrupt", err)
	}
}

func TestBlob(t *testing.T) {
	alice := newPerson(t)
	sealer, opener := newSealer(t, alice.recipient), alice.opener(t)
	for _, size := range []int{0, 1, 70_000, MaxBlobBytes} {
		plaintext := bytes.Repeat([]byte{42}, size)
		sealed, err := sealer.SealBlob(plaintext)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := opener.OpenBlob(sealed); err != nil || !bytes.Equal(got, plaintext) {
			t.Errorf("OpenBlob of %d bytes: %d bytes, %v", size, len(got), err)
		}
		sealed[len(sealed)-1] ^= 1
		if _, err := opener.OpenBlob(sealed); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("OpenBlob of %d changed bytes: %v, want ErrCorrupt", size, err)
		}
	}
	if _, err := sealer.SealBlob(make([]byte, MaxBlobBytes+1)); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("SealBlob of too much: %v, want ErrInvalid", err)
	}
}

func TestRecipients(t *testing.T) {
	alice := newPerson(t)
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	hybrids := make([]string, MaxRecipients)
	crowd := make([]string, MaxRecipients+1)
	for i := range crowd {
		crowd[i] = newPerson(t).recipient
	}
	for i := range hybrids {
		h, err := age.GenerateHybridIdentity()
		if err != nil {
			t.Fatal(err)
		}
		hybrids[i] = h.Recipient().String()
	}
	tests := []struct {
		name       string
		recipients []string
		ok         bool
	}{
		{"one", []string{alice.recipient}, true},
		{"the most", crowd[:MaxRecipients], true},
		{"post-quantum", []string{hybrid.Recipient().String()}, true},
		{"some post-quantum", hybrids[:9], true},
		{"none", nil, false},
		{"too many", crowd, false},
		{"too many post-quantum to fit into a header", hybrids, false},
		{"post-quantum and classic", []string{alice.recipient, hybrid.Recipient().String()}, false},
		{"twice", []string{alice.recipient, alice.recipient}, false},
		{"an identity", []string{alice.identity}, false},
		{"empty", []string{""}, false},
		{"a comment", []string{"# " + alice.recipient}, false},
		{"two in one", []string{alice.recipient + "\n" + crowd[0]}, false},
		{"cut short", []string{alice.recipient[:20]}, false},
	}
	for _, tt := range tests {
		_, err := NewSealer(tt.recipients)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && strings.Contains(err.Error(), alice.identity) {
			t.Errorf("%s: the error shows an identity", tt.name)
		}
	}
}

func TestIdentityFile(t *testing.T) {
	alice, bob := newPerson(t), newPerson(t)
	tests := []struct {
		name, file string
		ok         bool
	}{
		{"one line", alice.identity, true},
		{"as age-keygen writes it", "# created: 2026-11-21T08:00:00Z\n# public key: " + alice.recipient + "\n" + alice.identity + "\n", true},
		{"two, with CRLF", bob.identity + "\r\n\r\n" + alice.identity + "\r\n", true},
		{"empty", "", false},
		{"comments only", "# nothing\n", false},
		{"a recipient", alice.recipient, false},
		{"cut short", alice.identity[:40], false},
	}
	_, wrapped, err := newSealer(t, alice.recipient).NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		opener, err := NewOpener([]byte(tt.file))
		if !tt.ok {
			if !errors.Is(err, backup.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", tt.name, err)
			}
			if err != nil && strings.Contains(err.Error(), alice.identity[20:40]) {
				t.Errorf("%s: the error shows the identity: %v", tt.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if _, err := opener.Unwrap(wrapped); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	alice := newPerson(t)
	sealer, opener := newSealer(t, alice.recipient), alice.opener(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			key, wrapped, err := sealer.NewDataKey()
			if err != nil {
				t.Error(err)
				return
			}
			sealed := key.Seal(nil, []byte("frame"), uint64(i), nil)
			k, err := opener.Unwrap(wrapped)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := k.Open(nil, sealed, uint64(i), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestWorkerKeyText(t *testing.T) {
	alice, bob := newPerson(t), newPerson(t)
	key := WorkerKey{Repository: backup.NewRepositoryID(), Dedup: NewDedupKey(), Signer: NewSigningKey().Signer(), Recipients: []string{alice.recipient, bob.recipient}}
	text, err := key.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseWorkerKey(text)
	if err != nil {
		t.Fatal(err)
	}
	if got.Repository != key.Repository || got.Dedup != key.Dedup || got.Signer != key.Signer || !slices.Equal(got.Recipients, key.Recipients) {
		t.Errorf("parsed %+v, want %+v", got, key)
	}
}

func TestWorkerKeyHidesDedupKey(t *testing.T) {
	key := WorkerKey{Dedup: NewDedupKey()}
	secret := fmt.Sprintf("%x", key.Dedup[:])
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if text := fmt.Sprintf(verb, key); strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%d", key.Dedup[:4])[1:8]) {
			t.Errorf("%s shows the key: %s", verb, text)
		}
	}
}

func TestParseWorkerKeyRefusesEdits(t *testing.T) {
	alice, bob := newPerson(t), newPerson(t)
	good, err := WorkerKey{Repository: backup.RepositoryID{1}, Dedup: DedupKey{2}, Signer: Signer{3}, Recipients: []string{alice.recipient, bob.recipient}}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	edit := func(from, to string) string {
		edited := strings.Replace(string(good), from, to, 1)
		if edited == string(good) {
			t.Fatalf("%q is not there", from)
		}
		return edited
	}
	tests := []struct {
		name, text string
		want       error
	}{
		{"empty", "", backup.ErrInvalid},
		{"something else", "repository: x\n", backup.ErrInvalid},
		{"another version", resum(edit("v1", "v2")), backup.ErrInvalid},
		{"a recipient less", edit("recipient "+bob.recipient+"\n", ""), backup.ErrCorrupt},
		{"a digit of the dedup key", edit("dedup 0200", "dedup 0201"), backup.ErrCorrupt},
		{"upper case", resum(edit(strings.Repeat("0", 20), strings.Repeat("0", 19)+"A")), backup.ErrInvalid},
		{"a zero dedup key", resum(edit("dedup 02", "dedup 00")), backup.ErrInvalid},
		{"a zero signer", resum(edit("signer 03", "signer 00")), backup.ErrInvalid},
		{"no signer", resum(edit("signer 03"+strings.Repeat("0", 62)+"\n", "")), backup.ErrInvalid},
		{"a short signer", resum(edit("signer 0300", "signer 03")), backup.ErrInvalid},
		{"a zero repository", resum(edit("repository 01", "repository 00")), backup.ErrInvalid},
		{"a recipient twice", resum(edit(bob.recipient, alice.recipient)), backup.ErrInvalid},
		{"an identity as recipient", resum(edit(bob.recipient, bob.identity)), backup.ErrInvalid},
		{"no recipient", resum(edit("recipient "+alice.recipient+"\nrecipient "+bob.recipient+"\n", "")), backup.ErrInvalid},
		{"lines exchanged", resum(edit("repository", "dedup")), backup.ErrInvalid},
		{"CRLF", strings.ReplaceAll(string(good), "\n", "\r\n"), backup.ErrInvalid},
		{"no line end", strings.TrimSuffix(string(good), "\n"), backup.ErrInvalid},
		{"a line more", string(good) + "\n", backup.ErrInvalid},
		{"a comment", "# mine\n" + string(good), backup.ErrInvalid},
		{"too many recipients", resum(edit("checksum", strings.Repeat("recipient "+bob.recipient+"\n", MaxRecipients)+"checksum")), backup.ErrInvalid},
		{"too long", string(good) + strings.Repeat(" ", MaxKeyFileBytes), backup.ErrInvalid},
	}
	for _, tt := range tests {
		k, err := ParseWorkerKey([]byte(tt.text))
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if k.Dedup != (DedupKey{}) || k.Recipients != nil {
			t.Errorf("%s: a key comes with the error", tt.name)
		}
	}
	for i := range good {
		if _, err := ParseWorkerKey(good[:i]); err == nil {
			t.Errorf("truncated to %d bytes: no error", i)
		}
	}
}

// resum corrects the checksum of a key's text.
func resum(text string) string {
	body, _, _ := strings.Cut(text, "checksum ")
	sum := sha256.Sum256([]byte(body))
	return body + "checksum " + hex.EncodeToString(sum[:8]) + "\n"
}

type person struct{ identity, recipient string }

func newPerson(t testing.TB) person {
	t.Helper()
	identity, recipient, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return person{identity, recipient}
}

func (p person) opener(t testing.TB) *Opener {
	t.Helper()
	o, err := NewOpener([]byte(p.identity))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func newSealer(t testing.TB, recipients ...string) *Sealer {
	t.Helper()
	s, err := NewSealer(recipients)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
