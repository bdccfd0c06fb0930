package listing

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// listing makes a listing from the given columns and chunk ids, none of which are of list chunks.
func listing(columns []byte, chunks ...byte) []byte { return listingOfLists(columns, 0, chunks...) }

// listingOfLists is listing with a number of list chunks.
func listingOfLists(columns []byte, lists uint64, chunks ...byte) []byte {
	data := binary.AppendUvarint([]byte{version, columnsPlain}, uint64(len(columns)))
	return slices.Concat(data, columns, binary.AppendUvarint(nil, lists), chunks)
}

func packed(columns []byte) []byte {
	frame := encoder.EncodeAll(columns, nil)
	return slices.Concat(binary.AppendUvarint([]byte{version, columnsZstd}, uint64(len(frame))), frame, []byte{0})
}

// number is a varint of maximum length.
var number = binary.AppendUvarint(nil, math.MaxUint64)

// oneFile returns the columns of a page with one file, with its last number, the type of its
// content, replaced by content.
func oneFile(content ...byte) []byte {
	columns := []byte{0, 0, 1, 0, 1, 'a', byte(backup.File), 0, 0, 0, 0, 0, 0, 5, 0, 0, 0}
	columns = append(columns, make([]byte, 12)...) // nanoseconds
	return append(append(columns, 0), content...)
}

// edited returns the columns of one file with one of its bytes replaced.
func edited(at int, by ...byte) []byte {
	columns := oneFile(0)
	return slices.Concat(columns[:at], by, columns[at+1:])
}

func ids(n int) []byte { return make([]byte, 16*n) }

// oneXattr returns the columns of one file with xattrs.
func oneXattr(xattrs ...byte) []byte {
	columns := oneFile()
	return slices.Concat(columns[:len(columns)-1], xattrs, []byte{0})
}

