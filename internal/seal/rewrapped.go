package seal

import (
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// A RawKey is a data key in the form in which it is wrapped.
type RawKey [rawKeyBytes]byte

// Format hides the key from messages and logs, for every verb.
func (RawKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(data key)") }

// A KeyID identifies a data key for later recipients: the pack's id, for a pack of data; the first
// half of BLAKE3 of the object's name, for an object of another kind.
type KeyID [16]byte

// KeyIDOf returns the KeyID of an object with the given name, of any kind except packs of data.
func KeyIDOf(name string) KeyID {
	sum := blake3.Sum256([]byte(name))
	return KeyID(sum[:len(KeyID{})])
}

// String returns 32 hexadecimal digits.
func (id KeyID) String() string { return fmt.Sprintf("%x", id[:]) }

// Rewrapped finds the data keys that were wrapped again for later recipients. It returns
// backup.ErrNotFound if there is none that its identity opens.
type Rewrapped func(id KeyID) (RawKey, error)

// WithRewrapped returns an Opener that also opens packs whose own wrapped key is not for its
// identities, if their keys were wrapped again.
func (o *Opener) WithRewrapped(find Rewrapped) *Opener {
	return &Opener{identities: o.identities, rewrapped: find}
}

// UnwrapRaw returns the key that NewDataKey wrapped. Errors wrap backup.ErrWrongKey or
// backup.ErrCorrupt.
func (o *Opener) UnwrapRaw(wrapped []byte) (RawKey, error) {
	plaintext, err := o.decrypt(wrapped, MaxWrappedBytes)
	if err != nil {
		return RawKey{}, fmt.Errorf("unwrap data key: %w", err)
	}
	if len(plaintext) != rawKeyBytes {
		return RawKey{}, fmt.Errorf("unwrap data key: %d bytes, want %d: %w", len(plaintext), rawKeyBytes, backup.ErrCorrupt)
	}
	return RawKey(plaintext), nil
}

// UnwrapPack is Unwrap for the pack whose key has the given id: if wrapped is not for one of the
// identities, the key may have been wrapped again.
func (o *Opener) UnwrapPack(id KeyID, wrapped []byte) (*DataKey, error) {
	raw, err := o.UnwrapRawPack(id, wrapped)
	if err != nil {
		return nil, err
	}
	return newDataKey(raw), nil
}

// UnwrapRawPack is UnwrapRaw for a pack, as UnwrapPack is Unwrap.
func (o *Opener) UnwrapRawPack(id KeyID, wrapped []byte) (RawKey, error) {
	if o.given != nil {
		raw, ok := o.given[id]
		if !ok {
			return raw, fmt.Errorf("the key of this pack was not given: %w", backup.ErrWrongKey)
		}
		return raw, nil
	}
	raw, err := o.UnwrapRaw(wrapped)
	if o.rewrapped == nil || !errors.Is(err, backup.ErrWrongKey) {
		return raw, err
	}
	raw, other := o.rewrapped(id)
	switch {
	case errors.Is(other, backup.ErrNotFound):
		return RawKey{}, fmt.Errorf("the identity was no recipient when this pack was written, and no bctl key rotate has wrapped its key again since: %w", backup.ErrWrongKey)
	case other != nil:
		return RawKey{}, fmt.Errorf("find a key that was wrapped again: %w", other)
	}
	return raw, nil
}
