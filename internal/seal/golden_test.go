package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/cryptotest"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv/golden"
)

var update = flag.Bool("update", false, "write golden files")

var goldenWorkerKey = WorkerKey{
	Repository: backup.RepositoryID([]byte("golden repositor")),
	Dedup:      DedupKey([]byte("0123456789abcdef0123456789abcdef")),
	Signer:     goldenSigner,
}

// The signer is that of committer-key.txt.
var goldenSigner = goldenSigning.Signer()

var goldenSigning = SigningKey{ed25519.NewKeyFromSeed([]byte("a seed of Ed25519 has 32 bytes, "))}

const (
	goldenPlaintext = "what the frame says"
	goldenCounter   = 1<<63 | 5
	goldenAAD       = "additional data"
	goldenName      = "commits/61206e616d65"
	goldenObject    = "what the committers say"
)

func TestWriteGolden(t *testing.T) {
	if !*update {
		t.Skip("only with -update")
	}
	cryptotest.SetGlobalRandom(t, 1)
	alice, bob := newPerson(t), newPerson(t)
	sealer := newSealer(t, alice.recipient, bob.recipient)
	key, wrapped, err := sealer.NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	workerKey := goldenWorkerKey
	workerKey.Recipients = []string{alice.recipient, bob.recipient}
	text, err := workerKey.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := sealer.SealBlob(text)
	if err != nil {
		t.Fatal(err)
	}
	committer, err := CommitterKey{Repository: goldenWorkerKey.Repository, Signing: goldenSigning}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	committerBlob, err := sealer.SealBlob(committer)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		"identity.txt": []byte("# bctl repository of a test\n" + SignerComment(goldenWorkerKey.Repository, goldenSigner) + "\n" +
			SignerComment(backup.RepositoryID{1}, Signer{2}) + "\n# public key: " + bob.recipient + "\n" + bob.identity + "\n"),
		"committer-key.txt": committer,
		"committer-key.age": committerBlob,
		"signature.bin":     goldenSigning.Sign(goldenWorkerKey.Repository, goldenName, []byte(goldenObject)),
		"wrapped.age":       wrapped,
		"sealed.bin":        key.Seal(nil, []byte(goldenPlaintext), goldenCounter, []byte(goldenAAD)),
		"worker-key.txt":    text,
		"worker-key.age":    blob,
		"recipient-1.txt":   []byte(alice.recipient + "\n"),
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(golden.Dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadGolden(t *testing.T) {
	opener, err := NewOpener(golden.Read(t, "identity.txt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := opener.Unwrap(golden.Read(t, "wrapped.age"))
	if err != nil {
		t.Fatal(err)
	}
	plaintext, err := key.Open(nil, golden.Read(t, "sealed.bin"), goldenCounter, []byte(goldenAAD))
	if err != nil || string(plaintext) != goldenPlaintext {
		t.Errorf("Open: %q, %v", plaintext, err)
	}
	text, err := opener.OpenBlob(golden.Read(t, "worker-key.age"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, golden.Read(t, "worker-key.txt")) {
		t.Errorf("OpenBlob: %q", text)
	}
	got, err := ParseWorkerKey(text)
	if err != nil {
		t.Fatal(err)
	}
	if got.Repository != goldenWorkerKey.Repository || got.Dedup != goldenWorkerKey.Dedup || got.Signer != goldenSigner || len(got.Recipients) != 2 {
		t.Errorf("worker key %+v", got)
	}
	again, err := got.MarshalText()
	if err != nil || !bytes.Equal(again, text) {
		t.Errorf("MarshalText: %q, %v", again, err)
	}
}

func TestReadGoldenCommitterKey(t *testing.T) {
	opener, err := NewOpener(golden.Read(t, "identity.txt"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := opener.OpenBlob(golden.Read(t, "committer-key.age"))
	if err != nil || !bytes.Equal(text, golden.Read(t, "committer-key.txt")) {
		t.Fatalf("OpenBlob: %q, %v", text, err)
	}
	key, err := ParseCommitterKey(text)
	if err != nil || key.Repository != goldenWorkerKey.Repository || key.Signing.Signer() != goldenSigner {
		t.Fatalf("%+v, %v", key, err)
	}
	// Ed25519 is deterministic, so the signature is part of the format.
	signature := golden.Read(t, "signature.bin")
	if got := key.Signing.Sign(key.Repository, goldenName, []byte(goldenObject)); !bytes.Equal(got, signature) {
		t.Errorf("signature %x, and it was %x", got, signature)
	}
	if err := goldenSigner.Verify(key.Repository, goldenName, []byte(goldenObject), signature); err != nil {
		t.Error(err)
	}
}

func TestReadGoldenSigner(t *testing.T) {
	file := golden.Read(t, "identity.txt")
	if s, ok, err := SignerOf(file, goldenWorkerKey.Repository); err != nil || !ok || s != goldenSigner {
		t.Errorf("signer %v, %v, %v", s, ok, err)
	}
	if s, ok, err := SignerOf(file, backup.RepositoryID{1}); err != nil || !ok || s != (Signer{2}) {
		t.Errorf("the other signer %v, %v, %v", s, ok, err)
	}
}

// Checks the signed bytes, one by one, with only the standard library.
func TestSignatureIsEd25519(t *testing.T) {
	hash := blake3.Sum256([]byte("data"))
	message := slices.Concat([]byte("bctl 2026-11-22 signature v1\x00"), bytes.Repeat([]byte{7}, 16), []byte{4, 0, 0, 0}, []byte("name"), hash[:])
	seed := []byte("a seed of Ed25519 has 32 bytes, ")
	want := ed25519.Sign(ed25519.NewKeyFromSeed(seed), message)
	repository := backup.RepositoryID(bytes.Repeat([]byte{7}, 16))
	if got := goldenSigning.Sign(repository, "name", []byte("data")); !bytes.Equal(got, want) {
		t.Errorf("Sign: %x, want %x", got, want)
	}
}

// The key files in the format's documentation are the golden files.
func TestExamplesInDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/keys.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"worker-key.txt", "committer-key.txt"} {
		if !bytes.Contains(page, slices.Concat([]byte("```text\n"), golden.Read(t, name), []byte("```\n"))) {
			t.Errorf("docs/formats/keys.md does not show %s", name)
		}
	}
}

// Checks the nonce, byte by byte, with only the standard library.
func TestSealIsAES256GCM(t *testing.T) {
	raw := [rawKeyBytes]byte([]byte("an AES key has thirty-two bytes!"))
	block, err := aes.NewCipher(raw[:])
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := hex.DecodeString("6263746c" + "0102030405060708")
	want := gcm.Seal(nil, n, []byte("text"), []byte("aad"))
	if got := newDataKey(raw).Seal(nil, []byte("text"), 0x0102030405060708, []byte("aad")); !bytes.Equal(got, want) {
		t.Errorf("Seal: %x, want %x", got, want)
	}
}

func FuzzParseWorkerKey(f *testing.F) {
	f.Add(golden.Read(f, "worker-key.txt"))
	f.Add([]byte("bctl-worker-key v1\nrepository 00\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := ParseWorkerKey(data)
		if err != nil {
			return
		}
		text, err := k.MarshalText()
		if err != nil || !bytes.Equal(text, data) {
			t.Errorf("%q is another text of the key %q (%v)", data, text, err)
		}
	})
}

func FuzzParseCommitterKey(f *testing.F) {
	f.Add(golden.Read(f, "committer-key.txt"))
	f.Add([]byte("bctl-committer-key v1\nrepository 00\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := ParseCommitterKey(data)
		if err != nil {
			if !errors.Is(err, backup.ErrInvalid) && !errors.Is(err, backup.ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		text, err := k.MarshalText()
		if err != nil || !bytes.Equal(text, data) {
			t.Errorf("%q is another text of the key %q (%v)", data, text, err)
		}
	})
}

func FuzzSignerOf(f *testing.F) {
	f.Add(golden.Read(f, "identity.txt"))
	f.Add([]byte(signerLine + "\n" + signerLine))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, ok, err := SignerOf(data, goldenWorkerKey.Repository)
		if err != nil && !errors.Is(err, backup.ErrInvalid) {
			t.Error(err)
		}
		if ok != (s != Signer{}) || ok && err != nil {
			t.Errorf("signer %v, %v, %v", s, ok, err)
		}
	})
}

func FuzzUnwrap(f *testing.F) {
	wrapped := golden.Read(f, "wrapped.age")
	opener, err := NewOpener(golden.Read(f, "identity.txt"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wrapped)
	f.Add(wrapped[:len(wrapped)-1])
	f.Add(golden.Read(f, "worker-key.age"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if key, err := opener.Unwrap(data); err == nil && (key == nil || !bytes.Equal(data, wrapped)) {
			t.Errorf("unwrapped a key that nobody wrapped: %q", data)
		}
		opener.OpenBlob(data)
	})
}

func BenchmarkSeal(b *testing.B) {
	key := newDataKey(newRawKey())
	for _, size := range []int{64 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			plaintext, dst := make([]byte, size), make([]byte, 0, size+OverheadBytes)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for n := uint64(0); b.Loop(); n++ {
				key.Seal(dst, plaintext, n, []byte(goldenAAD))
			}
		})
	}
}

func BenchmarkNewDataKey(b *testing.B) {
	sealer := newSealer(b, newPerson(b).recipient, newPerson(b).recipient)
	b.ReportAllocs()
	for b.Loop() {
		sealer.NewDataKey()
	}
}

func BenchmarkUnwrap(b *testing.B) {
	opener, err := NewOpener(golden.Read(b, "identity.txt"))
	if err != nil {
		b.Fatal(err)
	}
	wrapped := golden.Read(b, "wrapped.age")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := opener.Unwrap(wrapped); err != nil {
			b.Fatal(err)
		}
	}
}
