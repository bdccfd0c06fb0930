package embedded_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// walkLive compares a snapshot with the source.
func (m *machine) walkLive(s *backup.Snapshot, content bool) *embedded.Live {
	m.Helper()
	shards, err := m.Index.ListShards(m.Context(), index.ShardFilter{Name: s.Shard.Name})
	m.must(err)
	var key *[32]byte
	if content {
		key = (*[32]byte)(&m.WorkerKey.Dedup)
	}
	l, err := embedded.WalkLive(m.Context(), m.Options, &shards[0], s, key, func(*backup.SliceWalked) {}, func(p backup.Problem) { m.Error(p) })
	m.must(err)
	m.Cleanup(l.Close)
	return l
}

func (m *machine) liveDiff(l *embedded.Live, path string) (list []diff.Change) {
	m.Helper()
	_, err := l.Diff(m.Context(), path, func(c *diff.Change) error {
		list = append(list, *c)
		return nil
	})
	m.must(err)
	return list
}

// withoutContent leaves out whether content differs.
func withoutContent(changes []diff.Change) (list []diff.Change) {
	for _, c := range changes {
		c.Differs &^= diff.Content | diff.ContentUnread
		if c.Differs != 0 || c.Kind != diff.Changed {
			list = append(list, c)
		}
	}
	return list
}

func (m *machine) wantChanges(what string, got, want []diff.Change) {
	m.Helper()
	if g, w := changesText(got), changesText(want); !slices.Equal(g, w) {
		m.Fatalf("%s:\n%s\nwant\n%s", what, strings.Join(g, "\n"), strings.Join(w, "\n"))
	}
}

// TestLiveDiff compares snapshots with a tree that changes at random. The changes must be those
// between the snapshot and the next one, and those of each path the part of all that concern it.
func TestLiveDiff(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m := newMachine(t)
	m.must(os.WriteFile(m.tree+"/stays", nil, 0o600))
	m.must(os.WriteFile(m.tree+"/sparse", nil, 0o600))
	m.must(os.Truncate(m.tree+"/sparse", 20<<20))
	large := make([]byte, 9<<20)
	rand.NewChaCha8([32]byte{}).Read(large)
	m.must(os.WriteFile(m.tree+"/large", large, 0o600))
	m.must(os.WriteFile(m.tree+"/repeats", bytes.Repeat([]byte("x"), 5<<20), 0o600))
	var made []backup.Snapshot
	for n := range 10 {
		for range 1 + random.IntN(12) {
			m.mutate(random, n)
			m.mutateXattr(random)
		}
		if n%3 == 2 {
			large[random.IntN(len(large))]++
			m.must(os.WriteFile(m.tree+"/large", large, 0o600))
		}
		var found [2][]diff.Change
		var old *backup.Snapshot
		if n > 0 {
			old = &made[random.IntN(n)]
			for i := range found {
				l := m.walkLive(old, i == 1)
				found[i] = m.liveDiff(l, "")
				m.wantParts(l, found[i])
			}
		}
		s, err := m.backup(t.Context())
		m.must(err)
		made = append(made, s)
		if n == 0 {
			continue
		}
		var want []diff.Change
		_, err = diff.Between(t.Context(), m.Index, old, &s, "", func(c *diff.Change) error {
			want = append(want, *c)
			return nil
		})
		m.must(err)
		m.wantChanges("with content", found[1], want)
		m.wantChanges("without content", withoutContent(found[0]), withoutContent(want))
	}
	if got := m.liveDiff(m.walkLive(&made[len(made)-1], true), ""); len(got) > 0 {
		t.Errorf("nothing has changed, but %v", changesText(got))
	}
}

// mutateXattr changes an extended attribute, which may be a large one, or sets it as it was.
func (m *machine) mutateXattr(random *rand.Rand) {
	path := filepath.Join(m.tree, fmt.Sprint("n", random.IntN(5)))
	value := bytes.Repeat([]byte{byte('a' + random.IntN(2))}, 1<<(random.IntN(2)*11))
	_ = unix.Lsetxattr(path, "user.test", value, 0)
}

// wantParts checks the changes below some paths.
func (m *machine) wantParts(l *embedded.Live, all []diff.Change) {
	m.Helper()
	for _, path := range []string{"n0", "n1", "n1/n2", "n3/n0/n1", "large", "stays", "none"} {
		want := slices.DeleteFunc(slices.Clone(all), func(c diff.Change) bool {
			concerns := func(of string) bool {
				return of != "" && (backup.IsAtOrBelow(of, path) || c.Kind == diff.Moved && backup.IsAtOrBelow(path, of))
			}
			return !concerns(c.Path) && !concerns(c.From)
		})
		m.wantChanges(path, m.liveDiff(l, path), want)
	}
}

// TestLiveDiffOfMissingPages deletes a page from the index. What it lists seems to be new, so the
// comparison must fail.
func TestLiveDiffOfMissingPages(t *testing.T) {
	m := newMachine(t)
	m.must(os.MkdirAll(m.tree+"/a/b", 0o700))
	m.must(os.WriteFile(m.tree+"/a/b/file", []byte("x"), 0o600))
	s, err := m.backup(t.Context())
	m.must(err)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(m.memory, "index.db")+"?_pragma=busy_timeout(60000)")
	m.must(err)
	defer db.Close()
	_, err = db.Exec("DELETE FROM pages WHERE path_key = ?", backup.PathKey("a/b"))
	m.must(err)
	_, err = m.walkLive(&s, false).Diff(t.Context(), "", func(*diff.Change) error { return nil })
	if !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("the error is %v", err)
	}
}

// TestLiveDiffOfAnotherTree removes a tree, and makes another in its place, as if nothing were
// mounted there.
func TestLiveDiffOfAnotherTree(t *testing.T) {
	m := newMachine(t)
	m.must(os.WriteFile(m.tree+"/file", []byte("x"), 0o600))
	s, err := m.backup(t.Context())
	m.must(err)
	m.must(os.Rename(m.tree, m.tree+".away"))
	defer os.RemoveAll(m.tree + ".away")
	shards, err := m.Index.ListShards(t.Context(), index.ShardFilter{})
	m.must(err)
	for range 2 { // gone, then empty
		_, err := embedded.WalkLive(t.Context(), m.Options, &shards[0], &s, nil, func(*backup.SliceWalked) {}, nil)
		if err == nil || !strings.Contains(err.Error(), "nothing is compared") {
			t.Errorf("the error is %v", err)
		}
		m.must(os.MkdirAll(m.tree, 0o700))
	}
}