var malformed = map[string][]byte{
	"nothing":                       {},
	"version only":                  {version},
	"version 0":                     {0, 0, 0},
	"version 2":                     {2, 0, 3, 0, 0, 0, 0},
	"unknown compression":           {version, 2, 3, 0, 0, 0, 0},
	"columns longer than all":       append([]byte{version, 0}, number...),
	"columns empty":                 {version, 0, 0, 0},
	"columns not zstd":              {version, columnsZstd, 3, 1, 2, 3, 0},
	"no count of lists":             {version, 0, 3, 0, 0, 0},
	"self flag 2":                   listing([]byte{2, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}),
	"self without a row":            listing([]byte{1, 0, 0}),
	"next is negative":              listing(slices.Concat([]byte{0}, number, []byte{0})),
	"next without an end":           listing(append([]byte{0}, bytes.Repeat([]byte{0xff}, 20)...)),
	"rows without bytes":            listing(append([]byte{0, 0}, number...)),
	"rows beyond bytes":             listing([]byte{0, 0, 200, 1}),
	"too many rows":                 listing(append([]byte{0, 0, 0x81, 0x80, 1}, make([]byte, 1<<20)...)),
	"no columns after the rows":     listing([]byte{0, 0, 1}),
	"first name shares":             listing([]byte{0, 0, 1, 1, 1, 'a', 1, 0, 0}),
	"name longer than all":          listing(append([]byte{0, 0, 1, 0}, number...)),
	"shares more than it has":       listing([]byte{0, 0, 2, 0, 2, 1, 1, 'a', 'b', 1, 1, 0, 0, 0, 0}),
	"name empty":                    listing([]byte{0, 0, 1, 0, 0, 2, 0, 0}),
	"name with a slash":             listing([]byte{0, 0, 1, 0, 1, '/', 2, 0, 0}),
	"name with a NUL":               listing([]byte{0, 0, 1, 0, 1, 0, 2, 0, 0}),
	"name is dot":                   listing([]byte{0, 0, 1, 0, 1, '.', 2, 0, 0}),
	"names descend":                 listing([]byte{0, 0, 2, 0, 0, 1, 1, 'b', 'a', 2, 2, 0, 0, 0, 0}),
	"names are equal":               listing([]byte{0, 0, 2, 0, 1, 1, 0, 'b', 2, 2, 0, 0, 0, 0}),
	"self has a name":               listing([]byte{1, 0, 1, 0, 1, 'a', 2, 0, 0}),
	"self is a file":                listing([]byte{1, 0, 1, 0, 0, 1, 0, 0}),
	"kind 0":                        listing([]byte{0, 0, 1, 0, 1, 'a', 0, 0, 0}),
	"kind 8":                        listing([]byte{0, 0, 1, 0, 1, 'a', 8, 0, 0}),
	"flags of 17 bits":              listing([]byte{0, 0, 1, 0, 1, 'a', 2, 0x80, 0x80, 4, 0}),
	"flags of 64 bits":              listing(slices.Concat([]byte{0, 0, 1, 0, 1, 'a', 2}, number, []byte{0})),
	"bytes after the columns":       listing([]byte{0, 0, 1, 0, 1, 'a', 2, 0, 0, 0}),
	"mode of 13 bits":               listing(edited(9, 0x80, 0x80, 1)),
	"mode is negative":              listing(edited(9, 1)),
	"owner is negative":             listing(edited(10, 1)),
	"owner of 33 bits":              listing(edited(10, 0x80, 0x80, 0x80, 0x80, 0x20)),
	"group of 33 bits":              listing(edited(11, 0x80, 0x80, 0x80, 0x80, 0x20)),
	"links of 33 bits":              listing(edited(12, 0x80, 0x80, 0x80, 0x80, 0x20)),
	"size is negative":              listing(edited(13, number...)),
	"chunk without a file":          listing([]byte{0, 0, 1, 0, 1, 'a', 2, 0, 0}, ids(1)...),
	"half a chunk id":               listing([]byte{0, 0, 0}, make([]byte, 8)...),
	"content without chunk":         listing(oneFile(wholeFile)),
	"chunk without content":         listing(oneFile(0), ids(1)...),
	"one chunk and a half":          listing(oneFile(wholeFile), make([]byte, 24)...),
	"many refs":                     listing(oneFile(number...), ids(1)...),
	"refs without numbers":          listing(oneFile(2, 0), ids(1)...),
	"depth":                         listingOfLists(oneFile(2, maxDepth+1, 0, 0, 0), 1, ids(1)...),
	"negative hole":                 listing(oneFile(slices.Concat([]byte{2, 0}, number, []byte{0})...), ids(1)...),
	"negative span":                 listingOfLists(oneFile(slices.Concat([]byte{2, 1, 0, 5}, number)...), 1, ids(1)...),
	"list without its span":         listingOfLists(oneFile(2, 1, 0, 5), 1, ids(1)...),
	"data among the lists":          listingOfLists(oneFile(wholeFile), 1, ids(1)...),
	"list among the data":           listing(oneFile(2, 1, 0, 5, 5), ids(1)...),
	"list that no file has":         listingOfLists(oneFile(wholeFile), 1, ids(2)...),
	"more lists than ids":           listingOfLists(oneFile(2, 1, 0, 5, 5), 2, ids(1)...),
	"lists without ids":             listingOfLists(oneFile(2, 1, 0, 5, 5), 1),
	"many lists":                    listingOfLists(oneFile(2, 1, 0, 5, 5), math.MaxUint64, ids(1)...),
	"lists whose bytes overflow":    listingOfLists(oneFile(2, 1, 0, 5, 5), 1<<60, ids(1)...),
	"xattrs in chunk 3":             listing(oneXattr(3, 1), ids(1)...),
	"xattr chunk of no bytes":       listing(oneXattr(xattrsInChunk, 0), ids(1)...),
	"xattr chunk of negative bytes": listing(oneXattr(append([]byte{xattrsInChunk}, number...)...), ids(1)...),
	"xattr chunk without id":        listing(oneXattr(xattrsInChunk, 9)),
	"xattr chunk among the lists":   listingOfLists(oneXattr(xattrsInChunk, 9), 1, ids(1)...),
	"many xattrs":                   listing(oneXattr(slices.Concat(binary.AppendUvarint(nil, math.MaxUint64-1), make([]byte, 100))...)),
}

func TestMalformedListings(t *testing.T) {
	for _, data := range [][]byte{
		listing(oneFile(wholeFile), ids(1)...), listing(edited(9, 2)), listingOfLists(oneFile(2, 1, 0, 5, 5), 1, ids(1)...),
		listing(oneXattr(xattrsInChunk, 9), ids(1)...), listing([]byte{0, 0, 1, 0, 1, 'a', 2, 0x80, 1, 0}),
	} {
		if _, err := Decode(data); err != nil {
			t.Fatalf("what the vectors are made of is not right itself: %v: %x", err, data)
		}
	}
	for name, data := range malformed {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := Decode(data)
		runtime.ReadMemStats(&after)
		// The lengths that it claims cause no allocation beyond its own size.
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10+uint64(len(data)) {
			t.Errorf("%s: %d bytes were allocated for a listing of %d", name, n, len(data))
		}
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
		if !reflect.DeepEqual(p, backup.Page{}) {
			t.Errorf("%s: a page came with the error: %+v", name, p)
		}
		chunksStable(t, data)
	}
}

