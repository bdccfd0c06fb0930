package journal

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

var (
	repository = backup.RepositoryID([]byte("the repository's"))
	snapshot   = backup.SnapshotID{0xab}
)

// exampleSnapshot sets every field that segments and commit records contain.
func exampleSnapshot() *backup.Snapshot {
	return &backup.Snapshot{
		ID: snapshot, Number: 7, Base: 6, BaseID: backup.SnapshotID{0xaa}, State: backup.Committed,
		Filer:   backup.Filer{Name: "filer-1"},
		Shard:   backup.Shard{Name: "/srv/home", Key: backup.ShardKey{0x5a}, Source: "posix:///srv/home"},
		Started: time.Date(2026, 10, 1, 2, 3, 4, 5, time.UTC), Source: "posix:///srv/home?snapshot=hourly.0",
		Root:      backup.Root{FileSystem: "ext4", ID: "a b", Inode: 2, Born: backup.Time{Sec: 1_700_000_000, Nsec: 5}},
		Compare:   backup.CompareMtime | backup.CompareInode,
		Selection: backup.Selection{Exclude: []string{"*.tmp", "<&>"}, ExcludeIfPresent: []string{".nobackup"}, OneFileSystem: true, ExcludeLargerBytes: 1 << 30},
		Tags:      []string{"nightly"}, AllowShrink: true, NewRoot: true,
		Counts: backup.Counts{
			Files: 3, Directories: 2, Bytes: 1 << 40, FilesNew: 1, FilesChanged: 2, FilesUnchanged: 3, StatCalls: 4, NewBytes: 5, StoredBytes: 6,
			ReadBytes: 7, Errors: 8, Vanished: 9, Carried: 10, Torn: 11, WalkSeconds: 1.5, ReadSeconds: 2.5, HashSeconds: 3.5,
			CompressSeconds: 4.5, SealSeconds: 5.5, UploadSeconds: 6.5, CommitSeconds: 7.5,
		},
	}
}

// addedPage returns a page that was added, with its digest.
func addedPage(v backup.PageVersion) backup.PageChange {
	return backup.PageChange{PageVersion: v, Digest: listing.Digest(&v)}
}

// endedPage returns a page that was ended, with the digest that the index has.
func endedPage(path string, key backup.PageKey, digest byte) backup.PageChange {
	return backup.PageChange{Ended: true, Digest: backup.PageDigest{digest}, PageVersion: backup.PageVersion{Path: path, Key: key}}
}

// exampleChanges are one added page, one added second page of a directory, and one ended page.
func exampleChanges() []backup.PageChange {
	return []backup.PageChange{
		addedPage(backup.PageVersion{Path: "", Fingerprint: backup.Fingerprint{1}, Inode: 2, Listing: []byte("a listing")}),
		addedPage(backup.PageVersion{Path: "usr/\xff", Key: 1<<53 - 1, Listing: []byte("another")}),
		endedPage("usr/gone", 5, 5),
	}
}

// exampleBase is the content of the previous snapshot.
func exampleBase() (s backup.PageSet) {
	s.Add(backup.PageDigest{5})
	s.Add(backup.PageDigest{6})
	return s
}

func each(changes []backup.PageChange) iter.Seq2[backup.PageChange, error] {
	return func(yield func(backup.PageChange, error) bool) {
		for _, c := range changes {
			if !yield(c, nil) {
				return
			}
		}
	}
}

type keys struct {
	Keys
	opener *seal.Opener
}

func newKeys(t testing.TB) keys {
	identity, recipient, err := seal.GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return keysOf(t, identity, recipient, seal.NewSigningKey())
}

func keysOf(t testing.TB, identity, recipient string, signing seal.SigningKey) keys {
	sealer, err := seal.NewSealer([]string{recipient})
	if err != nil {
		t.Fatal(err)
	}
	opener, err := seal.NewOpener([]byte(identity))
	if err != nil {
		t.Fatal(err)
	}
	return keys{Keys{repository, sealer, signing}, opener}
}

