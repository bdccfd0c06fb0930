//go:build linux

package treetest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/source/treetest"
)

var when = time.Date(2001, 2, 3, 4, 5, 6, 123456789, time.UTC)

func sample() treetest.Tree {
	tree := treetest.Tree{
		"a/file":     treetest.File("content").WithMode(0o4750).WithMtime(when),
		"a/same":     treetest.HardLink("a/file"),
		"a/other":    treetest.File("content").WithXattr("user.k", "v").WithMtime(when),
		"b/sparse":   treetest.Sparse(1<<20, treetest.Extent{Offset: 512 << 10, Data: "x"}).WithMtime(when),
		"b/hole":     treetest.Sparse(1 << 20).WithMtime(when),
		"b/link":     treetest.Symlink("nowhere").WithMtime(when),
		"b/fifo":     treetest.FIFO().WithMtime(when),
		"b/socket":   treetest.Socket().WithMtime(when),
		"n\n\xff":    treetest.File("").WithMtime(when),
		"a":          treetest.Dir().WithMode(0o700).WithMtime(when),
		"b":          treetest.Dir().WithMtime(when),
		"empty/dir":  treetest.Dir().WithMode(0o1777).WithMtime(when),
		"empty":      treetest.Dir().WithMtime(when),
		"b/big":      treetest.File(strings.Repeat("0123456789abcdef", 40_000)).WithMtime(when),
		"b/link-dir": treetest.Symlink(".").WithMtime(when),
	}
	if os.Getuid() == 0 {
		tree["b/dev"] = treetest.CharDev(1, 3).WithMtime(when)
		tree["b/block"] = treetest.BlockDev(7, 99).WithMtime(when)
		tree["a/owned"] = treetest.File("x").WithOwner(12, 34).WithMtime(when)
	}
	return tree
}

func TestEqualTrees(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	treetest.Make(t, a, sample())
	treetest.Make(t, b, sample())
	os.Chtimes(a, when, when)
	os.Chtimes(b, when, when)
	treetest.Equal(t, a, b)
}

// Each change of the copy gives exactly its line.
func TestDifferences(t *testing.T) {
	for _, test := range []struct {
		change func(tree treetest.Tree)
		want   string
	}{
		{func(tree treetest.Tree) { delete(tree, "b/fifo") }, "b/fifo: missing"},
		{func(tree treetest.Tree) { tree["b/new"] = treetest.File("") }, "b/new: not in the original"},
		{func(tree treetest.Tree) { tree["b/fifo"] = treetest.Socket() }, "b/fifo: type socket, was fifo"},
		{func(tree treetest.Tree) { tree["a/other"] = tree["a/other"].WithMode(0o600) }, "a/other: mode 0600, was 0644"},
		{func(tree treetest.Tree) { tree["a/other"] = tree["a/other"].WithMtime(when.Add(1)) }, "a/other: mtime 2001-02-03T04:05:06.123456790, was 2001-02-03T04:05:06.123456789"},
		{func(tree treetest.Tree) { tree["a/other"] = tree["a/other"].WithXattr("user.k", "w") }, `a/other: xattr user.k "w", was "v"`},
		{func(tree treetest.Tree) { tree["a/other"] = tree["a/other"].WithXattr("user.l", "") }, `a/other: xattr user.l not in the original`},
		{func(tree treetest.Tree) { tree["a/same"] = tree["a/file"] }, `a/same: hard link of "a/same", was of "a/file"`},
		{func(tree treetest.Tree) { tree["b/link"] = treetest.Symlink("elsewhere").WithMtime(when) }, `b/link: target "elsewhere", was "nowhere"`},
		{func(tree treetest.Tree) { tree["n\n\xff"] = treetest.File("x").WithMtime(when) }, `"n\n\xff": size 1, was 0`},
		{func(tree treetest.Tree) {
			tree["b/big"] = treetest.File(strings.Repeat("0123456789abcdef", 39_999) + "0123456789abcdeF").WithMtime(when)
		}, "b/big: content differs from byte 639999 on"},
		{func(tree treetest.Tree) {
			tree["b/hole"] = treetest.File(strings.Repeat("\x00", 1<<20)).WithMtime(when)
		}, "b/hole: data where there was a hole, from byte 0 on"},
		{func(tree treetest.Tree) {
			tree["b/sparse"] = treetest.Sparse(1<<20, treetest.Extent{Offset: 512 << 10, Data: "x" + strings.Repeat("\x00", 8<<10)}).WithMtime(when)
		}, "b/sparse: data where there was a hole, from byte 528384 on"},
		{func(tree treetest.Tree) { tree["empty"] = tree["empty"].WithMtime(when.Add(time.Second)) }, "empty: mtime 2001-02-03T04:05:07.123456789, was 2001-02-03T04:05:06.123456789"},
		{func(tree treetest.Tree) {
			if os.Getuid() == 0 {
				tree["a/owned"] = tree["a/owned"].WithOwner(12, 35)
			}
		}, "a/owned: owner 12:35, was 12:34"},
		{func(tree treetest.Tree) {
			if os.Getuid() == 0 {
				tree["b/dev"] = treetest.CharDev(1, 5).WithMtime(when)
			}
		}, "b/dev: device 1:5, was 1:3"},
	} {
		a, b := t.TempDir(), t.TempDir()
		treetest.Make(t, a, sample())
		changed := sample()
		test.change(changed)
		treetest.Make(t, b, changed)
		os.Chtimes(a, when, when)
		os.Chtimes(b, when, when)
		want := []string{test.want}
		if os.Getuid() != 0 && (strings.Contains(test.want, "owner") || strings.Contains(test.want, "device")) {
			continue
		}
		if got := treetest.Compare(a, b); !slices.Equal(got, want) {
			t.Errorf("differences %q, want %q", got, want)
		}
	}
}

func TestDifferencesAreBounded(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for i := range treetest.MaxDifferences + 50 {
		os.WriteFile(filepath.Join(b, fmt.Sprint(i)), nil, 0o644)
	}
	if n := len(treetest.Compare(a, b, treetest.DirectoryTimes)); n != treetest.MaxDifferences+1 {
		t.Errorf("%d lines, want %d", n, treetest.MaxDifferences+1)
	}
}