// Errors behind the columns are detected without decoding the columns, and cost no memory.
func TestMalformedChunkIDs(t *testing.T) {
	for _, name := range []string{
		"nothing", "version only", "version 0", "version 2", "columns longer than all", "no count of lists", "half a chunk id",
		"one chunk and a half", "more lists than ids", "lists without ids", "many lists", "lists whose bytes overflow",
	} {
		data, ok := malformed[name]
		if !ok {
			t.Fatalf("there is no vector %q", name)
		}
		var err error
		if n := allocated(func() { _, err = ReadChunks(data) }); n > 64<<10 {
			t.Errorf("%s: %d bytes were allocated for a listing of %d", name, n, len(data))
		}
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// chunksStable reads the chunks of data that may be a listing. If Decode accepts it, they must be
// those to which the page refers.
func chunksStable(t testing.TB, data []byte) {
	chunks, err := ReadChunks(data)
	if err != nil && !errors.Is(err, backup.ErrCorrupt) {
		t.Fatalf("error %v", err)
	}
	if p, decodeErr := Decode(data); decodeErr == nil && (err != nil || !sameChunks(chunks, chunksOf(&p))) {
		t.Fatalf("chunks %v, %v of the page %+v", chunks, err, p)
	}
}

func TestNanosecondsAreChecked(t *testing.T) {
	columns := oneFile(0)
	columns[17+3] = 0x3c // 0x3c000000 is 1,006,632,960
	if _, err := Decode(listing(columns)); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("error %v", err)
	}
}

// Truncated or changed files give an error or a page that can be encoded again, never a panic.
func TestDamagedGoldenFiles(t *testing.T) {
	for name := range goldenPages {
		data := golden(t, name, nil)
		for n := 0; n < len(data); n += 1 + len(data)/200 {
			if _, err := Decode(data[:n]); !errors.Is(err, backup.ErrCorrupt) {
				t.Fatalf("%s cut after %d of %d bytes: error %v", name, n, len(data), err)
			}
		}
		if _, err := Decode(append(slices.Clone(data), 0)); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s with a byte more: error %v", name, err)
		}
		for bit := 0; bit < 8*len(data); bit += 1 + len(data)/30 {
			damaged := slices.Clone(data)
			damaged[bit/8] ^= 1 << (bit % 8)
			decodeStable(t, damaged)
			chunksStable(t, damaged)
		}
	}
	for _, name := range []string{"list.chunk", "xattrs.chunk"} {
		data := golden(t, name, nil)
		for n := range data {
			_, err1 := DecodeRefs(data[:n])
			_, err2 := DecodeXattrs(data[:n])
			if !errors.Is(err1, backup.ErrCorrupt) || !errors.Is(err2, backup.ErrCorrupt) {
				t.Fatalf("%s cut after %d of %d bytes: errors %v, %v", name, n, len(data), err1, err2)
			}
		}
		for bit := range 8 * len(data) {
			damaged := slices.Clone(data)
			damaged[bit/8] ^= 1 << (bit % 8)
			refsStable(t, damaged)
			xattrsStable(t, damaged)
		}
	}
}

// decodeStable decodes data that may be a listing. If it is one, its content can be encoded and
// decoded again.
func decodeStable(t testing.TB, data []byte) {
	p, err := Decode(data)
	if err != nil {
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Fatalf("error %v", err)
		}
		return
	}
	again, err := Encode(nil, &p)
	if err != nil {
		t.Fatalf("what was decoded cannot be encoded: %v\n%+v", err, p)
	}
	q, err := Decode(again)
	if err != nil || !reflect.DeepEqual(p, q) {
		t.Fatalf("decoded, encoded and decoded: %v\n%+v\n%+v", err, p, q)
	}
}

func refsStable(t testing.TB, data []byte) {
	c, err := DecodeRefs(data)
	if err != nil {
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Fatalf("error %v", err)
		}
		return
	}
	if d, err := DecodeRefs(EncodeRefs(nil, c)); err != nil || !reflect.DeepEqual(c, d) {
		t.Fatalf("decoded, encoded and decoded: %v\n%+v\n%+v", err, c, d)
	}
}

func xattrsStable(t testing.TB, data []byte) {
	x, err := DecodeXattrs(data)
	if err != nil {
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Fatalf("error %v", err)
		}
		return
	}
	if y, err := DecodeXattrs(EncodeXattrs(nil, x)); err != nil || !reflect.DeepEqual(x, y) {
		t.Fatalf("decoded, encoded and decoded: %v\n%+v\n%+v", err, x, y)
	}
}

