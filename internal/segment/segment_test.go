package segment

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
)

var attempt = backup.PackID{1, 2, 3}

// exampleHeader says all that a header can.
func exampleHeader() Header {
	return Header{
		Snapshot: backup.SnapshotID{0xab}.String(), Filer: "filer-1", Shard: "/srv/home", Source: "posix:///srv/home", Number: 7, Base: 6,
		Started: time.Date(2026, 10, 1, 2, 3, 4, 5, time.UTC), Committed: time.Date(2026, 10, 1, 2, 30, 0, 0, time.UTC),
		Selection: backup.Selection{Exclude: []string{"*.tmp"}, OneFileSystem: true, ExcludeLargerBytes: 1 << 30},
		Tags:      []string{"nightly"}, Counts: backup.Counts{Files: 3, Bytes: 1 << 40, WalkSeconds: 1.5},
	}
}

// exampleChanges are a page added, a directory's second page added, and one ended.
func exampleChanges() []backup.PageChange {
	return []backup.PageChange{
		{PageVersion: backup.PageVersion{Path: "", Fingerprint: backup.Fingerprint{1}, Inode: 2, Listing: []byte("a listing")}},
		{PageVersion: backup.PageVersion{Path: "usr/\xff", Key: 1<<53 - 1, Listing: []byte("another")}},
		{Ended: true, PageVersion: backup.PageVersion{Path: "usr/gone", Key: 5}},
	}
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
	sealer *seal.Sealer
	opener *seal.Opener
}

func newKeys(t testing.TB) keys {
	identity, recipient, err := seal.GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return keysOf(t, identity, recipient)
}

func keysOf(t testing.TB, identity, recipient string) (k keys) {
	var err error
	if k.sealer, err = seal.NewSealer([]string{recipient}); err != nil {
		t.Fatal(err)
	}
	if k.opener, err = seal.NewOpener([]byte(identity)); err != nil {
		t.Fatal(err)
	}
	return k
}

