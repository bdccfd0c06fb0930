package listing

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

var update = flag.Bool("update", false, "write golden files")

// The files of testdata/v1 are frozen: all later versions must read them.
const goldenDir = "testdata/v1"

// smallPage is the page whose bytes docs/formats/listing.md explains.
func smallPage() *backup.Page {
	return &backup.Page{
		Self: &backup.Entry{Kind: backup.Directory, Mode: 0o755, Nlink: 3, Inode: 2, Mtime: backup.Time{Sec: 1}, Ctime: backup.Time{Sec: 1}},
		Entries: []backup.Entry{
			{
				Name: "a.txt", Kind: backup.File, Mode: 0o644, Nlink: 1, Inode: 12, Size: 5, Mtime: backup.Time{Sec: 2, Nsec: 1}, Ctime: backup.Time{Sec: 3},
				Content: backup.Content{Refs: []backup.Ref{{Chunk: backup.ChunkID([]byte("chunk of a.txt  ")), Length: 5, Span: 5}}},
			},
			{Name: "a.txt.d", Kind: backup.Directory, Inode: 11},
		},
	}
}

// everyKind has every kind of entry, and every location of content and xattrs.
func everyKind() *backup.Page {
	id := func(b byte) (id backup.ChunkID) { return backup.ChunkID(bytes.Repeat([]byte{b}, len(id))) }
	at := func(sec int64, nsec uint32) backup.Time { return backup.Time{Sec: sec, Nsec: nsec} }
	e := func(name string, kind backup.Kind, change func(*backup.Entry)) backup.Entry {
		e := backup.Entry{
			Name: name, Kind: kind, Mode: 0o644, UID: 1000, GID: 100, Nlink: 1, Inode: 1 << 40,
			Mtime: at(1_700_000_000, 123_456_789), Ctime: at(1_700_000_001, 999_999_999), Btime: at(-1, 1),
		}
		change(&e)
		return e
	}
	return &backup.Page{
		Next: 1<<53 + 1,
		Self: &backup.Entry{Kind: backup.Directory, Mode: 0o1777, Nlink: 9, Inode: 1, Flags: backup.Racy | backup.Boundary, Xattrs: []backup.Xattr{{Name: "system.posix_acl_default", Value: []byte{2, 0, 0, 0}}}},
		Entries: []backup.Entry{
			e("\x01\xff not text", backup.File, func(e *backup.Entry) { e.Mode, e.Inode, e.Btime = 0o4755, 1<<64-1, at(1<<40, 0) }),
			e("block", backup.BlockDev, func(e *backup.Entry) { e.Rdev = 8<<8 | 1 }),
			e("char", backup.CharDev, func(e *backup.Entry) { e.Rdev = 1<<64 - 1 }),
			{Name: "directory", Kind: backup.Directory, Inode: 77},
			{Name: "directory of another file system", Kind: backup.Directory, Inode: 2, Flags: backup.Boundary},
			e("fifo", backup.FIFO, func(e *backup.Entry) { e.Mtime = at(-1<<40, 0) }),
			e("hole", backup.File, func(e *backup.Entry) { e.Size = 1 << 40 }),
			e("holes", backup.File, func(e *backup.Entry) {
				e.Size, e.Flags = 100, backup.ChangedWhileRead
				e.Content.Refs = []backup.Ref{{Chunk: id(1), Hole: 10, Length: 20, Span: 20}, {Chunk: id(2), Hole: 30, Length: 40, Span: 40}}
			}),
			e("large", backup.File, func(e *backup.Entry) {
				e.Size = 1 << 42
				e.Content = backup.Content{Depth: 2, Refs: []backup.Ref{{Chunk: id(3), Length: 500, Span: 1 << 41}, {Chunk: id(4), Hole: 1 << 40, Length: 600, Span: 1 << 40}}}
			}),
			e("larger", backup.File, func(e *backup.Entry) {
				e.Size = 1 << 30
				e.Content = backup.Content{Depth: 1, Refs: []backup.Ref{{Chunk: id(7), Length: 700, Span: 1<<30 - 5}}}
				e.XattrChunk = backup.Ref{Chunk: id(8), Length: 8000, Span: 8000}
			}),
			e("no xattrs", backup.File, func(e *backup.Entry) { e.Flags = backup.XattrsUnreadable }),
			e("small", backup.File, func(e *backup.Entry) {
				e.Size, e.Xattrs = 7, []backup.Xattr{{Name: "user.a", Value: []byte("value")}, {Name: "user.empty"}}
				e.Content.Refs = []backup.Ref{{Chunk: id(5), Length: 7, Span: 7}}
			}),
			e("socket", backup.Socket, func(e *backup.Entry) { e.UID, e.GID, e.Nlink = 1<<32-1, 1<<32-2, 1<<32-1 }),
			e("symlink", backup.Symlink, func(e *backup.Entry) { e.Target, e.Mode = "../\xfe", 0o777 }),
			e("unreadable", backup.File, func(e *backup.Entry) {
				e.Flags = backup.Unreadable | backup.Racy
				e.XattrChunk = backup.Ref{Chunk: id(6), Length: 70_000, Span: 70_000}
			}),
		},
	}
}

