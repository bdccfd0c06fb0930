//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

func TestFleetBacksUp(t *testing.T) {
	testtarget.Need(t, testtarget.S3)
	t.Setenv("PATH", filepath.Dir(fleet.Binary(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
	tree := filepath.Join(t.TempDir(), "tree")
	if err := (shape{files: 20, directories: 5, bytes: 1 << 20, seed: 1}).make(tree); err != nil {
		t.Fatal(err)
	}
	f, err := startFleet(t.Context(), t.TempDir(), tree, fleetShape{walkers: 1, readers: 1, committers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := f.command(t.Context(), "backup", "--filer", theFiler, "--shard", tree); err != nil {
		t.Fatal(err)
	}
	if seconds, err := f.lastSeconds(t.Context()); err != nil || seconds <= 0 {
		t.Errorf("the last snapshot took %v s: %v", seconds, err)
	}
	if peaks, err := f.peaks(); err != nil || len(peaks) != 3 {
		t.Errorf("peaks of memory: %v, %v", peaks, err)
	}
}
