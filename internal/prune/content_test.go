package prune_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// There are few chunks, so that histories use the same ones again and again: chunks 1 to 9 have
// data, and these are list chunks.
const dataChunks = 9

var (
	lists = map[int]struct {
		depth int
		refs  []int
	}{
		10: {1, []int{1, 2}}, 11: {1, []int{3, 4}}, 12: {1, []int{1, 5}},
		20: {2, []int{10, 11}}, 21: {2, []int{11, 12}},
		30: {3, []int{20}},
	}
	listNumbers = slices.Sorted(maps.Keys(lists))
	digits      = []byte{0x00, 0x3f, 0x80, 0xff} // first bytes of the chunks' ids
	directories = []string{"a", "b", "c", "d"}   // each has one page
)

func chunkID(n int) backup.ChunkID {
	sum := blake3.Sum256(fmt.Appendf(nil, "chunk %d", n))
	sum[0] = digits[n%len(digits)]
	return backup.ChunkID(sum[:16])
}

// A content is the chunks to which a page refers directly, in order.
type content string

func contentOf(chunks ...int) content {
	chunks = slices.Clone(chunks)
	slices.Sort(chunks)
	text := make([]string, 0, len(chunks))
	for _, n := range slices.Compact(chunks) {
		text = append(text, strconv.Itoa(n))
	}
	return content(strings.Join(text, ","))
}

// chunks returns the chunks to which the page refers directly.
func (c content) chunks() (chunks []int) {
	for text := range strings.SplitSeq(string(c), ",") {
		if n, err := strconv.Atoi(text); err == nil {
			chunks = append(chunks, n)
		}
	}
	return chunks
}

func (c content) listing() []byte {
	var page backup.Page
	page.Entries = []backup.Entry{{Name: "content", Kind: backup.File, Xattrs: []backup.Xattr{{Name: "user.content", Value: []byte(c)}}}}
	for _, n := range c.chunks() {
		page.Entries = append(page.Entries, backup.Entry{Name: fmt.Sprintf("file %02d", n), Kind: backup.File, Size: 100, Content: backup.Content{
			Depth: lists[n].depth, Refs: []backup.Ref{{Chunk: chunkID(n), Length: 100, Span: 100}},
		}})
	}
	for i := range 60 { // never change: a version is stored as a patch of an earlier one
		same := blake3.Sum256([]byte{byte(i)})
		page.Entries = append(page.Entries, backup.Entry{Name: fmt.Sprintf("same %02d", i), Kind: backup.File, Inode: binary.LittleEndian.Uint64(same[:]), Size: int64(same[9])})
	}
	data, err := listing.Encode(nil, &page)
	if err != nil {
		panic(err) // a mistake in the test
	}
	return data
}

// contentOfListing is the inverse of listing.
func contentOfListing(data []byte) content {
	page, err := listing.Decode(data)
	if err != nil || len(page.Entries) == 0 || len(page.Entries[0].Xattrs) == 0 {
		return "damaged"
	}
	return content(page.Entries[0].Xattrs[0].Value)
}

// all returns all chunks that are needed to restore a page, list chunks included.
func (c content) all() []int {
	found := map[int]bool{}
	addChunks(found, c.chunks())
	return slices.Sorted(maps.Keys(found))
}

func addChunks(to map[int]bool, chunks []int) {
	for _, n := range chunks {
		to[n] = true
		addChunks(to, lists[n].refs)
	}
}

func page(directory string, c content) backup.PageVersion {
	sum := blake3.Sum256([]byte(directory + "\x00" + string(c)))
	inode := blake3.Sum256([]byte(directory))
	return backup.PageVersion{Path: directory, Fingerprint: backup.Fingerprint(sum[:16]), Inode: uint64(inode[0]) + 1, Listing: c.listing()}
}