func secondPage() *backup.Page {
	p := realisticPage(300)
	p.Self, p.Next = nil, Key("a later name")
	return p
}

// wantedPage is a page on its way from a walker to a reader.
func wantedPage() *backup.Page {
	return &backup.Page{Entries: []backup.Entry{
		{Name: "content", Kind: backup.File, Size: 5, Flags: backup.Wanted},
		{Name: "xattrs", Kind: backup.FIFO, Flags: backup.XattrsWanted | backup.Racy},
	}}
}

// unknownPage is the page of a directory of which not even the attributes could be read.
func unknownPage() *backup.Page {
	return &backup.Page{
		Self:    &backup.Entry{Kind: backup.Directory, Flags: backup.Unreadable | backup.AttributesUnknown},
		Entries: []backup.Entry{},
	}
}

// severalPages has everything that the pages of one directory share. It is read as a chain.
func severalPages() *backup.Page {
	return &backup.Page{
		Next: Key("b"), Self: &backup.Entry{Kind: backup.Directory, Mode: 0o700, Nlink: 2, Inode: 3},
		Entries: []backup.Entry{{Name: "a", Kind: backup.FIFO, Nlink: 1, Inode: 4}},
	}
}

var goldenPages = map[string]func() *backup.Page{
	"small.listing":      smallPage,
	"every-kind.listing": everyKind,
	"second.listing":     secondPage,
	"wanted.listing":     wantedPage,
	"unknown.listing":    unknownPage,
	"several.listing":    severalPages,
	"empty.listing":      func() *backup.Page { return &backup.Page{Entries: []backup.Entry{}} },
}

func goldenRefs() backup.Content {
	page := everyKind()
	return page.Entries[slices.IndexFunc(page.Entries, func(e backup.Entry) bool { return e.Name == "large" })].Content
}

func goldenXattrs() []backup.Xattr {
	return []backup.Xattr{{Name: "security.capability", Value: []byte{1, 0, 0, 2}}, {Name: "user.empty"}, {Name: "user.large", Value: bytes.Repeat([]byte("0123456789abcdef"), 16)}}
}

func TestGoldenPages(t *testing.T) {
	for name, page := range goldenPages {
		data, err := Encode(nil, page())
		if err != nil {
			t.Fatal(err)
		}
		frozen := golden(t, name, data)
		got, err := Decode(frozen)
		if err != nil || !reflect.DeepEqual(&got, page()) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, err, got, page())
		}
		// The compressed columns may change with the version of zstd.
		if !bytes.Equal(withoutCompression(t, data), withoutCompression(t, frozen)) {
			t.Errorf("%s: a new listing has other bytes than the golden file:\n%s", name, hex.Dump(data))
		}
	}
}

func TestGoldenListChunk(t *testing.T) {
	data := EncodeRefs(nil, goldenRefs())
	frozen := golden(t, "list.chunk", data)
	got, err := DecodeRefs(frozen)
	if err != nil || !reflect.DeepEqual(got, goldenRefs()) {
		t.Errorf("got %+v, %v", got, err)
	}
	if !bytes.Equal(data, frozen) {
		t.Errorf("a new list chunk has other bytes than the golden file:\n%s", hex.Dump(data))
	}
}

