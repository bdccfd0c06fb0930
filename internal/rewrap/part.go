package rewrap

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

const (
	partTitle = "bctl-wraps"
	// maxKeys is the number of keys in a part: 768 KiB as a plaintext, which a sealed blob may
	// have.
	maxKeys       = 16384
	entryBytes    = len(seal.KeyID{}) + len(seal.RawKey{})
	maxPartBytes  = 2 << 20
	sequenceWidth = 16
)

// lastID is the greatest key id. The part with it is the last one of its rotation.
var lastID = seal.KeyID(bytes.Repeat([]byte{0xff}, len(seal.KeyID{})))

// lastOfIncomplete ends a rotation that lacks keys, or that was continued by a run that does not
// know what the one before it lacked. No pack has this id or the greatest one: ids are random.
var lastOfIncomplete = func() seal.KeyID {
	id := lastID
	id[len(id)-1]--
	return id
}()

// ends reports whether no part follows this one.
func (p *part) ends() bool { return compareIDs(p.last, lastOfIncomplete) >= 0 }

// A part is an object of a rotation. It covers the key ids from first to last: those of them that
// it does not have were not wrapped again by this rotation.
type part struct {
	rotation    int64
	first, last seal.KeyID
	made        time.Time
	recipients  []string
	sealed      []byte // the entries, sealed to the recipients
}

func (p *part) name() string { return store.WrapsName(p.rotation, p.first) }

// encode returns the text of the part, which docs/formats/keys.md describes.
func (p *part) encode(repository backup.RepositoryID, key seal.SigningKey) ([]byte, error) {
	signer := key.Signer()
	w := keytext.NewWriter(partTitle)
	w.Hex("repository", repository[:])
	w.Text("rotation", fmt.Sprintf("%0*x", sequenceWidth, p.rotation))
	w.Hex("first", p.first[:])
	w.Hex("last", p.last[:])
	w.Millis("made", p.made)
	for _, r := range p.recipients {
		w.Text("recipient", r)
	}
	w.Hex("signer", signer[:])
	w.Base64("keys", p.sealed)
	w.Hex("signature", key.Sign(repository, p.name(), w.Bytes()))
	if _, err := parsePart(w.Bytes(), p.name(), repository, signer); err != nil {
		return nil, fmt.Errorf("%w: %w", err, backup.ErrInvalid)
	}
	return w.Bytes(), nil
}

// parsePart parses untrusted bytes, the object with the given name, and verifies that the signer
// has signed them. Errors wrap backup.ErrCorrupt, or keytext.ErrVersion.
func parsePart(data []byte, name string, repository backup.RepositoryID, signer seal.Signer) (p part, err error) {
	var id backup.RepositoryID
	var named seal.Signer
	var signature [seal.SignatureBytes]byte
	var first seal.KeyID
	rotation, begins, ok := store.ParseWrapsName(name)
	p.rotation, p.first = rotation, seal.KeyID(begins)
	r := keytext.NewReader("part of a rotation", partTitle, data, maxPartBytes)
	r.Hex("repository", id[:])
	if got := r.Text("rotation"); !ok || got != fmt.Sprintf("%0*x", sequenceWidth, rotation) {
		r.Fail("it has the rotation %.20q", got)
	}
	r.Hex("first", first[:])
	r.Hex("last", p.last[:])
	p.made = r.Millis("made")
	p.recipients = r.Repeated("recipient", seal.MaxRecipients)
	if n := len(p.recipients); n == 0 || n > seal.MaxRecipients {
		r.Fail("%d recipients", n)
	}
	r.Hex("signer", named[:])
	p.sealed = r.Base64("keys")
	signed := r.Before()
	r.Hex("signature", signature[:])
	r.End()
	switch err := r.Err(); {
	case errors.Is(err, keytext.ErrVersion):
		return part{}, err
	case err != nil:
		return part{}, fmt.Errorf("%w: %w", err, backup.ErrCorrupt)
	case id != repository || named != signer || first != p.first || compareIDs(p.first, p.last) > 0:
		return part{}, fmt.Errorf("part of a rotation of repository %v, by signer %.8s, from %s to %s: %w", id, named, first, p.last, backup.ErrCorrupt)
	}
	if err := signer.Verify(repository, name, signed, signature[:]); err != nil {
		return part{}, err
	}
	return p, nil
}

func compareIDs(a, b seal.KeyID) int { return bytes.Compare(a[:], b[:]) }

// next returns the id after id, which is not lastID.
func next(id seal.KeyID) seal.KeyID {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			break
		}
	}
	return id
}

// An entry is a data key and its id.
type entry struct {
	id  seal.KeyID
	key seal.RawKey
}

// Format hides the key from messages and logs, for every verb.
func (e entry) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "key %s", e.id) }

// encodeEntries returns the plaintext of a part: the entries, sorted by id.
func encodeEntries(entries []entry) []byte {
	out := make([]byte, 0, len(entries)*entryBytes)
	for i := range entries {
		out = append(out, entries[i].id[:]...)
		out = append(out, entries[i].key[:]...)
	}
	return out
}

// parseEntries is the inverse of encodeEntries. The entries must be within first and last.
func parseEntries(text []byte, first, last seal.KeyID) ([]entry, error) {
	if len(text)%entryBytes != 0 || len(text)/entryBytes > maxKeys {
		return nil, fmt.Errorf("%d bytes of keys: %w", len(text), backup.ErrCorrupt)
	}
	entries := make([]entry, 0, len(text)/entryBytes)
	for e := range slices.Chunk(text, entryBytes) {
		id := seal.KeyID(e[:len(seal.KeyID{})])
		if n := len(entries); n > 0 && compareIDs(entries[n-1].id, id) >= 0 || compareIDs(id, first) < 0 || compareIDs(id, last) > 0 {
			return nil, fmt.Errorf("key %s is out of order: %w", id, backup.ErrCorrupt)
		}
		entries = append(entries, entry{id, seal.RawKey(e[len(seal.KeyID{}):])})
	}
	return entries, nil
}

// Verify returns an error that wraps backup.ErrCorrupt or keytext.ErrVersion unless data is the
// part of a rotation with the given name, signed by signer. It needs no key.
func Verify(data []byte, name string, repository backup.RepositoryID, signer seal.Signer) error {
	if _, err := parsePart(data, name, repository, signer); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
