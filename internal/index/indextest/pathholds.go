package indextest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// heldTree is what a snapshot has: for each directory, the snapshot that began the version of its
// page, and the content that listingOf was given.
type heldTree map[string]struct {
	began   backup.SnapshotNumber
	content string
}

// version returns what identifies the version of a path: empty if the tree does not have it. The
// pages of this suite list no directories, so that a directory and a file may have the same path.
func (t heldTree) version(path string) string {
	if _, ok := t[path]; ok {
		var b strings.Builder
		for _, dir := range slices.Sorted(maps.Keys(t)) {
			if dir == path || strings.HasPrefix(dir, path+"/") {
				fmt.Fprintf(&b, "%s since %d;", dir, t[dir].began)
			}
		}
		return b.String()
	}
	dir, name := backup.Split(path)
	page, ok := t[dir]
	switch {
	case !ok:
		return ""
	case name == "content":
		return "file " + page.content
	case strings.HasPrefix(name, "same "):
		return "file"
	}
	return ""
}

// A heldHistory is a shard with holds on paths, and a model of it.
type heldHistory struct {
	*fixture
	*rand.Rand
	snapshots []backup.Snapshot // that are left, by number
	trees     map[backup.SnapshotID]heldTree
	paths     map[int64]string          // of holds
	versions  map[int64]map[string]bool // that holds have seen
}

// heldDirectories are those of which a random snapshot changes some.
var heldDirectories = []string{"", "a", "a/b", "a/b/c", "a/content", "a\x01", "ab"}

// commitRandom commits a snapshot with random changes.
func (h *heldHistory) commitRandom() {
	tree := heldTree{}
	if n := len(h.snapshots); n > 0 {
		tree = maps.Clone(h.trees[h.snapshots[n-1].ID])
	}
	s := h.begin()
	result := SliceOf(h.claimTask(s))
	for _, dir := range heldDirectories {
		if slices.ContainsFunc(result.Removed, func(gone string) bool { return strings.HasPrefix(dir, gone+"/") }) {
			continue
		}
		was, there := tree[dir]
		parent, _ := backup.Split(dir)
		if _, ok := tree[parent]; !ok && dir != "" {
			continue
		}
		switch n := h.IntN(10); {
		case n == 0 && dir != "" && there:
			result.Removed = append(result.Removed, dir)
			maps.DeleteFunc(tree, func(of string, _ struct {
				began   backup.SnapshotNumber
				content string
			}) bool {
				return of == dir || strings.HasPrefix(of, dir+"/")
			})
		case n < 4 || dir == "" && !there:
			content := fmt.Sprint(h.IntN(3))
			if there && content == was.content {
				continue
			}
			was.began, was.content = s.Number, content
			tree[dir] = was
			result.Pages = append(result.Pages, pageOf(dir, content))
		}
	}
	h.accept(index.Result{Slice: result})
	h.commit(s)
	h.must(h.x.Recorded(h.ctx, s.ID))
	h.snapshots, h.trees[s.ID] = append(h.snapshots, s), tree
	h.see()
}

// see notes the versions that holds must keep from now on.
func (h *heldHistory) see() {
	for id, path := range h.paths {
		for _, s := range h.snapshots {
			if v := h.trees[s.ID].version(path); v != "" {
				h.versions[id][v] = true
			}
		}
	}
}

// held reports whether a hold keeps the snapshot h.snapshots[at].
func (h *heldHistory) held(at int) bool {
	for _, path := range h.paths {
		version := h.trees[h.snapshots[at].ID].version(path)
		if version != "" && (at+1 == len(h.snapshots) || h.trees[h.snapshots[at+1].ID].version(path) != version) {
			return true
		}
	}
	return false
}

// check compares the index with the model.
func (h *heldHistory) check() {
	h.Helper()
	held, err := h.x.HeldByPaths(h.ctx, h.shard.ID)
	h.must(err)
	for at, s := range h.snapshots {
		if _, ok := held[s.ID]; ok != h.held(at) {
			h.Fatalf("snapshot %d of %d that are left: held by %d, want %v\ntrees %v\nholds %v", s.Number, len(h.snapshots), held[s.ID], h.held(at), h.trees, h.paths)
		}
	}
	for id, versions := range h.versions {
		left := map[string]bool{}
		for _, s := range h.snapshots {
			left[h.trees[s.ID].version(h.paths[id])] = true
		}
		for v := range versions {
			if !left[v] {
				h.Fatalf("hold %d has lost version %q of %q", id, v, h.paths[id])
			}
		}
	}
}

// forgetRandom tries to forget a snapshot, and compares the result with the model.
func (h *heldHistory) forgetRandom() {
	h.Helper()
	if len(h.snapshots) < 2 {
		return
	}
	at := h.IntN(len(h.snapshots) - 1) // the last good one is never forgotten
	s := h.snapshots[at]
	if h.held(at) {
		h.wants(h.forget(s), index.ErrKept)
		return
	}
	h.must(h.forget(s))
	h.snapshots = slices.Delete(h.snapshots, at, at+1)
}

