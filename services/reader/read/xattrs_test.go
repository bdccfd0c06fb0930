package read

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// xattrs returns the extended attributes of an entry, from the listing or their chunk.
func (f *fixture) xattrs(e *backup.Entry) []backup.Xattr {
	f.Helper()
	if e.XattrChunk.Length == 0 {
		return e.Xattrs
	}
	return must(listing.DecodeXattrs(f.chunk(e.XattrChunk.Chunk)))(f)
}

// Extended attributes that a walker has left to the reader are stored in chunks: those of all kinds
// of entries, and of the directory itself.
func TestXattrsOfAllKinds(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"d": treetest.Dir(), "d/file": treetest.File("f"), "d/link": treetest.Symlink("x"), "d/fifo": treetest.FIFO(), "d/plain": treetest.FIFO(),
	})
	value := func(path string) string { return path + strings.Repeat(".", inlineXattrBytes) }
	for _, path := range []string{"d", "d/file", "d/link", "d/fifo"} {
		if err := unix.Lsetxattr(filepath.Join(f.dir, path), "trusted.large", []byte(value(path)), 0); err != nil {
			t.Skip("not tested: ", err)
		}
	}
	want := func(broken string) {
		t.Helper()
		all := f.entries()
		all["d"] = *f.self("d")
		for _, path := range []string{"d", "d/file", "d/link", "d/fifo"} {
			e := all[path]
			flags := backup.Flags(0)
			if path == broken {
				flags = backup.XattrsUnreadable
			}
			if got := f.xattrs(&e); len(got) != 1 || string(got[0].Value) != value(path) || e.XattrChunk.Length == 0 || e.Flags.WithClass(backup.Unclassified)&^backup.Racy != flags {
				t.Errorf("%s has %d attributes, flags %b", path, len(got), e.Flags)
			}
		}
		if e := all["d/plain"]; len(e.Xattrs) > 0 || e.XattrChunk.Length > 0 {
			t.Errorf("plain: %+v", e)
		}
		if e := all["d/file"]; string(f.content(&e)) != "f" {
			t.Error("the file has other content")
		}
	}
	left := func() *backup.ReadBatch {
		f.begin()
		pages := f.pagesOf("d")
		f.announce(f.leaveXattrs(pages))
		return f.claim()
	}
	f.read(left())
	f.commit()
	want("")
	// Attributes that cannot be read then keep the last good copy, which none of the current
	// listings has.
	faults := f.faulty()
	for path, call := range map[string]faultsource.Call{
		"d": faultsource.DirectoryXattrs, "d/file": faultsource.FileXattrs, "d/link": faultsource.EntryXattrs, "d/fifo": faultsource.EntryXattrs,
	} {
		broken := faults.Inject(fault(call, path, unix.EIO, 0))
		f.read(left())
		f.commit()
		want(path)
		if p := f.problems(); len(p) != 1 || p[0].Path != path || p[0].Op != "xattr" {
			t.Errorf("problems %v, want that of %s", p, path)
		}
		f.wantLookedAtAgain("d")
		broken.Lift()
	}
	f.read(left())
	f.commit()
	want("")
}

// leaveXattrs marks all extended attributes as wanted, like a walker that has no room for them, and
// the content of the file as known.
func (f *fixture) leaveXattrs(pages []backup.PageVersion) []backup.PageVersion {
	f.Helper()
	for i, v := range pages {
		p := must(listing.DecodePage(v))(f)
		p.Self.Flags |= backup.XattrsWanted
		for j := range p.Entries {
			e := &p.Entries[j]
			e.Flags |= backup.XattrsWanted
			if old, ok := f.lastEntries[backup.Join(v.Path, e.Name)]; ok && e.Kind == backup.File {
				e.Flags &^= backup.Wanted
				e.Content = old.Content
			}
		}
		pages[i].Listing = must(listing.Encode(nil, &p))(f)
	}
	return pages
}

// self returns a directory's own entry in the newest snapshot.
func (f *fixture) self(path string) *backup.Entry {
	f.Helper()
	for v, err := range f.idx.Pages(f.ctx, f.snap.ID, path) {
		if err != nil {
			f.Fatal(err)
		}
		if p := must(listing.DecodePage(v))(f); v.Path == path && p.Self != nil {
			return p.Self
		}
	}
	f.Fatalf("directory %q is not in the snapshot", path)
	return nil
}

// A file whose attributes could not be read keeps those of the last good copy, with its new
// content; they are read again with the next snapshot.
func TestXattrsFailOnce(t *testing.T) {
	f := newFixture(t, treetest.Tree{"file": treetest.File("one").WithXattr("user.x", "good")})
	f.read(f.batchOf(""))
	f.commit()
	treetest.Make(t, f.dir, treetest.Tree{"file2": treetest.File("two").WithXattr("user.x", "better")})
	if err := os.Rename(filepath.Join(f.dir, "file2"), filepath.Join(f.dir, "file")); err != nil {
		t.Fatal(err)
	}
	faults := f.faulty()
	for _, test := range []struct{ broken, want string }{{"broken", "good"}, {"", "better"}} {
		if test.broken != "" {
			faults.Inject(fault(faultsource.FileXattrs, "file", unix.EIO, 1))
		}
		f.read(f.batchOf(""))
		f.commit()
		e := f.entries()["file"]
		if got := f.xattrs(&e); string(f.content(&e)) != "two" || len(got) != 1 || string(got[0].Value) != test.want ||
			e.Flags&backup.XattrsUnreadable != 0 != (test.broken != "") || len(f.problems()) != min(len(test.broken), 1) {
			t.Errorf("%+v, attributes %v, problems %v", e, got, f.problems())
		}
	}
}
