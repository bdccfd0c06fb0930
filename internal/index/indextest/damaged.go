package indextest

import (
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// Every method that reads a page rejects a row that differs from its committed state. It accepts
// the other rows.
func testDamagedPages(t *testing.T, fresh func(testing.TB) Database) {
	other := listingOf("other") // a valid listing
	for column, value := range map[string]any{
		"listing": other, "fingerprint": nil, "inode": 12345, "digest": make([]byte, 32),
		"path_key": backup.PathKey("elsewhere"), "page": 77,
	} {
		t.Run(column, func(t *testing.T) {
			f := newFixture(t, fresh)
			pages := []backup.PageVersion{pageOf("", "root"), pageOf("a", "a"), pageOf("b", "b")}
			s := f.commitPages(pages...)
			for _, v := range f.pages(s, "") {
				_, err := listing.DecodePage(v)
				f.must(err)
				if v.Digest != listing.Digest(&v) {
					t.Fatalf("%q has the digest %x", v.Path, v.Digest)
				}
			}
			const where = " WHERE path_key = $1"
			if value == nil {
				f.exec("UPDATE pages SET "+column+" = (SELECT fingerprint FROM pages WHERE path_key = $2)"+where, backup.PathKey("a"), backup.PathKey("b"))
			} else {
				if column == "digest" {
					value.([]byte)[5] = 1
				}
				f.exec("UPDATE pages SET "+column+" = $2"+where, backup.PathKey("a"), value)
			}
			damaged := 0
			for _, v := range f.pages(s, "") {
				_, err := listing.DecodePage(v)
				if errors.Is(err, backup.ErrCorrupt) {
					damaged++
				} else if err != nil || v.Path != "" && v.Path != "b" {
					t.Errorf("page %d of %q: %v", v.Key, v.Path, err)
				}
			}
			if damaged != 1 {
				t.Errorf("%d pages are damaged", damaged)
			}
			if column == "page" {
				return // not found by its name
			}
			names := []backup.PageName{{Path: ""}, {Path: "a"}, {Path: "b"}}
			listings, err := f.x.Listings(f.ctx, s.Shard.ID, s.Number, names)
			f.must(err)
			for i, data := range listings {
				_, err := listing.Decode(data)
				want := names[i].Path != "a" || column == "path_key" // found by another column
				if data == nil || want != (err == nil) || err != nil && !errors.Is(err, backup.ErrCorrupt) {
					t.Errorf("listing of %q: %v", names[i].Path, err)
				}
			}
		})
	}
}
