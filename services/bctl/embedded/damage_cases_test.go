package embedded_test

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

func truncated(data []byte) []byte { return data[:len(data)-len(data)/3] }
func beheaded(data []byte) []byte  { return data[len(data)/3:] }

// A damageCase is one cell of the matrix.
type damageCase struct {
	object, damage string
	do             func(w *damageWorld)
}

// objectCases returns the cases of one kind of object, of which objects are at least two, oldest
// first.
func objectCases(object, prefix string, pick func(w *damageWorld) (this, other string)) []damageCase {
	on := func(do func(w *damageWorld, this, other string)) func(*damageWorld) {
		return func(w *damageWorld) {
			this, other := pick(w)
			do(w, this, other)
		}
	}
	return []damageCase{
		{object, "deleted", on(func(w *damageWorld, this, _ string) { w.must(os.Remove(w.path(this))) })},
		{object, "truncated at the tail", on(func(w *damageWorld, this, _ string) { w.change(this, truncated) })},
		{object, "truncated at the head", on(func(w *damageWorld, this, _ string) { w.change(this, beheaded) })},
		{object, "longer", on(func(w *damageWorld, this, _ string) {
			w.change(this, func(data []byte) []byte { return append(data, "xx"...) })
		})},
		{object, "one bit flipped", on(func(w *damageWorld, this, _ string) { w.flip(this, func(n int) int { return n / 2 }) })},
		{object, "swapped with another", on(func(w *damageWorld, this, other string) {
			one, err := os.ReadFile(w.path(this))
			w.must(err)
			w.change(other, func(two []byte) []byte {
				w.change(this, func([]byte) []byte { return bytes.Clone(two) })
				return one
			})
		})},
		{object, "duplicated", on(func(w *damageWorld, this, _ string) {
			data, err := os.ReadFile(w.path(this))
			w.must(err)
			duplicate := w.path(this[:len(this)-1] + string("01"[b2i(strings.HasSuffix(this, "0"))]))
			w.must(os.WriteFile(duplicate, data, 0o600))
		})},
		{object, "replaced by an older one", on(func(w *damageWorld, this, other string) {
			older, err := os.ReadFile(w.path(other))
			w.must(err)
			w.change(this, func([]byte) []byte { return older })
		})},
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// damageCases are all cells.
func damageCases() (cases []damageCase) {
	packOf := func(n int) func(w *damageWorld) string {
		return func(w *damageWorld) string {
			name, _ := w.frameOf(w.entry([]string{"a/1", "b/1", "c/1"}[n]).Content.Refs[0].Chunk)
			return name
		}
	}
	cases = append(cases, objectCases("pack", store.PacksPrefix, func(w *damageWorld) (string, string) { return packOf(1)(w), packOf(0)(w) })...)
	for part, at := range map[string]func(w *damageWorld) (string, func(int) int){
		"header":  func(w *damageWorld) (string, func(int) int) { return packOf(0)(w), func(int) int { return 20 } },
		"table":   func(w *damageWorld) (string, func(int) int) { return packOf(0)(w), func(n int) int { return n - 100 } },
		"trailer": func(w *damageWorld) (string, func(int) int) { return packOf(0)(w), func(n int) int { return n - 20 } },
		"frame of small files": func(w *damageWorld) (string, func(int) int) {
			return frameAt(w, w.entry("a/1").Content.Refs[0].Chunk)
		},
		"list chunk of a large file": func(w *damageWorld) (string, func(int) int) {
			return frameAt(w, w.entry("large").Content.Refs[0].Chunk)
		},
		"chunk of extended attributes": func(w *damageWorld) (string, func(int) int) {
			return frameAt(w, w.entry("x/7").XattrChunk.Chunk)
		},
	} {
		cases = append(cases, damageCase{"pack: " + part, "one bit flipped", func(w *damageWorld) {
			name, offset := at(w)
			w.flip(name, offset)
		}})
	}
	last := func(prefix string) func(w *damageWorld) (string, string) {
		return func(w *damageWorld) (string, string) {
			names := []string{}
			for i := range w.snapshots {
				names = append(names, w.names(prefix+w.snapshots[i].ID.String())...)
			}
			return names[1], names[0]
		}
	}
	cases = append(cases, objectCases("segment", store.SegmentsPrefix, last(store.SegmentsPrefix))...)
	cases = append(cases, objectCases("commit record", store.CommitsPrefix, last(store.CommitsPrefix))...)
	newest := func(prefix string) func(w *damageWorld) (string, string) {
		return func(w *damageWorld) (string, string) {
			names := w.names(prefix)
			return names[len(names)-1], names[max(0, len(names)-2)]
		}
	}
	cases = append(cases, objectCases("catalog", store.CatalogPrefix, newest(store.CatalogPrefix))...)
	cases = append(cases, objectCases("index copy", store.IndexPrefix, newest(store.IndexPrefix))...)
	for _, c := range []struct{ table, damage, statement string }{
		{"pages", "deleted", "DELETE FROM pages WHERE path_key = x'6100'"},
		{"pages", "one bit flipped", "UPDATE pages SET listing = CAST(substr(listing, 1, 30) || x'55' || substr(listing, 32) AS BLOB) WHERE path_key = x'6100'"},
		{"pages", "swapped with another", "UPDATE pages SET listing = (SELECT o.listing FROM pages o WHERE o.path_key = CASE pages.path_key WHEN x'6100' THEN x'6200' ELSE x'6100' END) WHERE path_key IN (x'6100', x'6200')"},
		{"pages", "replaced by an older one", "UPDATE pages SET listing = (SELECT o.listing FROM pages o WHERE o.path_key = x'' ORDER BY first_snapshot LIMIT 1) WHERE path_key = x'' AND last_snapshot IS NULL"},
		{"chunks", "deleted", "DELETE FROM chunks WHERE id = {a/1}"},
		{"chunks", "one bit flipped", "UPDATE chunks SET frame_offset = frame_offset + 4 WHERE id = {a/1}"},
		{"chunks", "swapped with another", "UPDATE chunks SET (frame, frame_offset, length) = (SELECT o.frame, o.frame_offset, o.length FROM chunks o WHERE o.id = {a/2}) WHERE id = {a/1}"},
		{"chunk_lists", "deleted", "DELETE FROM chunk_lists"},
		{"chunk_lists", "one bit flipped", "UPDATE chunk_lists SET chunks = CAST(x'00' || substr(chunks, 2) AS BLOB)"},
		{"packs", "deleted", "DELETE FROM packs WHERE id = (SELECT min(id) FROM packs)"},
		{"packs", "one bit flipped", "UPDATE packs SET object_offset = object_offset + 4 WHERE id = (SELECT min(id) FROM packs)"},
		{"packs", "swapped with another", "UPDATE packs SET stored_bytes = (SELECT o.stored_bytes FROM packs o WHERE o.id <> packs.id ORDER BY o.id LIMIT 1)"},
		{"snapshots", "one bit flipped", "UPDATE snapshots SET files = files + 4 WHERE number = 2"},
		{"snapshots", "swapped with another", "UPDATE snapshots SET pages_sum = (SELECT o.pages_sum FROM snapshots o WHERE o.number <> snapshots.number ORDER BY number LIMIT 1) WHERE number = 2"},
	} {
		cases = append(cases, damageCase{"index: table " + c.table, c.damage, func(w *damageWorld) {
			w.sql(regexp.MustCompile(`\{(.*?)\}`).ReplaceAllStringFunc(c.statement, func(path string) string {
				return fmt.Sprintf("x'%x'", w.entry(strings.Trim(path, "{}")).Content.Refs[0].Chunk[:])
			}))
		}})
	}
	slices.SortStableFunc(cases, func(a, b damageCase) int {
		order := func(object string) int {
			return slices.IndexFunc([]string{"pack", "segment", "commit", "catalog", "index copy", "index:"}, func(p string) bool { return strings.HasPrefix(object, p) })
		}
		return cmp.Or(cmp.Compare(order(a.object), order(b.object)), cmp.Compare(strings.Count(a.object, ":"), strings.Count(b.object, ":")),
			b2i(a.object != b.object && strings.HasPrefix(a.object, "pack:"))*cmp.Compare(a.object, b.object))
	})
	return slices.Clip(cases)
}

func frameAt(w *damageWorld, id backup.ChunkID) (string, func(int) int) {
	name, offset := w.frameOf(id)
	return name, func(int) int { return int(offset) }
}