func (k keys) trust() Trust { return Trust{repository, k.Signing.Signer(), k.opener} }

// A part is an object of a segment.
type part struct {
	name string
	data []byte
}

// write returns a segment and its parts.
func write(t testing.TB, k keys, checkpoint bool, base backup.PageSet, changes iter.Seq2[backup.PageChange, error]) (s Segment, parts []part) {
	t.Helper()
	s, err := WriteSegment(k.Keys, exampleSnapshot(), checkpoint, base, changes, func(name string, data []byte) error {
		parts = append(parts, part{name, bytes.Clone(data)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	bytes := int64(0)
	for i, p := range parts {
		bytes += int64(len(p.data))
		if want := store.SegmentName(snapshot, s.Attempt, i); p.name != want {
			t.Errorf("part %d is put as %s, want %s", i, p.name, want)
		}
	}
	if s.Parts != len(parts) || s.Bytes != bytes || s.Checkpoint != checkpoint {
		t.Errorf("%+v of %d parts, %d bytes", s, len(parts), bytes)
	}
	return s, parts
}

// read opens the parts and returns their changes. Each header must equal the one that was written.
func read(t testing.TB, k keys, s Segment, parts []part) (changes []backup.PageChange) {
	t.Helper()
	return readFrom(t, k, s, parts, noBase)
}

// A baseOf returns the listing of the base's version of a page, nil for none.
type baseOf = func(path string, key backup.PageKey) ([]byte, error)

// noBase is a base without pages.
func noBase(string, backup.PageKey) ([]byte, error) { return nil, nil }

// readFrom returns the changes of a segment whose patches are of the pages that base returns.
func readFrom(t testing.TB, k keys, s Segment, parts []part, base baseOf) (changes []backup.PageChange) {
	t.Helper()
	for i, part := range parts {
		p, err := OpenSegment(part.data, snapshot, s.Attempt, i, k.trust())
		if err != nil {
			t.Fatal(err)
		}
		if v := p.Header.Version; v != version && v != patchVersion {
			t.Errorf("part %d is of version %d", i, v)
		}
		h := SegmentHeader{Version: p.Header.Version, Part: i, Last: i == len(parts)-1, Checkpoint: s.Checkpoint, Snapshot: SnapshotOf(exampleSnapshot())}
		if h.Last {
			content := digestOf(s.Content)
			h.Content = &content
		}
		if !reflect.DeepEqual(p.Header, h) {
			t.Errorf("part %d of %d: header %+v\nwant %+v", i, len(parts), p.Header, h)
		}
		for c, err := range p.Changes(base) {
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, c)
		}
	}
	return changes
}

// asRead returns changes as a reader returns them: an ended page has only its name.
func asRead(changes []backup.PageChange) []backup.PageChange {
	changes = slices.Clone(changes)
	for i := range changes {
		if changes[i].Ended {
			changes[i].Digest = backup.PageDigest{}
		}
	}
	return changes
}

func TestSegmentComesBack(t *testing.T) {
	k := newKeys(t)
	for _, checkpoint := range []bool{false, true} {
		changes, base := exampleChanges(), exampleBase()
		if checkpoint {
			changes, base = changes[:2], backup.PageSet{}
		}
		s, parts := write(t, k, checkpoint, base, each(changes))
		if len(parts) != 1 {
			t.Errorf("%d parts", len(parts))
		}
		want := base
		for _, c := range changes {
			if c.Ended {
				want.Remove(c.Digest)
			} else {
				want.Add(c.Digest)
			}
		}
		if s.Content != want {
			t.Errorf("content %+v, want %+v", s.Content, want)
		}
		if got := read(t, k, s, parts); !reflect.DeepEqual(got, asRead(changes)) {
			t.Errorf("got %+v", got)
		}
	}
}

// A snapshot without changes needs no segment, but a checkpoint is always written.
func TestSegmentOfNothing(t *testing.T) {
	k := newKeys(t)
	if s, parts := write(t, k, false, exampleBase(), each(nil)); len(parts) != 0 || s.Content != exampleBase() {
		t.Errorf("%d parts, %+v", len(parts), s)
	}
	s, parts := write(t, k, true, backup.PageSet{}, each(nil))
	if len(parts) != 1 || len(parts[0].data) > 2<<10 || s.Content != (backup.PageSet{}) {
		t.Fatalf("%d parts, %+v", len(parts), s)
	}
	if got := read(t, k, s, parts); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}

// manyChanges yields n changes with listings that do not compress.
func manyChanges(n, listingBytes int) iter.Seq2[backup.PageChange, error] {
	return func(yield func(backup.PageChange, error) bool) {
		random := rand.NewChaCha8([32]byte{})
		listing := make([]byte, listingBytes)
		for i := range n {
			_, _ = random.Read(listing)
			c := addedPage(backup.PageVersion{Path: fmt.Sprintf("d/%06d", i), Listing: bytes.Clone(listing)})
			if i%10 == 9 {
				c = endedPage(c.Path, backup.PageKey(i), byte(i))
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}

// manyPages is a base from which manyChanges can end pages.
var manyPages = backup.PageSet{Pages: 1 << 20}

func TestLargeSegmentHasParts(t *testing.T) {
	k := newKeys(t)
	s, parts := write(t, k, false, manyPages, manyChanges(200, 400<<10))
	if len(parts) != 9 { // 180 listings of 400 KiB; each part holds 8 MiB plus the rest of a listing
		t.Errorf("%d parts", len(parts))
	}
	for i, p := range parts {
		if len(p.data) > partBytes+frameBytes {
			t.Errorf("part %d has %d bytes", i, len(p.data))
		}
	}
	n := 0
	got := read(t, k, s, parts)
	for want, err := range manyChanges(200, 400<<10) {
		if err != nil {
			t.Fatal(err)
		}
		if want.Ended {
			want.Digest = backup.PageDigest{}
		}
		if !reflect.DeepEqual(got[n], want) {
			t.Fatalf("change %d of %q is not what was written", n, got[n].Path)
		}
		n++
	}
	if len(got) != n {
		t.Errorf("%d changes, want %d", len(got), n)
	}
}

// Writing a segment takes the memory of one part, however large the segment is.
func TestWritingIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 150 MB")
	}
	k := newKeys(t)
	var most uint64
	_, err := WriteSegment(k.Keys, exampleSnapshot(), false, manyPages, manyChanges(420, 400<<10), func(string, []byte) error {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapAlloc)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if most > 32<<20 {
		t.Errorf("%d MiB are in use while a part is stored", most>>20)
	}
	t.Logf("%d MiB are in use while a part is stored", most>>20)
}

// A listing of the maximum size still fits into a frame.
func TestLargestChangeFits(t *testing.T) {
	k := newKeys(t)
	large := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large)
	changes := []backup.PageChange{
		addedPage(backup.PageVersion{Path: "a", Listing: bytes.Clone(large[:frameBytes-100])}),
		addedPage(backup.PageVersion{Path: strings.Repeat("p/", backup.MaxPathBytes/2-1) + "p", Listing: large}),
	}
	s, parts := write(t, k, false, backup.PageSet{}, each(changes))
	if got := read(t, k, s, parts); !reflect.DeepEqual(got, changes) {
		t.Error("got other changes")
	}
}

func TestWriteStopsAtAnError(t *testing.T) {
	k := newKeys(t)
	broken := errors.New("broken")
	no := func(string, []byte) error {
		t.Error("a part of a segment that has an error was stored")
		return nil
	}
	changes := func(yield func(backup.PageChange, error) bool) {
		if yield(exampleChanges()[0], nil) {
			yield(backup.PageChange{}, broken)
		}
	}
	if _, err := WriteSegment(k.Keys, exampleSnapshot(), false, exampleBase(), changes, no); !errors.Is(err, broken) {
		t.Errorf("the changes' error: %v", err)
	}
	_, err := WriteSegment(k.Keys, exampleSnapshot(), false, exampleBase(), each(exampleChanges()), func(string, []byte) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("the store's error: %v", err)
	}
	// The index no longer contains the digest that was stored in it.
	damaged := exampleChanges()
	damaged[1].Listing = []byte("anotheR")
	if _, err := WriteSegment(k.Keys, exampleSnapshot(), false, exampleBase(), each(damaged), no); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a page that is not its digest's: %v", err)
	}
	if _, err := WriteSegment(k.Keys, exampleSnapshot(), true, backup.PageSet{}, each(exampleChanges()), no); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("a checkpoint with a page that has ended: %v", err)
	}
	// Readers would refuse a negative number of pages.
	ended := []backup.PageChange{endedPage("a", 0, 1)}
	if _, err := WriteSegment(k.Keys, exampleSnapshot(), false, backup.PageSet{}, each(ended), no); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a page that was not there ends: %v", err)
	}
}

func TestChangesCanStopEarly(t *testing.T) {
	k := newKeys(t)
	s, parts := write(t, k, false, exampleBase(), each(exampleChanges()))
	p, err := OpenSegment(parts[0].data, snapshot, s.Attempt, 0, k.trust())
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range p.Changes(noBase) {
		if err != nil || c.Path != "" {
			t.Fatalf("%q, %v", c.Path, err)
		}
		break
	}
}

func drawChange(t *rapid.T) backup.PageChange {
	name := rapid.SampledFrom([]string{"a", "usr", "\xff", "long name " + strings.Repeat("n", 200)})
	path := strings.Join(rapid.SliceOfN(name, 0, 4).Draw(t, "path"), "/")
	key := backup.PageKey(rapid.Int64Min(0).Draw(t, "key"))
	if rapid.Bool().Draw(t, "ended") {
		return backup.PageChange{Ended: true, PageVersion: backup.PageVersion{Path: path, Key: key}}
	}
	return addedPage(backup.PageVersion{
		Path: path, Key: key, Fingerprint: backup.Fingerprint(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "fingerprint")),
		Inode: rapid.Uint64().Draw(t, "inode"), Listing: rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "listing"),
	})
}

