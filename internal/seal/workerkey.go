package seal

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A DedupKey keys the hashes of chunks, and through a derived key where chunks
// end. Without it a chunk's name says nothing of its content.
type DedupKey [32]byte

// NewDedupKey returns a random DedupKey.
func NewDedupKey() (k DedupKey) {
	rand.Read(k[:]) // never fails: crypto/rand ends the process instead
	return k
}

// String hides the key from messages and logs.
func (DedupKey) String() string { return "(dedup key)" }

// GoString hides the key from messages and logs.
func (DedupKey) GoString() string { return "(dedup key)" }

// A WorkerKey is all that walkers and readers hold: enough to write packs, not
// to read one (I8).
type WorkerKey struct {
	Repository backup.RepositoryID
	Dedup      DedupKey
	Recipients []string
}

// MaxWorkerKeyBytes is the most that the text of a WorkerKey may have.
const MaxWorkerKeyBytes = 64 << 10

const (
	workerKeyTitle   = "bctl-worker-key "
	workerKeyVersion = "v1"
	checksumBytes    = 8
)

// MarshalText returns the text form: lines of a word and a value, in a fixed
// order, and a checksum over them. The same key always has the same text.
func (k WorkerKey) MarshalText() ([]byte, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s\n", workerKeyTitle, workerKeyVersion)
	fmt.Fprintf(&b, "repository %s\n", k.Repository)
	fmt.Fprintf(&b, "dedup %s\n", hex.EncodeToString(k.Dedup[:]))
	for _, r := range k.Recipients {
		fmt.Fprintf(&b, "recipient %s\n", r)
	}
	fmt.Fprintf(&b, "checksum %s\n", checksum(b.Bytes()))
	if b.Len() > MaxWorkerKeyBytes {
		return nil, fmt.Errorf("worker key: %d bytes, at most %d are allowed: %w", b.Len(), MaxWorkerKeyBytes, backup.ErrInvalid)
	}
	return b.Bytes(), nil
}

// ParseWorkerKey reads what MarshalText wrote, and nothing else: an edited
// file could lack a recipient, whose owner would then read none of the packs
// that are written with it. Errors wrap backup.ErrInvalid, or
// backup.ErrCorrupt where only the checksum is wrong; they show no key.
func ParseWorkerKey(data []byte) (WorkerKey, error) {
	k, err := parseWorkerKey(data)
	if err != nil {
		return WorkerKey{}, fmt.Errorf("worker key: %w", err)
	}
	return k, nil
}

func parseWorkerKey(data []byte) (k WorkerKey, err error) {
	if len(data) > MaxWorkerKeyBytes {
		return k, fmt.Errorf("%d bytes, at most %d are allowed: %w", len(data), MaxWorkerKeyBytes, backup.ErrInvalid)
	}
	rest := string(data)
	version, rest, ok := cutLine(rest, workerKeyTitle)
	switch {
	case !ok:
		return k, fmt.Errorf("does not begin with %q: %w", workerKeyTitle+workerKeyVersion, backup.ErrInvalid)
	case version != workerKeyVersion:
		return k, fmt.Errorf("is of another version than %s: %w", workerKeyVersion, backup.ErrInvalid)
	}
	repository, rest, ok := cutLine(rest, "repository ")
	if !ok || !decodeHex(k.Repository[:], repository) {
		return k, fmt.Errorf("no valid line %q: %w", "repository", backup.ErrInvalid)
	}
	dedup, rest, ok := cutLine(rest, "dedup ")
	if !ok || !decodeHex(k.Dedup[:], dedup) {
		return k, fmt.Errorf("no valid line %q: %w", "dedup", backup.ErrInvalid)
	}
	for len(k.Recipients) <= MaxRecipients {
		var recipient string
		if recipient, rest, ok = cutLine(rest, "recipient "); !ok {
			break
		}
		k.Recipients = append(k.Recipients, recipient)
	}
	signed := data[:len(data)-len(rest)]
	sum, rest, ok := cutLine(rest, "checksum ")
	if !ok || rest != "" {
		return k, fmt.Errorf("does not end with a line %q after %d recipients: %w", "checksum", len(k.Recipients), backup.ErrInvalid)
	}
	if sum != checksum(signed) {
		return k, fmt.Errorf("checksum does not match: %w", backup.ErrCorrupt)
	}
	return k, k.check()
}

func (k WorkerKey) check() error {
	if k.Repository == (backup.RepositoryID{}) || k.Dedup == (DedupKey{}) {
		return fmt.Errorf("repository or dedup key is zero: %w", backup.ErrInvalid)
	}
	_, err := parseRecipients(k.Recipients)
	return err
}

// cutLine cuts the first line off text where it begins with word.
func cutLine(text, word string) (value, rest string, ok bool) {
	line, after, ended := strings.Cut(text, "\n")
	value, ok = strings.CutPrefix(line, word)
	if !ended || !ok {
		return "", text, false
	}
	return value, after, true
}

// decodeHex accepts lower case only, so that a key has one text.
func decodeHex(dst []byte, text string) bool {
	if len(text) != hex.EncodedLen(len(dst)) || strings.ToLower(text) != text {
		return false
	}
	_, err := hex.Decode(dst, []byte(text))
	return err == nil
}

func checksum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:checksumBytes])
}
