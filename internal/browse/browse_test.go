package browse

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// A catalog has the rows of one snapshot, in the order of an index.
type catalog struct {
	t    *testing.T
	rows []backup.PageVersion
}

func (c *catalog) Pages(_ context.Context, _ backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		slices.SortFunc(c.rows, func(a, b backup.PageVersion) int {
			return cmp.Or(bytes.Compare(backup.PathKey(a.Path), backup.PathKey(b.Path)), cmp.Compare(a.Key, b.Key))
		})
		for _, v := range c.rows {
			if path != "" && v.Path != path && !strings.HasPrefix(v.Path, path+"/") {
				continue
			}
			if !yield(v, nil) {
				return
			}
		}
	}
}

// add adds a directory: a list of names per page. Names that end in a slash are directories.
func (c *catalog) add(path string, flags backup.Flags, pages ...string) {
	c.t.Helper()
	var keys []backup.PageKey
	for i, names := range pages {
		if i == 0 {
			keys = append(keys, 0)
			continue
		}
		keys = append(keys, listing.Key(strings.Fields(names)[0]))
	}
	keys = append(keys, 0)
	for i, names := range pages {
		p := backup.Page{Path: path, Key: keys[i], Next: keys[i+1]}
		if i == 0 {
			p.Self = &backup.Entry{Kind: backup.Directory, Mode: 0o700, Flags: flags}
		}
		for _, name := range strings.Fields(names) {
			e := backup.Entry{Name: strings.TrimSuffix(name, "/"), Kind: backup.File}
			if e.Name != name {
				e.Kind = backup.Directory
			}
			p.Entries = append(p.Entries, e)
		}
		data, err := listing.Encode(nil, &p)
		if err != nil {
			c.t.Fatal(err)
		}
		c.rows = append(c.rows, backup.PageVersion{Path: path, Key: keys[i], Listing: data})
	}
}

func (c *catalog) drop(path, first string) {
	c.t.Helper()
	key := backup.PageKey(0)
	if first != "" {
		key = listing.Key(first)
	}
	n := len(c.rows)
	c.rows = slices.DeleteFunc(c.rows, func(v backup.PageVersion) bool { return v.Path == path && v.Key == key })
	if len(c.rows) != n-1 {
		c.t.Fatalf("no page %q of %q", first, path)
	}
}

func newCatalog(t *testing.T) *catalog {
	c := &catalog{t: t}
	c.add("", 0, "a b/", "c d/", "e")
	c.add("b", 0, "f g/", "h")
	c.add("b/g", 0, "i")
	c.add("d", backup.Unreadable, "j/")
	c.add("d/j", 0, "k")
	return c
}

// "Not found" is returned only if it is certain.
func TestLookup(t *testing.T) {
	for _, test := range []struct {
		drop, first string // the missing page; "-": none
		found       string
		notFound    string
		corrupt     string
	}{
		{"-", "", " /a /b /b/f /b/h /b/g /b/g/i /d/j/k", "/x /b/x /a/x /x/y/z /b/g/x", ""},
		{"", "c", " /a /b /e /b/g/i /d/j", "/b/x /b/g/x", "/c /x /x/y/z"},
		{"", "e", " /a /b /c /d", "/b/x", "/e /x /x/y"},
		{"", "", " /c /b /b/f /d/j/k", "/b/x", "/a /x /x/y"}, // c and e are found if possible
		{"b", "", "/a /b /b/h /b/g /b/g/i", "/x", "/b/f /b/x /b/x/y"},
		{"b", "h", "/b /b/f /b/g", "/x /b/g/x", "/b/h /b/x /b/x/y"},
		{"b/g", "", "/b /b/h", "/x /b/x", "/b/g /b/g/i /b/g/x /b/g/x/y"},
	} {
		c := newCatalog(t)
		if test.drop != "-" {
			c.drop(test.drop, test.first)
		}
		for _, want := range []struct {
			paths string
			err   error
		}{{test.found, nil}, {test.notFound, backup.ErrNotFound}, {test.corrupt, backup.ErrCorrupt}} {
			if want.paths == "" {
				continue
			}
			for _, path := range strings.Split(want.paths, " ") {
				path = strings.TrimPrefix(path, "/")
				e, err := Lookup(t.Context(), c, backup.SnapshotID{}, path)
				if !errors.Is(err, want.err) || want.err == nil && err != nil {
					t.Errorf("without page %q of %q, %q: %v, want %v", test.first, test.drop, path, err, want.err)
				}
				if _, name := backup.Split(path); err == nil && e.Name != name {
					t.Errorf("%q has the name %q", path, e.Name)
				}
			}
		}
	}
}

