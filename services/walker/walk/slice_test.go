package walk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// unlimited is more time than any slice takes.
const unlimited = time.Hour

// budgetOf returns a budget that limits only directories.
func budgetOf(directories int) []budget {
	return []budget{{directories, 1 << 30, 1 << 30, unlimited}}
}

// withoutTimeLimits returns the budgets of a walker without their times, so that tests get the same
// slices on a slow machine.
func withoutTimeLimits(budgets []budget) []budget {
	budgets = slices.Clone(budgets)
	for i := range budgets {
		budgets[i].time = unlimited
	}
	return budgets
}

// However small the slices are, each directory is in exactly one of them.
func TestBudgets(t *testing.T) {
	tree := treetest.Tree{}
	for i := range 12 {
		for j := range 6 {
			tree[fmt.Sprintf("d%d/e%d/file", i, j)] = treetest.File("x")
		}
	}
	for name, b := range map[string]budget{
		"one directory":   {1, 1 << 30, 1 << 30, time.Hour},
		"few directories": {5, 1 << 30, 1 << 30, time.Hour},
		"one entry":       {1 << 30, 1, 1 << 30, time.Hour},
		"one byte":        {1 << 30, 1 << 30, 1, time.Hour},
		"no time":         {1 << 30, 1 << 30, 1 << 30, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tree)
			f.svc.budgets = []budget{b}
			w := f.snapshot()
			if len(w.parts) < 4 {
				t.Errorf("%d slices", len(w.parts))
			}
			f.wantEachOnce(w)
			f.wantTree(w)
		})
	}
}

// wantEachOnce fails the test unless each directory was listed once, and its pages sent once.
func (f *fixture) wantEachOnce(w walked) {
	f.Helper()
	files, directories := f.entries()
	if c := w.counts; c.StatCalls != files+directories || c.Directories != directories || c.Files != files {
		f.Errorf("%d stats, %d directories, %d files; the tree has %d directories, %d files",
			c.StatCalls, c.Directories, c.Files, directories, files)
	}
	seen := map[backup.PageName]bool{}
	for _, p := range w.pages {
		name := backup.PageName{Path: p.Path, Key: p.Key}
		if seen[name] {
			f.Errorf("page %v was sent twice", name)
		}
		seen[name] = true
	}
}

func TestCancelledSliceSendsNothing(t *testing.T) {
	f := newFixture(t, home)
	task := f.rootTask()
	ctx, cancel := contextCancelledAfterSends(f, 0)
	defer cancel()
	if err := f.walk(ctx, task); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for _, m := range f.take() {
		if m.Last {
			t.Errorf("a cancelled walk sent its last part: %+v", m)
		}
	}
}

// The concurrent operations of a slice do not deadlock: no locks are taken in different orders.
func TestSliceLocks(t *testing.T) {
	f := newFixture(t, home)
	task := f.rootTask()
	flight := f.svc.begin(task, nil)
	defer flight.end()
	tree, err := f.svc.open(t.Context(), flight, &task.Job)
	must(t, err)
	defer tree.Close()
	s, err := newSlice(f.svc, flight, task, tree)
	must(t, err)
	s.budget = budgetOf(1 << 30)[0]
	s.end = time.Now().Add(time.Hour)
	s.mounts.add("mounted")
	s.findings.check = func(context.Context) error { s.mounts.all(); return nil }
	var group errgroup.Group
	for _, does := range []func() error{
		func() error { s.done([]string{"d"}, 1); return nil },
		func() error { s.next(); return nil },
		func() error { s.mounts.add("mounted"); return nil },
		func() error { s.mounts.all(); return nil },
		func() error { return s.findings.children(t.Context(), []string{"mounted/d"}, 0) },
		func() error {
			return s.findings.add(t.Context(), contribution{path: "mounted", toRead: []pageToRead{{files: batchFiles}}})
		},
	} {
		group.Go(func() error {
			for range 10_000 {
				if err := does(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, group.Wait())
}

// Random trees, changes and budgets: each snapshot equals the current tree, each directory is
// walked once, and unchanged pages are not sent.
func TestAnyTree(t *testing.T) {
	f := newFixture(t, nil)
	top := t.TempDir()
	testtarget.Checks(t, "20") // of five snapshots each
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		f.dir = filepath.Join(top, fmt.Sprint("tree", runs))
		must(t, os.Mkdir(f.dir, 0o755))
		f.newShard(fmt.Sprint("shard", runs))
		f.svc.opts.Directories = rapid.SampledFrom([]int{1, 2, 16}).Draw(rt, "directories at a time")
		f.svc.spillEntries = rapid.SampledFrom([]int{2, 5, spillEntries}).Draw(rt, "entries in memory")
		for i := range 4 {
			f.svc.budgets = budgetOf(rapid.SampledFrom([]int{1, 2, 3, 10, 1000}).Draw(rt, "budget"))
			if i > 0 {
				change(rt, f.dir)
			}
			w := f.snapshot()
			f.wantEachOnce(w)
			f.wantTree(w)
		}
		again := f.snapshot()
		again.wantPages(t)
		if len(again.ended)+len(again.removed) > 0 {
			t.Errorf("an unchanged tree: ended %v, removed %q", again.ended, again.removed)
		}
	})
}

// change makes some random changes to the tree.
func change(rt *rapid.T, dir string) {
	path := rapid.Custom(func(rt *rapid.T) string {
		return filepath.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "a b", "a!", "a\xff", "b", "c"}), 1, 4).Draw(rt, "path")...)
	})
	for range rapid.IntRange(1, 12).Draw(rt, "changes") {
		at, to := filepath.Join(dir, path.Draw(rt, "at")), filepath.Join(dir, path.Draw(rt, "to"))
		switch rapid.SampledFrom([]string{"file", "file", "directory", "link", "remove", "rename"}).Draw(rt, "what") {
		case "file":
			if os.MkdirAll(filepath.Dir(at), 0o755) == nil { // not below a file
				_ = os.WriteFile(at, []byte(rapid.StringN(0, 5, 9).Draw(rt, "content")), 0o644)
			}
		case "directory":
			_ = os.MkdirAll(at, 0o755)
		case "link":
			_ = os.Symlink("a", at)
		case "remove":
			_ = os.RemoveAll(at)
		case "rename":
			_ = os.Rename(at, to)
		}
	}
}

