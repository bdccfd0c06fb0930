package mount

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A fixture is a catalog with one snapshot, and a store that can be away.
type fixture struct {
	store.Store
	t        *testing.T
	snapshot backup.Snapshot
	rows     []backup.PageVersion
	at       map[backup.ChunkID]index.Location
	options  Options
	hasher   *chunk.Hasher
	pack     *pack.Writer
	packID   backup.PackID

	away, forgotten atomic.Bool
	asked           atomic.Int64 // ranges of packs
	root            string       // of the snapshot in the mount
}

func newFixture(t *testing.T) *fixture {
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
		Store: s, t: t, at: map[backup.ChunkID]index.Location{}, hasher: chunk.NewHasher([32]byte(key)), packID: backup.NewPackID(),
		snapshot: backup.Snapshot{ID: backup.NewSnapshotID(), State: backup.Committed, Started: time.Unix(1_700_000_000, 0)},
	}
	f.options = Options{
		Catalog: f, Store: f, Repository: backup.NewRepositoryID(), Opener: opener, HashKey: key, Patience: time.Hour, Log: slog.New(slog.DiscardHandler),
	}
	f.pack, err = pack.NewWriter(pack.KindData, f.options.Repository, f.packID, sealer, nil)
	check(t, err)
	return f
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file returns a file with a content, which is one chunk.
func (f *fixture) file(name, content string) backup.Entry {
	f.t.Helper()
	e := backup.Entry{Name: name, Kind: backup.File, Mode: 0o644, Nlink: 1, Size: int64(len(content)), Mtime: backup.Time{Sec: 1_600_000_000}}
	if content == "" {
		return e
	}
	hash := f.hasher.Sum([]byte(content))
	if _, ok := f.at[hash.ID()]; !ok {
		frame, err := f.pack.Add(pack.Frame{RawLength: len(content), Body: []byte(content), Chunks: []pack.Chunk{{Hash: hash, Length: uint32(len(content))}}})
		check(f.t, err)
		f.at[hash.ID()] = index.Location{
			PackPlace: index.PackPlace{Pack: f.packID, Snapshot: f.snapshot.ID, Object: f.packID}, Frame: frame, Length: uint32(len(content)),
		}
	}
	e.Content.Refs = []backup.Ref{{Chunk: hash.ID(), Length: e.Size, Span: e.Size}}
	return e
}

// frame returns files whose names are their contents, which share a frame.
func (f *fixture) frame(contents ...string) (files []backup.Entry) {
	f.t.Helper()
	all := strings.Join(contents, "")
	fr := pack.Frame{RawLength: len(all), Body: []byte(all)}
	start := uint32(0)
	for _, c := range contents {
		fr.Chunks = append(fr.Chunks, pack.Chunk{Hash: f.hasher.Sum([]byte(c)), Offset: start, Length: uint32(len(c))})
		start += uint32(len(c))
	}
	n, err := f.pack.Add(fr)
	check(f.t, err)
	for i, c := range fr.Chunks {
		f.at[c.Hash.ID()] = index.Location{
			PackPlace: index.PackPlace{Pack: f.packID, Snapshot: f.snapshot.ID, Object: f.packID}, Frame: n, Start: c.Offset, Length: c.Length,
		}
		files = append(files, f.file(contents[i], contents[i]))
	}
	return files
}

// directory adds a directory, with as many pages as it needs.
func (f *fixture) directory(path string, entries ...backup.Entry) {
	f.t.Helper()
	listing.Sort(entries)
	p := backup.Page{Path: path, Self: &backup.Entry{Kind: backup.Directory, Mode: 0o755, Nlink: 2}}
	for {
		n := listing.Cut(entries, false)
		p.Entries, entries = entries[:n], entries[n:]
		if len(entries) > 0 {
			p.Next = listing.Key(entries[0].Name)
		}
		data, err := listing.Encode(nil, &p)
		check(f.t, err)
		f.rows = append(f.rows, backup.PageVersion{Path: path, Key: p.Key, Listing: data})
		if len(entries) == 0 {
			return
		}
		p = backup.Page{Path: path, Key: p.Next}
	}
}

