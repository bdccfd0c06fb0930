package walk

import (
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// within is how long a test waits for an event that must happen.
const within = 60 * time.Second

// A fixture is a shard, its index, and a walker whose results it keeps.
type fixture struct {
	testing.TB
	index     *sqliteindex.Index
	dir       string // the shard's root
	shard     backup.Shard
	selection backup.Selection
	compare   backup.Compare
	snapshots string // the shard's pattern
	svc       *Service
	source    *faultsource.Source
	now       time.Time       // returned by trees: late enough that nothing is racy
	request   backup.Snapshot // AllowShrink and the like of the next snapshot

	mu   sync.Mutex
	sent []*backup.SliceWalked
}

func newFixture(t testing.TB, tree treetest.Tree) *fixture {
	t.Helper()
	x, err := sqliteindex.Open(t.Context(), filepath.Join(t.TempDir(), "index"))
	must(t, err)
	t.Cleanup(func() { x.Close() })
	_, _, err = x.Migrate(t.Context())
	must(t, err)
	f := &fixture{TB: t, index: x, dir: filepath.Join(t.TempDir(), "shard"), now: time.Now().Add(time.Hour)}
	treetest.Make(t, f.dir, tree)
	f.source = faultsource.New(posix.New(posix.Options{}))
	f.source.SetClock(func() (time.Time, time.Duration) { return f.now, posix.DefaultGrain })
	f.svc = New(nil, x, f.source, flow.NewReporter(nil, "walker"), Options{})
	f.svc.budgets, f.svc.scarceTime = withoutTimeLimits(budgets), unlimited
	f.svc.send = f.keep
	f.newShard("home")
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) newShard(name string) {
	f.Helper()
	filer, err := f.index.EnsureFiler(f.Context(), "filer")
	must(f, err)
	f.shard, err = f.index.EnsureShard(f.Context(), filer.ID, name, posix.URL(f.dir))
	must(f, err)
}

// keep receives the messages instead of a publisher. No message may be too large.
func (f *fixture) keep(_ context.Context, m *backup.SliceWalked) error {
	size, err := flow.SizeOf(flow.Slices, m)
	if err != nil || size > flow.MaxMessageBytes {
		f.Errorf("message of %d bytes: %v", size, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, m)
	return nil
}

// take returns the messages sent since the last call.
func (f *fixture) take() []*backup.SliceWalked {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := f.sent
	f.sent = nil
	return sent
}

// walk makes one attempt at a task.
func (f *fixture) walk(ctx context.Context, task *backup.WalkTask) error { return f.look(ctx, task, 1) }

// look is walk at one of several looks at the task.
func (f *fixture) look(ctx context.Context, task *backup.WalkTask, looks int) error {
	flight := f.svc.begin(task, nil)
	defer flight.end()
	flight.looks = looks
	return f.svc.walk(ctx, flight)
}

func (f *fixture) begin() backup.Snapshot {
	f.Helper()
	s, err := f.index.BeginSnapshot(f.Context(), f.shard.ID, backup.Snapshot{
		ID: backup.NewSnapshotID(), Selection: f.selection, AllowShrink: f.request.AllowShrink, NewRoot: f.request.NewRoot,
	}, f.now)
	must(f, err)
	return s
}

func (f *fixture) claim(s backup.Snapshot) index.Claim {
	return index.Claim{Snapshots: []backup.SnapshotID{s.ID}, Lease: time.Hour, Limit: 1000, Now: f.now}
}

// rootTask begins a snapshot and claims its first task.
func (f *fixture) rootTask() *backup.WalkTask {
	f.Helper()
	tasks, err := f.index.ClaimTasks(f.Context(), f.claim(f.begin()))
	must(f, err)
	if len(tasks) != 1 {
		f.Fatalf("%d tasks of a new snapshot", len(tasks))
	}
	return &tasks[0]
}

// A walked is the combined result of the walks of one snapshot.
type walked struct {
	id       backup.SnapshotID
	parts    []*backup.SliceWalked
	pages    []backup.PageVersion // of all parts and batches
	batches  int
	ended    []backup.PageName
	removed  []string
	children int    // directories in child tasks
	source   string // snapshot that was taken
	counts   backup.Counts
	problems []string // path: op
}

// snapshot walks the shard until no task is left, applies all results, and commits the snapshot,
// with generated content.
func (f *fixture) snapshot() walked {
	f.Helper()
	s := f.begin()
	w := walked{id: s.ID}
	for {
		tasks, err := f.index.ClaimTasks(f.Context(), f.claim(s))
		must(f, err)
		if len(tasks) == 0 {
			break
		}
		for i := range tasks {
			f.wantInOrder(&tasks[i])
			tasks[i].Job.Compare = f.compare
			f.nameSnapshots(&tasks[i], &w)
			must(f, f.walk(f.Context(), &tasks[i]))
			w.add(f.apply(f.take()...))
		}
	}
	f.readBatches(s)
	must(f, f.index.Commit(f.Context(), s.ID, backup.Segment{}, backup.PageSet{}, f.now))
	f.now = f.now.Add(time.Hour)
	return w
}

// nameSnapshots does what the index does if the shard has a pattern: the root task gets the
// pattern, and the others get the snapshot that it found.
func (f *fixture) nameSnapshots(task *backup.WalkTask, w *walked) {
	if task.Generation == 0 {
		task.Job.Snapshots = f.snapshots
	} else if w.source != "" {
		task.Job.Source, task.Job.Snapshots = w.source, ""
	}
}

func (f *fixture) wantInOrder(task *backup.WalkTask) {
	f.Helper()
	if !slices.IsSortedFunc(task.Directories, func(a, b string) int { return slices.Compare(backup.PathKey(a), backup.PathKey(b)) }) {
		f.Errorf("task %d starts from directories out of order: %q", task.ID, task.Directories)
	}
}

// apply makes the index accept results.
func (f *fixture) apply(parts ...*backup.SliceWalked) []*backup.SliceWalked {
	f.Helper()
	results := make([]index.Result, len(parts))
	for i, p := range parts {
		results[i].Slice = p
	}
	f.accept(results)
	return parts
}

func (f *fixture) accept(results []index.Result) {
	f.Helper()
	outcomes, err := f.index.Apply(f.Context(), results)
	must(f, err)
	for i, o := range outcomes {
		if o.Err != nil || o.Late {
			f.Fatalf("result %d of %d: %+v", i, len(outcomes), o)
		}
	}
}

// readBatches does the work of readers, with content derived from name and size.
func (f *fixture) readBatches(s backup.Snapshot) {
	f.Helper()
	for {
		batches, err := f.index.ClaimBatches(f.Context(), f.claim(s))
		must(f, err)
		if len(batches) == 0 {
			return
		}
		results := make([]index.Result, len(batches))
		for i := range batches {
			b := &batches[i]
			for j := range b.Pages {
				f.readPage(&b.Pages[j])
			}
			results[i].Batch = &backup.BatchStored{Snapshot: s.ID, Batch: b.ID, Attempt: b.Attempt, Pages: b.Pages}
		}
		f.accept(results)
	}
}

func (f *fixture) readPage(v *backup.PageVersion) {
	f.Helper()
	p, err := listing.DecodePage(*v)
	must(f, err)
	for i := range p.Entries {
		e := &p.Entries[i]
		if e.Flags&backup.Wanted != 0 {
			e.Content = contentOf(e)
			e.Flags = e.Flags.WithClass(backup.Unclassified)
		}
		e.Flags &^= backup.Wanted | backup.XattrsWanted
	}
	v.Listing, err = listing.Encode(nil, &p)
	must(f, err)
}

func contentOf(e *backup.Entry) backup.Content {
	if e.Kind != backup.File || e.Size == 0 {
		return backup.Content{}
	}
	sum := blake3.Sum256(binary.LittleEndian.AppendUint64([]byte(e.Name), uint64(e.Size)))
	return backup.Content{Refs: []backup.Ref{{Chunk: backup.ChunkID(sum[:16]), Length: e.Size, Span: e.Size}}}
}

func (w *walked) add(parts []*backup.SliceWalked) {
	w.parts = append(w.parts, parts...)
	for _, p := range parts {
		if p.Source != "" {
			w.source = p.Source
		}
		w.pages = append(w.pages, p.Pages...)
		w.batches += len(p.Batches)
		for _, b := range p.Batches {
			w.pages = append(w.pages, b.Pages...)
		}
		w.ended = append(w.ended, p.Ended...)
		w.removed = append(w.removed, p.Removed...)
		for _, c := range p.Children {
			w.children += len(c.Directories)
		}
		w.counts.Add(p.Counts)
		for _, problem := range p.Problems {
			w.problems = append(w.problems, problem.Path+": "+problem.Op)
		}
	}
	slices.Sort(w.removed)
	slices.Sort(w.problems)
}

// wantPages fails the test unless exactly these pages were sent; a page that is not its directory's
// first is "path+".
func (w *walked) wantPages(t testing.TB, want ...string) {
	t.Helper()
	got := make([]string, len(w.pages))
	for i, p := range w.pages {
		if got[i] = p.Path; p.Key != 0 {
			got[i] += "+"
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("pages of %q, want %q", got, want)
	}
}

func (w *walked) wantRemoved(t testing.TB, want ...string) {
	t.Helper()
	if !slices.Equal(w.removed, want) {
		t.Errorf("removed %q, want %q", w.removed, want)
	}
}

func (w *walked) wantProblems(t testing.TB, want ...string) {
	t.Helper()
	if !slices.Equal(w.problems, want) || w.counts.Errors != int64(len(want)) {
		t.Errorf("%d problems %q, want %q", w.counts.Errors, w.problems, want)
	}
}

// wanted returns the paths of files that readers were to read.
func (w *walked) wanted(t testing.TB) (paths []string) {
	t.Helper()
	for _, v := range w.pages {
		p, err := listing.DecodePage(v)
		must(t, err)
		for i := range p.Entries {
			if p.Entries[i].Flags&backup.Wanted != 0 {
				paths = append(paths, backup.Join(p.Path, p.Entries[i].Name))
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// state returns a committed snapshot, entry by entry, by path ("" is the root itself).
func (f *fixture) state(w walked) map[string]backup.Entry {
	f.Helper()
	state := map[string]backup.Entry{}
	for v, err := range f.index.Pages(f.Context(), w.id, "") {
		must(f, err)
		p, err := listing.DecodePage(v)
		must(f, err)
		if p.Self != nil {
			state[p.Path+"/"] = *p.Self
		}
		for _, e := range p.Entries {
			path := backup.Join(p.Path, e.Name)
			if _, twice := state[path]; twice {
				f.Errorf("%q is in the snapshot twice", path)
			}
			state[path] = e
		}
	}
	return state
}

// wantTree fails the test unless a snapshot equals the current tree, except for entries below the
// paths of except. A directory has two entries: its name in its parent, and its own, at its path
// and a slash.
func (f *fixture) wantTree(w walked, except ...string) {
	f.Helper()
	state := f.state(w)
	want := map[string]backup.Kind{}
	must(f, filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = strings.TrimPrefix(strings.TrimPrefix(path, f.dir), "/")
		if slices.Contains(except, path) {
			return fs.SkipDir
		}
		switch {
		case d.IsDir():
			want[path+"/"] = backup.Directory
		case d.Type() == 0:
			want[path] = backup.File
		default:
			want[path] = backup.Symlink
		}
		if d.IsDir() && path != "" {
			want[path] = backup.Directory
		}
		return nil
	}))
	for path, e := range state {
		if want[path] != e.Kind {
			f.Errorf("snapshot has %v %q; the tree has %v", e.Kind, path, want[path])
		}
		f.wantAsKernel(path, e)
	}
	for path, kind := range want {
		if _, ok := state[path]; !ok {
			f.Errorf("%v %q is not in the snapshot", kind, path)
		}
	}
	if f.Failed() {
		f.FailNow()
	}
}

// wantAsKernel compares an entry of a snapshot with the file.
func (f *fixture) wantAsKernel(path string, e backup.Entry) {
	f.Helper()
	if e.Kind == backup.Directory && !strings.HasSuffix(path, "/") {
		return
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(f.dir, path), &st); err != nil {
		f.Errorf("%q: %v", path, err)
		return
	}
	mtime, ctime := backup.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}, backup.Time{Sec: st.Ctim.Sec, Nsec: uint32(st.Ctim.Nsec)}
	if e.Mode != st.Mode&0o7777 || e.Inode != st.Ino || e.Mtime != mtime || e.Ctime != ctime || e.Kind == backup.File && e.Size != st.Size {
		f.Errorf("%q is stale in the snapshot: %+v", path, e)
	}
	if want := contentOf(&e); !slices.Equal(e.Content.Refs, want.Refs) {
		f.Errorf("%q has content %v, want %v", path, e.Content, want)
	}
}

// entries returns the numbers of the tree's entries that are not directories, and that are.
func (f *fixture) entries() (files, directories int64) {
	f.Helper()
	must(f, filepath.WalkDir(f.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			directories++
		} else {
			files++
		}
		return err
	}))
	return files, directories
}

func (f *fixture) write(path, content string) {
	f.Helper()
	must(f, os.WriteFile(filepath.Join(f.dir, path), []byte(content), 0o644))
}

func (f *fixture) remove(path string) {
	f.Helper()
	must(f, os.RemoveAll(filepath.Join(f.dir, path)))
}

func (f *fixture) rename(from, to string) {
	f.Helper()
	must(f, os.Rename(filepath.Join(f.dir, from), filepath.Join(f.dir, to)))
}

// files returns a tree of n files in one directory.
func files(dir string, n int) treetest.Tree {
	tree := treetest.Tree{}
	for i := range n {
		tree[fmt.Sprintf("%s/file-%06d", dir, i)] = treetest.File("")
	}
	return tree
}

func merged(trees ...treetest.Tree) treetest.Tree {
	all := treetest.Tree{}
	for _, tree := range trees {
		maps.Copy(all, tree)
	}
	return all
}
