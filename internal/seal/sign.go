package seal

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
)

// SignatureBytes is the length of a signature.
const SignatureBytes = ed25519.SignatureSize

// signatureContext separates these signatures from all others.
const signatureContext = "bctl 2026-11-22 signature v1"

// A Signer is the public half of a repository's signing key (Ed25519). The store's copy of the
// index is trusted only if it is signed with that key.
type Signer [ed25519.PublicKeySize]byte

// String returns the 64 hexadecimal digits.
func (s Signer) String() string { return hex.EncodeToString(s[:]) }

// ParseSigner reads the 64 hexadecimal digits of String.
func ParseSigner(text string) (s Signer, err error) {
	if !keytext.DecodeHex(s[:], text) || s == (Signer{}) {
		return Signer{}, fmt.Errorf("%q: a signer has %d hexadecimal digits: %w", text, hex.EncodedLen(len(s)), backup.ErrInvalid)
	}
	return s, nil
}

// Verify returns an error that wraps backup.ErrCorrupt unless signature is the signature of data as
// the object with the given name in the repository.
func (s Signer) Verify(repository backup.RepositoryID, name string, data, signature []byte) error {
	if len(signature) != SignatureBytes || s == (Signer{}) || !ed25519.Verify(s[:], signed(repository, name, data), signature) {
		return fmt.Errorf("%s is not signed by the committers of repository %v (signer %.8s): %w", name, repository, s, backup.ErrCorrupt)
	}
	return nil
}

// A SigningKey signs the objects that committers put into the store. It is safe for concurrent use.
type SigningKey struct{ private ed25519.PrivateKey }

// NewSigningKey returns a new random SigningKey.
func NewSigningKey() SigningKey {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // crypto/rand ends the process instead of failing
	}
	return SigningKey{private}
}

// Signer returns the public half.
func (k SigningKey) Signer() Signer { return Signer(k.private.Public().(ed25519.PublicKey)) }

// Sign returns the signature of data as the object with the given name in the repository.
func (k SigningKey) Sign(repository backup.RepositoryID, name string, data []byte) []byte {
	return ed25519.Sign(k.private, signed(repository, name, data))
}

// Format hides the key from messages and logs, for every verb.
func (SigningKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(signing key)") }

// signed returns the bytes that Ed25519 signs: the location of the data, and its hash.
func signed(repository backup.RepositoryID, name string, data []byte) []byte {
	b := append([]byte(signatureContext), 0)
	b = append(b, repository[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	sum := blake3.Sum256(data)
	return append(b, sum[:]...)
}

// A CommitterKey is the key that committers hold. It signs, and opens nothing.
type CommitterKey struct {
	Repository backup.RepositoryID
	Signing    SigningKey
}

const committerKeyTitle = "bctl-committer-key"

// MarshalText returns the text form, as defined by package keytext.
func (k CommitterKey) MarshalText() ([]byte, error) {
	if k.Repository == (backup.RepositoryID{}) || len(k.Signing.private) == 0 {
		return nil, fmt.Errorf("committer key: a key or id in it is zero: %w", backup.ErrInvalid)
	}
	signer := k.Signing.Signer()
	w := keytext.NewWriter(committerKeyTitle)
	w.Hex("repository", k.Repository[:])
	w.Hex("seed", k.Signing.private.Seed())
	w.Hex("signer", signer[:])
	w.Checksum()
	return w.Bytes(), nil
}

// ParseCommitterKey parses exactly the output of MarshalText. Its errors are those of
// ParseWorkerKey.
func ParseCommitterKey(data []byte) (k CommitterKey, err error) {
	var seed [ed25519.SeedSize]byte
	var signer Signer
	r := keytext.NewReader("committer key", committerKeyTitle, data, MaxKeyFileBytes)
	r.Hex("repository", k.Repository[:])
	r.Hex("seed", seed[:])
	r.Hex("signer", signer[:])
	r.Checksum()
	if r.Err() != nil {
		return CommitterKey{}, r.Err()
	}
	k.Signing = SigningKey{ed25519.NewKeyFromSeed(seed[:])}
	if k.Repository == (backup.RepositoryID{}) || seed == [ed25519.SeedSize]byte{} || k.Signing.Signer() != signer {
		return CommitterKey{}, fmt.Errorf("committer key: its parts do not belong together: %w", backup.ErrInvalid)
	}
	return k, nil
}

// signerLine begins the comment in an identity file that names the signer of a repository. age
// ignores it as a comment.
const signerLine = "# bctl signer "

// SignerComment returns the line of an identity file that names the signer of a repository. The
// owner of the identity then knows, independently of the store and the index, whose signatures to
// trust.
func SignerComment(repository backup.RepositoryID, s Signer) string {
	return fmt.Sprintf("%s%s %s", signerLine, repository, s)
}

// SignersOf returns all signers that an identity file names, by repository. Errors are those of
// SignerOf.
func SignersOf(identityFile []byte) (map[backup.RepositoryID]Signer, error) {
	signers := map[backup.RepositoryID]Signer{}
	for line := range strings.Lines(string(identityFile)) {
		rest, found := strings.CutPrefix(strings.TrimRight(line, "\r\n"), signerLine)
		if !found {
			continue
		}
		of, _, _ := strings.Cut(rest, " ")
		id, err := backup.ParseRepositoryID(of)
		if err != nil {
			return nil, fmt.Errorf("identity file: line %q: %w", signerLine, err)
		}
		if signers[id], _, err = SignerOf(identityFile, id); err != nil {
			return nil, err
		}
	}
	return signers, nil
}

// SignerOf returns the signer that an identity file names for a repository; ok is false if it names
// none. A damaged line, or two different lines, are backup.ErrInvalid.
func SignerOf(identityFile []byte, repository backup.RepositoryID) (s Signer, ok bool, err error) {
	for line := range strings.Lines(string(identityFile)) {
		rest, found := strings.CutPrefix(strings.TrimRight(line, "\r\n"), signerLine)
		if !found {
			continue
		}
		of, text, _ := strings.Cut(rest, " ")
		id, err := backup.ParseRepositoryID(of)
		if err != nil {
			return Signer{}, false, fmt.Errorf("identity file: line %q: %w", signerLine, err)
		}
		if id != repository {
			continue
		}
		signer, err := ParseSigner(text)
		if err != nil {
			return Signer{}, false, fmt.Errorf("identity file: line %q: %w", signerLine, err)
		}
		if ok && s != signer {
			return Signer{}, false, fmt.Errorf("identity file: it names two signers of repository %v: %w", repository, backup.ErrInvalid)
		}
		s, ok = signer, true
	}
	return s, ok, nil
}
