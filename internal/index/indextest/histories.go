package indextest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// An action is the set of changes that one snapshot finds.
type action struct {
	name    string
	removed []string
	ended   []backup.PageName
	pages   []backup.PageVersion
	read    []backup.PageVersion // pages that a batch adds later
}

// Actions change these pages: two of one directory, and one below it.
var actionPages = []backup.PageName{{Path: "a"}, {Path: "a", Key: 7}, {Path: "a/b"}}

// numbered returns one of actionPages, in one of its states.
func numbered(page int, content string) backup.PageVersion {
	p := pageOf(actionPages[page].Path, content)
	if p.Key = actionPages[page].Key; p.Key != 0 {
		p.Inode = 0
	}
	return p
}

// The first snapshot finds all pages, each later one any of the other actions.
var (
	actionOfFirst = action{name: "all", pages: []backup.PageVersion{numbered(0, "1"), numbered(1, "1"), numbered(2, "1")}}
	actions       = []action{
		{name: "nothing"},
		{name: "change", pages: []backup.PageVersion{numbered(0, "2")}, read: []backup.PageVersion{numbered(2, "2")}},
		{name: "end, and add one again", ended: actionPages[1:], pages: []backup.PageVersion{numbered(1, "1")}},
		{name: "remove", removed: []string{"a"}},
		{name: "remove, and add some again", removed: []string{"a"}, pages: []backup.PageVersion{numbered(0, "1")}, read: []backup.PageVersion{numbered(2, "1")}},
	}
)

// A shardModel is the expected state of a shard in the index.
type shardModel struct {
	pages       model
	interrupted map[backup.PageName]string
	committed   []committedModel
}

func (m *shardModel) base() (s backup.Snapshot) {
	if n := len(m.committed); n > 0 {
		return m.committed[n-1].Snapshot
	}
	return s
}

// after returns the pages after an action, and which of them are new versions.
func (m *shardModel) after(a *action) (next, begun model) {
	next, begun = maps.Clone(m.pages), model{}
	maps.DeleteFunc(next, func(n backup.PageName, _ backup.PageVersion) bool {
		return slices.Contains(a.ended, n) || slices.ContainsFunc(a.removed, func(path string) bool { return within(n.Path, path) })
	})
	for _, p := range slices.Concat(a.pages, a.read) {
		name := backup.PageName{Path: p.Path, Key: p.Key}
		if old, ok := next[name]; !ok || !reflect.DeepEqual(old, p) {
			next[name], begun[name] = p, p
		}
	}
	return next, begun
}

// testHistories takes snapshots of shards, in all possible histories of four: each snapshot finds
// one of a few sets of changes, and is committed or fails. In every order, committed snapshots keep
// their content, the next snapshot begins with the content of the last committed one, the sets of
// pages add up (commit checks that), and content of failed snapshots is kept. make test-long runs
// more of them than other targets, and make test-exhaustive all.
func testHistories(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	every := 23
	switch {
	case testtarget.Runs(testtarget.Exhaustive):
		every = 1
	case testtarget.Runs(testtarget.Often):
		every = 11
	case testing.Short():
		every = 37
	}
	var list []*steps
	n := 0
	for _, first := range []bool{false, true} {
		for second := range 2 * len(actions) {
			for third := range 2 * len(actions) {
				for last := range actions { // if it failed, no later snapshot could show an error
					if n++; n%every == 0 {
						list = append(list, f.newSteps(fmt.Sprint("history ", n), []step{
							{&actionOfFirst, first}, {&actions[second/2], second%2 == 0}, {&actions[third/2], third%2 == 0}, {&actions[last], true},
						}))
					}
				}
			}
		}
	}
	// The histories advance together, so that one call has the results of many.
	for i := range len(list[0].steps) {
		for group := range slices.Chunk(list, 100) {
			f.takeStep(i, group)
		}
	}
}

// A step is one snapshot: its changes, and whether it is committed.
type step struct {
	*action
	commits bool
}

