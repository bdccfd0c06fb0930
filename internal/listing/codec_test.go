package listing

import (
	"cmp"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

// Boundary values are drawn as often as all others together.
func edges[T any](g *rapid.Generator[T], values ...T) *rapid.Generator[T] {
	return rapid.OneOf(g, rapid.SampledFrom(values))
}

var (
	anyInt64  = edges(rapid.Int64(), 0, 1, -1, math.MaxInt64, math.MinInt64)
	anyUint64 = edges(rapid.Uint64(), 0, 1, math.MaxInt64, math.MaxUint64)
	anyUint32 = edges(rapid.Uint32(), 0, 1, math.MaxInt32, math.MaxUint32)
	anySize   = edges(rapid.Int64Min(0), 0, 1, 4096, math.MaxInt64)
	anyName   = rapid.Custom(func(t *rapid.T) string {
		name := string(rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "name"))
		name = strings.NewReplacer("/", "-", "\x00", "-").Replace(name)
		if name == "." || name == ".." {
			return "dots"
		}
		if rapid.IntRange(0, 50).Draw(t, "long") == 0 {
			name += strings.Repeat("n", 1020-len(name))
		}
		return name
	})
	anyTime = rapid.Custom(func(t *rapid.T) backup.Time {
		return backup.Time{Sec: anyInt64.Draw(t, "sec"), Nsec: edges(rapid.Uint32Range(0, maxNsec), 0, maxNsec).Draw(t, "nsec")}
	})
	anyXattr = rapid.Custom(func(t *rapid.T) backup.Xattr {
		x := backup.Xattr{Name: "user." + rapid.String().Draw(t, "xattr")}
		if value := rapid.SliceOf(rapid.Byte()).Draw(t, "value"); len(value) > 0 {
			x.Value = value
		}
		return x
	})
)

func drawChunkID(t *rapid.T) backup.ChunkID {
	return backup.ChunkID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "chunk"))
}

func drawContent(t *rapid.T, size int64) backup.Content {
	if size > 0 && rapid.Bool().Draw(t, "whole") {
		return backup.Content{Refs: []backup.Ref{{Chunk: drawChunkID(t), Length: size, Span: size}}}
	}
	var c backup.Content
	if n := rapid.IntRange(0, 4).Draw(t, "refs"); n > 0 {
		c = backup.Content{Depth: rapid.IntRange(0, maxDepth).Draw(t, "depth"), Refs: make([]backup.Ref, n)}
	}
	for i := range c.Refs {
		r := &c.Refs[i]
		*r = backup.Ref{Chunk: drawChunkID(t), Hole: anySize.Draw(t, "hole"), Length: anySize.Draw(t, "length")}
		r.Span = r.Length
		if c.Depth > 0 {
			r.Span = anySize.Draw(t, "span")
		}
	}
	return c
}

func drawEntry(t *rapid.T, name string, kind backup.Kind) backup.Entry {
	e := backup.Entry{Name: name, Kind: kind, Flags: backup.Flags(rapid.Uint16().Draw(t, "flags")), Inode: anyUint64.Draw(t, "inode")}
	if kind == backup.Directory && name != "" {
		return e
	}
	e.Mode, e.UID, e.GID = rapid.Uint32Range(0, 0o7777).Draw(t, "mode"), anyUint32.Draw(t, "uid"), anyUint32.Draw(t, "gid")
	e.Nlink = anyUint32.Draw(t, "nlink")
	e.Mtime, e.Ctime, e.Btime = anyTime.Draw(t, "mtime"), anyTime.Draw(t, "ctime"), anyTime.Draw(t, "btime")
	switch kind {
	case backup.Symlink:
		e.Target = string(rapid.SliceOf(rapid.Byte()).Draw(t, "target"))
	case backup.CharDev, backup.BlockDev:
		e.Rdev = anyUint64.Draw(t, "rdev")
	case backup.File:
		e.Size = anySize.Draw(t, "size")
		e.Content = drawContent(t, e.Size)
	case backup.Directory, backup.FIFO, backup.Socket:
	}
	if length := rapid.SampledFrom([]int64{0, 0, 1, 70_000, math.MaxInt64}).Draw(t, "xattr chunk"); length > 0 {
		e.XattrChunk = backup.Ref{Chunk: drawChunkID(t), Length: length, Span: length}
	} else if xattrs := rapid.SliceOfN(anyXattr, 0, 3).Draw(t, "xattrs"); len(xattrs) > 0 {
		e.Xattrs = xattrs
	}
	return e
}