func TestGoldenXattrChunk(t *testing.T) {
	data := EncodeXattrs(nil, goldenXattrs())
	frozen := golden(t, "xattrs.chunk", data)
	got, err := DecodeXattrs(frozen)
	if err != nil || !reflect.DeepEqual(got, goldenXattrs()) {
		t.Errorf("got %+v, %v", got, err)
	}
	if !bytes.Equal(data, frozen) {
		t.Errorf("a new xattr chunk has other bytes than the golden file:\n%s", hex.Dump(data))
	}
}

// golden returns a golden file; with -update, it creates a missing one from data.
func golden(t testing.TB, name string, data []byte) []byte {
	t.Helper()
	path := filepath.Join(goldenDir, name)
	frozen, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update && data != nil {
		frozen, err = data, os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return frozen
}

// withoutCompression returns a listing's parts with decompressed columns.
func withoutCompression(t *testing.T, listing []byte) []byte {
	r := reader{b: listing[2:]}
	columns := r.bytes(r.uvarint())
	if listing[1] == columnsZstd {
		var err error
		if columns, err = decoder.DecodeAll(columns, nil); err != nil {
			t.Fatal(err)
		}
	}
	return slices.Concat(listing[:2], columns, r.b)
}

// The annotated dump in the format's documentation is that of small.listing.
func TestDumpInDocumentation(t *testing.T) {
	const page, begin, end = "../../docs/formats/listing.md", "<!-- begin dump -->\n", "<!-- end dump -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no dump", page)
	}
	dump := "```text\n" + dumpSmall(t) + "```\n"
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+dump+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if dump != old {
		t.Errorf("%s has another dump; -update writes this one:\n%s", page, dump)
	}
}

// dumpSmall describes small.listing field by field, with decompressed columns.
func dumpSmall(t *testing.T) string {
	data := golden(t, "small.listing", nil)
	if data[1] != columnsZstd {
		t.Fatal("small.listing is not compressed")
	}
	r := reader{b: data[2:]}
	packed := r.bytes(r.uvarint())
	d := dumper{data: data}
	d.field(1, "version")
	d.field(1, "columns: zstd")
	d.field(1, fmt.Sprintf("bytes of columns, compressed: %d", len(packed)))
	d.field(len(packed), "columns, compressed")
	d.field(1, "ids of list chunks: 0")
	d.field(16, "chunk id of a.txt")
	d.finish(t)

	d.out.WriteString("\nThe columns:\n\n")
	columns, err := decoder.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.data, d.offset = columns, 0
	d.field(1, "the directory itself is the first row")
	d.field(1, "key of the page that follows: none")
	d.field(1, "rows: 3")
	d.field(3, "bytes of the name before: 0, 0, 5")
	d.field(3, "bytes of its own: 0, 5, 2")
	d.field(7, `names: "a.txt", ".d"`)
	d.field(3, "kinds: directory, file, directory")
	d.field(3, "flags")
	d.field(3, "inodes: 2, +10, -1")
	d.field(4, "modes, from here without a.txt.d: 0o755, -0o111")
	d.field(2, "owners")
	d.field(2, "groups")
	d.field(2, "links: 3, -2")
	d.field(2, "sizes: 0, 5")
	d.field(2, "mtime, seconds: 1, +1")
	d.field(2, "ctime, seconds: 1, +2")
	d.field(2, "btime, seconds")
	for _, what := range []string{"mtime, nanoseconds: 0, 1", "ctime, nanoseconds", "btime, nanoseconds"} {
		d.field(8, what)
	}
	d.field(2, "xattrs: none, none")
	d.field(1, "content of a.txt: one chunk that is all of it")
	d.finish(t)
	return d.out.String()
}

type dumper struct {
	out    strings.Builder
	data   []byte
	offset int
}

func (d *dumper) field(n int, note string) {
	for line := range slices.Chunk(d.data[d.offset:][:n], 16) {
		fmt.Fprintf(&d.out, "%s\n", strings.TrimRight(fmt.Sprintf("%04x  %-47s  %s", d.offset, fmt.Sprintf("% x", line), note), " "))
		d.offset += len(line)
		note = ""
	}
}

func (d *dumper) finish(t *testing.T) {
	if d.offset != len(d.data) {
		t.Fatalf("the dump ends at %d of %d bytes:\n%s", d.offset, len(d.data), d.out.String())
	}
}
