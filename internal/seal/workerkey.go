package seal

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
)

// A DedupKey keys the hashes of chunks and, through a derived key, the chunk boundaries. Without it
// a chunk's name reveals nothing about its content.
type DedupKey [32]byte

// NewDedupKey returns a random DedupKey.
func NewDedupKey() (k DedupKey) {
	rand.Read(k[:]) // never fails: crypto/rand ends the process instead
	return k
}

// Format hides the key from messages and logs, for every verb.
func (DedupKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(dedup key)") }

// A WorkerKey is the only key that readers hold. It is enough to write packs, but not to read any
// (I8).
type WorkerKey struct {
	Repository backup.RepositoryID
	Dedup      DedupKey
	Signer     Signer // the signer of the only repository object to trust
	Recipients []string
}

// MaxKeyFileBytes is the maximum length of the text of a WorkerKey or a CommitterKey.
const MaxKeyFileBytes = 64 << 10

const workerKeyTitle = "bctl-worker-key"

// MarshalText returns the text form, as defined by package keytext.
func (k WorkerKey) MarshalText() ([]byte, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	w := keytext.NewWriter(workerKeyTitle)
	w.Hex("repository", k.Repository[:])
	w.Hex("dedup", k.Dedup[:])
	w.Hex("signer", k.Signer[:])
	for _, r := range k.Recipients {
		w.Text("recipient", r)
	}
	w.Checksum()
	if len(w.Bytes()) > MaxKeyFileBytes {
		return nil, fmt.Errorf("worker key: %d bytes, at most %d are allowed: %w", len(w.Bytes()), MaxKeyFileBytes, backup.ErrInvalid)
	}
	return w.Bytes(), nil
}

// ParseWorkerKey parses exactly the output of MarshalText. Errors wrap backup.ErrInvalid, or
// backup.ErrCorrupt if only the checksum is wrong. They never contain a key.
func ParseWorkerKey(data []byte) (k WorkerKey, err error) {
	r := keytext.NewReader("worker key", workerKeyTitle, data, MaxKeyFileBytes)
	r.Hex("repository", k.Repository[:])
	r.Hex("dedup", k.Dedup[:])
	r.Hex("signer", k.Signer[:])
	k.Recipients = r.Repeated("recipient", MaxRecipients)
	r.Checksum()
	if err := cmp.Or(r.Err(), k.check()); err != nil {
		return WorkerKey{}, err
	}
	return k, nil
}

func (k WorkerKey) check() error {
	if k.Repository == (backup.RepositoryID{}) || k.Dedup == (DedupKey{}) || k.Signer == (Signer{}) {
		return fmt.Errorf("worker key: a key or id in it is zero: %w", backup.ErrInvalid)
	}
	_, err := parseRecipients(k.Recipients)
	return err
}
