package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// maxObjectBytes bounds the objects that are read.
const maxObjectBytes = parity.MaxObjectBytes

// A sum is the SHA-256 of an object.
type sum [sha256.Size]byte

// A Prover proves the objects of a repository without a key.
type Prover struct {
	repository backup.RepositoryID
	signer     seal.Signer
	object     []byte // the repository object
}

// NewProver returns the Prover of the repository in a store. It believes the signer that the
// repository object names.
func NewProver(ctx context.Context, s Reader) (*Prover, error) {
	data, err := s.Get(ctx, store.ConfigName, maxObjectBytes)
	if errors.Is(err, backup.ErrNotFound) {
		return nil, fmt.Errorf("%w in %v", backup.ErrNoRepository, s)
	}
	if err != nil {
		return nil, err
	}
	o, err := repo.VerifyObject(data)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", s, err)
	}
	return &Prover{o.ID, o.Signer(), data}, nil
}

// Repository returns the repository's id.
func (p *Prover) Repository() backup.RepositoryID { return p.repository }

// Prove returns an error unless data can be the object of that name. Errors wrap backup.ErrCorrupt,
// or are those of a version that this bctl does not know.
func (p *Prover) Prove(name string, data []byte) error {
	switch {
	case name == store.ConfigName:
		if !bytes.Equal(data, p.object) {
			return fmt.Errorf("%s: it is another one: %w", name, backup.ErrCorrupt)
		}
		return nil
	case strings.HasPrefix(name, store.PacksPrefix):
		if err := pack.InspectObject(data, p.repository); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	case strings.HasPrefix(name, store.ParityPrefix):
		if err := parity.Verify(data, name, p.repository); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	case strings.HasPrefix(name, store.RecipientsPrefix):
		return repo.VerifyRecipients(data, name, p.repository, p.signer)
	case strings.HasPrefix(name, store.WrapsPrefix):
		return rewrap.Verify(data, name, p.repository, p.signer)
	}
	return pack.Verify(data, name, p.repository, p.signer)
}

// isOurs reports whether an object of this name can belong to a repository. bctl leaves all others
// alone. Test objects are those of no snapshot.
func isOurs(name string) bool {
	ok, of := name == store.ConfigName, backup.SnapshotID{1}
	switch {
	case strings.HasPrefix(name, store.PacksPrefix):
		of, _, ok = store.ParsePackName(name)
	case strings.HasPrefix(name, store.ParityPrefix):
		_, _, ok = store.ParseParityName(name)
	case strings.HasPrefix(name, store.SegmentsPrefix):
		of, _, _, ok = store.ParseSegmentName(name)
	case strings.HasPrefix(name, store.CommitsPrefix):
		of, _, ok = store.ParseCommitName(name)
	case strings.HasPrefix(name, store.CatalogPrefix):
		_, ok = store.ParseCatalogName(name)
	case strings.HasPrefix(name, store.IndexPrefix):
		_, _, ok = store.ParseIndexName(name)
	case strings.HasPrefix(name, store.RecipientsPrefix):
		_, ok = store.ParseRecipientsName(name)
	case strings.HasPrefix(name, store.WrapsPrefix):
		_, _, ok = store.ParseWrapsName(name)
	}
	return ok && of != backup.SnapshotID{}
}

// damaged reports whether an error concerns one object only: its bytes are wrong, or of a version
// that this bctl does not know.
func damaged(err error) bool {
	return errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrInvalid) || errors.Is(err, keytext.ErrVersion)
}
