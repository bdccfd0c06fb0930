package e2e_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// Who has a repository without its identity has no content and, in the store alone, no name: of
// small files, a large one, link targets, extended attributes. Nothing is compressed here, so that
// what was not sealed would show.
func TestNothingShowsWithoutAnIdentity(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t, "BCTL_CODEC=none"), t.TempDir()
	large := make([]byte, 5<<20)
	random := rand.New(rand.NewPCG(27, 1))
	for i := range large {
		large[i] = byte(random.Uint32())
	}
	const directory, name, link = "a directory that has a name", "a file that has a name", "a link that has a name"
	const small, target, attribute = "the content of a small file, word for word", "where the link leads to, if anywhere", "the value of an extended attribute"
	treetest.Make(t, tree, treetest.Tree{
		directory + "/" + name: treetest.File(small).WithXattr("user.secret", attribute), directory + "/" + link: treetest.Symlink(target), "large": treetest.File(string(large)),
	})
	settle(t)
	if made := repo.Backup(tree); made.Files != 3 || made.StoredBytes < int64(len(large)) {
		t.Fatalf("%+v", made)
	}
	contents := map[string][]byte{"content": []byte(small), "content of a large file": large[2<<20 : 2<<20+64]}
	names := map[string][]byte{
		"name of a directory": []byte(directory), "name of a file": []byte(name), "name of a link": []byte(link),
		"target of a link": []byte(target), "extended attribute": []byte(attribute), "path of the shard": []byte(tree),
	}
	search := func(below string, texts map[string][]byte) (files int) {
		err := filepath.WalkDir(below, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			for what, text := range texts {
				if bytes.Contains(data, text) {
					t.Errorf("%s shows the %s", path, what)
				}
			}
			files++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	if n := search(repo.StoreDir(), names) + search(repo.Dir, contents); n < 6 {
		t.Errorf("only %d files were looked at", n)
	}
	identities, err := filepath.Glob(filepath.Join(repo.Home, ".config/bctl/identities/*.txt"))
	if err != nil || len(identities) != 1 {
		t.Fatal(identities, err)
	}
	away := filepath.Join(t.TempDir(), "away")
	if err := os.Rename(identities[0], away); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	expect(t, repo.Run("restore", "latest", "--target", restored), 12, "identity", identities[0])
	expect(t, repo.Run("restore", "latest", "--target", restored, "--identity", filepath.Join(repo.Dir, "worker.key")), 12, "worker.key", "identity file")
	if _, err := os.Lstat(restored); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was restored: %v", err)
	}
	treetest.Equal(t, tree, repo.Restore("latest", "--identity", away))
}
