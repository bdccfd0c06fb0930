package embedded_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/listing"
)

// TestDiff compares snapshots of a tree that changes at random. The changes, applied to the entries
// of one snapshot, must give those of the other, in both directions.
func TestDiff(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m := newMachine(t)
	m.must(os.WriteFile(m.tree+"/stays", nil, 0o600)) // a tree that is empty is not backed up
	var made []backup.Snapshot
	kinds := map[diff.Kind]int{}
	for n := range 14 {
		for range 1 + random.IntN(15) {
			m.mutate(random, n)
		}
		s, err := m.backup(t.Context())
		m.must(err)
		made = append(made, s)
		for old := range made[:n] {
			m.wantDiff(&made[old], &s, kinds)
		}
	}
	for _, kind := range []diff.Kind{diff.Added, diff.Removed, diff.Changed, diff.Moved} {
		if kinds[kind] == 0 {
			t.Errorf("nothing was %v", kind)
		}
	}
}

// mutate changes the tree in one way. A mutation that is not possible changes nothing.
func (m *machine) mutate(random *rand.Rand, n int) {
	name := func() string {
		parts := []string{m.tree}
		for range 1 + random.IntN(3) {
			parts = append(parts, fmt.Sprint("n", random.IntN(5)))
		}
		return filepath.Join(parts...)
	}
	a, b := name(), name()
	switch random.IntN(12) {
	case 0, 1:
		_ = os.MkdirAll(a, 0o755)
	case 2, 3, 4:
		_ = os.MkdirAll(filepath.Dir(a), 0o755)
		_ = os.WriteFile(a, []byte(fmt.Sprint(n, random.Uint64())), 0o644)
	case 5:
		_ = os.RemoveAll(a)
	case 6:
		_ = os.Chmod(a, os.FileMode(0o700+random.IntN(0o100)))
	case 7:
		if os.Rename(a, m.tree+"/swap") == nil { // if only one of the names exists, it moves
			_ = os.Rename(b, a)
			_ = os.Rename(m.tree+"/swap", b)
			_ = os.RemoveAll(m.tree + "/swap")
		}
	case 8, 10, 11:
		_ = os.MkdirAll(filepath.Dir(b), 0o755)
		if os.Rename(a, b) == nil && random.IntN(2) == 0 {
			_ = os.Mkdir(a, 0o755)
		}
	case 9:
		_ = os.Link(a, b)
		_ = os.Symlink(fmt.Sprint(n), b)
	}
}

// entriesOf returns all entries of a snapshot by path.
func (m *machine) entriesOf(s *backup.Snapshot) map[string]backup.Entry {
	m.Helper()
	all := map[string]backup.Entry{}
	for v, err := range m.Index.Pages(m.Context(), s.ID, "") {
		m.must(err)
		page, err := listing.DecodePage(v)
		m.must(err)
		if page.Self != nil {
			all[v.Path] = *page.Self
		}
		for _, e := range page.Entries {
			if e.Kind != backup.Directory {
				all[backup.Join(v.Path, e.Name)] = e
			}
		}
	}
	return all
}

// wantDiff checks the changes between two snapshots, and counts their kinds.
func (m *machine) wantDiff(old, now *backup.Snapshot, kinds map[diff.Kind]int) {
	m.Helper()
	before, after := m.entriesOf(old), m.entriesOf(now)
	var forth, back []diff.Change
	_, err := diff.Between(m.Context(), m.Index, old, now, "", func(c *diff.Change) error {
		kinds[c.Kind]++
		reverse := *c
		reverse.Reverse()
		forth, back = append(forth, *c), append(back, reverse)
		return nil
	})
	m.must(err)
	m.wantApplied(before, after, forth)
	m.wantApplied(after, before, back)
	for dir := range before { // the changes below a path are those of all changes that concern it
		if before[dir].Kind != backup.Directory || dir == "" {
			continue
		}
		var got []diff.Change
		_, err := diff.Between(m.Context(), m.Index, old, now, dir, func(c *diff.Change) error {
			got = append(got, *c)
			return nil
		})
		m.must(err)
		want := slices.DeleteFunc(slices.Clone(forth), func(c diff.Change) bool {
			concerns := func(path string) bool {
				return path != "" && (backup.IsAtOrBelow(path, dir) || c.Kind == diff.Moved && backup.IsAtOrBelow(dir, path))
			}
			return !concerns(c.Path) && !concerns(c.From)
		})
		if fmt.Sprint(changesText(got)) != fmt.Sprint(changesText(want)) {
			m.Fatalf("below %q:\n%v\nwant\n%v", dir, changesText(got), changesText(want))
		}
		break
	}
}

func changesText(changes []diff.Change) (lines []string) {
	for i := range changes {
		c := &changes[i]
		lines = append(lines, fmt.Sprintf("%v %q from %q: %v", c.Kind, c.Path, c.From, c.Differs.Names()))
	}
	return lines
}

// wantApplied checks that changes turn some entries into others.
func (m *machine) wantApplied(before, after map[string]backup.Entry, changes []diff.Change) {
	m.Helper()
	removed, moved := map[string]bool{}, map[string]string{}
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case diff.Removed:
			removed[c.Path] = true
		case diff.Moved:
			moved[c.From] = c.Path
		}
	}
	got := map[string]backup.Entry{}
	for path, e := range before {
		if removed[path] {
			continue
		}
		above := path
		for moved[above] == "" && above != "" {
			above, _ = backup.Split(above)
		}
		if to := moved[above]; to != "" {
			path = to + strings.TrimPrefix(path, above)
		}
		if _, twice := got[path]; twice {
			m.Fatalf("two entries are at %q after %v", path, changesText(changes))
		}
		got[path] = e
	}
	for i := range changes {
		c := &changes[i]
		if c.Kind == diff.Removed {
			continue
		}
		if _, ok := got[c.Path]; ok == (c.Kind == diff.Added) {
			m.Fatalf("%q is %v, and was there: %t; %v", c.Path, c.Kind, ok, changesText(changes))
		}
		got[c.Path] = *c.New
	}
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(after))) {
		m.Fatalf("the changes give %v, want %v; %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(after)), changesText(changes))
	}
	for path, e := range got {
		if want := after[path]; fmt.Sprint(e.Kind, e.Mode, e.Content, e.Target) != fmt.Sprint(want.Kind, want.Mode, want.Content, want.Target) {
			m.Fatalf("%q is %+v, want %+v; %v", path, e, want, changesText(changes))
		}
	}
}
