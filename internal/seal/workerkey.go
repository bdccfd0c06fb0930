package seal

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
)

// A DedupKey keys the hashes of chunks, and through a derived key where chunks
// end. Without it a chunk's name says nothing of its content.
type DedupKey [32]byte

// NewDedupKey returns a random DedupKey.
func NewDedupKey() (k DedupKey) {
	rand.Read(k[:]) // never fails: crypto/rand ends the process instead
	return k
}

// Format hides the key from messages and logs, whatever the verb is.
func (DedupKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(dedup key)") }

// A WorkerKey is the only key that readers hold: enough to write packs, not to
// read one (I8).
type WorkerKey struct {
	Repository backup.RepositoryID
	Dedup      DedupKey
	Signer     Signer // whose repository object is to be believed
	Recipients []string
}

// MaxKeyFileBytes is the most that the text of a WorkerKey or a CommitterKey
// may have.
const MaxKeyFileBytes = 64 << 10

const workerKeyTitle = "bctl-worker-key"

// MarshalText returns the text form, as package keytext has it.
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

// ParseWorkerKey reads what MarshalText wrote, and nothing else. Errors wrap
// backup.ErrInvalid, or backup.ErrCorrupt where only the checksum is wrong;
// they show no key.
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
