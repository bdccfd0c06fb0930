package pgindex

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/entindex"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// The statements of the hot tables find their rows through indexes: none scans a table, a partition
// or a shard, whether or not there are statistics yet.
func TestPlans(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Run("no statistics", func(t *testing.T) { testPlans(t, "") })
	t.Run("statistics", func(t *testing.T) {
		testPlans(t, "ANALYZE pages; ANALYZE packs; ANALYZE chunks; ANALYZE chunk_copies; ANALYZE chunk_lists; ANALYZE interrupted_pages")
	})
}

var readsAll = regexp.MustCompile("Seq Scan on (pages|chunk|interrupted)")

func testPlans(t *testing.T, statistics string) {
	ctx := t.Context()
	x, err := Open(ctx, testenv.Postgres(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	tx, err := x.backend.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(ctx, `
INSERT INTO pages (shard, page, first_snapshot, last_snapshot, inode, directory, fingerprint, digest, path_key, listing)
SELECT 1 + n % 2, 0, 1 + n % 20, CASE WHEN n % 10 = 0 THEN n % 20 + 1 END, n, gen_random_uuid(), gen_random_uuid(), '',
    convert_to('d' || n % 100, 'UTF8') || '\x00' || convert_to(n::text, 'UTF8') || '\x00', '\x00'
FROM generate_series(1, 60000) n;
INSERT INTO interrupted_pages (shard, page, directory, listing) SELECT 1 + n % 20, 0, gen_random_uuid(), '\x00' FROM generate_series(1, 60000) n;
INSERT INTO packs (pack, snapshot, object, stored_bytes, frame_bytes, chunks)
SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, '', 1 FROM generate_series(1, 20000);
INSERT INTO chunks SELECT gen_random_uuid(), 1 + n % 20000, 1, 1, 1 FROM generate_series(1, 160000) n;
INSERT INTO chunk_copies SELECT gen_random_uuid(), 1 + n % 20000, 1, 1, 1 FROM generate_series(1, 60000) n;
INSERT INTO chunk_lists SELECT gen_random_uuid(), false, '' FROM generate_series(1, 60000) n;
INSERT INTO stage_pages SELECT shard, 21, page, inode, directory, fingerprint, digest, path_key, listing FROM pages LIMIT 100;
INSERT INTO stage_names SELECT shard, 21, page, directory FROM pages LIMIT 100;
INSERT INTO stage_chunks SELECT * FROM chunks LIMIT 100;
`+statistics)
	if err != nil {
		t.Fatal(err)
	}
	subtree := entindex.Range{From: backup.PathKey("d7"), To: backup.PathKeyEnd("d7")}
	named := func(query string, args pgx.NamedArgs) []any { return []any{query, args} }
	in := pgx.NamedArgs{"shard": int64(1), "at": int64(3), "inode": int64(7), "directory": [16]byte{}, "directories": make([][16]byte, 100), "keys": make([]int64, 100)}
	wanted := make([][16]byte, 40)
	for i := range wanted {
		wanted[i] = [16]byte{0x30, byte(i >> 8), byte(i)}
	}
	for _, test := range []struct {
		name    string
		ordered bool // runs after inOrder: a whole range is never sorted
		query   []any
		want    string // in the plan
	}{
		{"marks of a subtree", true, named(selectMarks(1, 3, subtree, 10_000)), "pages_path"},
		{"marks of everything", true, named(selectMarks(1, 3, entindex.Range{}, 1000)), "pages_path"},
		{"pages of a subtree", true, named(selectPages(1, 3, subtree, nil, 0, 256)), "pages_path"},
		{"pages after one", true, named(selectPages(1, 3, subtree, backup.PathKey("d7/5"), 3, 256)), "pages_path"},
		{"listings", false, []any{selectListings, in}, "pages_pkey"},
		{"directory", false, []any{selectDirectory, in}, "pages_pkey"},
		{"inode", false, []any{selectByInode, in}, "pages_inode"},
		{"begun", false, []any{selectBegun, 1, 3}, "pages_first"},
		{"ended", false, []any{selectEnded, 1, 3}, "pages_last"},
		{"end a tree", false, named(endTree(entindex.Tree{Shard: 1, Number: 21, Range: subtree})), "pages_path"},
		{"end pages", false, []any{endNamedPages}, "pages_pkey"},
		{"end changed pages", false, []any{endChangedPages}, "pages_pkey"},
		{"open pages", false, []any{selectOpenPages, make([]int64, 100), make([][16]byte, 100), make([]int64, 100)}, "pages_pkey"},
		{"drop patches", false, []any{dropPatches, 1, 1, 3, 2}, "pages_last"},
		{"drop versions", false, []any{dropVersions, 1, 1, 3, 2}, "pages_last"},
		{"undo", false, []any{deleteBegun, 1, 3}, "pages_first"},
		{"reopen", false, []any{reopenEnded, 1, 3}, "pages_last"},
		{"locate", false, []any{locateChunks, wanted, [16]byte{0x30}, [16]byte{0x3f, 0xff}}, "chunks_3_pkey"},
		{"locate copies", false, []any{locateCopies, wanted}, "chunk_copies_pkey"},
		{"insert copies", false, []any{insertCopies}, "chunks_a_pkey"},
		{"known lists", false, []any{selectKnownLists, wanted}, "chunk_lists_pkey"},
		{"set aside", false, []any{keepBegun, 1, 3}, "pages_first"},
		{"interrupted listings", false, []any{selectInterrupted, in}, "interrupted_pages_pkey"},
		{"drop interrupted pages", false, []any{dropInterrupted, 1}, "interrupted_pages_pkey"},
	} {
		if test.ordered {
			if _, err := tx.Exec(ctx, inOrder); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := tx.Query(ctx, "EXPLAIN "+test.query[0].(string), test.query[1:]...)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		plan := strings.Join(lines, "\n")
		if !strings.Contains(plan, test.want) || readsAll.MatchString(plan) {
			t.Errorf("%s does not use %s alone:\n%s", test.name, test.want, plan)
		}
		if test.ordered {
			if strings.Contains(plan, "->  Sort  ") { // not an incremental sort
				t.Errorf("%s sorts all of the range:\n%s", test.name, plan)
			}
			if _, err := tx.Exec(ctx, "SET LOCAL enable_sort = on; SET LOCAL enable_bitmapscan = on"); err != nil {
				t.Fatal(err)
			}
		}
		if test.name == "locate" && strings.Contains(plan, "chunks_4") {
			t.Errorf("locate searches other partitions:\n%s", plan)
		}
	}
}