func drawPage(t *rapid.T) *backup.Page {
	p := &backup.Page{Entries: []backup.Entry{}, Next: backup.PageKey(rapid.SampledFrom([]int64{0, 0, 1, 1 << 53, math.MaxInt64}).Draw(t, "next"))}
	if rapid.Bool().Draw(t, "first") {
		self := drawEntry(t, "", backup.Directory)
		p.Self = &self
	}
	names := rapid.SliceOfNDistinct(anyName, 0, 20, func(s string) string { return s }).Draw(t, "names")
	slices.Sort(names)
	for _, name := range names {
		p.Entries = append(p.Entries, drawEntry(t, name, backup.Kind(rapid.IntRange(1, 7).Draw(t, "kind"))))
	}
	return p
}

func TestEveryPageComesBack(t *testing.T) {
	var c Encoder
	rapid.Check(t, func(t *rapid.T) {
		p := drawPage(t)
		data, err := c.Encode([]byte("before"), p)
		if err != nil {
			t.Fatal(err)
		}
		if string(data[:6]) != "before" {
			t.Fatal("what was in dst is lost")
		}
		got, err := Decode(data[6:])
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&got, p) {
			t.Fatalf("got  %+v\nwant %+v", got, p)
		}
		// The chunks that are read without the columns are those to which the columns refer.
		chunks, err := ReadChunks(data[6:])
		if err != nil || !sameChunks(chunks, chunksOf(p)) {
			t.Fatalf("chunks %v, %v\nwant %v", chunks, err, chunksOf(p))
		}
	})
}

// chunksOf returns the chunks to which a page refers.
func chunksOf(p *backup.Page) (c Chunks) {
	var xattrs []backup.ChunkID
	entries := p.Entries
	if p.Self != nil {
		entries = slices.Concat([]backup.Entry{*p.Self}, entries)
	}
	for i := range entries {
		for _, r := range entries[i].Content.Refs {
			if entries[i].Content.Depth > 0 {
				c.Lists = append(c.Lists, r.Chunk)
			} else {
				c.Other = append(c.Other, r.Chunk)
			}
		}
		if entries[i].XattrChunk.Length > 0 {
			xattrs = append(xattrs, entries[i].XattrChunk.Chunk)
		}
	}
	c.Other = append(c.Other, xattrs...)
	return c
}

func sameChunks(a, b Chunks) bool {
	return slices.Equal(a.Lists, b.Lists) && slices.Equal(a.Other, b.Other)
}

func TestEveryListChunkComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawContent(t, 0)
		got, err := DecodeRefs(EncodeRefs(nil, c))
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Fatalf("got  %+v, %v\nwant %+v", got, err, c)
		}
	})
}

func TestEveryXattrChunkComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var xattrs []backup.Xattr
		if drawn := rapid.SliceOf(anyXattr).Draw(t, "xattrs"); len(drawn) > 0 {
			xattrs = drawn
		}
		got, err := DecodeXattrs(EncodeXattrs(nil, xattrs))
		if err != nil || !reflect.DeepEqual(got, xattrs) {
			t.Fatalf("got  %+v, %v\nwant %+v", got, err, xattrs)
		}
	})
}

