//go:build linux

package slowfs_test

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/e2e/slowfs"
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// An error that a file system returns through the kernel equals the one that faultsource returns in
// its place, so tests with faultsource see what posix does.
func TestErrorsOfTheKernel(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{
		"root/dir/file": treetest.File("content").WithXattr("user.x", "1"), "root/dir/link": treetest.Symlink("x"),
		"root/dir/sparse": treetest.Sparse(1<<20, treetest.Extent{Data: "x"}),
	})
	filer := slowfs.Mount(t, dir, slowfs.Options{Xattrs: true})
	src := posix.New(posix.Options{})
	url := posix.URL(filepath.Join(filer.Dir, "root"))
	for _, test := range []struct {
		call    faultsource.Call
		request slowfs.Request
		path    string
		file    string // that was opened before
	}{
		{faultsource.OpenRoot, slowfs.Lookup, "root", ""},
		{faultsource.Check, slowfs.Lookup, "root", ""},
		{faultsource.Check, slowfs.Getattr, "root", ""},
		{faultsource.OpenDirectory, slowfs.Lookup, "root/dir", ""},
		{faultsource.OpenDirectory, slowfs.OpenDirectory, "root/dir", ""},
		{faultsource.StatDirectory, slowfs.Getattr, "root/dir", ""},
		{faultsource.List, slowfs.List, "root/dir", ""},
		{faultsource.StatEntry, slowfs.Lookup, "root/dir/file", ""},
		{faultsource.StatEntry, slowfs.Getattr, "root/dir/file", ""},
		{faultsource.ReadLink, slowfs.Readlink, "root/dir/link", ""},
		{faultsource.EntryXattrs, slowfs.Xattr, "root/dir/link", ""},
		{faultsource.DirectoryXattrs, slowfs.Xattr, "root/dir", ""},
		{faultsource.OpenFile, slowfs.Open, "root/dir/file", ""},
		{faultsource.OpenFile, slowfs.Lookup, "root/dir/file", ""},
		{faultsource.StatFile, slowfs.Getattr, "root/dir/file", "file"},
		{faultsource.Extent, slowfs.Seek, "root/dir/sparse", "sparse"},
		{faultsource.FileXattrs, slowfs.Xattr, "root/dir/file", "file"},
		{faultsource.Read, slowfs.Read, "root/dir/file", "file"},
	} {
		for _, errno := range []syscall.Errno{
			syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.EACCES, syscall.ENAMETOOLONG, syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT,
			syscall.ENOTCONN, syscall.EMFILE, syscall.ENOMEM,
		} {
			if test.request == slowfs.Read && errno != syscall.EIO {
				continue // the kernel generates all others
			}
			got := kernelError(t, src, url, test.call, func() func() { return filer.Fail(test.request, test.path, errno) }, test.file)
			if want := faultsource.Posix(test.call, errno); kindsOf(got) != kindsOf(want) {
				t.Errorf("%s: %v is\n%v: %s, faultsource has\n%v: %s", test.call, errno, got, kindsOf(got), want, kindsOf(want))
			}
		}
	}
}

// kindsOf returns the properties of an error that decide how it is handled.
func kindsOf(err error) string {
	var kinds []string
	for _, k := range []struct {
		name string
		is   bool
	}{
		{"gone", source.IsGone(err)}, {"transient", source.IsTransient(err)}, {"other tree", source.IsOtherTree(err)}, {"may be away", source.MayBeAway(err)},
		{"stale", errors.Is(err, source.ErrStale)}, {"vanished", errors.Is(err, syscall.ENOENT)}, {"not found", errors.Is(err, backup.ErrNotFound)},
		{"invalid", errors.Is(err, backup.ErrInvalid)}, {"permission", errors.Is(err, syscall.EACCES)},
	} {
		if k.is {
			kinds = append(kinds, k.name)
		}
	}
	return strings.Join(kinds, ", ")
}

// kernelError makes a call that fails, and returns its error.
func kernelError(t *testing.T, src *posix.Source, url string, call faultsource.Call, fail func() func(), openFile string) (err error) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if call == faultsource.OpenRoot {
		defer fail()()
		tree, err := src.Open(t.Context(), url)
		if err == nil {
			err = errors.Join(errors.New("it was opened"), tree.Close())
		}
		return err
	}
	tree, err := src.Open(t.Context(), url)
	must(err)
	defer tree.Close()
	switch call {
	case faultsource.Check:
		defer fail()()
		return tree.Check(t.Context())
	case faultsource.OpenDirectory, faultsource.StatDirectory:
		defer fail()()
		d, err := tree.OpenDirectory(t.Context(), "dir")
		if err == nil { // stat may succeed although listing fails
			defer d.Close()
			_, _, err = d.Read(t.Context(), nil, nil)
		}
		return err
	}
	d, err := tree.OpenDirectory(t.Context(), "dir")
	must(err)
	defer d.Close()
	var f source.File
	if openFile != "" {
		f, err = d.OpenFile(t.Context(), openFile)
		must(err)
		defer f.Close()
		_, err = f.Stat() // the first is from opening it
		must(err)
	}
	defer fail()()
	switch call {
	case faultsource.List:
		_, _, err = d.Read(t.Context(), nil, nil)
	case faultsource.StatEntry, faultsource.ReadLink:
		var problems []error
		_, _, err = d.Read(t.Context(), nil, func(_, _ string, problem error) { problems = append(problems, problem) })
		err = errors.Join(err, errors.Join(problems...))
	case faultsource.EntryXattrs:
		_, err = d.Xattrs(t.Context(), "link", backup.Symlink)
	case faultsource.DirectoryXattrs:
		_, err = d.Xattrs(t.Context(), "", backup.Directory)
	case faultsource.OpenFile:
		f, err = d.OpenFile(t.Context(), "file")
		if err == nil {
			err = errors.Join(errors.New("it was opened"), f.Close())
		}
	case faultsource.StatFile:
		_, err = f.Stat()
	case faultsource.Extent:
		_, _, err = f.NextExtent(0, 1<<20)
	case faultsource.FileXattrs:
		_, err = f.Xattrs()
	case faultsource.Read:
		_, err = f.ReadAt(make([]byte, 100), 0)
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s has not failed", call)
	}
	return err
}
