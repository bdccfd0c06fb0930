package backup

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var anyName = rapid.Custom(func(t *rapid.T) string {
	// Few letters, and those next to the separators, so that names share prefixes.
	letters := rapid.SampledFrom([]byte{1, ' ', '-', '.', '0', 'a', 'b', 0xff})
	name := string(rapid.SliceOfN(letters, 1, 4).Draw(t, "name"))
	if name == "." || name == ".." {
		return "dots"
	}
	return name
})

var anyPath = rapid.Custom(func(t *rapid.T) string {
	return strings.Join(rapid.SliceOfN(anyName, 0, 5).Draw(t, "names"), "/")
})

// walkOrder compares paths in the order of a top-down walk: a directory before its entries, names
// in bytewise order.
func walkOrder(a, b string) int {
	return slices.CompareFunc(components(a), components(b), cmp.Compare[string])
}

func components(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

func within(path, dir string) bool {
	return dir == "" || path == dir || strings.HasPrefix(path, dir+"/")
}

func TestPathKeysHaveTheOrderOfAWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyPath.Draw(t, "a"), anyPath.Draw(t, "b")
		if got, want := bytes.Compare(PathKey(a), PathKey(b)), walkOrder(a, b); got != want {
			t.Fatalf("keys of %q and %q compare as %d, a walk as %d", a, b, got, want)
		}
	})
}

func TestPathKeysOfASubtreeAreOneRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, path := anyPath.Draw(t, "dir"), anyPath.Draw(t, "path")
		if rapid.Bool().Draw(t, "below") && dir != "" && path != "" {
			path = dir + "/" + path
		}
		key, from, end := PathKey(path), PathKey(dir), PathKeyEnd(dir)
		inRange := bytes.Compare(key, from) >= 0 && (end == nil || bytes.Compare(key, end) < 0)
		if inRange != within(path, dir) || bytes.HasPrefix(key, from) != inRange {
			t.Fatalf("%q within %q: %t; key %q in [%q, %q): %t", path, dir, within(path, dir), key, from, end, inRange)
		}
	})
}

func TestPathComesBackFromItsKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		path := anyPath.Draw(t, "path")
		got, err := PathOfKey(PathKey(path))
		if err != nil || got != path {
			t.Fatalf("the key of %q is that of %q, %v", path, got, err)
		}
	})
}

func TestPathKey(t *testing.T) {
	for path, want := range map[string]string{"": "", "usr": "usr\x00", "usr/bin": "usr\x00bin\x00", "\xff/+": "\xff\x00+\x00"} {
		if got := PathKey(path); string(got) != want || got == nil {
			t.Errorf("key of %q: %q", path, got)
		}
	}
	if PathKeyEnd("") != nil {
		t.Error("the range of the root has an end")
	}
	for _, key := range []string{"\x00", "a", "a\x00b", "a\x00\x00", "\x00a\x00", "a/b\x00"} {
		if path, err := PathOfKey([]byte(key)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("key %q is that of %q, %v", key, path, err)
		}
	}
}

func TestJoin(t *testing.T) {
	if got := Join("", "etc"); got != "etc" {
		t.Errorf("in the root: %q", got)
	}
	if got := Join("etc/ssl", "certs"); got != "etc/ssl/certs" {
		t.Errorf("below: %q", got)
	}
}

func TestSplit(t *testing.T) {
	for path, want := range map[string][2]string{"": {"", ""}, "a": {"", "a"}, "a/b": {"a", "b"}, "a/b/c": {"a/b", "c"}} {
		dir, name := Split(path)
		if dir != want[0] || name != want[1] {
			t.Errorf("%q: %q and %q, want %q", path, dir, name, want)
		}
		if Join(dir, name) != path {
			t.Errorf("%q joins to %q", path, Join(dir, name))
		}
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "...", "..a", ".hidden", " ", "\x01\xff\n", strings.Repeat("n", 1020)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "/", "a/b", "a\x00", strings.Repeat("n", 1021)} {
		if err := CheckName(name); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: error %v", name, err)
		}
	}
}

func TestCheckPath(t *testing.T) {
	deep := strings.Repeat("d/", MaxPathBytes/2-1) + "dd"
	for _, path := range []string{"", "a", "a/b/c", "a/.b/..c", deep} {
		if err := CheckPath(path); err != nil {
			t.Errorf("%.40q: %v", path, err)
		}
	}
	for _, path := range []string{"/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "../a", "a/\x00/b", deep + "d"} {
		if err := CheckPath(path); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.40q: error %v", path, err)
		}
	}
}

func FuzzPathOfKey(f *testing.F) {
	for _, key := range []string{"", "a\x00", "a\x00b\x00", "a/b\x00", "\x00"} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		path, err := PathOfKey(key)
		if err != nil {
			return
		}
		if !bytes.Equal(PathKey(path), key) {
			t.Errorf("key %q is that of %q, whose key is %q", key, path, PathKey(path))
		}
	})
}
