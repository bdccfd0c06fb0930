package indextest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	versions "github.com/bctl/bctl/internal/history"
)

// testFindAndHistory finds the files of random trees, which change from snapshot to snapshot and
// are forgotten: what is found is what the snapshots have, and the history of each path is the
// same.
func testFindAndHistory(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	r := rand.New(rand.NewPCG(17, 2))
	var trees []tree
	var made versions.Snapshots
	last := tree(nil)
	for range 8 {
		next := randomTree(r, last)
		made, trees, last = append(made, f.commitTree(next, last)), append(trees, next), next
	}
	f.wantFound(trees, made)
	for _, i := range []int{5, 2, 0} {
		f.must(f.forget(made[i]))
		made, trees = slices.Delete(made, i, i+1), slices.Delete(trees, i, i+1)
		f.wantFound(trees, made)
	}
	_, err := f.x.DropVersions(f.ctx, f.shard.ID)
	f.must(err)
	f.wantFound(trees, made)
	f.wantFound(trees[1:3], made[1:3])
	f.exec("UPDATE name_blocks SET number = 1000 WHERE number = 3") // they are missing
	f.wantFound(trees, made)
}

// wantFound finds all files whose names have a 1, and compares them with trees.
func (f *fixture) wantFound(trees []tree, made versions.Snapshots) {
	f.Helper()
	q := versions.Query{
		Name:  func(_, name string) bool { return strings.Contains(name, "1") },
		Entry: func(e *backup.Entry) bool { return e.Kind == backup.File },
	}
	got, want := map[string]int{}, map[string]int{}
	_, err := versions.Find(f.ctx, f.x, f.shard.ID, made, q, func(found []versions.Version) error {
		steps, err := versions.Of(f.ctx, f.x, f.shard.ID, made, found[0].Path)
		f.must(err)
		for i, v := range found {
			for n := v.First; n <= v.Last; n++ {
				got[fmt.Sprint(n, v.Path)] = int(v.Entry.Size) - 1
			}
			if i > 0 && found[i-1].First <= v.Last {
				f.Errorf("versions of %q are not in order: %+v", v.Path, found)
			}
			if !slices.ContainsFunc(steps, func(s versions.Step) bool { return s.First == v.First && s.Last == v.Last }) {
				f.Errorf("the history of %q lacks the version from %d to %d", v.Path, v.First, v.Last)
			}
		}
		return nil
	})
	f.must(err)
	for n, t := range trees {
		for path, state := range t {
			if _, name := backup.Split(path); strings.Contains(name, "1") {
				want[fmt.Sprint(n, path)] = state
			}
		}
	}
	if !maps.Equal(got, want) {
		f.Fatalf("found %v, want %v", got, want)
	}
}
