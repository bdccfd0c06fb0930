package seal

import (
	"bytes"
	"fmt"

	"filippo.io/age"

	"github.com/bctl/bctl/internal/backup"
)

// MaxSessionKeys is how many data keys can be given to a session at a time.
const MaxSessionKeys = 40_000

const (
	sessionMagic    = "bctlkey1"
	sessionKeyBytes = len(KeyID{}) + rawKeyBytes
	maxSessionBytes = len(sessionMagic) + len(DedupKey{}) + MaxSessionKeys*sessionKeyBytes
)

// A Session is a key pair that exists only in the memory of one process. Who has an identity gives
// a session the data keys of single packs.
type Session struct {
	opener    *Opener
	recipient string
}

// NewSession returns a Session with a fresh key pair.
func NewSession() (*Session, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make the key of a session: %w", err)
	}
	return &Session{&Opener{identities: []age.Identity{id}}, id.Recipient().String()}, nil
}

// Recipient returns the public key ("age1…").
func (s *Session) Recipient() string { return s.recipient }

// GivenKeys are the data keys of some packs, and the key of the chunks' hashes.
type GivenKeys struct {
	Dedup DedupKey
	Keys  map[KeyID]RawKey
}

// SealTo seals the keys to the recipient of a session. It fails with backup.ErrInvalid if that is
// not one, or if there are more than MaxSessionKeys. Unlike recipients of a repository, it never
// runs the program of a plugin: who asks for keys chooses the recipient.
func (g GivenKeys) SealTo(recipient string) ([]byte, error) {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, fmt.Errorf("the key of a session is not an age X25519 recipient: %w", backup.ErrInvalid)
	}
	if len(g.Keys) > MaxSessionKeys {
		return nil, fmt.Errorf("keys of %d packs for one session, at most %d are possible: %w", len(g.Keys), MaxSessionKeys, backup.ErrInvalid)
	}
	plain := make([]byte, 0, len(sessionMagic)+len(g.Dedup)+len(g.Keys)*sessionKeyBytes)
	plain = append(plain, sessionMagic...)
	plain = append(plain, g.Dedup[:]...)
	for id, key := range g.Keys {
		plain = append(append(plain, id[:]...), key[:]...)
	}
	sealed, err := (&Sealer{recipients: []age.Recipient{to}}).encrypt(plain)
	if err != nil {
		return nil, fmt.Errorf("seal the keys of packs: %w", err)
	}
	return sealed, nil
}

// Open opens what SealTo has sealed to this session. Errors wrap backup.ErrWrongKey or
// backup.ErrCorrupt.
func (s *Session) Open(sealed []byte) (g GivenKeys, err error) {
	plain, err := s.opener.decrypt(sealed, maxSessionBytes+MaxWrappedBytes)
	if err != nil {
		return g, fmt.Errorf("open the keys of packs: %w", err)
	}
	rest, ok := bytes.CutPrefix(plain, []byte(sessionMagic))
	if !ok || len(rest) < len(g.Dedup) || (len(rest)-len(g.Dedup))%sessionKeyBytes != 0 {
		return g, fmt.Errorf("open the keys of packs: %d bytes of another form: %w", len(plain), backup.ErrCorrupt)
	}
	rest = rest[copy(g.Dedup[:], rest):]
	g.Keys = make(map[KeyID]RawKey, len(rest)/sessionKeyBytes)
	for ; len(rest) > 0; rest = rest[sessionKeyBytes:] {
		g.Keys[KeyID(rest[:len(KeyID{})])] = RawKey(rest[len(KeyID{}):sessionKeyBytes])
	}
	return g, nil
}

// Opener returns an Opener of the packs whose keys were given, and of nothing else.
func (g GivenKeys) Opener() *Opener { return &Opener{given: g.Keys} }
