package e2e_test

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A lyingPack is a pack as docs/formats/pack.md says, made by somebody who has a worker key, and so
// the recipients: its checksums and its sealing are right, what it says is not.
type lyingPack struct {
	table []byte                      // plaintext
	lie   func(trailer []byte) []byte // of its first 16 bytes: lengths of object, header and table
}

func (l lyingPack) make(t *testing.T, repo *fleet.Repo, id backup.PackID) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo.Dir, "worker.key"))
	if err != nil {
		t.Fatal(err)
	}
	worker, err := seal.ParseWorkerKey(text)
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := seal.NewSealer(worker.Recipients)
	if err != nil {
		t.Fatal(err)
	}
	key, wrapped, err := sealer.NewDataKey()
	if err != nil {
		t.Fatal(err)
	}
	sum := func(b []byte) []byte {
		return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	header := append([]byte("bctlpack\x01\x01"), byte(len(wrapped)), byte(len(wrapped)>>8))
	header = append(header, id[:]...)
	fixed := slices.Clone(header)
	header = sum(append(header, wrapped...))
	frame := key.Seal(nil, []byte("0123456789"), 0, append(slices.Clone(fixed), 'F', 0, 0, 0, 0))
	table := key.Seal(nil, l.table, 1<<63, append(slices.Clone(fixed), 'T', 0, 0, 0, 0))
	object := slices.Concat(header, frame, table)
	trailer := binary.LittleEndian.AppendUint64(nil, uint64(len(object)+28))
	trailer = binary.LittleEndian.AppendUint32(trailer, uint32(len(header)))
	trailer = binary.LittleEndian.AppendUint32(trailer, uint32(len(table)))
	if l.lie != nil {
		trailer = l.lie(trailer)
	}
	return append(object, sum(append(trailer, "bctlend\x01"...))...)
}

// row is a row of a pack's table for one frame.
func row(codec byte, sealed, raw, chunks uint64, lengths ...uint64) []byte {
	b := []byte{codec}
	for _, v := range []uint64{sealed, raw, chunks} {
		b = binary.AppendUvarint(b, v)
	}
	for _, n := range lengths {
		b = binary.AppendUvarint(append(b, make([]byte, 32)...), n)
	}
	return b
}

func put64(at int, value uint64) func([]byte) []byte {
	return func(b []byte) []byte {
		binary.LittleEndian.PutUint64(b[at:], value)
		return b
	}
}

func put32(at int, value uint32) func([]byte) []byte {
	return func(b []byte) []byte {
		binary.LittleEndian.PutUint32(b[at:], value)
		return b
	}
}