// Encode refuses everything that Decode would refuse.
func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	file := func(name string, change func(*backup.Entry)) backup.Entry {
		e := backup.Entry{Name: name, Kind: backup.File, Size: 1}
		if change != nil {
			change(&e)
		}
		return e
	}
	entries := func(e ...backup.Entry) backup.Page { return backup.Page{Entries: e} }
	for name, p := range map[string]backup.Page{
		"not sorted":      entries(file("b", nil), file("a", nil)),
		"name twice":      entries(file("a", nil), file("a", nil)),
		"no name":         entries(file("", nil)),
		"slash":           entries(file("a/b", nil)),
		"dots":            entries(file("..", nil)),
		"long name":       entries(file(strings.Repeat("n", 1021), nil)),
		"no kind":         entries(file("a", func(e *backup.Entry) { e.Kind = 0 })),
		"unknown kind":    entries(file("a", func(e *backup.Entry) { e.Kind = 8 })),
		"negative size":   entries(file("a", func(e *backup.Entry) { e.Size = -1 })),
		"nanoseconds":     entries(file("a", func(e *backup.Entry) { e.Btime.Nsec = 1e9 })),
		"long target":     entries(file("a", func(e *backup.Entry) { e.Kind, e.Target = backup.Symlink, strings.Repeat("t", maxTarget+1) })),
		"depth":           entries(file("a", func(e *backup.Entry) { e.Content = backup.Content{Depth: 5, Refs: make([]backup.Ref, 1)} })),
		"negative hole":   entries(file("a", func(e *backup.Entry) { e.Content.Refs = []backup.Ref{{Hole: -1}} })),
		"negative length": entries(file("a", func(e *backup.Entry) { e.Content.Refs = []backup.Ref{{Length: -1}} })),
		"many entries":    entries(files(maxRows)...),
		"many xattrs":     entries(file("a", func(e *backup.Entry) { e.Xattrs = make([]backup.Xattr, maxXattrs+1) })),
		"xattrs in two places": entries(file("a", func(e *backup.Entry) {
			e.Xattrs, e.XattrChunk.Length = []backup.Xattr{{Name: "user.a"}}, 5
		})),
		"negative next": {Next: -1},
		"many bytes": entries(file("a", func(e *backup.Entry) {
			e.Xattrs = []backup.Xattr{{Name: "user.a", Value: make([]byte, MaxBytes)}}
		})),
		"self is a file":  {Self: &backup.Entry{Kind: backup.File}},
		"self has a name": {Self: &backup.Entry{Kind: backup.Directory, Name: "a"}},
	} {
		if data, err := Encode(nil, &p); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: encoded in %d bytes, error %v", name, len(data), err)
		}
	}
}

// A listing has only name, kind, flags and inode of a subdirectory, even if a walker sets other
// attributes.
func TestSubdirectoriesHaveNoAttributes(t *testing.T) {
	d := backup.Entry{
		Name: "d", Kind: backup.Directory, Inode: 5, Flags: backup.Boundary, Mode: 0o755, UID: 3, Nlink: 2, Mtime: backup.Time{Sec: 9},
		XattrChunk: backup.Ref{Chunk: backup.ChunkID{1}, Length: 5},
	}
	data, err := Encode(nil, &backup.Page{Entries: []backup.Entry{d}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Decode(data)
	want := backup.Entry{Name: "d", Kind: backup.Directory, Inode: 5, Flags: backup.Boundary}
	if err != nil || !reflect.DeepEqual(p.Entries, []backup.Entry{want}) {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestDecodePageSaysWhichPage(t *testing.T) {
	data, err := Encode(nil, &backup.Page{Entries: files(2)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := DecodePage(backup.PageVersion{Path: "usr/lib", Key: 77, Listing: data})
	if err != nil || p.Path != "usr/lib" || p.Key != 77 || len(p.Entries) != 2 {
		t.Errorf("got %+v, %v", p, err)
	}
	_, err = DecodePage(backup.PageVersion{Path: "usr/lib", Key: 77, Listing: data[1:]})
	if !errors.Is(err, backup.ErrCorrupt) || !strings.Contains(err.Error(), "usr/lib") {
		t.Errorf("error %v", err)
	}
}

func TestEncodeAllocatesOnlyItsDestination(t *testing.T) {
	p := realisticPage(1300)
	var c Encoder
	var dst []byte
	for range 20 { // the encoder's buffers, and those of zstd
		var err error
		if dst, err = c.Encode(dst[:0], p); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(20, func() { dst, _ = c.Encode(dst[:0], p) }); n > 0.5 && !raceDetector {
		t.Errorf("%v allocations a page", n)
	}
}

func TestDecodeAllocatesByTheColumn(t *testing.T) {
	data, err := Encode(nil, realisticPage(1300))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() { _, _ = Decode(data) }); n > 12 && !raceDetector {
		t.Errorf("%v allocations for a page of 1,300 entries", n)
	}
}

// One page with the longest names that an interrupted sort could leave.
func TestPageOfLongNames(t *testing.T) {
	var entries []backup.Entry
	for i := range 4 * maxPageBytes / 1000 {
		entries = append(entries, backup.Entry{Name: strings.Repeat("x", 1000) + string(rune('a'+i%26)) + string(rune('a'+i/26)), Kind: backup.FIFO})
	}
	entries = Sort(entries)
	data, err := Encode(nil, &backup.Page{Entries: entries})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Decode(data)
	if err != nil || !slices.EqualFunc(p.Entries, entries, func(a, b backup.Entry) bool { return cmp.Compare(a.Name, b.Name) == 0 }) {
		t.Errorf("%d entries, %v", len(p.Entries), err)
	}
}
