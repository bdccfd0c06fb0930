package pack

import (
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

// OpenSigned opens a pack of a signed kind. data is the whole object with the given name. The
// signature is checked before anything else in data is used.
func OpenSigned(data []byte, kind Kind, name string, repository backup.RepositoryID, id backup.PackID, signer seal.Signer, opener *seal.Opener) (*Reader, error) {
	if err := Verify(data, name, repository, signer); err != nil {
		return nil, err
	}
	r, err := openBytes(data, repository, id, seal.KeyIDOf(name), opener)
	if err != nil {
		return nil, err
	}
	if r.Kind() != kind {
		return nil, fmt.Errorf("%s is a %s, not a %s: %w", name, r.Kind(), kind, backup.ErrCorrupt)
	}
	return r, nil
}

// Verify returns an error that wraps backup.ErrCorrupt unless data, the whole object with the given
// name, is signed by signer. It needs no key.
func Verify(data []byte, name string, repository backup.RepositoryID, signer seal.Signer) error {
	t, err := wholeTrailer(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return signer.Verify(repository, name, data[:t.signatureOffset()], data[t.signatureOffset():][:t.signatureBytes])
}
