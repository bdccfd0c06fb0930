package seal

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A session opens the packs whose keys it was given, and no others.
func TestSessionOpensWhatItWasGiven(t *testing.T) {
	identity, recipient, err := GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	opener, err := NewOpener([]byte(identity))
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := NewSealer([]string{recipient})
	if err != nil {
		t.Fatal(err)
	}
	key, wrapped, err := sealer.NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	sealed := key.Seal(nil, []byte("content"), 1, nil)
	id, other := KeyID{1}, KeyID{2}
	raw, err := opener.UnwrapRawPack(id, wrapped)
	if err != nil {
		t.Fatal(err)
	}
	session, err := NewSession()
	if err != nil {
		t.Fatal(err)
	}
	keys := GivenKeys{Dedup: NewDedupKey(), Keys: map[KeyID]RawKey{id: raw}}
	text, err := keys.SealTo(session.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, raw[:]) {
		t.Error("the key is readable")
	}
	given, err := session.Open(text)
	if err != nil || given.Dedup != keys.Dedup || len(given.Keys) != 1 {
		t.Fatalf("%v, %v", given, err)
	}
	got, err := given.Opener().UnwrapPack(id, wrapped)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := got.Open(nil, sealed, 1, nil); err != nil || string(plain) != "content" {
		t.Errorf("%q, %v", plain, err)
	}
	if _, err := given.Opener().UnwrapPack(other, wrapped); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("a pack whose key was not given: %v", err)
	}
	another, err := NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := another.Open(text); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("another session: %v", err)
	}
	empty, err := (GivenKeys{}).SealTo(session.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	if given, err = session.Open(empty); err != nil {
		t.Fatal(err)
	}
	if _, err := given.Opener().UnwrapPack(id, wrapped); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("no keys were given: %v", err)
	}
}

// Who asks for keys chooses the recipient. One that names a plugin would run a program.
func TestSessionsHaveNoPlugins(t *testing.T) {
	for _, recipient := range []string{"", "age1", "age1yubikey1qwt50d05nh5vutpdzmlg5wn80xq5negm4uj9ghv0snvdd3yysf5yw3rhl3t", "ssh-ed25519 AAAA", "AGE-SECRET-KEY-1"} {
		if _, err := (GivenKeys{}).SealTo(recipient); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: %v", recipient, err)
		}
	}
	many := GivenKeys{Keys: map[KeyID]RawKey{}}
	for n := range MaxSessionKeys + 1 {
		many.Keys[KeyID{byte(n), byte(n >> 8), byte(n >> 16)}] = RawKey{}
	}
	session, err := NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := many.SealTo(session.Recipient()); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("too many keys: %v", err)
	}
}

// Keys that anybody has sealed to the session may have any form.
func FuzzSessionKeys(f *testing.F) {
	session, err := NewSession()
	if err != nil {
		f.Fatal(err)
	}
	to, err := NewSealer([]string{session.Recipient()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{})
	f.Add([]byte(sessionMagic))
	f.Add(append([]byte(sessionMagic), make([]byte, 32+48)...))
	f.Add(append([]byte(sessionMagic), make([]byte, 32+47)...))
	f.Fuzz(func(t *testing.T, plain []byte) {
		sealed, err := to.encrypt(plain)
		if err != nil {
			t.Fatal(err)
		}
		given, err := session.Open(sealed)
		if err != nil && !errors.Is(err, backup.ErrCorrupt) {
			t.Fatal(err)
		}
		if err == nil && len(plain) < len(sessionMagic)+len(given.Dedup)+48*len(given.Keys) {
			t.Fatalf("%d keys of %d bytes", len(given.Keys), len(plain))
		}
	})
}