// A pack that lies about its lengths costs the files that are in it, and is named; it takes no
// memory that it does not have, and everything else comes back.
func TestPacksThatLie(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	repo.Memory = true
	treetest.Make(t, tree, treetest.Tree{"first/file": treetest.File("the first file")})
	settle(t)
	repo.Backup(tree)
	old := packs(t, repo)
	treetest.Make(t, tree, treetest.Tree{"second/file": treetest.File("the second file")})
	settle(t)
	repo.Backup(tree)
	if len(old) != 1 || len(packs(t, repo)) != 2 {
		t.Fatalf("a pack for each snapshot is what this is about: %v", packs(t, repo))
	}
	name := old[0]
	id, err := backup.ParseSnapshotID(filepath.Base(name)) // the same digits
	if err != nil {
		t.Fatal(err)
	}
	honest := slices.Concat([]byte{1}, row(0, 26, 10, 1, 10))
	lies := map[string]lyingPack{
		"nothing but another content":         {table: honest},
		"2^62 frames":                         {table: append(binary.AppendUvarint(nil, 1<<62), row(0, 26, 10, 1, 10)...)},
		"a frame of 4 GiB":                    {table: slices.Concat([]byte{1}, row(1, 26, 1<<32-1, 1, 1<<32-1))},
		"a frame of 2^63 sealed bytes":        {table: slices.Concat([]byte{1}, row(0, 1<<63, 10, 1, 10))},
		"2^40 chunks":                         {table: slices.Concat([]byte{1}, row(0, 26, 10, 1<<40, 10))},
		"a chunk of 2^63 bytes":               {table: slices.Concat([]byte{1}, row(0, 26, 10, 2, 1<<63, 10))},
		"an object of 2^62 bytes":             {table: honest, lie: put64(0, 1<<62)},
		"an object that is shorter":           {table: honest, lie: put64(0, 100)},
		"a header of 4 GiB":                   {table: honest, lie: put32(8, 1<<32-1)},
		"a table of 4 GiB":                    {table: honest, lie: put32(12, 1<<32-1)},
		"a table that reaches into its frame": {table: honest, lie: put32(12, 90)},
	}
	for _, lie := range slices.Sorted(maps.Keys(lies)) {
		replace(t, filepath.Join(repo.StoreDir(), name), lies[lie].make(t, repo, backup.PackID(id)))
		target := filepath.Join(t.TempDir(), "target")
		out := repo.Run("restore", "latest", "--target", target, "--json")
		problems := out.Problems(t)
		if out.Status != 3 || len(problems) != 1 || problems[0].Path != "first/file" ||
			!strings.Contains(problems[0].Error, filepath.Base(name)) || !strings.Contains(problems[0].Error, "corrupt") {
			t.Errorf("%s: %s", lie, out)
		}
		if got, err := os.ReadFile(filepath.Join(target, "second/file")); err != nil || string(got) != "the second file" {
			t.Errorf("%s: the other file: %q, %v", lie, got, err)
		}
		if _, err := os.Lstat(filepath.Join(target, "first/file")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file is there: %v", lie, err)
		}
		if out.PeakRSS == 0 || out.PeakRSS > 256<<20 {
			t.Errorf("%s: restoring two small files took %d MiB", lie, out.PeakRSS>>20)
		}
	}
}

// packs are the names of the packs in a repository's store.
func packs(t *testing.T, repo *fleet.Repo) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(repo.StoreDir(), "packs/*/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		names = append(names, strings.TrimPrefix(path, repo.StoreDir()+"/"))
	}
	return names
}

func replace(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A listing that lies about its lengths costs its directory, which is named; what is below it and
// beside it comes back. Where somebody has written it into the index, since a committer refuses it:
// TestForgedMessages.
func TestListingsThatLie(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	repo.Memory = true
	treetest.Make(t, tree, treetest.Tree{
		"first/file": treetest.File("1"), "first/below/file": treetest.File("2"), "second/file": treetest.File("3"),
	})
	settle(t)
	repo.Backup(tree)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(repo.Dir, "index.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	huge := binary.AppendUvarint(nil, 1<<63)
	for lie, listing := range map[string][]byte{
		"columns of 2^63 bytes":             append([]byte{1, 0}, huge...),
		"2^63 entries":                      slices.Concat([]byte{1, 0, 12, 0}, huge, []byte{0}),
		"a compressed frame of 2^60 bytes":  {1, 1, 17, 0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 3, 0, 0, 'a'},
		"nothing":                           {},
		"another version, and much of that": append([]byte{9}, make([]byte, 100_000)...),
	} {
		done, err := db.Exec("UPDATE pages SET listing = ? WHERE path_key = ?", listing, backup.PathKey("first"))
		if n, _ := done.RowsAffected(); err != nil || n != 1 {
			t.Fatalf("%d rows, %v", n, err)
		}
		target := filepath.Join(t.TempDir(), "target")
		out := repo.Run("restore", "latest", "--target", target, "--json")
		problems := out.Problems(t)
		if out.Status != 3 || len(problems) == 0 || problems[0].Path != "first" || !strings.Contains(problems[0].Error, `directory "first"`) || !strings.Contains(problems[0].Error, "corrupt") {
			t.Errorf("%s: %s", lie, out)
		}
		for path, want := range map[string]string{"first/below/file": "2", "second/file": "3"} {
			if got, err := os.ReadFile(filepath.Join(target, path)); err != nil || string(got) != want {
				t.Errorf("%s: %s has %q, %v", lie, path, got, err)
			}
		}
		if out.PeakRSS == 0 || out.PeakRSS > 256<<20 {
			t.Errorf("%s: restoring small files took %d MiB", lie, out.PeakRSS>>20)
		}
	}
}
