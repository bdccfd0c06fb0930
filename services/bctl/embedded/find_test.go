package embedded_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/history"
	"github.com/bctl/bctl/internal/index"
)

// TestFindAndHistory finds all entries of a tree that changes at random. Together, the versions
// must be what the snapshots have, each once, and the history of a path must have the versions that
// find has, and say where each came from.
func TestFindAndHistory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m := newMachine(t)
	m.must(os.WriteFile(m.tree+"/stays", nil, 0o600)) // a tree that is empty is not backed up
	var made history.Snapshots
	for n := range 10 {
		for range 1 + random.IntN(15) {
			m.mutate(random, n)
		}
		s, err := m.backup(t.Context())
		m.must(err)
		made = append(made, s)
	}
	found := m.find(made)
	m.wantFound(made, found)
	for path, versions := range found {
		m.wantHistory(made, path, versions)
	}
	// Without the names, all pages are read.
	m.wantFound(made[3:7], m.find(made[3:7]))
	m.wantFound(made, m.find(made, "without names"))
}

// withoutNames is an index that has not all names.
type withoutNames struct{ index.Index }

func (withoutNames) EachName(context.Context, backup.ShardID, func(backup.PageName, []string) error) error {
	return index.ErrNamesIncomplete
}

// find finds all versions of all paths.
func (m *machine) find(made history.Snapshots, without ...string) map[string][]history.Version {
	m.Helper()
	found := map[string][]history.Version{}
	all := history.Query{Name: func(string, string) bool { return true }, Entry: func(*backup.Entry) bool { return true }}
	x := m.Index
	if len(without) > 0 {
		x = withoutNames{x}
	}
	result, err := history.Find(m.Context(), x, made[0].Shard.ID, made, all, func(versions []history.Version) error {
		path := versions[0].Path
		if found[path] != nil {
			m.Fatalf("%q is reported twice", path)
		}
		slices.Reverse(versions)
		found[path] = versions
		return nil
	})
	m.must(err)
	if (result.Incomplete != nil) != (len(without) > 0) {
		m.Fatalf("names are not complete: %v", result.Incomplete)
	}
	return found
}

// wantFound checks that the versions are what the snapshots have.
func (m *machine) wantFound(made history.Snapshots, found map[string][]history.Version) {
	m.Helper()
	entries := 0
	for n := range made {
		want := m.entriesOf(&made[n])
		delete(want, "")
		for path, e := range want {
			has := slices.IndexFunc(found[path], func(v history.Version) bool { return v.First <= n && n <= v.Last })
			if has < 0 {
				m.Fatalf("find lacks %q of snapshot %d", path, n)
			}
			if got := found[path][has].Entry; diff.Differences(got, &e) != 0 {
				m.Fatalf("%q of snapshot %d is %+v, want %+v", path, n, got, e)
			}
		}
		entries += len(want)
	}
	for path, versions := range found {
		for i, v := range versions {
			entries -= v.Last - v.First + 1
			if i > 0 && (v.First <= versions[i-1].Last || v.First == versions[i-1].Last+1 && diff.Differences(versions[i-1].Entry, v.Entry) == 0) {
				m.Fatalf("%q has the versions %+v", path, versions)
			}
		}
	}
	if entries != 0 {
		m.Fatalf("the snapshots have %d entries more than what was found", entries)
	}
}

// wantHistory checks that a history has these versions, and that what moved has been where it says.
func (m *machine) wantHistory(made history.Snapshots, path string, want []history.Version) {
	m.Helper()
	steps, err := history.Of(m.Context(), m.Index, made[0].Shard.ID, made, path)
	m.must(err)
	var got []history.Version
	for i := range steps {
		s := &steps[i]
		got = append(got, s.Version)
		if s.New != (s.First > 0 && (i == 0 || steps[i-1].Last < s.First-1)) || s.Gone != (s.Last < len(made)-1 && (i == len(steps)-1 || steps[i+1].First > s.Last+1)) {
			m.Fatalf("%q: step %+v", path, s)
		}
		if s.From != "" {
			m.wantSame(made, s.From, s.First-1, path, s.First)
		}
		if s.To != "" {
			m.wantSame(made, path, s.Last, s.To, s.Last+1)
		}
	}
	if !reflect.DeepEqual(spansOf(got), spansOf(want)) {
		m.Fatalf("the history of %q is %q, and find has %q", path, spansOf(got), spansOf(want))
	}
}

func spansOf(versions []history.Version) (list []string) {
	for _, v := range versions {
		list = append(list, fmt.Sprintf("%d to %d: %v %d", v.First, v.Last, v.Entry.Kind, v.Entry.Inode))
	}
	return list
}

// wantSame checks that two paths of two snapshots are one file or directory.
func (m *machine) wantSame(made history.Snapshots, old string, before int, now string, after int) {
	m.Helper()
	a, is := m.entriesOf(&made[before])[old]
	b, isToo := m.entriesOf(&made[after])[now]
	if !is || !isToo || a.Inode != b.Inode || a.Kind != b.Kind {
		m.Fatalf("%q of snapshot %d is not %q of snapshot %d: %+v, %+v", old, before, now, after, a, b)
	}
}
