package installation

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// The mirror copies the store with its key, which can neither write to the store nor delete there.
// A reader's key copies nothing.
func TestMirrorRole(t *testing.T) {
	for kind, lock := range servers {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := withStore(t, kind, lock)
			ctx := t.Context()
			if err := s.as(t, s.key(t, "admin")).PutNew(ctx, store.ConfigName, repositoryObject()); err != nil {
				t.Fatal(err)
			}
			to, err := dirstore.Create(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			from := s.as(t, s.key(t, "mirror"))
			done, err := mirror.Run(ctx, mirror.Options{From: from, To: to})
			if err != nil || done.Copied != 1 {
				t.Errorf("%+v, %v", done, err)
			}
			compared, err := mirror.Compare(ctx, mirror.Options{From: from, To: to, Reread: 1})
			if err != nil || compared.Differs() {
				t.Errorf("%+v, %v", compared, err)
			}
			if err := from.Put(ctx, packObject, []byte("x")); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("put: %v", err)
			}
			if err := from.Delete(ctx, store.ConfigName); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("delete: %v", err)
			}
			if _, err := mirror.Run(ctx, mirror.Options{From: s.as(t, s.key(t, "reader@paris")), To: to}); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("with a reader's key: %v", err)
			}
		})
	}
}

// repositoryObject returns the object of a repository whose keys are of no use.
func repositoryObject() []byte {
	signing, id := seal.NewSigningKey(), backup.NewRepositoryID()
	signer := signing.Signer()
	k := keytext.NewWriter("bctl-repository")
	k.Hex("repository", id[:])
	k.Time("created", time.Unix(1_900_000_000, 0))
	k.Text("chunker", "chunker")
	k.Text("codec", "zstd-1")
	k.Text("recipient", "age1")
	k.Hex("signer", signer[:])
	k.Base64("worker-key", []byte("sealed"))
	k.Base64("committer-key", []byte("sealed"))
	k.Hex("signature", signing.Sign(id, store.ConfigName, k.Bytes()))
	return k.Bytes()
}