func TestEveryChangeComesBack(t *testing.T) {
	testtarget.FewerChecks(t, "30")
	rapid.Check(t, func(t *rapid.T) {
		changes := rapid.SliceOfN(rapid.Custom(drawChange), 1, 10).Draw(t, "changes")
		var raw []byte
		for i := range changes {
			raw = appendWhole(raw, &changes[i])
		}
		for i := range changes {
			var c backup.PageChange
			var err error
			if c, raw, err = decodeWhole(raw, true, noBase); err != nil || !reflect.DeepEqual(c, changes[i]) {
				t.Fatalf("change %d: %+v, %v, want %+v", i, c, err, changes[i])
			}
		}
		if len(raw) > 0 {
			t.Fatalf("%d bytes are left", len(raw))
		}
	})
}

// decodeWhole decodes a change, and completes it with the base's version of the page.
func decodeWhole(data []byte, patches bool, base baseOf) (backup.PageChange, []byte, error) {
	c, rest, err := decodeChange(data, patches)
	if err != nil {
		return backup.PageChange{}, nil, err
	}
	old, err := base(c.Path, c.Key)
	if err == nil {
		err = c.Complete(old)
	}
	return c.PageChange, rest, err
}

// appendWhole appends a change without a patch.
func appendWhole(b []byte, c *backup.PageChange) []byte {
	if c.Ended {
		return appendChange(b, ended, c, nil)
	}
	return appendChange(b, added, c, c.Listing)
}

