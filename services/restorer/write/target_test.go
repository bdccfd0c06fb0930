package write

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

func TestTargets(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"allowed/in", "beside"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "beside"), filepath.Join(dir, "allowed/out")); err != nil {
		t.Fatal(err)
	}
	targets, err := ParseTargets([]string{filepath.Join(dir, "allowed")})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"allowed": true, "allowed/in": true, "allowed/new/deep": true, "allowed/out": false, "allowed/out/new": false, "allowed2": false, "beside": false, "": false,
	} {
		got, err := targets.resolve(filepath.Join(dir, target))
		if (err == nil) != want || err == nil && got != filepath.Join(dir, target) || err != nil && !errors.Is(err, errTarget) {
			t.Errorf("%s: %q, %v", target, got, err)
		}
	}
	for _, target := range []string{"allowed", dir + "/allowed/../beside", dir + "/allowed/"} {
		if _, err := targets.resolve(target); !errors.Is(err, errTarget) {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, dirs := range [][]string{nil, {"relative"}, {"/a/../b"}} {
		if _, err := ParseTargets(dirs); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: %v", dirs, err)
		}
	}
}
