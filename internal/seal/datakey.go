package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
)

// OverheadBytes is the difference in length between sealed bytes and their plaintext.
const OverheadBytes = 16

const (
	rawKeyBytes = 32
	nonceBytes  = 12
	noncePrefix = "bctl"
)

// A DataKey seals the parts of one pack: AES-256-GCM with the nonce "bctl" ‖ counter (64 bits, big
// endian). It is safe for concurrent use.
//
// Nonces are unique because each pack has a fresh key and each counter is used for only one Seal.
// The caller is responsible for the counters.
type DataKey struct {
	aead cipher.AEAD
}

func newRawKey() (raw RawKey) {
	rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	return raw
}

func newDataKey(raw RawKey) *DataKey {
	block, err := aes.NewCipher(raw[:])
	if err != nil {
		panic(err) // only for a key of a different length
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // only for a block cipher with a different block size
	}
	return &DataKey{aead: aead}
}

// Seal appends the sealed plaintext, which is OverheadBytes longer, to dst. The plaintext and the
// appended part must not overlap, unless they are the same memory.
func (k *DataKey) Seal(dst, plaintext []byte, counter uint64, aad []byte) []byte {
	return k.aead.Seal(dst, nonce(counter), plaintext, aad)
}

// Open appends the plaintext of sealed to dst. An error wraps backup.ErrCorrupt: the bytes, the
// counter, the additional data or the key differ from those of Seal.
func (k *DataKey) Open(dst, sealed []byte, counter uint64, aad []byte) ([]byte, error) {
	plaintext, err := k.aead.Open(dst, nonce(counter), sealed, aad)
	if err != nil {
		return nil, fmt.Errorf("does not authenticate: %w", backup.ErrCorrupt)
	}
	return plaintext, nil
}

func nonce(counter uint64) []byte {
	n := make([]byte, 0, nonceBytes)
	n = append(n, noncePrefix...)
	return binary.BigEndian.AppendUint64(n, counter)
}