func TestEntries(t *testing.T) {
	for _, test := range []struct {
		drop, first, path string
		names             string
		err               error
	}{
		{"-", "", "", "a b c d e", nil},
		{"-", "", "b", "f g h", nil},
		{"-", "", "x", "", backup.ErrNotFound},
		{"-", "", "a", "", backup.ErrNotFound},
		{"-", "", "a/x", "", backup.ErrNotFound},
		{"", "c", "", "a b e", backup.ErrCorrupt},
		{"", "e", "", "a b c d", backup.ErrCorrupt},
		{"", "", "", "c d e", backup.ErrCorrupt},
		{"", "", "b", "f g h", nil},
		{"b/g", "", "b/g", "", backup.ErrCorrupt},
		{"", "c", "x", "", backup.ErrCorrupt},
	} {
		c := newCatalog(t)
		if test.drop != "-" {
			c.drop(test.drop, test.first)
		}
		var names []string
		var last error
		for e, err := range Entries(t.Context(), c, backup.SnapshotID{}, test.path) {
			if last != nil {
				t.Errorf("%+v: something follows the error %v", test, last)
			}
			if last = err; err == nil {
				names = append(names, e.Name)
			}
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != test.names || !errors.Is(last, test.err) || test.err == nil && last != nil {
			t.Errorf("%+v: %q, %v", test, got, last)
		}
	}
}

func TestSnapshotWithoutRows(t *testing.T) {
	c := &catalog{t: t}
	if _, err := Lookup(t.Context(), c, backup.SnapshotID{}, ""); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("the root: %v", err)
	}
	if _, err := Lookup(t.Context(), c, backup.SnapshotID{}, "a/b"); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a path: %v", err)
	}
}

func TestUnread(t *testing.T) {
	c := newCatalog(t)
	for path, want := range map[string]string{"": "-", "b": "-", "b/g": "-", "d": "d", "d/j": "d"} {
		dir, ok, err := Unread(t.Context(), c, backup.SnapshotID{}, path)
		if err != nil || ok != (want == "d") || ok && dir != want {
			t.Errorf("%q: %q, %v, %v", path, dir, ok, err)
		}
	}
	c.drop("d", "")
	if _, _, err := Unread(t.Context(), c, backup.SnapshotID{}, "d/j"); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("the page that would tell is missing: %v", err)
	}
}

// A set of pages of a directory is complete only if it contains all of them, in any order.
func TestChain(t *testing.T) {
	keys := []backup.PageKey{0, 40, 10, 30, 20} // in the order of names
	for set := range 1 << len(keys) {
		for _, backwards := range []bool{false, true} {
			var c Chain
			for n := range keys {
				i := n
				if backwards {
					i = len(keys) - 1 - n
				}
				if set&(1<<i) == 0 {
					continue
				}
				next := backup.PageKey(0)
				if i+1 < len(keys) {
					next = keys[i+1]
				}
				c.Add(keys[i], next)
			}
			if err := c.Err(); (err == nil) != (set == 1<<len(keys)-1) || err != nil && !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("pages %05b: %v", set, err)
			}
		}
	}
	var twice Chain
	twice.Add(0, 0)
	twice.Add(0, 0)
	if twice.Err() == nil {
		t.Error("a page that comes twice is complete")
	}
}
