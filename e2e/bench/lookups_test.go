//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/bench/madeindex"
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

// The index of section lookups has what its description says.
func TestMakeIndex(t *testing.T) {
	file := filepath.Join(t.TempDir(), "index.db")
	x, err := sqliteindex.Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := &options{files: 5000, seed: 1}
	var out bytes.Buffer
	if err := makeIndex(t.Context(), o, file, &out); err != nil {
		t.Fatal(err)
	}
	var made madeindex.Made
	if err := json.Unmarshal(out.Bytes(), &made); err != nil {
		t.Fatal(err)
	}
	found, err := x.Snapshots(t.Context(), index.SnapshotFilter{States: []backup.State{backup.Committed}})
	if err != nil || len(found) != made.Snapshots || made.Snapshots != lookupShape(o).Snapshots || found[len(found)-1].ID != made.Last[1] {
		t.Fatalf("%d snapshots, %+v: %v", len(found), made, err)
	}
	pages, entries, there := 0, 0, false
	err = x.VersionsBelow(t.Context(), found[0].Shard.ID, "", false, func(v *index.PageSpan) error {
		pages++
		return nil
	})
	if err != nil || int64(pages) != made.Pages {
		t.Errorf("%d versions of pages, want %d: %v", pages, made.Pages, err)
	}
	err = x.EachName(t.Context(), found[0].Shard.ID, func(page backup.PageName, names []string) error {
		entries += len(names)
		for _, name := range names {
			there = there || backup.Join(page.Path, name) == made.Path && strings.HasSuffix(made.Path, made.Name)
		}
		return nil
	})
	if err != nil || !there || entries < made.Files/2 {
		t.Errorf("%d names; %s is among them: %t: %v", entries, made.Path, there, err)
	}
}
