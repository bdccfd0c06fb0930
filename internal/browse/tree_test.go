package browse

import (
	"context"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A recorder records what Walk finds.
type recorder struct{ events []string }

func (r *recorder) Page(*backup.PageVersion) {}

func (r *recorder) Directory(path string, self *backup.Entry, listed bool) error {
	what := "directory "
	if !listed {
		what = "orphan "
	}
	if self == nil {
		what += "without attributes "
	}
	r.events = append(r.events, what+path)
	return nil
}

func (r *recorder) Entry(path string, _ *backup.Entry) error {
	r.events = append(r.events, "entry "+path)
	return nil
}

func (r *recorder) Absent(path string, _ *backup.Entry) error {
	r.events = append(r.events, "absent "+path)
	return nil
}

func (r *recorder) Incomplete(path string, _ error) { r.events = append(r.events, "incomplete "+path) }

func TestWalk(t *testing.T) {
	whole := []string{
		"directory ", "entry a", "entry c", "entry e", "directory b", "entry b/f", "entry b/h", "directory b/g", "entry b/g/i",
		"directory d", "directory d/j", "entry d/j/k",
	}
	for what, test := range map[string]struct {
		change func(c *catalog)
		want   []string
	}{
		"whole": {func(*catalog) {}, whole},
		"a directory without pages": {func(c *catalog) { c.drop("b/g", "") }, slices.Concat(
			whole[:7], []string{"incomplete b/g", "absent b/g"}, whole[9:])},
		"a directory without its first page": {func(c *catalog) { c.drop("b", "") }, slices.Concat(
			whole[:4], []string{"directory without attributes b", "entry b/h", "orphan b/g", "entry b/g/i", "incomplete b"}, whole[9:])},
		"one that its parent does not list": {func(c *catalog) { c.add("d/x", 0, "y") }, slices.Concat(
			whole, []string{"orphan d/x", "entry d/x/y"})},
		"a damaged page": {func(c *catalog) { c.rows[slices.IndexFunc(c.rows, isPage("d"))].Listing = []byte("?") }, slices.Concat(
			whole[:9], []string{"incomplete d", "directory without attributes d"}, whole[10:])},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCatalog(t)
			test.change(c)
			var r recorder
			if err := Walk(context.Background(), c, backup.SnapshotID{}, "", &r); err != nil {
				t.Fatal(err)
			}
			if slices.Sort(test.want); !slices.Equal(slices.Sorted(slices.Values(r.events)), test.want) {
				t.Errorf("%q, want %q", r.events, test.want)
			}
		})
	}
}

func isPage(path string) func(backup.PageVersion) bool {
	return func(v backup.PageVersion) bool { return v.Path == path }
}
