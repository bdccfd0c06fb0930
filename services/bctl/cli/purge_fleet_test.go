package cli

import (
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A purge in a fleet writes each kind of object with the key of the service that may write it.
func TestPurgePutsByRole(t *testing.T) {
	stores := map[string]store.Store{}
	for _, role := range []string{"committer", "pruner", "admin"} {
		s, err := dirstore.Create(t.TempDir() + "/" + role)
		if err != nil {
			t.Fatal(err)
		}
		stores[role] = s
	}
	all := byRole{Store: stores["admin"], committer: stores["committer"], pruner: stores["pruner"]}
	id, other := backup.NewSnapshotID(), backup.NewPackID()
	for name, role := range map[string]string{
		store.PackName(id, other): "pruner", store.ParityName(other, 0): "pruner",
		store.SegmentName(id, other, 0): "committer", store.AmendedName(id, 1): "committer", store.CatalogName(1): "committer",
	} {
		if err := all.Put(t.Context(), name, []byte("x")); err != nil {
			t.Fatal(err)
		}
		for of, s := range stores {
			if _, err := s.Stat(t.Context(), name); (err == nil) != (of == role) {
				t.Errorf("%s was put with the key of the %s, want %s: %v", name, of, role, err)
			}
		}
	}
}