// steps are the snapshots of one shard.
type steps struct {
	shardModel
	name  string
	shard backup.Shard
	steps []step
	runs  backup.Snapshot
}

func (f *fixture) newSteps(name string, list []step) *steps {
	f.Helper()
	shard, err := f.x.AddShard(f.ctx, backup.Shard{Filer: f.shard.Filer, Name: name, Source: "posix:///srv"})
	f.must(err)
	for _, s := range list {
		name += fmt.Sprintf(", %s: %t", s.name, s.commits)
	}
	return &steps{shardModel: shardModel{pages: model{}, interrupted: map[backup.PageName]string{}}, name: name, shard: shard, steps: list}
}

// takeStep takes the snapshots of some shards that have this number among their steps.
func (f *fixture) takeStep(number int, list []*steps) {
	f.Helper()
	of := map[backup.SnapshotID]*steps{}
	for _, h := range list {
		f.shard = h.shard
		h.runs = f.begin()
		of[h.runs.ID] = h
		if s := h.runs; int(s.Number) != number+1 || s.Base != h.base().Number || s.BaseID != h.base().ID || s.Interrupted != (len(h.interrupted) > 0) {
			f.Fatalf("%s: begins as %d on %d (%s), interrupted: %t", h.name, s.Number, s.Base, s.BaseID, s.Interrupted)
		}
	}
	everything := index.Claim{Lease: time.Hour, Limit: 10_000, Now: f.now}
	tasks, err := f.x.ClaimTasks(f.ctx, everything)
	f.must(err)
	var results []index.Result
	for _, task := range tasks {
		a := of[task.Job.Snapshot].steps[number].action
		r := SliceOf(task)
		r.Removed, r.Ended, r.Pages = a.removed, a.ended, a.pages
		if len(a.read) > 0 {
			r.Batches = reads([][]backup.PageVersion{a.read})
		}
		results = append(results, index.Result{Slice: r})
	}
	f.accept(results...)
	batches, err := f.x.ClaimBatches(f.ctx, everything)
	f.must(err)
	results = results[:0]
	for _, batch := range batches {
		results = append(results, index.Result{Batch: storedOf(batch)})
	}
	f.accept(results...)
	for _, h := range list {
		f.shard = h.shard
		f.endStep(h, &h.steps[number])
		seen := h.committed
		if last := len(seen) - 1; number < len(h.steps)-1 && last > 0 {
			seen = seen[last:] // the others are checked at the end
		}
		f.check(h.name, &h.shardModel, seen)
	}
}

// endStep ends the running snapshot.
func (f *fixture) endStep(h *steps, s *step) {
	f.Helper()
	next, begun := h.after(s.action)
	if s.commits {
		f.commit(h.runs)
		h.pages, h.interrupted = next, map[backup.PageName]string{}
		h.committed = append(h.committed, committedModel{h.runs, next})
		return
	}
	f.fail(h.runs.ID, "")
	for page, p := range begun {
		h.interrupted[page] = contentOf(p.Listing)
	}
}

// check compares the index's state of a shard, and of some of its snapshots, with the model.
func (f *fixture) check(name string, m *shardModel, committed []committedModel) {
	f.Helper()
	for _, c := range committed {
		got := model{}
		for p, err := range f.x.Pages(f.ctx, c.ID, "") {
			f.must(err)
			got[backup.PageName{Path: p.Path, Key: p.Key}] = asPut(f, p)
		}
		if !reflect.DeepEqual(got, c.pages) {
			f.Fatalf("%s: snapshot %d has %v, want %v", name, c.Number, got, c.pages)
		}
	}
	for i, content := range f.listInterrupted(actionPages...) {
		if want, ok := m.interrupted[actionPages[i]]; ok && content != want || !ok && content != "-" {
			f.Fatalf("%s: interrupted page %+v has %q, want %q", name, actionPages[i], content, want)
		}
	}
}