// plainOf returns the plain listing of a page with n files.
func plainOf(t interface{ Fatal(...any) }, n int) []byte {
	p := &backup.Page{}
	for i := range n {
		p.Entries = append(p.Entries, backup.Entry{Name: fmt.Sprintf("file%04d", i), Kind: backup.File, Size: int64(n), Inode: uint64(i)})
	}
	data, err := listing.Encode(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := listing.Plain(data)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func FuzzDecodeChange(f *testing.F) {
	for _, c := range exampleChanges() {
		f.Add(appendWhole(nil, &c))
	}
	old := plainOf(f, 20)
	c := addedPage(backup.PageVersion{Path: "usr", Key: 3, Listing: plainOf(f, 21)})
	c.Replaces = old
	patch, _ := patchOf(&c)
	f.Add(appendChange(nil, patched, &c, patch))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, base := range []baseOf{noBase, func(string, backup.PageKey) ([]byte, error) { return old, nil }} {
			c, rest, err := decodeWhole(data, true, base)
			if err != nil {
				if !errors.Is(err, backup.ErrCorrupt) {
					t.Fatal(err)
				}
				continue
			}
			if !bytes.HasSuffix(data, rest) {
				t.Fatal("what is left is not the end of what was given")
			}
			again, rest, err := decodeWhole(appendWhole(nil, &c), false, noBase)
			if err != nil || len(rest) > 0 || !reflect.DeepEqual(c, again) {
				t.Fatalf("decoded, encoded and decoded: %+v, %v, want %+v", again, err, c)
			}
		}
	})
}

