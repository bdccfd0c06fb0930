package journal

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv/golden"
)

var update = flag.Bool("update", false, "write golden files that are missing")

// goldenChanges are a segment of two parts. The first part is full of pages that compress well.
func goldenChanges() (changes []backup.PageChange) {
	for i := range 5 {
		changes = append(changes, addedPage(backup.PageVersion{Path: fmt.Sprintf("large-%d", i), Listing: bytes.Repeat([]byte("a listing "), partBytes/40)}))
	}
	return append(changes, exampleChanges()...)
}

// A goldenObject describes how to make an object of testdata/v1 again, with the same frames but
// under a different key.
type goldenObject struct {
	kind  pack.Kind
	id    backup.PackID
	name  string
	bytes func() []byte
}

// goldenAttempts are the attempts of the golden segments, which are random otherwise.
var goldenAttempts = map[string]backup.PackID{"segment": {1, 2, 3}, "checkpoint": {4, 5, 6}, "patched": {7, 8, 9}}

// goldenPatches are a segment of version 2: a page that replaces another one and is a patch, and
// one that is new. The listings are golden files of package listing.
func goldenPatches(t testing.TB) (base []byte, changes []backup.PageChange) {
	t.Helper()
	var plain [2][]byte
	for i, name := range []string{"second.listing", "every-kind.listing"} {
		data, err := os.ReadFile(filepath.Join("../listing/testdata/v1", name))
		if err != nil {
			t.Fatal(err)
		}
		if plain[i], err = listing.Plain(data); err != nil {
			t.Fatal(err)
		}
	}
	replaced := addedPage(backup.PageVersion{Path: "usr", Fingerprint: backup.Fingerprint{3}, Inode: 4, Listing: plain[1]})
	replaced.Replaces = plain[0]
	added := addedPage(backup.PageVersion{Path: "var", Fingerprint: backup.Fingerprint{5}, Listing: plain[0]})
	return plain[0], []backup.PageChange{replaced, added, endedPage("usr", 0, 5)}
}

func goldenObjects(t testing.TB, k keys) map[string]goldenObject {
	segment := func(attempt backup.PackID, part int, checkpoint bool, base backup.PageSet, changes []backup.PageChange) goldenObject {
		return goldenObject{pack.KindSegment, attempt, store.SegmentName(snapshot, attempt, part), func() []byte {
			var parts [][]byte
			put := func(_ string, data []byte) error { parts = append(parts, bytes.Clone(data)); return nil }
			w, err := newSegmentWriter(k.Keys, exampleSnapshot(), attempt, checkpoint, base, put)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.write(each(changes)); err != nil {
				t.Fatal(err)
			}
			return parts[part]
		}}
	}
	_, patches := goldenPatches(t)
	return map[string]goldenObject{
		"segment-000000": segment(goldenAttempts["segment"], 0, false, exampleBase(), goldenChanges()),
		"segment-000001": segment(goldenAttempts["segment"], 1, false, exampleBase(), goldenChanges()),
		"checkpoint":     segment(goldenAttempts["checkpoint"], 0, true, backup.PageSet{}, exampleChanges()[:2]),
		"patched":        segment(goldenAttempts["patched"], 0, false, exampleBase(), patches),
		"committed": {pack.KindCommit, backup.PackID(snapshot), store.CommitName(snapshot), func() []byte {
			return encodeCommit(t, k, exampleCommit(), exampleProblems())
		}},
		"amended": {pack.KindCommit, backup.PackID(snapshot), store.AmendedName(snapshot, 3), func() []byte {
			return encodeCommit(t, k, amendedCommit(), exampleProblems()[:1])
		}},
		"failed": {pack.KindCommit, backup.PackID(snapshot), store.CommitName(snapshot), func() []byte {
			return encodeCommit(t, k, failedCommit(), nil)
		}},
		"catalog": {pack.KindCatalog, catalogID(sequence), store.CatalogName(sequence), func() []byte {
			return encodeCatalog(t, k, goldenCatalog())
		}},
	}
}

