package restore

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A fixture is a snapshot made by hand, in a real store. Its catalog accepts everything, because an
// index may be hostile, and then contains what a real one refuses.
type fixture struct {
	t          testing.TB
	repository backup.RepositoryID
	snapshot   backup.SnapshotID
	store      store.Store
	opener     *seal.Opener
	sealer     *seal.Sealer
	key        seal.DedupKey
	hasher     *chunk.Hasher

	pages []backup.PageVersion
	at    map[backup.ChunkID]index.Location
	// copies are further places of chunks.
	copies map[backup.ChunkID][]index.Location
	id     backup.PackID
	pack   *pack.Writer
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	identity, recipient, err := seal.GenerateIdentity()
	check(t, err)
	opener, err := seal.NewOpener([]byte(identity + "\n"))
	check(t, err)
	sealer, err := seal.NewSealer([]string{recipient})
	check(t, err)
	s, err := dirstore.Create(t.TempDir())
	check(t, err)
	key := seal.NewDedupKey()
	f := &fixture{
		t: t, repository: backup.NewRepositoryID(), snapshot: backup.NewSnapshotID(), store: s, opener: opener, sealer: sealer, key: key,
		hasher: chunk.NewHasher([32]byte(key)), at: map[backup.ChunkID]index.Location{}, copies: map[backup.ChunkID][]index.Location{},
	}
	f.newPack()
	return f
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newPack starts another pack. The previous one is then in the store.
func (f *fixture) newPack() {
	f.t.Helper()
	if f.pack != nil && f.pack.Chunks() == 0 {
		return
	}
	if f.pack != nil {
		data, err := f.pack.Finish()
		check(f.t, err)
		check(f.t, f.store.Put(context.Background(), store.PackName(f.snapshot, f.id), data))
		for id, at := range f.at {
			if at.Pack == f.id {
				at.Bytes = int64(len(data))
				f.at[id] = at
			}
		}
	}
	f.id = backup.NewPackID()
	var err error
	f.pack, err = pack.NewWriter(pack.KindData, f.repository, f.id, f.sealer, nil)
	check(f.t, err)
}

// chunk stores a chunk and returns a ref of it, after a hole.
func (f *fixture) chunk(data []byte, hole int64) backup.Ref {
	f.t.Helper()
	hash := f.hasher.Sum(data)
	if _, ok := f.at[hash.ID()]; !ok {
		frame, err := f.pack.Add(pack.Frame{
			RawLength: len(data), Body: data, Chunks: []pack.Chunk{{Hash: hash, Length: uint32(len(data))}},
		})
		check(f.t, err)
		f.at[hash.ID()] = index.Location{
			PackPlace: index.PackPlace{Pack: f.id, Snapshot: f.snapshot, Object: f.id}, Frame: frame, Length: uint32(len(data)),
		}
	}
	return backup.Ref{Chunk: hash.ID(), Hole: hole, Length: int64(len(data)), Span: int64(len(data))}
}

// list stores a list chunk of refs and returns a content that refers to it.
func (f *fixture) list(depth int, refs ...backup.Ref) backup.Content {
	f.t.Helper()
	ref := f.chunk(listing.EncodeRefs(nil, backup.Content{Depth: depth - 1, Refs: refs}), 0)
	ref.Span = 0
	for _, r := range refs {
		ref.Span += r.Hole + r.Span
	}
	return backup.Content{Depth: depth, Refs: []backup.Ref{ref}}
}

var testTime = backup.Time{Sec: 1_600_000_000, Nsec: 123_456_789}

// entry returns an entry that belongs to the user who runs the test.
func entry(name string, kind backup.Kind) backup.Entry {
	return backup.Entry{
		Name: name, Kind: kind, Mode: 0o644, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Nlink: 1, Mtime: testTime, Inode: 7,
	}
}

// file returns a file of one chunk, or of none if it is empty.
func (f *fixture) file(name, content string) backup.Entry {
	e := entry(name, backup.File)
	e.Size = int64(len(content))
	if content != "" {
		e.Content.Refs = []backup.Ref{f.chunk([]byte(content), 0)}
	}
	return e
}

func symlink(name, target string) backup.Entry {
	e := entry(name, backup.Symlink)
	e.Target = target
	return e
}

func subdirectory(name string) backup.Entry {
	return backup.Entry{Name: name, Kind: backup.Directory, Inode: 8}
}

// directory adds the only page of a directory.
func (f *fixture) directory(path string, entries ...backup.Entry) {
	f.t.Helper()
	self := entry("", backup.Directory)
	self.Mode = 0o755
	f.page(backup.Page{Path: path, Self: &self, Entries: entries})
}

// pagesOf adds a directory of several pages, and returns their keys.
func (f *fixture) pagesOf(path string, pages ...[]backup.Entry) []backup.PageKey {
	f.t.Helper()
	self := entry("", backup.Directory)
	self.Mode = 0o755
	keys := make([]backup.PageKey, len(pages)+1)
	for i := 1; i < len(pages); i++ {
		keys[i] = listing.Key(pages[i][0].Name)
	}
	for i, entries := range pages {
		p := backup.Page{Path: path, Key: keys[i], Next: keys[i+1], Entries: entries}
		if i == 0 {
			p.Self = &self
		}
		f.page(p)
	}
	return keys[:len(pages)]
}

// drop removes the row of a page.
func (f *fixture) drop(path string, key backup.PageKey) {
	f.t.Helper()
	before := len(f.pages)
	f.pages = slices.DeleteFunc(f.pages, func(v backup.PageVersion) bool { return v.Path == path && v.Key == key })
	if len(f.pages) != before-1 {
		f.t.Fatalf("no page %d of %q", key, path)
	}
}

// pageSet is the page set with which a snapshot of the current pages is committed.
func (f *fixture) pageSet() (s backup.PageSet) {
	for i := range f.pages {
		s.Add(listing.Digest(&f.pages[i]))
	}
	return s
}

func (f *fixture) page(p backup.Page) {
	f.t.Helper()
	listing.Sort(p.Entries)
	data, err := listing.Encode(nil, &p)
	check(f.t, err)
	f.pages = append(f.pages, backup.PageVersion{Path: p.Path, Key: p.Key, Listing: data})
}

// Pages, LocateReadable and LocateReadableCopies implement Catalog.
func (f *fixture) Pages(_ context.Context, _ backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		slices.SortStableFunc(f.pages, func(a, b backup.PageVersion) int {
			return cmp.Or(bytes.Compare(backup.PathKey(a.Path), backup.PathKey(b.Path)), cmp.Compare(a.Key, b.Key))
		})
		for _, p := range f.pages {
			if path != "" && p.Path != path && !strings.HasPrefix(p.Path, path+"/") {
				continue
			}
			if !yield(p, nil) {
				return
			}
		}
	}
}

