package seal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/plugin"
	"filippo.io/age/tag"

	"github.com/bctl/bctl/internal/backup"
)

// Limits. A wrapped key takes about 130 bytes plus 100 per X25519 recipient, so MaxRecipients of
// them fit; about nine post-quantum recipients fit.
const (
	MaxRecipients      = 64
	MaxWrappedBytes    = 16 << 10
	MaxBlobBytes       = 1 << 20 // of plaintext
	maxSealedBlobBytes = MaxBlobBytes + MaxWrappedBytes
)

// GenerateIdentity returns a new age X25519 identity ("AGE-SECRET-KEY-1…"), which is one line of an
// identity file, and its recipient ("age1…").
func GenerateIdentity() (identity, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("generate identity: %w", err)
	}
	return id.String(), id.Recipient().String(), nil
}

// A Sealer seals to recipients. It is safe for concurrent use.
type Sealer struct {
	recipients []age.Recipient
}

// NewSealer returns a Sealer to all of recipients. They are age recipients: X25519 ("age1…"), or
// those of hardware ("age1tag1…", or "age1NAME1…", to which the program age-plugin-NAME seals); or
// all are post-quantum ("age1pq1…"). Errors wrap backup.ErrInvalid.
func NewSealer(recipients []string) (*Sealer, error) {
	parsed, err := parseRecipients(recipients)
	if err != nil {
		return nil, err
	}
	s := &Sealer{recipients: parsed}
	// Only wrapping a key shows whether the recipients are compatible and the result is small
	// enough. An error here is better than one at the first pack.
	if _, _, err := s.NewDataKey(); err != nil {
		return nil, fmt.Errorf("%w: %w", err, backup.ErrInvalid)
	}
	return s, nil
}

// NewDataKey returns a fresh key, and the same key wrapped to the recipients in at most
// MaxWrappedBytes.
func (s *Sealer) NewDataKey() (key *DataKey, wrapped []byte, err error) {
	raw := newRawKey()
	wrapped, err = s.encrypt(raw[:])
	if err != nil {
		return nil, nil, fmt.Errorf("wrap data key: %w", err)
	}
	if len(wrapped) > MaxWrappedBytes {
		return nil, nil, fmt.Errorf("wrap data key: %d bytes for %d recipients, at most %d are allowed", len(wrapped), len(s.recipients), MaxWrappedBytes)
	}
	return newDataKey(raw), wrapped, nil
}

// SealBlob seals up to MaxBlobBytes, such as the worker key in the repository object. The result is
// a binary age file.
func (s *Sealer) SealBlob(plaintext []byte) ([]byte, error) {
	if len(plaintext) > MaxBlobBytes {
		return nil, fmt.Errorf("seal blob: %d bytes, at most %d are allowed: %w", len(plaintext), MaxBlobBytes, backup.ErrInvalid)
	}
	sealed, err := s.encrypt(plaintext)
	if err != nil {
		return nil, fmt.Errorf("seal blob: %w", err)
	}
	return sealed, nil
}

func (s *Sealer) encrypt(plaintext []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, s.recipients...)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plaintext); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// An Opener opens what was sealed to any of its identities. It is safe for concurrent use. It does
// not cache unwrapped keys: unwrapping takes about 0.3 ms, and a caller that opens many frames of a
// pack keeps the pack's DataKey.
type Opener struct {
	identities []age.Identity
	rewrapped  Rewrapped        // may be nil
	given      map[KeyID]RawKey // not nil: the only keys (GivenKeys)
}

// Unwrap returns the key that NewDataKey wrapped. Errors wrap backup.ErrWrongKey or
// backup.ErrCorrupt.
func (o *Opener) Unwrap(wrapped []byte) (*DataKey, error) {
	raw, err := o.UnwrapRaw(wrapped)
	if err != nil {
		return nil, err
	}
	return newDataKey(raw), nil
}

// OpenBlob returns the plaintext that SealBlob sealed. Errors wrap backup.ErrWrongKey or
// backup.ErrCorrupt.
func (o *Opener) OpenBlob(sealed []byte) ([]byte, error) {
	plaintext, err := o.decrypt(sealed, maxSealedBlobBytes)
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	return plaintext, nil
}

func (o *Opener) decrypt(sealed []byte, maxBytes int) ([]byte, error) {
	if len(sealed) > maxBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed: %w", len(sealed), maxBytes, backup.ErrCorrupt)
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), o.identities...)
	if err != nil {
		var noMatch *age.NoIdentityMatchError
		if errors.As(err, &noMatch) {
			return nil, fmt.Errorf("the identity is none of its recipients: it is of another repository, or was no recipient when this was sealed: %w", backup.ErrWrongKey)
		}
		return nil, fmt.Errorf("%w: %w", err, backup.ErrCorrupt)
	}
	// The plaintext is shorter than sealed, whose length was checked above.
	plaintext, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, backup.ErrCorrupt)
	}
	return plaintext, nil
}

func parseRecipients(recipients []string) ([]age.Recipient, error) {
	if len(recipients) == 0 || len(recipients) > MaxRecipients {
		return nil, fmt.Errorf("%d recipients, want 1 to %d: %w", len(recipients), MaxRecipients, backup.ErrInvalid)
	}
	parsed := make([]age.Recipient, 0, len(recipients))
	seen := make(map[string]bool, len(recipients))
	for i, text := range recipients {
		r, err := parseRecipient(text)
		if err != nil {
			return nil, fmt.Errorf("recipient %d of %d: %w: %w", i+1, len(recipients), err, backup.ErrInvalid)
		}
		if seen[text] {
			return nil, fmt.Errorf("recipient %d of %d is there twice: %w", i+1, len(recipients), backup.ErrInvalid)
		}
		seen[text] = true
		parsed = append(parsed, r)
	}
	return parsed, nil
}

var errRecipient = errors.New("not an age recipient (age1…)")

// parseRecipient includes text in its errors only if it has the form of a recipient: it could be an
// identity, passed by mistake.
func parseRecipient(text string) (age.Recipient, error) {
	if !strings.HasPrefix(text, "age1") || strings.ContainsFunc(text, notBech32) {
		return nil, errRecipient
	}
	parsed, err := age.ParseRecipients(strings.NewReader(text))
	if err == nil && len(parsed) == 1 {
		return parsed[0], nil
	}
	if strings.HasPrefix(text, "age1tag1") || strings.HasPrefix(text, "age1tagpq1") {
		if tagged, err := tag.ParseRecipient(text); err == nil {
			return tagged, nil
		}
		return nil, errRecipient
	}
	if hardware, err := plugin.NewRecipient(text, &plugin.ClientUI{}); err == nil && hardware.Name() != "" {
		return hardware, nil
	}
	return nil, errRecipient
}

// notBech32 also keeps line ends and comments from the parser, so that each text is one recipient.
func notBech32(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9')
}