func (f *fixture) Pages(_ context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		if id != f.snapshot.ID || f.forgotten.Load() {
			yield(backup.PageVersion{}, backup.ErrNotFound)
			return
		}
		for _, v := range f.rows {
			if (v.Path == path || backup.IsBelow(v.Path, path)) && !yield(v, nil) {
				return
			}
		}
	}
}

func (f *fixture) Snapshots(context.Context, index.SnapshotFilter) ([]backup.Snapshot, error) {
	return []backup.Snapshot{f.snapshot}, nil
}

func (f *fixture) ListShards(context.Context, index.ShardFilter) ([]index.ShardStatus, error) {
	return []index.ShardStatus{{Shard: backup.Shard{Name: "/home"}, Filer: backup.Filer{Name: "nas1"}, LastGood: f.snapshot.ID}}, nil
}

func (f *fixture) LocateReadable(_ context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	found := make([]index.Location, len(ids))
	for i, id := range ids {
		found[i] = f.at[id]
	}
	return found, nil
}

func (f *fixture) LocateReadableCopies(_ context.Context, ids []backup.ChunkID) ([][]index.Location, error) {
	return make([][]index.Location, len(ids)), nil
}

// GetRange implements store.Store.
func (f *fixture) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	f.asked.Add(1)
	if f.away.Load() {
		return dst, fmt.Errorf("the store is away: %w", backup.ErrUnavailable)
	}
	return f.Store.GetRange(ctx, dst, name, offset, length)
}

// mount stores the pack, and mounts the snapshot until the test ends. change may change the file
// system before.
func (f *fixture) mount(change func(*fileSystem)) *fileSystem {
	t := f.t
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this test needs FUSE: %v", err)
	}
	check(t, device.Close())
	slices.SortStableFunc(f.rows, func(a, b backup.PageVersion) int {
		return cmp.Or(bytes.Compare(backup.PathKey(a.Path), backup.PathKey(b.Path)), cmp.Compare(a.Key, b.Key))
	})
	if f.pack.Chunks() > 0 {
		data, err := f.pack.Finish()
		check(t, err)
		check(t, f.Put(context.Background(), store.PackName(f.snapshot.ID, f.packID), data))
		for id, at := range f.at {
			at.Bytes = int64(len(data))
			f.at[id] = at
		}
	}
	at, err := os.MkdirTemp("", "bctl-mount-") // t.TempDir's removal would enter a mount that is left
	check(t, err)
	f.options.Mountpoint = at
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan *fileSystem), make(chan error, 1)
	go func() {
		ended <- run(ctx, f.options, func(fs *fileSystem) error { ready <- fs; return nil }, change)
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, os.Remove(at)); err != nil && !t.Skipped() {
			t.Error(err)
		}
	})
	f.root = filepath.Join(at, filersName, "nas1", "home", latestName)
	select {
	case fs := <-ready:
		return fs
	case err := <-ended:
		ended <- nil
		if errors.Is(err, syscall.EPERM) {
			t.Skipf("this test needs the right to mount: %v", err)
		}
		t.Fatal(err)
		return nil
	}
}