// A directory that does not fit into memory yields the same pages as one that does.
func TestSpill(t *testing.T) {
	tree := merged(files("large", 3000), home)
	delete(tree, "bob/pipe")
	for i := range 100 {
		tree[fmt.Sprintf("large/file-%06d.d/file", 30*i)] = treetest.File("x")
	}
	f := newFixture(t, tree)
	want := pagesByName(f.snapshot())
	f.svc.spillEntries = 100
	w := f.snapshot()
	w.wantPages(t) // the same fingerprints as from memory
	f.newShard("again")
	w = f.snapshot()
	f.wantEachOnce(w)
	f.wantTree(w)
	f.removeFirstOfPage(w)
	f.wantTree(f.snapshot()) // the entries of the ended page are on others
	if got := pagesByName(w); !maps.Equal(got, want) {
		t.Errorf("%d pages through the file, %d from memory, or others", len(got), len(want))
	}
	for i := range 100 {
		f.remove(fmt.Sprintf("large/file-%06d.d", 30*i))
	}
	f.write("large/file-000777", "changed")
	w = f.snapshot()
	f.wantTree(w)
	if got := w.wanted(t); !slices.Equal(got, []string{"large/file-000777"}) {
		t.Errorf("to read %q", got)
	}
	if len(w.removed) != 100 {
		t.Errorf("%d directories removed, want 100", len(w.removed))
	}
	f.selection = backup.Selection{ExcludeIfPresent: []string{"file-002999"}}
	w = f.snapshot()
	if state := f.state(w); len(state) > len(home)*3 || state["large/"].Kind != backup.Directory {
		t.Errorf("%d entries with the large directory kept empty", len(state))
	}
}

// A moved directory that does not fit into memory is recognized, also if another exists at its old
// path.
func TestSpillMoved(t *testing.T) {
	tree := files("large", 1000)
	for _, sub := range []string{"both", "gone", "moved"} {
		tree["large/"+sub+"/file"] = treetest.File("x").WithMtime(longAgo)
	}
	f := newFixture(t, tree)
	f.svc.spillEntries = 100
	f.snapshot()
	f.rename("large", "moved")
	f.write("moved/file-000777", "changed")
	f.remove("moved/gone")
	must(t, os.MkdirAll(filepath.Join(f.dir, "large/both"), 0o755))
	f.write("large/both/file", "another one")
	w := f.snapshot()
	f.wantTree(w)
	if got, want := w.wanted(t), []string{"large/both/file", "moved/file-000777"}; !slices.Equal(got, want) {
		t.Errorf("to read %q, want %q", got, want)
	}
	w.wantRemoved(t, "large/gone", "large/moved")
	again := f.snapshot()
	again.wantPages(t)
	if len(again.ended)+len(again.removed) > 0 {
		t.Errorf("an unchanged tree: ended %v, removed %q", again.ended, again.removed)
	}
}

