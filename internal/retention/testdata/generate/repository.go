package main

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/crypto/poly1305" //nolint:staticcheck // restic's format uses it
	"golang.org/x/crypto/scrypt"
)

// A repository of restic without a password, to which snapshots can be added. The format is that of
// restic's doc/design.rst: a file is a nonce, AES-256-CTR and Poly1305-AES, and is named after its
// SHA-256.
type repository struct {
	dir  string
	keys keys
}

type keys struct {
	Encrypt []byte `json:"encrypt"`
	MAC     struct {
		K []byte `json:"k"`
		R []byte `json:"r"`
	} `json:"mac"`
}

func openRepository(dir string) (*repository, error) {
	r := &repository{dir: dir}
	names, err := filepath.Glob(r.path("keys", "*"))
	if err != nil || len(names) != 1 {
		return nil, errors.Join(err, errors.New("want one key"))
	}
	text, err := os.ReadFile(names[0])
	if err != nil {
		return nil, err
	}
	var k struct {
		N, R, P    int
		Salt, Data []byte
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return nil, err
	}
	derived, err := scrypt.Key(nil, k.Salt, k.N, k.R, k.P, 64)
	if err != nil {
		return nil, err
	}
	user := keys{Encrypt: derived[:32]}
	user.MAC.K, user.MAC.R = derived[32:48], derived[48:]
	const nonce, mac = 16, 16
	plain, err := user.stream(k.Data[:nonce], k.Data[nonce:len(k.Data)-mac])
	if err != nil {
		return nil, err
	}
	return r, json.Unmarshal(plain, &r.keys)
}

// stream encrypts or decrypts.
func (k *keys) stream(nonce, data []byte) ([]byte, error) {
	block, err := aes.NewCipher(k.Encrypt)
	if err != nil {
		return nil, err
	}
	out := make([]byte, len(data))
	cipher.NewCTR(block, nonce).XORKeyStream(out, data)
	return out, nil
}

func (k *keys) seal(plain []byte) ([]byte, error) {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	sealed, err := k.stream(nonce, plain)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(k.MAC.K)
	if err != nil {
		return nil, err
	}
	var once [32]byte
	copy(once[:], k.MAC.R)
	block.Encrypt(once[16:], nonce)
	var tag [16]byte
	poly1305.Sum(&tag, sealed, &once)
	return append(append(nonce, sealed...), tag[:]...), nil
}

// save adds a snapshot of an empty path, and returns its id.
func (r *repository) save(s snapshot, host string, zone *time.Location) (id string, err error) {
	text, err := json.Marshal(struct {
		Time  time.Time `json:"time"`
		Tree  string    `json:"tree"`
		Paths []string  `json:"paths"`
		Host  string    `json:"hostname"`
		Tags  []string  `json:"tags,omitempty"`
	}{s.Time.In(zone), hex.EncodeToString(make([]byte, 32)), []string{"/data"}, host, s.Tags})
	if err != nil {
		return "", err
	}
	sealed, err := r.keys.seal(text)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(sealed)
	id = hex.EncodeToString(sum[:])
	return id, os.WriteFile(r.path("snapshots", id), sealed, 0o600)
}

func (r *repository) path(folder, id string) string { return filepath.Join(r.dir, folder, id) }
