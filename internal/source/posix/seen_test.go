//go:build linux

package posix

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/testenv"
)

func TestSeenAt(t *testing.T) {
	disk := testenv.NewDisk(t, 1<<20)
	other := testenv.NewDisk(t, 1<<20)
	elsewhere := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{elsewhere}, names...)...) }
	repo := filepath.Join(disk.Dir, "re po")
	for _, dir := range []string{filepath.Join(repo, "part"), filepath.Join(repo, "mounted"), filepath.Join(disk.Dir, "beside"),
		filepath.Join(other.Dir, "re po"), at("whole"), at("above"), at("a part"), at("beside"), at("hidden"), at("of mounted")} {
		check(t, os.MkdirAll(dir, 0o700))
	}
	for _, file := range []string{filepath.Join(repo, "file"), at("file")} {
		check(t, os.WriteFile(file, nil, 0o600))
	}
	bind := func(from, to string) {
		t.Helper()
		unmount, err := testenv.Bind(from, to)
		check(t, err)
		t.Cleanup(unmount)
	}
	bind(repo, at("whole"))
	bind(disk.Dir, at("above"))
	bind(filepath.Join(repo, "part"), at("a part"))
	bind(filepath.Join(repo, "file"), at("file"))
	bind(filepath.Join(disk.Dir, "beside"), at("beside"))
	bind(disk.Dir, at("hidden"))
	bind(other.Dir, at("hidden"))
	bind(filepath.Join(other.Dir, "re po"), filepath.Join(repo, "mounted"))
	bind(filepath.Join(other.Dir, "re po"), at("of mounted"))

	for path, want := range map[string][]string{
		repo: {repo, at("whole"), at("above", "re po"), at("a part"), at("file"), at("of mounted"),
			filepath.Join(repo, "mounted"), filepath.Join(other.Dir, "re po"), at("hidden", "re po")},
		filepath.Join(repo, "file"):   {filepath.Join(repo, "file"), at("whole", "file"), at("above", "re po", "file"), at("file")},
		filepath.Join(repo, "absent"): {filepath.Join(repo, "absent"), at("whole", "absent"), at("above", "re po", "absent")},
		at("whole", "part"):           {filepath.Join(repo, "part"), at("whole", "part"), at("above", "re po", "part"), at("a part")},
		at("absent", "too"):           {at("absent", "too")},
	} {
		got, err := SeenAt(path)
		check(t, err)
		// The directory of the test may itself be mounted elsewhere.
		got = slices.DeleteFunc(got, func(p string) bool { return !isBelow(p, elsewhere, disk.Dir, other.Dir) })
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s is seen at\n%q, want\n%q", path, got, want)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func isBelow(path string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, ok := within(path, dir)
		return ok
	})
}