// The entries of all directories in memory are bounded, too: if others hold many, a smaller
// directory is sorted through a file.
func TestSpillForOthers(t *testing.T) {
	f := newFixture(t, files("large", 300))
	want := pagesByName(f.snapshot())
	f.svc.spillEntries = 400
	full := t.TempDir()
	for _, test := range []struct {
		held  int64
		spill bool
	}{{0, false}, {2 * 400, true}} {
		f.svc.buffered.Store(test.held)
		f.newShard(fmt.Sprint(test.held))
		if got := pagesByName(f.snapshot()); !maps.Equal(got, want) {
			t.Errorf("%d entries held: other pages", test.held)
		}
		if got := f.svc.buffered.Load(); got != test.held {
			t.Errorf("%d entries are held afterwards, and were %d before", got, test.held)
		}
		t.Run("without space", func(t *testing.T) {
			task := f.rootTask()
			t.Setenv("TMPDIR", filepath.Join(full, "missing"))
			if err := f.walk(t.Context(), task); (err != nil) != test.spill {
				t.Errorf("%d entries held by others: error %v", test.held, err)
			}
			f.take()
		})
	}
}

// removeFirstOfPage removes the first file of a page, and with it the page's key.
func (f *fixture) removeFirstOfPage(w walked) {
	f.Helper()
	for _, v := range w.pages {
		p, err := listing.DecodePage(v)
		must(f, err)
		if p.Key != 0 && p.Entries[0].Kind == backup.File {
			f.remove(backup.Join(p.Path, p.Entries[0].Name))
			return
		}
	}
	f.Fatal("there is no page but the first")
}

// A name that is in several runs, because the directory changed, is returned once.
func TestMerge(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "runs"))
	must(t, err)
	s := &runFile{file: file}
	defer s.close()
	for _, names := range []string{"bd", "", "abc", "cd", "d"} {
		var entries []backup.Entry
		for _, name := range names {
			entries = append(entries, backup.Entry{Name: string(name), Kind: backup.FIFO, Inode: uint64(name)})
		}
		must(t, s.write(entries))
	}
	m, err := s.merge()
	must(t, err)
	var got strings.Builder
	for {
		entries, err := m.next(nil, 1)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		for i := range entries {
			got.WriteString(entries[i].Name)
		}
	}
	if got.String() != "abcd" {
		t.Errorf("merged %q, want abcd", got.String())
	}
}

func pagesByName(w walked) map[backup.PageName]string {
	pages := map[backup.PageName]string{}
	for _, p := range w.pages {
		pages[backup.PageName{Path: p.Path, Key: p.Key}] = fmt.Sprintf("%x %d %x", p.Fingerprint, p.Inode, p.Listing)
	}
	return pages
}

// If temporary space is full, the directory is not blamed: the task is retried.
func TestSpillWithoutSpace(t *testing.T) {
	f := newFixture(t, files("large", 300))
	f.snapshot()
	task := f.rootTask()
	f.svc.spillEntries = 100
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	if err := f.walk(t.Context(), task); err == nil || !strings.Contains(err.Error(), "sort a large directory") {
		t.Errorf("error %v", err)
	}
	if sent := f.take(); len(sent) > 0 {
		t.Errorf("sent %+v", sent)
	}
}

// A result that is larger than a message is sent in parts, which count as one.
func TestParts(t *testing.T) {
	f := newFixture(t, linksOfParts())
	f.svc.budgets = budgetOf(1000)
	w := f.snapshot()
	if len(w.parts) < 2 {
		t.Fatalf("%d parts", len(w.parts))
	}
	for i, p := range w.parts {
		if p.Part != int32(i) || p.Last != (i == len(w.parts)-1) {
			t.Errorf("message %d is part %d, last %v", i, p.Part, p.Last)
		}
	}
	f.wantEachOnce(w)
	f.wantTree(w)
}