// A page that replaces another one is written as a patch, if both are plain or can be, and comes
// back with the base's version.
func TestPatches(t *testing.T) {
	k := newKeys(t)
	old, next := plainOf(t, 200), plainOf(t, 201)
	base := addedPage(backup.PageVersion{Path: "d", Listing: old})
	page := addedPage(backup.PageVersion{Path: "d", Listing: next})
	packed, err := listing.Encode(nil, &backup.Page{})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		listing, replaces []byte
		version           int
	}{
		"plain":                  {next, old, patchVersion},
		"of a packed one":        {next, packed, patchVersion},
		"of an empty one":        {next, plainOf(t, 0), patchVersion},
		"of nothing":             {next, nil, version},
		"of what is no listing":  {next, []byte("damaged"), version},
		"of what is a patch":     {next, listing.AppendPatch(nil, nil, old), version},
		"of one that is too big": {next, append(slices.Clone(old), make([]byte, listing.MaxPatchedBytes)...), version},
		"too big":                {append(slices.Clone(next), make([]byte, listing.MaxPatchedBytes)...), old, version},
		"columns are compressed": {slices.Concat([]byte{1, 1}, next[2:]), old, version},
	} {
		c := addedPage(backup.PageVersion{Path: "d", Listing: test.listing})
		want := c
		c.Replaces = test.replaces
		var set backup.PageSet
		set.Add(base.Digest)
		s, parts := write(t, k, false, set, each([]backup.PageChange{c, {Ended: true, Digest: base.Digest, PageVersion: backup.PageVersion{Path: "d"}}}))
		got := readFrom(t, k, s, parts, func(path string, key backup.PageKey) ([]byte, error) {
			if path != "d" || key != 0 {
				t.Errorf("%s: asked for page %d of %q", name, key, path)
			}
			return test.replaces, nil
		})
		if len(got) != 2 || !reflect.DeepEqual(got[0], want) || !got[1].Ended {
			t.Errorf("%s: %d changes come back", name, len(got))
		}
		p, err := OpenSegment(parts[0].data, snapshot, s.Attempt, 0, k.trust())
		if err != nil || p.Header.Version != test.version {
			t.Errorf("%s: version %d, %v", name, p.Header.Version, err)
		}
		s, parts = write(t, k, true, backup.PageSet{}, each([]backup.PageChange{c})) // which has no base
		if got := read(t, k, s, parts); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%s: %d changes come back from a checkpoint", name, len(got))
		}
	}

	page.Replaces = old
	var set backup.PageSet
	set.Add(base.Digest)
	s, parts := write(t, k, false, set, each([]backup.PageChange{page, {Ended: true, Digest: base.Digest, PageVersion: backup.PageVersion{Path: "d"}}}))
	failed := errors.New("cannot be read")
	for name, test := range map[string]struct {
		base baseOf
		want error
	}{
		"no base":        {noBase, backup.ErrCorrupt},
		"a damaged base": {func(string, backup.PageKey) ([]byte, error) { return []byte("damaged"), nil }, backup.ErrCorrupt},
		"a failing base": {func(string, backup.PageKey) ([]byte, error) { return nil, failed }, failed},
		"a large base": {func(string, backup.PageKey) ([]byte, error) {
			return append(slices.Clone(old), make([]byte, listing.MaxPatchedBytes)...), nil
		}, backup.ErrCorrupt},
		"a patch as base": {func(string, backup.PageKey) ([]byte, error) { return listing.AppendPatch(nil, nil, old), nil }, backup.ErrCorrupt},
	} {
		p, err := OpenSegment(parts[0].data, snapshot, s.Attempt, 0, k.trust())
		if err != nil {
			t.Fatal(err)
		}
		for _, err = range p.Changes(test.base) {
			break
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	raw := appendChange(nil, patched, &page, []byte("patch"))
	if _, _, err := decodeWhole(raw, false, noBase); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a patch in a part of version 1: %v", err)
	}
}