// A listing of a few bytes must not take more memory than the largest page: columns of MaxBytes,
// and rows for each of them.
func TestHostileListingsAreBounded(t *testing.T) {
	zeros := make([]byte, MaxBytes)
	// Names of one byte each, all alike.
	names := append([]byte{0, 0}, binary.AppendUvarint(nil, maxRows)...)
	names = append(names, make([]byte, maxRows)...)
	names = append(names, bytes.Repeat([]byte{1}, maxRows)...)
	names = append(names, make([]byte, MaxBytes-len(names))...)
	self := append([]byte{1, 0, 1, 0, 0, byte(backup.Directory)}, make([]byte, 2+8+12)...)
	xattrs := append(slices.Clone(self), binary.AppendUvarint(nil, MaxBytes-100)...)
	xattrs = append(xattrs, make([]byte, MaxBytes-len(xattrs))...)
	for name, test := range map[string]struct {
		data  []byte
		limit uint64
	}{
		"more than MaxBytes": {packed(make([]byte, 64<<20)), 8 << 20},
		"zeros":              {packed(zeros), 16 << 20},
		"rows":               {packed(names), 24 << 20},
		"xattrs":             {packed(xattrs), 16 << 20},
		// zstd headers that claim gigabytes of content or window.
		"content size": {hostileFrame(0xe0, binary.LittleEndian.AppendUint64(nil, 1<<40)), 8 << 20},
		"window":       {hostileFrame(0x00, []byte{0xff}), 8 << 20},
	} {
		if len(test.data) > 70_000 {
			t.Errorf("%s: %d bytes are not few", name, len(test.data))
		}
		var err error
		if got := allocated(func() { _, err = Decode(test.data) }); got > test.limit {
			t.Errorf("%s: %d bytes of input took %d KiB", name, len(test.data), got>>10)
		}
		if !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// hostileFrame is a listing with a zstd frame of the given header and one empty last block.
func hostileFrame(descriptor byte, header []byte) []byte {
	frame := slices.Concat([]byte{0x28, 0xb5, 0x2f, 0xfd, descriptor}, header, []byte{1, 0, 0})
	return slices.Concat(binary.AppendUvarint([]byte{version, columnsZstd}, uint64(len(frame))), frame, []byte{0})
}

func TestHostileChunksAreBounded(t *testing.T) {
	for name, count := range map[string]uint64{"most": math.MaxUint64, "int": math.MaxInt64, "limit": maxRefs, "a few": 100_000} {
		claim := binary.AppendUvarint(nil, count)
		refs, xattrs := append([]byte{version, 0}, claim...), append([]byte{version}, claim...)
		got := allocated(func() {
			if _, err := DecodeRefs(append(refs, make([]byte, 1000)...)); !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("%s refs: error %v", name, err)
			}
			if _, err := DecodeXattrs(append(xattrs, make([]byte, 1000)...)); !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("%s xattrs: error %v", name, err)
			}
		})
		if got > 64<<10 {
			t.Errorf("%s: a count of %d took %d KiB", name, count, got>>10)
		}
	}
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func FuzzDecode(f *testing.F) {
	for name := range goldenPages {
		data := golden(f, name, nil)
		f.Add(data[1] == columnsZstd, data)
		if data[1] == columnsZstd { // so that mutations reach the columns
			r := reader{b: data[2:]}
			columns, err := decoder.DecodeAll(r.bytes(r.uvarint()), nil)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(false, slices.Concat(binary.AppendUvarint([]byte{version, columnsPlain}, uint64(len(columns))), columns, r.b))
		}
	}
	for _, data := range malformed {
		if len(data) < 1<<10 {
			f.Add(false, data)
		}
	}
	f.Fuzz(func(t *testing.T, compress bool, data []byte) {
		decodeStable(t, data)
		chunksStable(t, data)
		if compress {
			decodeStable(t, packed(data))
		}
	})
}

func FuzzDecodeRefs(f *testing.F) {
	f.Add(golden(f, "list.chunk", nil))
	f.Add(EncodeRefs(nil, backup.Content{}))
	f.Fuzz(func(t *testing.T, data []byte) { refsStable(t, data) })
}

func FuzzDecodeXattrs(f *testing.F) {
	f.Add(golden(f, "xattrs.chunk", nil))
	f.Add(EncodeXattrs(nil, nil))
	f.Fuzz(func(t *testing.T, data []byte) { xattrsStable(t, data) })
}

func ExampleDecode() {
	data, _ := Encode(nil, &backup.Page{Entries: []backup.Entry{
		{Name: "etc", Kind: backup.Directory, Inode: 12},
		{Name: "hosts", Kind: backup.File, Size: 120, Mode: 0o644},
	}})
	page, err := Decode(data)
	fmt.Println(page.Entries[1].Name, page.Entries[1].Size, err)
	// Output: hosts 120 <nil>
}
