package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A duSum is what bctl du says of a group.
type duSum struct{ Files, Directories, Bytes int64 }

// duSums returns the groups of bctl du, by kind and name, and the total.
func duSums(t *testing.T, repo *fleet.Repo, given ...string) map[string]duSum {
	t.Helper()
	sums := map[string]duSum{}
	decoder := json.NewDecoder(bytes.NewReader([]byte(repo.Must(append([]string{"du", "--json"}, given...)...).Stdout)))
	for decoder.More() {
		var line struct {
			Type, Path, Extension                    string
			Raw                                      []byte `json:"path_b64"`
			UID                                      int64
			From                                     int64 `json:"from_bytes"`
			Files, Directories, Bytes, Missing_Files int64
		}
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		path := line.Path
		if line.Raw != nil {
			path = string(line.Raw)
		}
		name := map[string]string{
			"directory": path, "file": path, "extension": line.Extension, "owner": fmt.Sprint(line.UID), "size": fmt.Sprint(line.From),
		}[line.Type]
		key := line.Type + " " + base64.StdEncoding.EncodeToString([]byte(name))
		if _, twice := sums[key]; twice {
			t.Errorf("du %q lists %s %q twice", given, line.Type, name)
		}
		sums[key] = duSum{line.Files, line.Directories, line.Bytes}
	}
	return sums
}

// walkedSums adds up a tree on the disk in the same way.
func walkedSums(t *testing.T, root, by string, depth int) map[string]duSum {
	t.Helper()
	sums := map[string]duSum{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		relative := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		one := duSum{Files: 1}
		if info.Mode().IsRegular() {
			one.Bytes = info.Size()
		}
		if info.IsDir() {
			one = duSum{Directories: 1}
		}
		name, wanted := "", !info.IsDir()
		switch by {
		case "directory":
			wanted = true
			parts := strings.Split(relative, "/")
			if !info.IsDir() {
				parts = parts[:len(parts)-1]
			}
			name = strings.Join(parts[:min(depth, len(parts))], "/")
		case "owner":
			wanted, name = true, fmt.Sprint(info.Sys().(*syscall.Stat_t).Uid)
		case "extension":
			if at := strings.LastIndex(info.Name(), "."); at > 0 && len(info.Name())-at <= 17 && !strings.Contains(info.Name()[at:], " ") {
				name = strings.ToLower(info.Name()[at+1:])
			}
		case "size":
			class := int64(0)
			for _, from := range []int64{1, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28} {
				if one.Bytes >= from {
					class = from
				}
			}
			name = fmt.Sprint(class)
		case "file":
			name = relative
		}
		add := func(key string) {
			sum := sums[key]
			sums[key] = duSum{sum.Files + one.Files, sum.Directories + one.Directories, sum.Bytes + one.Bytes}
		}
		if wanted {
			add(by + " " + base64.StdEncoding.EncodeToString([]byte(name)))
		}
		add("total ")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// What du says of a snapshot is what a walk of the restored tree finds.
func TestSizesAreThoseOfTheTree(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("E2E_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("E2E_SEED=%d makes the same changes", seed)
	repo, tree := fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, everyKind())
	generate(t, tree, seed, shape{directories: 20, files: 10, meanBytes: 30_000})
	for n, name := range []string{"A.TXT", ".hidden", "no.ext ension", "x.", "long.abcdefghijklmnopq", "long.abcdefghijklmnop", "tar.Gz"} {
		if err := os.WriteFile(filepath.Join(tree, name), make([]byte, 1+n*1000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := &mutator{t: t, dir: tree, random: rand.New(rand.NewPCG(seed, 3))}
	for range 3 {
		settle(t)
		repo.Backup("--allow-shrink", tree)
		restored := repo.Restore("latest")
		for _, by := range []string{"directory", "owner", "extension", "size", "file"} {
			depths := []int{1}
			if by == "directory" {
				depths = []int{0, 1, 2, 3, 100}
			}
			for _, depth := range depths {
				given := []string{"latest", "--by", by}
				if by == "directory" {
					given = append(given, "--depth", fmt.Sprint(depth))
				}
				if diff := cmp.Diff(walkedSums(t, restored, by, depth), duSums(t, repo, given...)); diff != "" {
					t.Errorf("du %q (- walk, + du): %s", given, diff)
				}
			}
		}
		m.mutate(25)
	}
	below := walkedSums(t, filepath.Join(repo.Restore("latest"), "special"), "file", 0)["total "]
	if got := duSums(t, repo, "latest:special")["total "]; got != below {
		t.Errorf("below a directory: %+v, want %+v", got, below)
	}
}