func TestWriteGolden(t *testing.T) {
	if !*update {
		t.Skip("only with -update")
	}
	put := func(name string, data []byte) {
		path := filepath.Join(golden.Dir, name)
		if _, err := os.Stat(path); err == nil {
			return
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(golden.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	identity, recipient, err := seal.GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	signing := seal.NewSigningKey()
	committer, err := seal.CommitterKey{Repository: repository, Signing: signing}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(golden.Dir, "identity.txt")); err != nil {
		put("identity.txt", []byte(seal.SignerComment(repository, signing.Signer())+"\n# public key: "+recipient+"\n"+identity+"\n"))
		put("committer.key", committer)
	}
	for name, o := range goldenObjects(t, goldenKeys(t)) {
		put(name, o.bytes())
	}
}

// goldenKeys are the keys of testdata/v1. They protect nothing else.
func goldenKeys(t testing.TB) keys {
	t.Helper()
	file := golden.Read(t, "identity.txt")
	_, rest, _ := strings.Cut(string(file), "# public key: ")
	recipient, _, _ := strings.Cut(rest, "\n")
	committer, err := seal.ParseCommitterKey(golden.Read(t, "committer.key"))
	if err != nil {
		t.Fatal(err)
	}
	return keysOf(t, string(file), recipient, committer.Signing)
}

func TestGoldenFilesAreRead(t *testing.T) {
	k := goldenKeys(t)
	signer, ok, err := seal.SignerOf(golden.Read(t, "identity.txt"), repository)
	if err != nil || !ok || signer != k.Signing.Signer() {
		t.Errorf("the identity file names %v, %v, %v", signer, ok, err)
	}
	var parts []part
	for _, name := range []string{"segment-000000", "segment-000001"} {
		parts = append(parts, part{name, golden.Read(t, name)})
	}
	want := exampleBase()
	for _, c := range goldenChanges() {
		if c.Ended {
			want.Remove(c.Digest)
		} else {
			want.Add(c.Digest)
		}
	}
	got := read(t, k, Segment{Attempt: goldenAttempts["segment"], Content: want}, parts)
	if !reflect.DeepEqual(got, asRead(goldenChanges())) {
		t.Error("the segment has other changes")
	}
	content := backup.PageSet{}
	for _, c := range exampleChanges()[:2] {
		content.Add(c.Digest)
	}
	got = read(t, k, Segment{Attempt: goldenAttempts["checkpoint"], Checkpoint: true, Content: content}, []part{{"", golden.Read(t, "checkpoint")}})
	if !reflect.DeepEqual(got, exampleChanges()[:2]) {
		t.Errorf("the checkpoint has %+v", got)
	}
	base, patches := goldenPatches(t)
	want = exampleBase()
	want.Add(patches[0].Digest)
	want.Add(patches[1].Digest)
	want.Remove(patches[2].Digest)
	got = readFrom(t, k, Segment{Attempt: goldenAttempts["patched"], Content: want}, []part{{"", golden.Read(t, "patched")}}, func(path string, key backup.PageKey) ([]byte, error) {
		if path != "usr" || key != 0 {
			t.Errorf("asked for page %d of %q", key, path)
		}
		return base, nil
	})
	patches[0].Replaces = nil
	if !reflect.DeepEqual(got, asRead(patches)) {
		t.Error("the segment with a patch has other changes")
	}
	c, problems, err := openCommit(golden.Read(t, "committed"), k.trust())
	committed := exampleCommit()
	committed.Problems = int64(len(exampleProblems()))
	if err != nil || !reflect.DeepEqual(c, committed) || !reflect.DeepEqual(problems, exampleProblems()) {
		t.Errorf("committed: %+v, %q, %v", c, problems, err)
	}
	amended := amendedCommit()
	amended.Problems = 1
	if c, _, err := OpenAmended(golden.Read(t, "amended"), snapshot, 3, k.trust()); err != nil || !reflect.DeepEqual(c, amended) {
		t.Errorf("amended: %+v, %v", c, err)
	}
	if c, problems, err := openCommit(golden.Read(t, "failed"), k.trust()); err != nil || !reflect.DeepEqual(c, failedCommit()) || problems != nil {
		t.Errorf("failed: %+v, %q, %v", c, problems, err)
	}
	if _, c, err := OpenCatalog(golden.Read(t, "catalog"), sequence, k.trust()); err != nil || !reflect.DeepEqual(c, goldenCatalog()) {
		t.Errorf("catalog: %+v, %v", c, err)
	}
}

// Objects written by the current version have the same frames. (Compressed bytes may change with
// the compressor's version, so plaintexts are compared. Patches are such bytes.)
func TestGoldenFramesAreWritten(t *testing.T) {
	k := goldenKeys(t)
	for name, o := range goldenObjects(t, k) {
		if name == "patched" {
			continue
		}
		got, want := frames(t, k, o, o.bytes()), frames(t, k, o, golden.Read(t, name))
		if !slices.Equal(got, want) {
			t.Errorf("%s has other frames than the golden file:\n%.2000q\n%.2000q", name, got, want)
		}
	}
}

func frames(t *testing.T, k keys, o goldenObject, data []byte) (out []string) {
	t.Helper()
	r, err := pack.OpenSigned(data, o.kind, o.name, repository, o.id, k.Signing.Signer(), k.opener)
	if err != nil {
		t.Fatal(err)
	}
	for n, f := range r.Frames() {
		raw, err := r.DecodeFrame(nil, uint32(n), data[f.Offset:][:f.SealedLength], nil)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(raw))
	}
	return out
}
