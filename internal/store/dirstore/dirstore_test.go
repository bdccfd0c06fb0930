package dirstore

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return create(t, t.TempDir()) })
}

// The same as on NFS, which has no RENAME_NOREPLACE.
func TestConformanceByHardLink(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s := create(t, t.TempDir())
		s.ops.publish = func(from, to *os.File, temp, name string, exclusive bool) error {
			if !exclusive {
				return publish(from, to, temp, name, false)
			}
			return publishLink(int(from.Fd()), int(to.Fd()), temp, name)
		}
		return s
	})
}

func BenchmarkStore(b *testing.B) {
	s := create(b, b.TempDir())
	defer s.Close()
	storetest.Bench(b, s)
}

func create(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpenOfNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(t.TempDir(), "none"), file} {
		_, err := Open(dir)
		if !errors.Is(err, backup.ErrNoRepository) || !strings.Contains(err.Error(), dir) {
			t.Errorf("open %s: %v", dir, err)
		}
	}
	if _, err := Create(file); !errors.Is(err, backup.ErrNoRepository) {
		t.Errorf("create where a file is: %v", err)
	}
}

func TestCreateMakesParentsAndKeepsWhatIsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "store")
	for _, content := range []string{"first", "second"} {
		s := create(t, dir)
		if err := s.Put(t.Context(), content, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if data, err := s.Get(t.Context(), "first", 10); err != nil || string(data) != "first" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestOthersCannotRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := create(t, dir)
	defer s.Close()
	if err := s.Put(t.Context(), "packs/one/object", []byte("x")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{
		"": 0o700, "tmp~": 0o700, "packs": 0o700, "packs/one": 0o700, "packs/one/object": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q: mode %o, want %o", name, got, want)
		}
	}
}

func TestOpenSweepsWhatCrashesLeft(t *testing.T) {
	dir := t.TempDir()
	s := create(t, dir)
	if err := s.Put(t.Context(), "packs/one/object", []byte("x")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	for name, age := range map[string]time.Duration{"OLD": 25 * time.Hour, "YOUNG": 23 * time.Hour} {
		file := filepath.Join(dir, tempDirectory, name)
		if err := os.WriteFile(file, []byte("part"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := leftovers(t, dir); len(got) != 1 || got[0] != "YOUNG" {
		t.Errorf("left: %v", got)
	}
	for object, err := range s.List(t.Context(), "") {
		if err != nil || object.Name != "packs/one/object" {
			t.Errorf("listed: %v, %v", object, err)
		}
	}
}

func TestASymlinkLeadsNowhere(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	s := create(t, dir)
	defer s.Close()
	if err := os.Symlink(outside, filepath.Join(dir, "packs")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "packs/object", []byte("x")); err == nil {
		t.Error("put went through the symlink")
	}
	if data, err := s.Get(t.Context(), "packs/secret", 100); err == nil {
		t.Errorf("got %q through the symlink", data)
	}
	if err := s.Delete(t.Context(), "packs/secret"); err == nil {
		t.Error("deleted through the symlink")
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Errorf("outside: %v, %v", entries, err)
	}
}

func TestDeleteLeavesNoEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	s := create(t, dir)
	defer s.Close()
	for _, name := range []string{"packs/one/a", "packs/one/b", "packs/two/c"} {
		if err := s.Put(t.Context(), name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, gone, kept string }{
		{"packs/one/a", "", "packs/one"},
		{"packs/one/b", "packs/one", "packs/two"},
		{"packs/two/c", "packs/two", "packs"},
	} {
		if err := s.Delete(t.Context(), c.name); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, c.kept)); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, c.gone)); c.gone != "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", c.gone, err)
		}
	}
}

// A backup does not fill the page cache with its own packs.
func TestPutLeavesNothingInThePageCache(t *testing.T) {
	dir := t.TempDir()
	var statfs unix.Statfs_t
	if err := unix.Statfs(dir, &statfs); err != nil {
		t.Fatal(err)
	}
	if statfs.Type == unix.TMPFS_MAGIC {
		t.Skip("the page cache is all that a tmpfs has")
	}
	s := create(t, dir)
	defer s.Close()
	if err := s.Put(t.Context(), "packs/one/object", make([]byte, 32<<20)); err != nil {
		t.Fatal(err)
	}
	if pages := cachedPages(t, filepath.Join(dir, "packs/one/object")); pages > 64 {
		t.Errorf("%d pages of the pack are in the cache", pages)
	}
}

// cachedPages calls cachestat(2), of Linux 6.5.
func cachedPages(t *testing.T, name string) uint64 {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all struct{ offset, length uint64 }
	var stat struct{ cached, dirty, writeback, evicted, recentlyEvicted uint64 }
	_, _, errno := unix.Syscall6(unix.SYS_CACHESTAT, file.Fd(),
		uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&stat)), 0, 0, 0)
	if errno == unix.ENOSYS {
		t.Skip("this kernel has no cachestat")
	}
	if errno != 0 {
		t.Fatal(errno)
	}
	return stat.cached
}

func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, tempDirectory))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A directory of which all objects are deleted while it is listed ends there.
func TestListOfADirectoryThatIsDeleted(t *testing.T) {
	s, err := Create(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names := []string{"packs/a/1", "packs/a/2", "packs/b/1"}
	for _, name := range names {
		if err := s.Put(t.Context(), name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	listed := map[string]bool{}
	for o, err := range s.List(t.Context(), "packs/") {
		if err != nil {
			t.Fatal(err)
		}
		listed[path.Dir(o.Name)] = true
		for _, name := range names {
			if path.Dir(name) == path.Dir(o.Name) {
				if err := s.Delete(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(listed) != 2 {
		t.Errorf("listed objects of %v", listed)
	}
}
