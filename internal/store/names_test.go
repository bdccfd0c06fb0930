package store

import (
	"errors"
	"math"
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
		CommitName(backup.NewSnapshotID()), AmendedName(backup.NewSnapshotID(), 1e6),
		CatalogName(1), CatalogName(math.MaxInt64),
		IndexName(1, 0), IndexName(math.MaxInt64, math.MaxInt32),
		RecipientsName(1), RecipientsName(math.MaxInt64), WrapsName(1, [16]byte{}), WrapsName(math.MaxInt64, [16]byte{0xff}),
		ParityName(backup.NewPackID(), 0),
	} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	for _, prefix := range []string{"", PacksPrefix, SegmentsPrefix, CommitsPrefix, CatalogPrefix, IndexPrefix, KeysPrefix, ParityPrefix, "packs", "packs/a"} {
		if err := CheckPrefix(prefix); err != nil {
			t.Error(err)
		}
	}
}

// Names are part of the format: existing stores contain them, and signatures cover them.
func TestNamesNeverChange(t *testing.T) {
	snapshot, pack := backup.SnapshotID{0xab, 15: 1}, backup.PackID{0xcd, 15: 2}
	const s, p = "ab000000000000000000000000000001", "cd000000000000000000000000000002"
	for got, want := range map[string]string{
		ConfigName:                       "repository",
		PackName(snapshot, pack):         "packs/" + s + "/" + p,
		SegmentName(snapshot, pack, 0):   "segments/" + s + "/" + p + "-000000",
		SegmentName(snapshot, pack, 12):  "segments/" + s + "/" + p + "-000012",
		SegmentName(snapshot, pack, 1e6): "segments/" + s + "/" + p + "-1000000",
		CommitName(snapshot):             "commits/" + s,
		AmendedName(snapshot, 0):         "commits/" + s,
		AmendedName(snapshot, 7):         "commits/" + s + "-000007",
		CatalogName(0x1234):              "catalog/0000000000001234",
		IndexName(0x1234, 5):             "index/0000000000001234-000005",
		RecipientsName(0x1234):           "keys/recipients-0000000000001234",
		WrapsName(0x1234, pack):          "keys/wraps-0000000000001234-" + p,
		ParityName(pack, 3):              "parity/" + p + "-03",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestNamesOfTestObjects(t *testing.T) {
	none, some := backup.SnapshotID{}, backup.SnapshotID{15: 1}
	for _, id := range []backup.SnapshotID{none, some} {
		for _, name := range []string{PackName(id, backup.NewPackID()), SegmentName(id, backup.NewPackID(), 0), CommitName(id), AmendedName(id, 1)} {
			if IsTest(name) != (id == none) || Lockable(name) != (id == some) {
				t.Errorf("%s: test: %t, lockable: %t", name, IsTest(name), Lockable(name))
			}
		}
	}
	for _, name := range []string{ConfigName, CatalogName(1), IndexName(0, 0), RecipientsName(1), WrapsName(1, [16]byte{})} {
		if IsTest(name) {
			t.Errorf("%s is taken for a test object", name)
		}
	}
}

func TestNamesOfKeys(t *testing.T) {
	for _, n := range []int64{1, 0x1234, math.MaxInt64} {
		if got, ok := ParseRecipientsName(RecipientsName(n)); got != n || !ok {
			t.Errorf("%s: %d, %t", RecipientsName(n), got, ok)
		}
		id := [16]byte{0xab, 15: byte(n)}
		if got, first, ok := ParseWrapsName(WrapsName(n, id)); got != n || first != id || !ok {
			t.Errorf("%s: %d, %x, %t", WrapsName(n, id), got, first, ok)
		}
	}
	for _, name := range []string{
		"", "keys/", "keys/recipients-", "keys/recipients-0000000000000000", "keys/recipients-1", "keys/recipients-000000000000000A", "keys/recipients--000000000000001",
		"keys/recipients-8000000000000000", "xkeys/recipients-0000000000000001", "keys/wraps-0000000000000001", "keys/wraps-0000000000000001-00",
		"keys/wraps-0000000000000000-00000000000000000000000000000000", "keys/wraps-0000000000000001-0000000000000000000000000000000A",
	} {
		if n, ok := ParseRecipientsName(name); ok {
			t.Errorf("%s is the statement %d", name, n)
		}
		if n, id, ok := ParseWrapsName(name); ok {
			t.Errorf("%s is the part %d, %x", name, n, id)
		}
	}
}

func TestNamesOfParity(t *testing.T) {
	id := backup.NewPackID()
	for _, n := range []int{0, 9, 15} {
		if group, got, ok := ParseParityName(ParityName(id, n)); group != id || got != n || !ok {
			t.Errorf("%s is %d of %s, %v", ParityName(id, n), got, group, ok)
		}
	}
	for _, name := range []string{"", ParityPrefix, ParityPrefix + id.String(), ParityName(id, 1) + "0", ParityPrefix + id.String() + "-1", ParityPrefix + id.String() + "--1", PacksPrefix + id.String() + "-01"} {
		if group, n, ok := ParseParityName(name); ok {
			t.Errorf("%q is %d of %s", name, n, group)
		}
	}
}

func TestNamesOfRecords(t *testing.T) {
	id := backup.NewSnapshotID()
	for _, amendment := range []int{0, 1, 999999, 1000000} {
		if got, n, ok := ParseCommitName(AmendedName(id, amendment)); got != id || n != amendment || !ok {
			t.Errorf("%s: %s, %d, %t", AmendedName(id, amendment), got, n, ok)
		}
	}
	for _, name := range []string{"", "commits/", "commits/c0ffee", CommitName(id) + "-", CommitName(id) + "-0", CommitName(id) + "-000000", CommitName(id) + "-1", CommitName(id) + "--00001", "catalog/" + id.String()} {
		if _, _, ok := ParseCommitName(name); ok {
			t.Errorf("%q is a record", name)
		}
	}
}

// A store lists by name, so the newest catalog comes last.
func TestNamesOfCatalogsAscend(t *testing.T) {
	last := ""
	for _, sequence := range []int64{1, 2, 9, 10, 15, 16, 255, 256, 1 << 40, math.MaxInt64} {
		name := CatalogName(sequence)
		if name <= last {
			t.Errorf("%s comes after %s", name, last)
		}
		last = name
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