// A read waits for a store that is away, and several readers of a file read it once.
func TestStoreIsAway(t *testing.T) {
	f := newFixture(t)
	content := strings.Repeat("content ", 10_000)
	f.directory("", f.file("a", content))
	f.mount(nil)
	f.away.Store(true)
	const readers = 5
	read := make(chan error, readers)
	for range readers {
		go func() {
			data, err := os.ReadFile(filepath.Join(f.root, "a"))
			if err == nil && string(data) != content {
				err = errors.New("the content differs")
			}
			read <- err
		}()
	}
	for f.asked.Load() == 0 {
		select {
		case err := <-read:
			t.Fatalf("a read did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case err := <-read:
		t.Fatalf("a read did not wait: %v", err)
	default:
	}
	f.away.Store(false)
	for range readers {
		check(t, <-read)
	}
}

// A directory of any number of pages is listed, and its files are found. The kernel is asked to
// forget files beyond a number.
func TestLargeDirectory(t *testing.T) {
	const files = 40_000
	f := newFixture(t)
	var entries []backup.Entry
	for i := range files {
		e := backup.Entry{Name: fmt.Sprintf("file%06d", i), Kind: backup.File, Mode: 0o600, Nlink: 1, Inode: uint64(i + 10)}
		entries = append(entries, e)
	}
	f.directory("", backup.Entry{Name: "large", Kind: backup.Directory})
	f.directory("large", entries...)
	if len(f.rows) < 2*aheadPages {
		t.Fatalf("only %d pages", len(f.rows))
	}
	const most = 1000
	fs := f.mount(func(fs *fileSystem) { fs.nodes.max = most })
	dir := filepath.Join(f.root, "large")
	for range 2 {
		list, err := os.ReadDir(dir)
		check(t, err)
		if len(list) != files || list[0].Name() != "file000000" || list[files-1].Name() != fmt.Sprintf("file%06d", files-1) {
			t.Fatalf("%d files", len(list))
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "file012345")); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "other")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	known := func() int {
		fs.nodes.mu.Lock()
		defer fs.nodes.mu.Unlock()
		return fs.nodes.files.Len()
	}
	for deadline := time.After(time.Minute); known() > most; {
		select {
		case <-deadline:
			t.Fatalf("the kernel knows %d files", known())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// The small files that follow in a directory are read with one, so that the store is asked less
// often than there are files.
func TestFilesAreReadAhead(t *testing.T) {
	const files = 200
	f := newFixture(t)
	var entries []backup.Entry
	for i := range files {
		entries = append(entries, f.file(fmt.Sprintf("file%03d", i), fmt.Sprintf("content %d", i)))
	}
	f.directory("", entries...)
	f.mount(nil)
	list, err := os.ReadDir(f.root)
	check(t, err)
	for i, e := range list {
		data, err := os.ReadFile(filepath.Join(f.root, e.Name()))
		if check(t, err); string(data) != fmt.Sprintf("content %d", i) {
			t.Errorf("%s: %q", e.Name(), data)
		}
	}
	if n := f.asked.Load(); n > files/10 {
		t.Errorf("the store was asked %d times for %d files", n, files)
	}
}

// Files of several directories that share a frame cost one request of the store. With the second
// file of a frame, the next frame is read ahead.
func TestFramesAreSharedAndReadAhead(t *testing.T) {
	f := newFixture(t)
	f.directory("", backup.Entry{Name: "dir", Kind: backup.Directory}, backup.Entry{Name: "other", Kind: backup.Directory})
	first, second := f.frame("one", "two", "three"), f.frame("four", "five")
	f.directory("dir", first[0], second[1])
	f.directory("other", first[1], first[2], second[0])
	fs := f.mount(nil)
	read := func(path, want string) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(f.root, path))
		if check(t, err); string(data) != want {
			t.Errorf("%s: %q", path, data)
		}
	}
	read("dir/one", "one")
	opened := f.asked.Load()
	if fs.chunks.has(second[0].Content.Refs[0].Chunk) {
		t.Error("one file was read, and the next frame was read ahead")
	}
	read("other/two", "two")
	if !fs.chunks.has(second[0].Content.Refs[0].Chunk) {
		t.Error("the next frame was not read ahead")
	}
	read("other/three", "three")
	read("other/four", "four")
	read("dir/five", "five")
	if n := f.asked.Load() - opened; n != 1 {
		t.Errorf("%d requests for the second frame", n)
	}
}

// The frames in memory are bounded. A chunk whose frame was dropped is fetched again.
func TestFramesAreDropped(t *testing.T) {
	const frames, bytes = 6, 4 << 20
	f := newFixture(t)
	var entries []backup.Entry
	for i := range frames {
		entries = append(entries, f.file(fmt.Sprint(i), strings.Repeat(fmt.Sprint(i), bytes)))
	}
	f.directory("", entries...)
	fs := f.mount(nil)
	for i := range 2 * frames {
		ref := entries[i%frames].Content.Refs[0]
		data, err := fs.chunks.get([]backup.Ref{ref})[0].wait(t.Context())
		if check(t, err); len(data) != bytes || string(data[:1]) != fmt.Sprint(i%frames) {
			t.Errorf("%d: %d bytes", i, len(data))
		}
	}
	fs.chunks.mu.Lock()
	defer fs.chunks.mu.Unlock()
	if fs.chunks.bytes > maxChunkBytes || len(fs.chunks.known) != maxChunkBytes/bytes || fs.chunks.pending != 0 {
		t.Errorf("%d bytes of %d chunks, %d pending", fs.chunks.bytes, len(fs.chunks.known), fs.chunks.pending)
	}
}

// Nothing is fetched after the end of a mount.
func TestNothingIsFetchedAfterTheEnd(t *testing.T) {
	f := newFixture(t)
	e := f.file("a", "content")
	f.directory("", e)
	fs := f.mount(nil)
	fs.chunks.end()
	asked := f.asked.Load()
	if _, err := fs.chunks.get(e.Content.Refs)[0].wait(t.Context()); !errors.Is(err, context.Canceled) || f.asked.Load() != asked {
		t.Errorf("%v, %d requests", err, f.asked.Load()-asked)
	}
}

// A request ends when the mount does, and a while after it was interrupted.
func TestRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		f := &fileSystem{ctx: ctx}
		interrupted := make(chan struct{})
		r, stop := f.request(interrupted)
		defer stop()
		other, stopOther := f.request(nil)
		defer stopOther()
		close(interrupted)
		began := time.Now()
		<-r.Done()
		if d := time.Since(began); d != grace || !errors.Is(r.Err(), context.Canceled) {
			t.Errorf("%v after %v", r.Err(), d)
		}
		if other.Err() != nil {
			t.Error(other.Err())
		}
		end()
		<-other.Done()
		if !errors.Is(other.Err(), context.Canceled) || !errors.Is(context.Cause(other), context.Canceled) {
			t.Error(other.Err())
		}
	})
}

