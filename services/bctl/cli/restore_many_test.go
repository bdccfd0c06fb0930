package cli

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func shardOf(filer, name string) index.ShardStatus {
	return index.ShardStatus{Shard: backup.Shard{Name: name}, Filer: backup.Filer{Name: filer}}
}

// Each shard has a directory of its own below DIR, whatever its name is, or it is refused.
func TestDirectoriesOfShards(t *testing.T) {
	names := []string{"a", "/a", "a/b", "/a/b", "a%2Fb", "%2Fa", "..", "/..", "../..", "/../../etc", ".", "/", "", "x\x00y", ".%2Fa", "a:b=c", "\n", strings.Repeat("long", 300)}
	seen := map[string]string{}
	refused := 0
	for _, filer := range names {
		for _, name := range names {
			s := shardOf(filer, name)
			dir, err := below("/to", &s)
			if err != nil {
				refused++
				continue
			}
			rest, inside := strings.CutPrefix(dir, "/to/")
			if parts := strings.Split(rest, "/"); !inside || len(parts) != 2 || slices.Contains(parts, "..") {
				t.Errorf("%q %q: %q", filer, name, dir)
			}
			if other, ok := seen[dir]; ok {
				t.Errorf("%q %q and %s: %q", filer, name, other, dir)
			}
			seen[dir] = filer + " " + name
		}
	}
	// Refused are the empty filer; the shard "/..", which would be ".."; and both kinds with a NUL,
	// or too long.
	if want := 3*len(names) + 3*(len(names)-3); refused != want {
		t.Errorf("%d are refused, want %d", refused, want)
	}
}

// The longest name that fits is meant, because names may contain ":" and "=".
func TestMappedShards(t *testing.T) {
	shards := []index.ShardStatus{shardOf("n", "/a"), shardOf("n", "/a=b"), shardOf("n:/a", "c"), shardOf("n", "/a:c")}
	c := &restoreCommand{app: &app{env: func(string) (string, bool) { return "", false }}}
	for text, want := range map[string][]string{
		"n:/a=/x":    {"/x", "", "", ""},
		"n:/a=b=/x":  {"", "/x", "", ""},
		"n:/a=b/x":   {"b/x", "", "", ""},
		"n:/a=../up": {"../up", "", "", ""},
		"n:/b=/x":    nil, "n:/a": nil, "n:/a=": nil, "": nil, "=": nil, ":=": nil, "/a=/x": nil,
	} {
		got, err := (&manyFlags{maps: []string{text}}).mapped(c, shards)
		if (err != nil) != (want == nil) || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	same := []index.ShardStatus{shardOf("n:/a", "c"), shardOf("n", "/a:c")}
	if _, err := (&manyFlags{maps: []string{"n:/a:c=/x"}}).mapped(c, same); err == nil {
		t.Error("a name that two shards have is not refused")
	}
}

// Directories that are one by another name are found.
func TestTargetsApart(t *testing.T) {
	dir := t.TempDir()
	at := func(names ...string) (targets []string) {
		for _, name := range names {
			targets = append(targets, filepath.Join(dir, name))
		}
		return targets
	}
	for _, test := range []struct {
		targets []string
		del     bool
		ok      bool
	}{
		{at("a", "b"), true, true},
		{at("a", "b/../a"), false, false},
		{at("a", "a/b"), false, true},
		{at("a", "a/b"), true, false},
		{at("a", "ab"), true, true},
		{at(".", "a"), true, false},
		{[]string{"/", "/a"}, true, false},
	} {
		if err := (&restoreCommand{del: test.del}).apart(test.targets); (err == nil) != test.ok {
			t.Errorf("%q, delete %v: %v", test.targets, test.del, err)
		}
	}
}