func (h *heldHistory) holdRandom() {
	h.Helper()
	paths := []string{"a", "a/b", "a/content", "a/same 00", "a/same 01", "a\x01", "content", "ab/content", "missing", "a/missing/same 00"}
	path := paths[h.IntN(len(paths))]
	hold, err := h.x.AddHold(h.ctx, index.Hold{Shard: h.shard.ID, Path: path, By: "operator"})
	if !slices.ContainsFunc(h.snapshots, func(s backup.Snapshot) bool { return h.trees[s.ID].version(path) != "" }) {
		h.wants(err, backup.ErrNotFound)
		return
	}
	h.must(err)
	h.paths[hold.ID], h.versions[hold.ID] = path, map[string]bool{}
	h.see()
}

func (h *heldHistory) releaseRandom() {
	h.Helper()
	for id := range h.paths {
		h.must(h.x.RemoveHold(h.ctx, id, "operator", ""))
		delete(h.paths, id)
		delete(h.versions, id)
		return
	}
}

// In random histories of backups, holds on paths and forgetting, the index keeps what a model
// keeps, and no version of a held path is lost.
func testPathHoldsInAnyOrder(t *testing.T, fresh func(testing.TB) Database) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f := newFixture(t, fresh)
	histories := 2
	if testtarget.Runs(testtarget.Often) {
		histories = 12
	}
	for history := range histories {
		f.shard = f.newShard("filer", fmt.Sprintf("history %d", history))
		h := &heldHistory{
			fixture: f, Rand: rand.New(rand.NewPCG(seed, uint64(history))), trees: map[backup.SnapshotID]heldTree{},
			paths: map[int64]string{}, versions: map[int64]map[string]bool{},
		}
		for range 5 {
			h.commitRandom()
		}
		for range 40 {
			switch n := h.IntN(12); {
			case n < 3:
				h.commitRandom()
			case n < 5:
				h.holdRandom()
			case n == 5 && h.IntN(3) == 0:
				h.releaseRandom()
			case n == 6:
				_, err := f.x.DropVersions(f.ctx, f.shard.ID)
				f.must(err)
			default:
				h.forgetRandom()
			}
			h.check()
		}
	}
}

// A hold on a path keeps its versions, and not each snapshot; the log names it.
func testPathHolds(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	var all []backup.Snapshot
	for _, a := range []string{"1", "1", "2", "2", "2"} {
		all = append(all, f.commitRecorded(pageOf("", "root"), pageOf("a", a), pageOf("other", fmt.Sprint(len(all)))))
	}
	gone := f.walk(func(r *backup.SliceWalked) { r.Removed = []string{"a"} })
	f.commit(gone)
	f.must(f.x.Recorded(f.ctx, gone.ID))
	all = append(all, gone, f.commitRecorded(pageOf("other", "last")))

	add := func(path string) index.Hold {
		t.Helper()
		hold, err := f.x.AddHold(f.ctx, index.Hold{Shard: f.shard.ID, Path: path, By: "alice", Reason: "case 1"})
		f.must(err)
		return hold
	}
	hold, file := add("a"), add("a/content")
	holds, err := f.x.Holds(f.ctx)
	f.must(err)
	if !slices.Equal(holds, []index.Hold{hold, file}) || hold.Path != "a" || hold.Shard != f.shard.ID {
		t.Fatalf("holds %+v", holds)
	}
	held, err := f.x.HeldByPaths(f.ctx, f.shard.ID)
	f.must(err)
	if len(held) != 2 || held[all[1].ID] == 0 || held[all[4].ID] == 0 {
		t.Fatalf("held %v, want the second and the fifth snapshot", held)
	}
	for _, n := range []int{1, 4} {
		f.wants(f.forget(all[n]), index.ErrKept)
	}
	for _, n := range []int{5, 3, 0, 2} {
		f.must(f.forget(all[n]))
	}
	for _, h := range []index.Hold{
		{By: "a", Path: "a", Snapshot: all[1].ID}, {By: "a", Path: "/a", Shard: f.shard.ID}, {By: "a", Path: "a/../b", Shard: f.shard.ID},
		{By: "a", Path: strings.Repeat("a/", 600) + "a", Shard: f.shard.ID},
	} {
		_, err := f.x.AddHold(f.ctx, h)
		f.wants(err, backup.ErrInvalid)
	}
	for _, path := range []string{"b", "a/nothing", "a/content/nothing"} {
		_, err := f.x.AddHold(f.ctx, index.Hold{By: "a", Path: path, Shard: f.shard.ID})
		f.wants(err, backup.ErrNotFound)
	}
	f.must(f.x.RemoveHold(f.ctx, hold.ID, "bob", "closed"))
	f.wants(f.forget(all[1]), index.ErrKept) // by the other one
	f.must(f.x.RemoveHold(f.ctx, file.ID, "bob", ""))
	f.must(f.forget(all[1]))

	subject := func(h index.Hold) string { return fmt.Sprintf("hold %d shard %d", h.ID, f.shard.ID) }
	forgotten := func(n int) string { return fmt.Sprintf("operator: forget %s: no longer wanted", all[n].ID) }
	f.wantLog(
		"alice: hold "+subject(hold)+`: path "a": case 1`, "alice: hold "+subject(file)+`: path "a/content": case 1`,
		forgotten(5), forgotten(3), forgotten(0), forgotten(2),
		"bob: release "+subject(hold)+`: path "a": closed`, "bob: release "+subject(file)+`: path "a/content": `,
		forgotten(1),
	)
}