func (f *fixture) LocateReadable(_ context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	found := make([]index.Location, len(ids))
	for i, id := range ids {
		found[i] = f.at[id]
	}
	return found, nil
}

func (f *fixture) LocateReadableCopies(_ context.Context, ids []backup.ChunkID) ([][]index.Location, error) {
	found := make([][]index.Location, len(ids))
	for i, id := range ids {
		if at, ok := f.at[id]; ok {
			found[i] = append([]index.Location{at}, f.copies[id]...)
		}
	}
	return found, nil
}

func (f *fixture) deps() Deps {
	return Deps{Catalog: f, Store: f.store, Repository: f.repository, Opener: f.opener, HashKey: f.key}
}

// restore runs Restore and fails the test on an error.
func (f *fixture) restore(o Options) (Summary, *observer) {
	f.t.Helper()
	sum, obs, err := f.tryRestore(context.Background(), o)
	check(f.t, err)
	return sum, obs
}

func (f *fixture) tryRestore(ctx context.Context, o Options) (Summary, *observer, error) {
	f.t.Helper()
	f.newPack()
	obs := &observer{}
	o.Snapshot = f.snapshot
	sum, err := Restore(ctx, f.deps(), o, obs)
	return sum, obs, err
}

// An observer records the events of a restore.
type observer struct {
	mu       sync.Mutex
	problems []backup.Problem
	changes  []Change
	onChange func(Change)
}

func (o *observer) Progress(Progress) {}

func (o *observer) Change(c Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes = append(o.changes, c)
	if o.onChange != nil {
		o.onChange(c)
	}
}

func (o *observer) Problem(p backup.Problem) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problems = append(o.problems, p)
}

// wantProblems checks the paths of the problems.
func (o *observer) wantProblems(t *testing.T, paths ...string) {
	t.Helper()
	var got []string
	for _, p := range o.problems {
		got = append(got, p.Path)
	}
	slices.Sort(got)
	slices.Sort(paths)
	if !slices.Equal(got, paths) {
		t.Errorf("problems at %q, want %q: %v", got, paths, o.problems)
	}
}

// wantText checks that a problem at the path contains text.
func (o *observer) wantText(t *testing.T, path, text string) {
	t.Helper()
	for _, p := range o.problems {
		if p.Path == path && strings.Contains(p.Op+": "+p.Err, text) {
			return
		}
	}
	t.Errorf("no problem at %q says %q: %v", path, text, o.problems)
}

// actions returns "action path" of each change, sorted.
func (o *observer) actions() []string {
	var got []string
	for _, c := range o.changes {
		got = append(got, string(c.Action)+" "+c.Path)
	}
	slices.Sort(got)
	return got
}

func wantFile(t *testing.T, path, content string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != content {
		t.Errorf("%s holds %.100q, want %.100q (%v)", path, got, content, err)
	}
}

func wantNothing(t *testing.T, path string) {
	t.Helper()
	if info, err := os.Lstat(path); err == nil {
		t.Errorf("%s is there: %v", path, info.Mode())
	}
}

// wantNames checks the names in a directory.
func wantNames(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("%s holds %q, want %q", dir, got, names)
	}
}

func write(t *testing.T, path, content string, mtime backup.Time) {
	t.Helper()
	check(t, os.WriteFile(path, []byte(content), 0o644))
	check(t, os.Chtimes(path, time.Time{}, mtime.Time()))
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st
}

// A countingStore counts the ranges that are read.
type countingStore struct {
	store.Store
	ranges atomic.Int64
}

func (s *countingStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	s.ranges.Add(1)
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// patterns returns the Selector for the patterns of --include and --exclude.
func patterns(t *testing.T, patterns ...string) Selector {
	t.Helper()
	m, err := selection.Compile(backup.Selection{Exclude: patterns})
	check(t, err)
	return m
}
