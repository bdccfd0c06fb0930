package fleet

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/store"
)

// CheckStore compares the objects below a directory with the index. Every registered pack must be
// there. Every other pack, and every commit record, must belong to a snapshot that has ended. It
// returns the number of these packs, the orphans.
func CheckStore(t testing.TB, directory string, x *Index) (orphans int) {
	t.Helper()
	objects := objects(t, directory)
	packs, snapshots := x.Packs(), x.Snapshots()
	for name := range packs {
		if objects[name] == 0 {
			t.Errorf("%s is registered, and not in the store", name)
		}
	}
	for name := range objects {
		if store.IsTest(name) {
			continue
		}
		switch first, rest, _ := strings.Cut(name, "/"); first {
		case "packs":
			if packs[name] {
				continue
			}
			snapshot, _, _ := strings.Cut(rest, "/")
			if !snapshots[snapshot] {
				t.Errorf("%s is not registered, and its snapshot has not ended", name)
			}
			orphans++
		case "commits":
			if !snapshots[rest] {
				t.Errorf("%s is there, and its snapshot has not ended", name)
			}
		case "segments", "catalog", "index", "keys", "repository":
		default:
			t.Errorf("%s: what is this?", name)
		}
	}
	return orphans
}

// objects returns the sizes of what is in a store, by name.
func objects(t testing.TB, directory string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	err := filepath.WalkDir(directory, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		// Incomplete files: of a directory store, or of versitygw.
		if strings.HasPrefix(name, "tmp~/") || strings.HasPrefix(filepath.Base(name), ".") {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sizes[name] = info.Size()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}

// StoreDir is where the repository's objects are.
func (r *Repo) StoreDir() string { return filepath.Join(r.Dir, "store") }

// StoreDir is where the repository's objects are: versitygw keeps each as a file.
func (f *Fleet) StoreDir() string {
	if f.S3 == nil {
		return filepath.Join(f.Home, "store")
	}
	return filepath.Join(f.S3.Dir, f.S3.Bucket, "repo")
}

// MakeReadable lets every user read and enter the directories from the
// system's temporary directory down to path.
func MakeReadable(t testing.TB, path string) {
	t.Helper()
	for ; len(path) > len(os.TempDir()); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// StoredBytes returns the size of the objects whose names have a prefix.
func StoredBytes(t testing.TB, directory, prefix string) (bytes int64) {
	t.Helper()
	for name, size := range objects(t, directory) {
		if strings.HasPrefix(name, prefix) {
			bytes += size
		}
	}
	return bytes
}
