package e2e_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// The page cache is left as it was found: what was hot stays, and what the
// backup has read goes.
func TestPageCacheIsLeftAsItWas(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	// Not parallel: what the machine does besides evicts pages too.
	repo, tree := fleet.NewRepo(t), filepath.Join(testenv.DiskDir(t), "tree")
	generate(t, tree, 50, shape{directories: 20, files: 10, meanBytes: 30_000})
	hot, large := filepath.Join(tree, "hot"), filepath.Join(tree, "large")
	// Nobody backs it up: what becomes of its pages is the machine's doing.
	control := filepath.Join(testenv.DiskDir(t), "control")
	for _, path := range []string{hot, large, control} {
		if err := os.WriteFile(path, make([]byte, 20<<20), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]int{}
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files[path] = cool(t, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cold := 0
	for path, pages := range files {
		if resident(t, path) > 0 {
			t.Skipf("%s cannot be dropped from the page cache: is it on tmpfs?", path)
		}
		cold += pages
	}
	cool(t, control)
	for _, path := range []string{hot, control} {
		warm(t, path, files[hot])
	}

	for _, backup := range []string{"first", "unchanged"} {
		made := repo.Backup(tree)
		if backup == "first" && made.ReadBytes < int64(cold)*3000 {
			t.Fatalf("%+v", made)
		}
		left := 0
		for path := range files {
			if path != hot {
				left += resident(t, path)
			}
		}
		// A few may be there for other reasons: readahead that was on its way.
		if left > cold/100 {
			t.Errorf("%s backup: %d of %d cold pages are resident", backup, left, cold)
		}
		if n, others := resident(t, hot), resident(t, control); n < min(others, files[hot])*99/100 {
			t.Errorf("%s backup: %d of %d hot pages are resident, and %d of a file that is not backed up", backup, n, files[hot], others)
		}
	}
}

// cool writes a file out and drops it from the page cache; it returns its pages.
func cool(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return int((info.Size() + int64(os.Getpagesize()) - 1) / int64(os.Getpagesize()))
}

// warm reads a file until its pages are in the page cache. The kernel may
// drop pages that it has just read; the test is skipped if it keeps doing so.
func warm(t *testing.T, path string, pages int) {
	t.Helper()
	var n int
	for range 20 {
		if _, err := os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		if n = resident(t, path); n >= pages*99/100 {
			return
		}
	}
	t.Skipf("%d of %d pages of %s stay in the page cache: the machine is short of memory", n, pages, path)
}

// resident returns how many pages of a file are in the page cache.
func resident(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	pages := make([]byte, (len(data)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, page := range pages {
		n += int(page & 1)
	}
	return n
}