// Applying the segments of a shard, starting with a checkpoint, gives the pages of each snapshot,
// and the digest proves it, as docs/formats/journal.md describes.
func TestReplay(t *testing.T) {
	k := newKeys(t)
	testtarget.FewerChecks(t, "30")
	rapid.Check(t, func(rt *rapid.T) {
		type name struct {
			path string
			key  backup.PageKey
		}
		index, replayed := map[name]backup.PageVersion{}, map[name]backup.PageVersion{}
		setOf := func(pages map[name]backup.PageVersion) (s backup.PageSet) {
			for _, v := range pages {
				s.Add(listing.Digest(&v))
			}
			return s
		}
		for n := range rapid.IntRange(1, 5).Draw(rt, "snapshots") {
			content := setOf(index)
			var come, gone []backup.PageChange
			for _, c := range rapid.SliceOfNDistinct(rapid.Custom(drawChange), 0, 6, func(c backup.PageChange) name { return name{c.Path, c.Key} }).Draw(rt, "changes") {
				at := name{c.Path, c.Key}
				if n := rapid.IntRange(-1, 20).Draw(rt, "files"); n >= 0 && !c.Ended {
					c.Listing = plainOf(rt, n)
					c.Digest = listing.Digest(&c.PageVersion)
				}
				if old, ok := index[at]; ok {
					c.Replaces = old.Listing
					gone = append(gone, backup.PageChange{Ended: true, Digest: listing.Digest(&old), PageVersion: backup.PageVersion{Path: c.Path, Key: c.Key}})
					delete(index, at)
				}
				if !c.Ended {
					come = append(come, c)
					index[at] = c.PageVersion
				}
			}
			checkpoint := n == 0 || rapid.Bool().Draw(rt, "checkpoint")
			changes := slices.Concat(come, gone)
			if checkpoint {
				content, changes = backup.PageSet{}, nil
				for _, v := range index {
					changes = append(changes, addedPage(v))
				}
				replayed = map[name]backup.PageVersion{} // discard all earlier pages
			}
			s, parts := write(t, k, checkpoint, content, each(changes))
			fresh, before := map[name]bool{}, maps.Clone(replayed)
			base := func(path string, key backup.PageKey) ([]byte, error) { return before[name{path, key}].Listing, nil }
			for _, c := range readFrom(t, k, s, parts, base) {
				at := name{c.Path, c.Key}
				switch {
				case !c.Ended:
					replayed[at], fresh[at] = c.PageVersion, true
				case !fresh[at]:
					delete(replayed, at)
				}
			}
			if !reflect.DeepEqual(replayed, index) || setOf(replayed) != s.Content {
				rt.Fatalf("after snapshot %d: %d pages, %+v; want %d, %+v", n, len(replayed), setOf(replayed), len(index), s.Content)
			}
		}
	})
}
