package open

import (
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
)

// JournalKeys returns the keys with which committers seal and sign. It seals to the recipients of
// the object, which the key has signed, and not to those of the index.
func JournalKeys(object *repo.Object, key seal.CommitterKey) (journal.Keys, error) {
	sealer, err := seal.NewSealer(object.Recipients)
	return journal.Keys{Repository: object.ID, Sealer: sealer, Signing: key.Signing}, err
}