// An attempt that fails after a part was sent may be made again: its parts are distinguished from
// those of the first try.
func TestPartsThenCancelled(t *testing.T) {
	f := newFixture(t, linksOfParts())
	f.svc.budgets = budgetOf(1000)
	task := f.rootTask()
	ctx, cancel := contextCancelledAfterSends(f, 1)
	defer cancel()
	if err := f.walk(ctx, task); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	first := f.take()
	if len(first) != 1 || first[0].Last {
		t.Fatalf("%d messages sent", len(first))
	}
	if err := f.walk(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	again := f.take()
	for _, m := range again {
		if m.Run != again[0].Run || m.Run == first[0].Run {
			t.Errorf("part %d of run %x, after %x; the try before was %x", m.Part, m.Run, again[0].Run, first[0].Run)
		}
	}
}

// linksOfParts returns a tree whose listings need several messages: symlinks need no reader, and
// their targets do not compress.
func linksOfParts() treetest.Tree {
	tree := treetest.Tree{}
	for i := range 30 {
		for j := range 100 {
			tree[fmt.Sprintf("dir-%02d/link-%03d", i, j)] = treetest.Symlink(noise(i*1000+j, 400))
		}
	}
	return tree
}

// Any number of paths and names fit into their messages.
func TestNamesFit(t *testing.T) {
	f := newFixture(t, nil)
	r := newFindings(f.svc, f.rootTask())
	for i := range 100_000 {
		must(t, r.ended(t.Context(), backup.PageName{Key: 1<<53 - backup.PageKey(i)}))
		must(t, r.removed(t.Context(), fmt.Sprint(i)))
	}
	directories := make([]string, 60_000)
	for i := range directories {
		directories[i] = fmt.Sprint(i)
	}
	must(t, r.children(t.Context(), directories, 0))
	must(t, r.finish(t.Context()))
	var w walked
	w.add(f.take())
	for _, p := range w.parts {
		for i := range p.Children {
			if !slices.IsSortedFunc(p.Children[i].Directories, comparePaths) {
				t.Errorf("child %d is out of order", i)
			}
		}
	}
	if len(w.ended) != 100_000 || len(w.removed) != 100_000 || w.children != len(directories) {
		t.Errorf("%d ended, %d removed, %d children", len(w.ended), len(w.removed), w.children)
	}
}

// A later slice makes more children of the same directories if a filer is slow.
func TestChildrenOfASlowFiler(t *testing.T) {
	f := newFixture(t, nil)
	task := f.rootTask()
	for _, test := range []struct {
		each        time.Duration
		directories int
		want        int
	}{{0, 16, 1}, {time.Millisecond, 16, 1}, {time.Millisecond, 17, 2}, {400 * time.Millisecond, 16, 4}, {2 * time.Second, 6, 6}, {time.Minute, 100, laterChildren}} {
		r := newFindings(f.svc, task)
		for range 3 {
			r.walked(test.each)
		}
		directories := make([]string, test.directories)
		for i := range directories {
			directories[i] = fmt.Sprint(i)
		}
		must(t, r.children(t.Context(), directories, earlyGenerations))
		if n := len(r.part.Children); n != test.want {
			t.Errorf("%d directories of %v each: %d children, want %d", test.directories, test.each, n, test.want)
		}
	}
}

func TestComparePaths(t *testing.T) {
	path := rapid.Custom(func(rt *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("a!\x01\u00ff")), 1, 3, -1), 0, 3).Draw(rt, "names"), "/")
	})
	rapid.Check(t, func(rt *rapid.T) {
		a, b := path.Draw(rt, "a"), path.Draw(rt, "b")
		if got, want := comparePaths(a, b), slices.Compare(backup.PathKey(a), backup.PathKey(b)); got != want {
			rt.Errorf("%q and %q compare as %d, their keys as %d", a, b, got, want)
		}
	})
}

// noise returns text that does not compress well.
func noise(seed, length int) string {
	var b strings.Builder
	x := uint64(seed)*2654435761 + 1
	for b.Len() < length {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		fmt.Fprintf(&b, "%x", x)
	}
	return b.String()[:length]
}

// The slower a filer answers, the smaller are the batches of its files, so that several readers
// share them.
func TestBatchesOfASlowFilerAreSmall(t *testing.T) {
	for _, test := range []struct {
		latency time.Duration
		batches int
	}{{10 * time.Microsecond, 1}, {500 * time.Microsecond, 2}, {5 * time.Millisecond, 10}, {time.Minute, 10}} {
		f := newFixture(t, nil)
		conn := inProcess(t)
		r := newFindings(New(conn, f.index, nil, flow.NewReporter(conn, "walker"), Options{}), &backup.WalkTask{})
		const directories, files = 10, 100
		for range directories {
			must(t, r.add(t.Context(), contribution{
				toRead:  []pageToRead{{PageVersion: backup.PageVersion{Listing: make([]byte, 1000)}, files: files, bytes: files}},
				counts:  backup.Counts{Files: files, StatCalls: files + 1},
				latency: test.latency,
			}))
		}
		must(t, r.endBatch(t.Context()))
		if got := len(r.part.Batches); got != test.batches {
			t.Errorf("%v a stat: %d batches of %d directories with %d files, want %d", test.latency, got, directories, files, test.batches)
		}
	}
}

// The total size of sparse files can exceed an int64: a user who makes such files must not break
// the backups of the shard.
func TestFilesLargerThanAllDisks(t *testing.T) {
	f := newFixture(t, treetest.Tree{"big": treetest.Dir(), "small": treetest.File("s")})
	treetest.Tmpfs(t, filepath.Join(f.dir, "big"))
	for _, name := range []string{"a", "b", "c"} {
		path := filepath.Join(f.dir, "big", name)
		must(t, os.WriteFile(path, []byte("content"), 0o600))
		must(t, os.Truncate(path, 7<<60))
	}
	for range 2 {
		w := f.snapshot()
		w.wantProblems(t)
		if w.counts.Bytes != backup.MaxCount || w.counts.Files != 4 {
			t.Errorf("counts %+v", w.counts)
		}
	}
}
