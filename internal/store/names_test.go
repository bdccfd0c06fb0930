package store

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

func TestNamesOfObjectsAreNames(t *testing.T) {
	for _, name := range []string{
		ConfigName,
		PackName(backup.NewSnapshotID(), backup.NewPackID()),
		SegmentName(backup.NewSnapshotID(), backup.NewPackID(), 0),
	} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	for _, prefix := range []string{"", PacksPrefix, SegmentsPrefix, KeysPrefix, "packs", "packs/a"} {
		if err := CheckPrefix(prefix); err != nil {
			t.Error(err)
		}
	}
}

func TestErrFullIsUnavailable(t *testing.T) {
	err := error(&Error{Store: "directory /srv", Op: "put", Name: "packs/a", Kind: ErrFull, Err: errors.New("no space left on device")})
	if !errors.Is(err, ErrFull) || !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("%v is not what it says", err)
	}
	if want := "directory /srv: put packs/a: disk full: no space left on device"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func FuzzCheckName(f *testing.F) {
	for _, seed := range []string{"packs/a", "../a", "a//b", "a/", "/", ".", "ä"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckName(name) != nil {
			return
		}
		if path.Clean(name) != name || path.IsAbs(name) || strings.HasPrefix(name, "../") || len(name) > MaxNameBytes {
			t.Errorf("%q is accepted", name)
		}
		if err := CheckPrefix(name + "/"); err != nil {
			t.Error(err)
		}
	})
}
