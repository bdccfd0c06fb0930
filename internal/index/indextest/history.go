package indextest

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// testHistory makes random changes to a shard over several snapshots, some of which fail. It
// compares the content of each committed snapshot, and what failed ones have left, with a model.
func testHistory(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	shards := 0
	testtarget.FewerChecks(t, "15")
	rapid.Check(t, func(r *rapid.T) {
		shards++
		h := &history{fixture: f, r: r, pages: model{}, interrupted: map[backup.PageName]string{}}
		f.shard = f.newShard("filer", fmt.Sprint("history ", shards))
		for range rapid.IntRange(1, 6).Draw(r, "snapshots") {
			h.takeSnapshot()
		}
		h.check()
	})
}

// A model is the content of a snapshot: pages by their names.
type model map[backup.PageName]backup.PageVersion

type history struct {
	*fixture
	r           *rapid.T
	pages       model // the current pages
	interrupted map[backup.PageName]string
	committed   []committedModel
	put         map[backup.PageName]bool // by the running snapshot
}

type committedModel struct {
	backup.Snapshot
	pages model
}

func (h *history) takeSnapshot() {
	s := h.begin()
	before, next := h.pages, maps.Clone(h.pages)
	root := SliceOf(h.claimTask(s))
	h.put = map[backup.PageName]bool{}
	var batched []backup.PageVersion
	for range rapid.IntRange(0, 12).Draw(h.r, "changes") {
		page := h.change(root, next)
		if page != nil && rapid.Bool().Draw(h.r, "batched") {
			batched = append(batched, *page)
		} else if page != nil {
			root.Pages = append(root.Pages, *page)
		}
	}
	if len(batched) > 0 {
		wanted := slices.Clone(batched)
		for i := range wanted {
			wanted[i].Listing = listingOf("wanted " + contentOf(wanted[i].Listing))
		}
		root.Batches = reads([][]backup.PageVersion{wanted})
	}
	h.accept(index.Result{Slice: root})
	for _, b := range h.claimBatches(s) {
		stored := storedOf(b)
		stored.Pages = batched
		h.accept(index.Result{Batch: stored})
	}
	if rapid.IntRange(0, 3).Draw(h.r, "fails") == 0 {
		h.fail(s.ID, "the test says so")
		h.leave(root, before, next)
		h.checkInterrupted(before, next)
		return
	}
	h.checkChanges(s, before, next)
	h.commit(s)
	h.pages, h.interrupted = next, map[backup.PageName]string{}
	h.checkInterrupted(before, next)
	h.committed = append(h.committed, committedModel{s, maps.Clone(next)})
}

// leave notes what a failed snapshot leaves: the pages that it has put and that differ from those
// before.
func (h *history) leave(root *backup.SliceWalked, before, next model) {
	for name := range h.put {
		ended := slices.Contains(root.Ended, name) || slices.ContainsFunc(root.Removed, func(path string) bool { return within(name.Path, path) })
		if old, ok := before[name]; !ok || ended || !reflect.DeepEqual(old, next[name]) {
			h.interrupted[name] = contentOf(next[name].Listing)
		}
	}
}

// checkInterrupted queries all pages that the models have.
func (h *history) checkInterrupted(models ...model) {
	names := slices.Collect(maps.Keys(h.interrupted))
	for _, m := range models {
		names = slices.AppendSeq(names, maps.Keys(m))
	}
	for i, content := range h.listInterrupted(names...) {
		if want, ok := h.interrupted[names[i]]; ok && content != want || !ok && content != "-" {
			h.r.Fatalf("interrupted page %+v has %q, want %q", names[i], content, want)
		}
	}
}

var historyPath = rapid.Custom(func(r *rapid.T) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "a\xff", "a\x01", "a b"}), 0, 3).Draw(r, "path"), "/")
})

// change makes one change to next, adds to root what a walker would report of it, and returns the
// page that is new.
func (h *history) change(root *backup.SliceWalked, next model) *backup.PageVersion {
	path := historyPath.Draw(h.r, "directory")
	key := backup.PageKey(rapid.IntRange(0, 2).Draw(h.r, "key"))
	name := backup.PageName{Path: path, Key: key}
	switch rapid.IntRange(0, 5).Draw(h.r, "what") {
	case 0: // the directory is removed, and perhaps created again
		if path == "" {
			return nil
		}
		root.Removed = append(root.Removed, path)
		maps.DeleteFunc(next, func(n backup.PageName, _ backup.PageVersion) bool { return within(n.Path, path) && !h.put[n] })
		return nil
	case 1: // a page is removed
		root.Ended = append(root.Ended, name)
		if !h.put[name] {
			delete(next, name)
		}
		return nil
	}
	if h.put[name] { // a walker reports each page once
		return nil
	}
	h.put[name] = true
	page := pageOf(path, rapid.SampledFrom([]string{"", "one", "two"}).Draw(h.r, "content"))
	page.Key = key
	if key != 0 {
		page.Inode = 0
	}
	next[name] = page
	return &page
}

func within(path, directory string) bool {
	return directory == "" || path == directory || strings.HasPrefix(path, directory+"/")
}

// check compares every committed snapshot with its model, however old it is.
func (h *history) check() {
	for _, c := range h.committed {
		want := slices.SortedFunc(maps.Values(c.pages), comparePages)
		got := h.fixture.pages(c.Snapshot, "")
		for i := range got {
			got[i] = asPut(h.r, got[i])
		}
		if len(got) != len(want) {
			h.r.Fatalf("snapshot %d has %d pages %q, want %d %q", c.Number, len(got), paths(got), len(want), paths(want))
		}
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				h.r.Fatalf("snapshot %d: page %+v, want %+v", c.Number, got[i], want[i])
			}
		}
		marks, next, err := h.x.Marks(h.ctx, h.shard.ID, c.Number, nil, nil, 10_000)
		h.must(err)
		if len(marks) != len(want) || next != nil {
			h.r.Fatalf("snapshot %d has %d marks and more at %q, want %d", c.Number, len(marks), next, len(want))
		}
	}
}

// asPut returns a page from the index as it was put, that is, without the digest, which must match
// the page.
func asPut(r rapid.TB, p backup.PageVersion) backup.PageVersion {
	r.Helper()
	if p.Digest != listing.Digest(&p) {
		r.Fatalf("page %+v has not the digest that it should have", p)
	}
	p.Digest, p.Listing = backup.PageDigest{}, append([]byte{}, p.Listing...)
	return p
}

// checkChanges compares a snapshot's changes with the difference of the models.
func (h *history) checkChanges(s backup.Snapshot, before, next model) {
	var ended int
	state, began := maps.Clone(before), model{}
	for c, err := range h.x.Changes(h.ctx, s.ID) {
		h.must(err)
		name := backup.PageName{Path: c.Path, Key: c.Key}
		if c.Ended {
			ended++
			delete(state, name)
			continue
		}
		if ended > 0 {
			h.r.Fatal("a change that begins after one that ends")
		}
		began[name] = asPut(h.r, c.PageVersion)
	}
	maps.Copy(state, began)
	if !reflect.DeepEqual(state, next) {
		h.r.Fatalf("snapshot %d: its changes make %v of %v, want %v", s.Number, state, before, next)
	}
}

func comparePages(a, b backup.PageVersion) int {
	if c := bytes.Compare(backup.PathKey(a.Path), backup.PathKey(b.Path)); c != 0 {
		return c
	}
	return int(a.Key - b.Key)
}