// write returns the parts of a segment.
func write(t testing.TB, k keys, changes iter.Seq2[backup.PageChange, error]) (parts [][]byte) {
	t.Helper()
	err := Write(k.sealer, attempt, exampleHeader(), changes, func(part int, data []byte) error {
		if part != len(parts) {
			t.Errorf("part %d after %d parts", part, len(parts))
		}
		parts = append(parts, bytes.Clone(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// read opens the parts and returns their changes; each header must be h but for Part and Last.
func read(t testing.TB, k keys, parts [][]byte, h Header) (changes []backup.PageChange) {
	t.Helper()
	for i, data := range parts {
		p, err := Open(data, attempt, k.opener)
		if err != nil {
			t.Fatal(err)
		}
		h.Version, h.Part, h.Last = version, i, i == len(parts)-1
		if !reflect.DeepEqual(p.Header, h) {
			t.Errorf("part %d of %d: header %+v\nwant %+v", i, len(parts), p.Header, h)
		}
		for c, err := range p.Changes() {
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, c)
		}
	}
	return changes
}

func TestSegmentComesBack(t *testing.T) {
	k := newKeys(t)
	parts := write(t, k, each(exampleChanges()))
	if len(parts) != 1 {
		t.Errorf("%d parts", len(parts))
	}
	if got := read(t, k, parts, exampleHeader()); !reflect.DeepEqual(got, exampleChanges()) {
		t.Errorf("got %+v", got)
	}
}

func TestEmptySegmentIsOneSmallPart(t *testing.T) {
	k := newKeys(t)
	parts := write(t, k, each(nil))
	if len(parts) != 1 || len(parts[0]) > 2<<10 {
		t.Fatalf("%d parts, the first of %d bytes", len(parts), len(parts[0]))
	}
	if got := read(t, k, parts, exampleHeader()); len(got) != 0 {
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
			c := backup.PageChange{PageVersion: backup.PageVersion{Path: fmt.Sprintf("d/%06d", i), Listing: bytes.Clone(listing)}}
			if i%10 == 9 {
				c = backup.PageChange{Ended: true, PageVersion: backup.PageVersion{Path: c.Path, Key: backup.PageKey(i)}}
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}

func TestLargeSegmentHasParts(t *testing.T) {
	k := newKeys(t)
	parts := write(t, k, manyChanges(200, 400<<10))
	if len(parts) != 9 { // 180 listings of 400 KiB, 8 MiB and the rest of a listing a part
		t.Errorf("%d parts", len(parts))
	}
	for i, p := range parts {
		if len(p) > partBytes+frameBytes {
			t.Errorf("part %d has %d bytes", i, len(p))
		}
	}
	n := 0
	got := read(t, k, parts, exampleHeader())
	for want, err := range manyChanges(200, 400<<10) {
		if err != nil {
			t.Fatal(err)
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

// A segment takes a part's memory to write, however large it is.
func TestWritingIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 150 MB")
	}
	k := newKeys(t)
	var most uint64
	err := Write(k.sealer, attempt, exampleHeader(), manyChanges(420, 400<<10), func(int, []byte) error {
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

// A listing may be as large as the format allows, and still fits into a frame.
func TestLargestChangeFits(t *testing.T) {
	k := newKeys(t)
	large := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large)
	changes := []backup.PageChange{
		{PageVersion: backup.PageVersion{Path: "a", Listing: bytes.Clone(large[:frameBytes-100])}},
		{PageVersion: backup.PageVersion{Path: strings.Repeat("p/", backup.MaxPathBytes/2-1) + "p", Listing: large}},
	}
	if got := read(t, k, write(t, k, each(changes)), exampleHeader()); !reflect.DeepEqual(got, changes) {
		t.Error("got other changes")
	}
}

func TestWriteStopsAtAnError(t *testing.T) {
	k := newKeys(t)
	broken := errors.New("broken")
	changes := func(yield func(backup.PageChange, error) bool) {
		if yield(exampleChanges()[0], nil) {
			yield(backup.PageChange{}, broken)
		}
	}
	err := Write(k.sealer, attempt, exampleHeader(), changes, func(int, []byte) error {
		t.Error("a part of a segment that has an error was stored")
		return nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("the changes' error: %v", err)
	}
	err = Write(k.sealer, attempt, exampleHeader(), each(exampleChanges()), func(int, []byte) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("the store's error: %v", err)
	}
}

func TestChangesCanStopEarly(t *testing.T) {
	k := newKeys(t)
	p, err := Open(write(t, k, each(exampleChanges()))[0], attempt, k.opener)
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range p.Changes() {
		if err != nil || c.Path != "" {
			t.Fatalf("%q, %v", c.Path, err)
		}
		break
	}
}

func TestOpenRefuses(t *testing.T) {
	k := newKeys(t)
	data := write(t, k, each(exampleChanges()))[0]
	if _, err := Open(data, attempt, newKeys(t).opener); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("with the wrong identity: %v", err)
	}
	if _, err := Open(data, backup.PackID{9}, k.opener); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("under the id of another: %v", err)
	}
	w, err := pack.NewWriter(pack.KindData, attempt, k.sealer, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Add(pack.Frame{RawLength: 1, Body: []byte{0}, Chunks: []pack.Chunk{{Length: 1}}}); err != nil {
		t.Fatal(err)
	}
	data, err = w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(data, attempt, k.opener); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a pack of data: %v", err)
	}
}

// sealed makes an object of frames as they are: what a forger could.
func sealed(t testing.TB, k keys, frames ...string) []byte {
	w, err := pack.NewWriter(pack.KindSegment, attempt, k.sealer, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if _, err := w.Add(pack.Frame{RawLength: len(f), Body: []byte(f)}); err != nil {
			t.Fatal(err)
		}
	}
	data, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestForgedSegments(t *testing.T) {
	k := newKeys(t)
	for name, test := range map[string]struct {
		frames []string
		want   error
	}{
		"header is no JSON":  {[]string{"{"}, backup.ErrCorrupt},
		"header is a list":   {[]string{"[]"}, backup.ErrCorrupt},
		"no version":         {[]string{"{}"}, backup.ErrInvalid},
		"later version":      {[]string{`{"version":2}`}, backup.ErrInvalid},
		"unknown change":     {[]string{`{"version":1}`, "\x03\x00\x00"}, backup.ErrCorrupt},
		"change cut short":   {[]string{`{"version":1}`, "\x01\x01a\x00"}, backup.ErrCorrupt},
		"path leads outside": {[]string{`{"version":1}`, "\x02\x02..\x00"}, backup.ErrCorrupt},
		"path is absolute":   {[]string{`{"version":1}`, "\x02\x04/etc\x00"}, backup.ErrCorrupt},
		"key is negative":    {[]string{`{"version":1}`, "\x02\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"}, backup.ErrCorrupt},
		"path longer":        {[]string{`{"version":1}`, "\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x00"}, backup.ErrCorrupt},
	} {
		p, err := Open(sealed(t, k, test.frames...), attempt, k.opener)
		if err == nil {
			for _, e := range p.Changes() {
				err = e
			}
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Every byte of a part is covered: a change of any is seen.
func TestDamagedSegment(t *testing.T) {
	k := newKeys(t)
	data := write(t, k, each(exampleChanges()))[0]
	decode := func(data []byte) error {
		p, err := Open(data, attempt, k.opener)
		if err != nil {
			return err
		}
		for _, err := range p.Changes() {
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := decode(data); err != nil {
		t.Fatal(err)
	}
	for i := range data {
		if err := decode(data[:i]); err == nil {
			t.Fatalf("cut after %d of %d bytes it can be read", i, len(data))
		}
	}
	for i := 0; i < len(data); i += 3 {
		damaged := bytes.Clone(data)
		damaged[i] ^= 1 << (i % 8)
		if err := decode(damaged); err == nil {
			t.Fatalf("with a bit of byte %d of %d turned it can be read", i, len(data))
		}
	}
}

func drawChange(t *rapid.T) backup.PageChange {
	name := rapid.SampledFrom([]string{"a", "usr", "\xff", "long name " + strings.Repeat("n", 200)})
	c := backup.PageChange{Ended: rapid.Bool().Draw(t, "ended")}
	c.Path = strings.Join(rapid.SliceOfN(name, 0, 4).Draw(t, "path"), "/")
	c.Key = backup.PageKey(rapid.Int64Min(0).Draw(t, "key"))
	if !c.Ended {
		c.Fingerprint = backup.Fingerprint(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "fingerprint"))
		c.Inode = rapid.Uint64().Draw(t, "inode")
		c.Listing = rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "listing")
	}
	return c
}

func TestEveryChangeComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		changes := rapid.SliceOfN(rapid.Custom(drawChange), 1, 10).Draw(t, "changes")
		var raw []byte
		for i := range changes {
			raw = appendChange(raw, &changes[i])
		}
		for i := range changes {
			var c backup.PageChange
			var err error
			if c, raw, err = decodeChange(raw); err != nil || !reflect.DeepEqual(c, changes[i]) {
				t.Fatalf("change %d: %+v, %v, want %+v", i, c, err, changes[i])
			}
		}
		if len(raw) > 0 {
			t.Fatalf("%d bytes are left", len(raw))
		}
	})
}

func FuzzDecodeChange(f *testing.F) {
	for _, c := range exampleChanges() {
		f.Add(appendChange(nil, &c))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, rest, err := decodeChange(data)
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.HasSuffix(data, rest) {
			t.Fatal("what is left is not the end of what was given")
		}
		again, rest, err := decodeChange(appendChange(nil, &c))
		if err != nil || len(rest) > 0 || !reflect.DeepEqual(c, again) {
			t.Fatalf("decoded, encoded and decoded: %+v, %v, want %+v", again, err, c)
		}
	})
}

var update = flag.Bool("update", false, "write golden files")

// The files of testdata/v1 are frozen: every version to come must read them.
func TestGolden(t *testing.T) {
	k, path := goldenKeys(t), filepath.Join("testdata", "v1", "small.segment")
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		data = write(t, k, each(exampleChanges()))[0]
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, k, [][]byte{data}, exampleHeader()); !reflect.DeepEqual(got, exampleChanges()) {
		t.Errorf("got %+v", got)
	}
	// A new segment has the same frames, whatever key they are sealed with.
	if got, want := frames(t, k, write(t, k, each(exampleChanges()))[0]), frames(t, k, data); !slices.Equal(got, want) {
		t.Errorf("a new segment has other frames than the golden file:\n%q\n%q", got, want)
	}
}

func frames(t *testing.T, k keys, data []byte) (out []string) {
	p, err := Open(data, attempt, k.opener)
	if err != nil {
		t.Fatal(err)
	}
	for n := range p.pack.Frames() {
		raw, err := p.decode(uint32(n))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(raw))
	}
	return out
}

// goldenKeys are those of testdata/v1/identity.txt: they protect nothing else.
func goldenKeys(t *testing.T) keys {
	path := filepath.Join("testdata", "v1", "identity.txt")
	file, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		identity, recipient, err := seal.GenerateIdentity()
		if err != nil {
			t.Fatal(err)
		}
		file = []byte("# public key: " + recipient + "\n" + identity + "\n")
		if err := os.WriteFile(path, file, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(file), "# public key: ")
	recipient, _, _ := strings.Cut(rest, "\n")
	return keysOf(t, string(file), recipient)
}
