package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/restore"
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
	dir, err := realPath(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"toout": "out", "toa": "a", "real": "./real2"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "real2"), 0o700); err != nil {
		t.Fatal(err)
	}
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
		{[]string{"/", "/a"}, false, true},
		{at("toout", "out2"), false, true},
		{at(".", "toout"), false, true},
		{at(".", "real/x"), false, false},
		{at("toa", "toa/b"), false, true},
	} {
		if _, err := (&restoreCommand{del: test.del}).places(test.targets); (err == nil) != test.ok {
			t.Errorf("%q, delete %v: %v", test.targets, test.del, err)
		}
	}
}

// A place is refused if a shard that was restored before has made it another one.
func TestPlacesThatChange(t *testing.T) {
	dir := t.TempDir()
	for what, change := range map[string]string{
		"nothing": "", "a symlink": "mkdir elsewhere; ln -s elsewhere outer", "a symlink above": "mkdir -p a/outer; ln -s a/outer outer",
		"another shard's directory": "mkdir outer; ln -s outer used", "that of another shard, below": "mkdir -p outer/inner; ln -s outer/inner used",
	} {
		dir := filepath.Join(dir, what)
		c := &restoreCommand{}
		target := filepath.Join(dir, "outer", "inner")
		places, err := c.places([]string{filepath.Join(dir, "outer"), target})
		if err != nil {
			t.Fatal(err)
		}
		if !places[1].inside || !slices.Equal(places[0].within, []string{"inner"}) {
			t.Errorf("%+v", places)
		}
		if output, err := exec.Command("sh", "-ec", `mkdir "$0"; cd "$0"; `+change, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		used := make(map[restore.Inode]string)
		(&place{}).use(filepath.Join(dir, "used"), used)
		wrong := what != "nothing" && what != "another shard's directory"
		if err := places[1].check(target, used); (err != nil) != wrong {
			t.Errorf("%s: %v", what, err)
		}
	}
}
