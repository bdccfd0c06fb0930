package listing

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// chained cuts a whole directory into pages as a walk does. Each page has the key of the next page.
func chained(t testing.TB, path string, entries []backup.Entry) (pages []backup.PageVersion) {
	self := &backup.Entry{Kind: backup.Directory, Mode: 0o755}
	for key := backup.PageKey(0); ; {
		n := Cut(entries, false)
		p := backup.Page{Path: path, Key: key, Self: self, Entries: entries[:n]}
		if entries = entries[n:]; len(entries) > 0 {
			p.Next = Key(entries[0].Name)
		}
		data, err := Encode(nil, &p)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, backup.PageVersion{Path: path, Key: key, Listing: data})
		if p.Next == 0 {
			return pages
		}
		key, self = p.Next, nil
	}
}

// follow reads a directory as docs/formats/listing.md prescribes for restoring.
func follow(pages map[backup.PageKey]backup.PageVersion) (names []string, err error) {
	seen := 0
	for key := backup.PageKey(0); ; {
		v, ok := pages[key]
		if !ok || seen > len(pages) {
			return nil, fmt.Errorf("no page %d: %w", key, backup.ErrCorrupt)
		}
		p, err := DecodePage(v)
		if err != nil {
			return nil, err
		}
		if (p.Self != nil) != (key == 0) || key != 0 && (len(p.Entries) == 0 || Key(p.Entries[0].Name) != key) {
			return nil, fmt.Errorf("page %d is not what its key says: %w", key, backup.ErrCorrupt)
		}
		for i := range p.Entries {
			names = append(names, p.Entries[i].Name)
		}
		if seen++; p.Next == 0 {
			break
		}
		key = p.Next
	}
	if seen != len(pages) {
		return nil, fmt.Errorf("%d of %d pages are in the chain: %w", seen, len(pages), backup.ErrCorrupt)
	}
	return names, nil
}

// However a directory is cut, its pages lead from one to the next through all entries in order. If
// a page is missing, or is from another version of the directory, that is detected.
func TestChainOfPages(t *testing.T) {
	testtarget.FewerChecks(t, "30")
	rapid.Check(t, func(rt *rapid.T) {
		entries := files(rapid.IntRange(1, 9000).Draw(rt, "entries"))
		for i := range entries {
			entries[i].Name = fmt.Sprintf("%x%s", entries[i].Name, strings.Repeat("n", rapid.SampledFrom([]int{0, 0, 0, 200}).Draw(rt, "longer")))
		}
		entries = Sort(entries)
		chain := chained(t, "d", entries)
		pages := map[backup.PageKey]backup.PageVersion{}
		for _, p := range chain {
			pages[p.Key] = p
		}
		names, err := follow(pages)
		if err != nil || len(pages) != len(chain) || len(names) != len(entries) {
			rt.Fatalf("%d names of %d in %d pages: %v", len(names), len(entries), len(chain), err)
		}
		for i := range names {
			if names[i] != entries[i].Name {
				rt.Fatalf("name %d is %q, want %q", i, names[i], entries[i].Name)
			}
		}
		lost := chain[rapid.IntRange(0, len(chain)-1).Draw(rt, "lost")]
		delete(pages, lost.Key)
		if _, err := follow(pages); !errors.Is(err, backup.ErrCorrupt) {
			rt.Fatalf("without page %d: %v", lost.Key, err)
		}
		pages[lost.Key] = lost
		pages[1] = backup.PageVersion{Path: "d", Key: 1, Listing: lost.Listing}
		if _, err := follow(pages); !errors.Is(err, backup.ErrCorrupt) {
			rt.Fatalf("with a page that does not belong there: %v", err)
		}
	})
}

// A page changes if the key of the next page changes, and so does its fingerprint: an unchanged
// page leads to a page that exists.
func TestFingerprintHasTheChain(t *testing.T) {
	f, page := NewFingerprinter(), files(3)
	if f.Of(0, nil, page, Key("x")) == f.Of(0, nil, page, Key("y")) {
		t.Error("the page that follows does not show in the fingerprint")
	}
}

// Digests are in commit records, so they are part of the format.
func TestDigestNeverChanges(t *testing.T) {
	v := backup.PageVersion{Path: "usr/lib", Key: 1 << 50, Fingerprint: backup.Fingerprint{1, 15: 2}, Inode: 1 << 63, Listing: []byte("what Encode gave")}
	const want = "069da968453c9acc94fcbe85208b9efbf20be00756907bb3225edbcb6ff5e61c"
	if got := Digest(&v); hex.EncodeToString(got[:]) != want {
		t.Errorf("digest %x, and it was %s", got, want)
	}
}

func TestDigestHasEverything(t *testing.T) {
	v := backup.PageVersion{Path: "a", Key: 5, Fingerprint: backup.Fingerprint{1}, Inode: 7, Listing: []byte("listing")}
	seen := map[backup.PageDigest]string{Digest(&v): "nothing"}
	for name, change := range map[string]func(*backup.PageVersion){
		"path":                           func(v *backup.PageVersion) { v.Path = "b" },
		"key":                            func(v *backup.PageVersion) { v.Key = 6 },
		"fingerprint":                    func(v *backup.PageVersion) { v.Fingerprint[15] = 1 },
		"inode":                          func(v *backup.PageVersion) { v.Inode = 8 },
		"listing":                        func(v *backup.PageVersion) { v.Listing = []byte("listinG") },
		"path and key run together":      func(v *backup.PageVersion) { v.Path, v.Key = "a\x05", 0 },
		"inode and listing run together": func(v *backup.PageVersion) { v.Inode, v.Listing = 0x3607, []byte("isting") },
	} {
		changed := v
		change(&changed)
		d := Digest(&changed)
		if other, ok := seen[d]; ok {
			t.Errorf("a change of %s gives the digest of a change of %s", name, other)
		}
		seen[d] = name
	}
}