// What the index lacks is an error, after what it has. A snapshot that was forgotten is stale.
func TestMissingPages(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("a", ""), backup.Entry{Name: "gone", Kind: backup.Directory}, backup.Entry{Name: "dir", Kind: backup.Directory})
	f.directory("dir", f.file("b", ""))
	f.mount(nil)
	if list, err := os.ReadDir(f.root); err != nil || len(list) != 3 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := os.ReadDir(filepath.Join(f.root, "gone")); !errors.Is(err, syscall.EIO) {
		t.Errorf("a directory without pages: %v", err)
	}
	f.forgotten.Store(true)
	if _, err := os.ReadDir(filepath.Join(f.root, "other")); !errors.Is(err, syscall.ESTALE) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a forgotten snapshot: %v", err)
	}
}

func TestEscape(t *testing.T) {
	seen := map[string]string{}
	for name, want := range map[string]string{
		"/": ".%2F%2F", "/home": "home", "/export/home": "export%2Fhome", "home": ".%2Fhome", "a/b": ".%2Fa%2Fb", "/50%": "50%25", ".": ".%2F.", "..": ".%2F..",
	} {
		got := ShardDir(name)
		if strings.ContainsAny(got, "/\x00") || got == "." || got == ".." || got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q are both %q", name, other, got)
		}
		seen[got] = name
	}
}

func TestDeviceNumbers(t *testing.T) {
	for _, rdev64 := range []uint64{0, 1<<8 | 3, 259<<8 | 65537&0xff | 65537&^0xff<<12} {
		e := backup.Entry{Kind: backup.CharDev, Rdev: rdev64}
		if got := rdev(&e); uint64(got) != rdev64 {
			t.Errorf("%#x: %#x", rdev64, got)
		}
	}
	var out fuse.Attr
	(&view{}).fill(&out, &backup.Entry{Kind: backup.Symlink, Target: "abc"}, 5)
	if out.Size != 3 || out.Mode&syscall.S_IFMT != syscall.S_IFLNK {
		t.Errorf("%+v", out)
	}
}
